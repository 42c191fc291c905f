#include <prologue/kernels/qkv_prologue/qkv_vector_instances.cuh>

namespace prologue::cuda {

std::span<const QkvVectorInstance> bfloat16_qkv_vector_instances() { return qkv_vector_table<__nv_bfloat16>(); }

}  // namespace prologue::cuda
