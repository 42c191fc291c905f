#include <prologue/kernels/projection/unpacking/instances.cuh>

namespace prologue::cuda {

std::span<const UnpackingOutputInstance> bfloat16_unpacking_outputs() { return unpacking_outputs<__nv_bfloat16>(); }

}  // namespace prologue::cuda
