#include <prologue/kernels/projection/tiles/instances.cuh>

namespace prologue::cuda {

std::span<const TilesOutputInstance> float16_tiles_outputs() { return tiles_outputs<__half>(); }
std::span<const TilesHeadInstance> float16_tiles_heads() { return tiles_heads<__half>(); }

}  // namespace prologue::cuda
