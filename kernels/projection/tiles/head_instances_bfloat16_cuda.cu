#include <prologue/kernels/projection/tiles/head_instances.cuh>

namespace prologue::cuda {

std::span<const QkvGemmInstance> bfloat16_qkv_gemm_instances() { return qkv_gemm_table<__nv_bfloat16>(); }

}  // namespace prologue::cuda
