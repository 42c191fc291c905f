#include <prologue/kernels/projection/ring/head_instances.cuh>

namespace prologue::cuda {

std::span<const QkvRingInstance> bfloat16_qkv_ring_instances() { return qkv_ring_table<__nv_bfloat16>(); }

}  // namespace prologue::cuda
