#include <prologue/kernels/paged_attention/prefill/instances.cuh>

namespace prologue::cuda {

namespace {

constexpr PrefillCache kCodes = PrefillCache::codes;

}  // namespace

// The larger tile of a head_dim comes first: it is taken where a block may have the shared memory for it, and where there are rows enough.
std::span<const PrefillInstance> prefill_mma_instances() {
  static constexpr PrefillInstance kInstances[] = {
      mma_instance<__nv_bfloat16, 64, PrefillCache::dtype, 64, 2>(DType::bf16),
      mma_instance<__nv_bfloat16, 64>(DType::bf16),
      mma_instance<__nv_bfloat16, 96>(DType::bf16),
      mma_instance<__nv_bfloat16, 128, PrefillCache::dtype, 64, 2>(DType::bf16),
      mma_instance<__nv_bfloat16, 128>(DType::bf16),
      mma_instance<__nv_bfloat16, 192>(DType::bf16),
      mma_instance<__nv_bfloat16, 256>(DType::bf16),
      mma_instance<__nv_bfloat16, 256, PrefillCache::dtype, 48>(DType::bf16),
      mma_instance<__half, 64, PrefillCache::dtype, 64, 2>(DType::f16),
      mma_instance<__half, 64>(DType::f16),
      mma_instance<__half, 96>(DType::f16),
      mma_instance<__half, 128, PrefillCache::dtype, 64, 2>(DType::f16),
      mma_instance<__half, 128>(DType::f16),
      mma_instance<__half, 192>(DType::f16),
      mma_instance<__half, 256>(DType::f16),
      mma_instance<__half, 256, PrefillCache::dtype, 48>(DType::f16),
      mma_instance<__nv_bfloat16, 64, kCodes>(DType::bf16),
      mma_instance<__nv_bfloat16, 128, kCodes>(DType::bf16),
      mma_instance<__nv_bfloat16, 256, kCodes>(DType::bf16),
      mma_instance<__nv_bfloat16, 256, kCodes, 48>(DType::bf16),
      mma_instance<__half, 64, kCodes>(DType::f16),
      mma_instance<__half, 128, kCodes>(DType::f16),
      mma_instance<__half, 256, kCodes>(DType::f16),
      mma_instance<__half, 256, kCodes, 48>(DType::f16),
  };
  return kInstances;
}

std::span<const PrefillInstance> prefill_simple_instances() {
  static constexpr PrefillInstance kInstances[] = {simple_instance<64>(),  simple_instance<128>(),
                                                   simple_instance<256>(), simple_instance<256, true>(),
                                                   simple_instance<576>(), simple_instance<576, true>()};
  return kInstances;
}

}  // namespace prologue::cuda
