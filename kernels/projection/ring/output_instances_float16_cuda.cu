#include <prologue/kernels/projection/ring/output_instances.cuh>

namespace prologue::cuda {

std::span<const RingInstance> float16_ring_instances() { return ring_instances<__half>(); }

}  // namespace prologue::cuda
