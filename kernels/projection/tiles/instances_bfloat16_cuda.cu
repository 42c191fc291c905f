#include <prologue/kernels/projection/tiles/instances.cuh>

namespace prologue::cuda {

std::span<const TilesOutputInstance> bfloat16_tiles_outputs() { return tiles_outputs<__nv_bfloat16>(); }
std::span<const TilesHeadInstance> bfloat16_tiles_heads() { return tiles_heads<__nv_bfloat16>(); }

}  // namespace prologue::cuda
