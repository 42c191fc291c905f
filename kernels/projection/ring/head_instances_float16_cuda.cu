#include <prologue/kernels/projection/ring/head_instances.cuh>

namespace prologue::cuda {

std::span<const QkvRingInstance> float16_qkv_ring_instances() { return qkv_ring_table<__half>(); }

}  // namespace prologue::cuda
