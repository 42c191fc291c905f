#include <prologue/kernels/paged_attention/attention_instances.cuh>
#include <prologue/kernels/paged_attention/prefill_kernel.cuh>

namespace prologue::cuda {

namespace {

template <class T, int kHeadDim, bool kQuantized = false, int kMaxKeys = 64>
constexpr PrefillInstance mma_instance(DType dtype) {
  using Tile = MmaTile<T, kHeadDim, kQuantized, kMaxKeys>;
  return {dtype,       kQuantized,     kHeadDim,     Tile::kRows,
          Tile::kKeys, Tile::kThreads, sizeof(Tile), prefill_mma_kernel<T, kHeadDim, kQuantized, kMaxKeys>};
}

template <int kHeadDim, bool kSmall = false>
constexpr PrefillInstance simple_instance() {
  using Tile = SimpleTile<kHeadDim, kSmall>;
  return {DType::f32,  false,          kHeadDim,     Tile::kRows,
          Tile::kKeys, Tile::kThreads, sizeof(Tile), prefill_simple_kernel<kHeadDim, kSmall>};
}

}  // namespace

// Of one head_dim the larger tile comes first: it is taken where a block may have the shared memory for it.
std::span<const PrefillInstance> prefill_mma_instances() {
  static constexpr PrefillInstance kInstances[] = {
      mma_instance<__nv_bfloat16, 64>(DType::bf16),
      mma_instance<__nv_bfloat16, 96>(DType::bf16),
      mma_instance<__nv_bfloat16, 128>(DType::bf16),
      mma_instance<__nv_bfloat16, 192>(DType::bf16),
      mma_instance<__nv_bfloat16, 256>(DType::bf16),
      mma_instance<__nv_bfloat16, 256, false, 48>(DType::bf16),
      mma_instance<__half, 64>(DType::f16),
      mma_instance<__half, 96>(DType::f16),
      mma_instance<__half, 128>(DType::f16),
      mma_instance<__half, 192>(DType::f16),
      mma_instance<__half, 256>(DType::f16),
      mma_instance<__half, 256, false, 48>(DType::f16),
      mma_instance<__nv_bfloat16, 64, true>(DType::bf16),
      mma_instance<__nv_bfloat16, 128, true>(DType::bf16),
      mma_instance<__nv_bfloat16, 256, true>(DType::bf16),
      mma_instance<__nv_bfloat16, 256, true, 48>(DType::bf16),
      mma_instance<__half, 64, true>(DType::f16),
      mma_instance<__half, 128, true>(DType::f16),
      mma_instance<__half, 256, true>(DType::f16),
      mma_instance<__half, 256, true, 48>(DType::f16),
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
