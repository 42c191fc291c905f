#include <prologue/kernels/projection/vector/head_instances.cuh>

namespace prologue::cuda {

std::span<const QkvVectorInstance> float16_qkv_vector_instances() { return qkv_vector_table<__half>(); }

}  // namespace prologue::cuda
