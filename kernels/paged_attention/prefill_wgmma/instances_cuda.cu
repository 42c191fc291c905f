#include <prologue/kernels/paged_attention/prefill_wgmma/instances.cuh>

namespace prologue::cuda {

// The table is sorted by head_dim.
std::span<const PrefillWgmmaInstance> prefill_wgmma_instances() {
  static constexpr PrefillWgmmaInstance kInstances[] = {
      wgmma_instance<__nv_bfloat16, 64>(DType::bf16),  wgmma_instance<__half, 64>(DType::f16),
      wgmma_instance<__nv_bfloat16, 128>(DType::bf16), wgmma_instance<__half, 128>(DType::f16),
      wgmma_instance<__nv_bfloat16, 256>(DType::bf16), wgmma_instance<__half, 256>(DType::f16),
  };
  return kInstances;
}

}  // namespace prologue::cuda
