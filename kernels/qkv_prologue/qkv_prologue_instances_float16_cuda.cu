#include <prologue/kernels/qkv_prologue/qkv_prologue_instances.cuh>

namespace prologue::cuda {

std::span<const ProjectionInstance> float16_projections() { return projections_of<__half>(); }

}  // namespace prologue::cuda
