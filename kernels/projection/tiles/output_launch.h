// The kernel of projection for prompts (tiles/output_kernel.cuh): which calls it can do, and its launch. Internal, for CUDA.
#pragma once

#include <string>

#include <prologue/kernels/projection/projection.h>
#include <prologue/kernels/projection/tiles/product.cuh>
#include <prologue/kernels/projection/finish/output.cuh>

namespace prologue::cuda {

inline constexpr int kGatedColumns = 256;  // of a tile: those of gate, then those of up

struct TilesLaunch {
  void (*kernel)(GemmTiles, OutputArgs) = nullptr;  // null: it is not possible
  GemmTiles args;
  int64_t blocks = 0;
  int64_t shared_bytes = 0;
};

std::string tiles_instance_name(DType dtype);
// Calls with a gated activation, and neither norm nor bias nor residual.
TilesLaunch tiles_launch_of(const ProjectionParams& params);
// If it is faster than separate operations.
TilesLaunch choose_tiles(const ProjectionParams& params);
Status run(const TilesLaunch& launch, const ProjectionParams& params, cudaStream_t stream);

}  // namespace prologue::cuda
