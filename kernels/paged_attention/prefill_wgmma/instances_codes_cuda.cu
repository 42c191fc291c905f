#include <prologue/kernels/paged_attention/prefill_wgmma/instances.cuh>

namespace prologue::cuda {

// The table is sorted by head_dim.
std::span<const PrefillWgmmaInstance> prefill_wgmma_instances_of_codes() {
  static constexpr PrefillWgmmaInstance kInstances[] = {
      wgmma_instance<__nv_bfloat16, 64, true>(DType::bf16),  wgmma_instance<__half, 64, true>(DType::f16),
      wgmma_instance<__nv_bfloat16, 128, true>(DType::bf16), wgmma_instance<__half, 128, true>(DType::f16),
      wgmma_instance<__nv_bfloat16, 256, true>(DType::bf16), wgmma_instance<__half, 256, true>(DType::f16),
  };
  return kInstances;
}

}  // namespace prologue::cuda
