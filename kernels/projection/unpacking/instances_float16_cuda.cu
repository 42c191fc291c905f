#include <prologue/kernels/projection/unpacking/instances.cuh>

namespace prologue::cuda {

std::span<const UnpackingOutputInstance> float16_unpacking_outputs() { return unpacking_outputs<__half>(); }

}  // namespace prologue::cuda
