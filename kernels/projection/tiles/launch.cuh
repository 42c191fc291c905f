// The instances of this way, for its launches. Host code for .cu files.
#pragma once

#include <span>

#include <prologue/kernels/projection/tiles/head_kernel.cuh>
#include <prologue/kernels/projection/tiles/output_kernel.cuh>

namespace prologue::cuda {

struct TilesOutputInstance {
  int columns;  // of a tile
  int shared_bytes;
  EncodeWeights encode;
  void (*kernel)(TilesArgs, OutputArgs);
};

struct TilesHeadInstance {
  int columns;        // of a tile
  int features;       // of prologue_args.h
  int heads_at_once;  // of one tensor, unless tiles have parts
  int shared_bytes;
  EncodeWeights encode;
  void (*kernel)(TilesHeadArgs, MoreArgs);
};

// Each table is in the order in which instances are chosen (tiles/instances.cuh).
std::span<const TilesOutputInstance> float16_tiles_outputs();
std::span<const TilesOutputInstance> bfloat16_tiles_outputs();
std::span<const TilesHeadInstance> float16_tiles_heads();
std::span<const TilesHeadInstance> bfloat16_tiles_heads();

}  // namespace prologue::cuda
