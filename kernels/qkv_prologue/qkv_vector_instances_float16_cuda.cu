#include <prologue/kernels/qkv_prologue/qkv_vector_instances.cuh>

namespace prologue::cuda {

std::span<const QkvVectorInstance> float16_qkv_vector_instances() { return qkv_vector_table<__half>(); }

}  // namespace prologue::cuda
