#include <prologue/kernels/qkv_prologue/qkv_prologue_instances.cuh>

namespace prologue::cuda {

std::span<const ProjectionInstance> bfloat16_projections() { return projections_of<__nv_bfloat16>(); }

}  // namespace prologue::cuda
