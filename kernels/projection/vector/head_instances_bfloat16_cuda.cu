#include <prologue/kernels/projection/vector/head_instances.cuh>

namespace prologue::cuda {

std::span<const QkvVectorInstance> bfloat16_qkv_vector_instances() { return qkv_vector_table<__nv_bfloat16>(); }

}  // namespace prologue::cuda
