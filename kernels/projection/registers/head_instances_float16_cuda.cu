#include <prologue/kernels/projection/registers/head_instances.cuh>

namespace prologue::cuda {

std::span<const QkvInstance> float16_qkv_instances() { return qkv_instances_of<__half>(); }

}  // namespace prologue::cuda
