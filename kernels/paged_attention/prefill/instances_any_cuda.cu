#include <prologue/kernels/paged_attention/prefill/instances.cuh>

namespace prologue::cuda {

namespace {

constexpr PrefillCache kAnyFormats = PrefillCache::any_formats, kAnyBlocks = PrefillCache::any_blocks;

}  // namespace

// These read K and V in formats of their own, and zero points. Tiles that fit every GPU, and no more sizes than needed.
std::span<const PrefillInstance> prefill_mma_instances_of_any_formats() {
  static constexpr PrefillInstance kInstances[] = {
      mma_instance<__nv_bfloat16, 64, kAnyFormats>(DType::bf16),
      mma_instance<__nv_bfloat16, 128, kAnyFormats>(DType::bf16),
      mma_instance<__nv_bfloat16, 256, kAnyFormats, 48>(DType::bf16),
      mma_instance<__half, 64, kAnyFormats>(DType::f16),
      mma_instance<__half, 128, kAnyFormats>(DType::f16),
      mma_instance<__half, 256, kAnyFormats, 48>(DType::f16),
  };
  return kInstances;
}

std::span<const PrefillInstance> prefill_simple_instances_of_any_formats() {
  static constexpr PrefillInstance kInstances[] = {simple_instance<128, false, kAnyFormats>(),
                                                   simple_instance<256, true, kAnyFormats>(),
                                                   simple_instance<576, true, kAnyFormats>()};
  return kInstances;
}

std::span<const PrefillInstance> prefill_simple_instances_of_blocks() {
  static constexpr PrefillInstance kInstances[] = {simple_instance<128, false, kAnyBlocks>(),
                                                   simple_instance<256, true, kAnyBlocks>(),
                                                   simple_instance<576, true, kAnyBlocks>()};
  return kInstances;
}

}  // namespace prologue::cuda
