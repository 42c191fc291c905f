#include <prologue/kernels/projection/ring/output_instances.cuh>

namespace prologue::cuda {

std::span<const RingInstance> bfloat16_ring_instances() { return ring_instances<__nv_bfloat16>(); }

}  // namespace prologue::cuda
