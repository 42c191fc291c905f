#include <prologue/kernels/projection/ring/instances.cuh>

namespace prologue::cuda {

std::span<const RingOutputInstance> float16_ring_outputs() { return ring_outputs<__half>(); }
std::span<const RingHeadInstance> float16_ring_heads() { return ring_heads<__half>(); }

}  // namespace prologue::cuda
