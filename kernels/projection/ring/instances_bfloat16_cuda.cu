#include <prologue/kernels/projection/ring/instances.cuh>

namespace prologue::cuda {

std::span<const RingOutputInstance> bfloat16_ring_outputs() { return ring_outputs<__nv_bfloat16>(); }
std::span<const RingHeadInstance> bfloat16_ring_heads() { return ring_heads<__nv_bfloat16>(); }

}  // namespace prologue::cuda
