#include <prologue/kernels/projection/tiles/head_instances.cuh>

namespace prologue::cuda {

std::span<const QkvGemmInstance> float16_qkv_gemm_instances() { return qkv_gemm_table<__half>(); }

}  // namespace prologue::cuda
