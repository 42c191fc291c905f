#include <prologue/kernels/paged_attention/attention_instances.cuh>
#include <prologue/kernels/paged_attention/prefill_kernel.cuh>

namespace prologue::cuda {

namespace {

template <class T, int kHeadDim, bool kQuantized = false>
constexpr PrefillInstance mma_instance(DType dtype) {
  using Tile = MmaTile<T, kHeadDim, kQuantized>;
  return {dtype, kQuantized, kHeadDim, Tile::kRows, Tile::kThreads, sizeof(Tile), prefill_mma_kernel<T, kHeadDim, kQuantized>};
}

template <int kHeadDim>
constexpr PrefillInstance simple_instance() {
  using Tile = SimpleTile<kHeadDim>;
  return {DType::f32, false, kHeadDim, Tile::kRows, Tile::kThreads, sizeof(Tile), prefill_simple_kernel<kHeadDim>};
}

}  // namespace

std::span<const PrefillInstance> prefill_mma_instances() {
  static constexpr PrefillInstance kInstances[] = {
      mma_instance<__nv_bfloat16, 64>(DType::bf16),
      mma_instance<__nv_bfloat16, 96>(DType::bf16),
      mma_instance<__nv_bfloat16, 128>(DType::bf16),
      mma_instance<__nv_bfloat16, 192>(DType::bf16),
      mma_instance<__nv_bfloat16, 256>(DType::bf16),
      mma_instance<__half, 64>(DType::f16),
      mma_instance<__half, 96>(DType::f16),
      mma_instance<__half, 128>(DType::f16),
      mma_instance<__half, 192>(DType::f16),
      mma_instance<__half, 256>(DType::f16),
      mma_instance<__nv_bfloat16, 64, true>(DType::bf16),
      mma_instance<__nv_bfloat16, 128, true>(DType::bf16),
      mma_instance<__nv_bfloat16, 256, true>(DType::bf16),
      mma_instance<__half, 64, true>(DType::f16),
      mma_instance<__half, 128, true>(DType::f16),
      mma_instance<__half, 256, true>(DType::f16),
  };
  return kInstances;
}

std::span<const PrefillInstance> prefill_simple_instances() {
  static constexpr PrefillInstance kInstances[] = {simple_instance<64>(), simple_instance<128>(), simple_instance<256>(),
                                                   simple_instance<576>()};
  return kInstances;
}

}  // namespace prologue::cuda
