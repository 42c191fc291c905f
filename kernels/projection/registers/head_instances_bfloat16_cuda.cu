#include <prologue/kernels/projection/registers/head_instances.cuh>

namespace prologue::cuda {

std::span<const QkvInstance> bfloat16_qkv_instances() { return qkv_instances_of<__nv_bfloat16>(); }

}  // namespace prologue::cuda
