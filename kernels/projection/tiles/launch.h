// Launches of kernels that work on tiles of x W^T (tiles/product.cuh): how many blocks share them out, and whether that is worth it. Host code.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <prologue/kernels/base/device/tensor_map.cuh>
#include <prologue/kernels/projection/tiles/product.cuh>

namespace prologue::cuda {

struct TileSizes {
  int64_t num_tokens;
  int64_t n;  // gated: of each half
  int64_t k;
  bool gated = false;
  int64_t columns_of_weights() const { return gated ? 2 * n : n; }
};

// The blocks of the launch, for tiles of so many columns. 0: too many tiles, or the driver does not take the addresses or strides.
inline int64_t share_out_tiles(GemmTiles& a, const TileSizes& sizes, const void* x, int64_t x_stride, const void* weight,
                               int64_t tile_columns, int64_t multiprocessors) {
  const auto parts = [](int64_t whole, int64_t part) { return (whole + part - 1) / part; };
  a.num_tokens = static_cast<int32_t>(sizes.num_tokens);
  a.gated = sizes.gated ? 1 : 0;
  a.stages_of_k = static_cast<int32_t>(parts(sizes.k, kTileChannels));
  a.pairs = static_cast<int32_t>(parts(sizes.num_tokens, kTileBlocks * kTileTokens));
  a.columns = static_cast<int32_t>(parts(sizes.columns_of_weights(), tile_columns));
  const int64_t tiles = int64_t{a.pairs} * a.columns, clusters = std::min(2 * tiles, multiprocessors / kTileBlocks);
  if (tiles > INT32_MAX / 4) return 0;  // kernels count them in 32 bits
  const int64_t last = tiles % clusters, divided = may_divide_tiles(tile_columns) && 2 * last <= clusters ? last : 0;
  a.whole = static_cast<int32_t>(tiles - divided);
  a.count = static_cast<int32_t>(tiles + divided);
  const int64_t halves = sizes.gated ? 2 : 1;
  const bool encoded =
      encode_map(a.x, x, sizes.k, {{sizes.num_tokens, x_stride, kTileTokens / 2}, {1, x_stride * sizes.num_tokens, 1}}) &&
      encode_map(a.weight, weight, sizes.k, {{sizes.n, sizes.k, tile_box_rows(tile_columns)}, {halves, sizes.n * sizes.k, 1}});
  return encoded ? kTileBlocks * std::min(clusters, int64_t{a.count}) : 0;
}

// What the launch takes, in rounds of tiles of 256 columns on all clusters: measured on an H200, with k of 2048 and 4096.
inline double rounds_of_tiles(const GemmTiles& a, int64_t tile_columns, int64_t multiprocessors) {
  const double stages = a.stages_of_k, rounds = std::ceil(a.whole / static_cast<double>(multiprocessors / kTileBlocks));
  const bool divided = a.count > a.whole;
  if (tile_columns > kColumnsInParts) return rounds + (divided ? 0.82 : 0.0) + 6.4 / stages;
  if (tile_columns == kColumnsInParts) return 0.8 * rounds + 6.4 / stages;
  return 0.53 * rounds + (divided ? 0.36 + 3.0 / stages : 0.0) + 3.0 * (rounds + 1) / stages;
}

// The same for cuBLASLt's GEMM, which seems to have tiles of these sizes, and a kernel that reads and writes its product.
inline double rounds_of_separate_kernels(const TileSizes& sizes, int64_t multiprocessors) {
  const auto tiles = [&](int64_t columns) {
    return std::ceil(static_cast<double>(sizes.num_tokens) / kTileTokens) *
           std::ceil(static_cast<double>(sizes.columns_of_weights()) / static_cast<double>(columns));
  };
  const auto rounds = [&](int64_t columns) { return std::ceil(tiles(columns) / static_cast<double>(multiprocessors)); };
  const double product = std::min({rounds(256), 0.85 * rounds(192), 0.6 * rounds(128) - 0.12, 0.35 * rounds(64)});
  const double whole = tiles(256) / static_cast<double>(multiprocessors);
  return product + (4.9 + 5.3 * whole) * kTileChannels / static_cast<double>(sizes.k);
}

// Calls with fewer tokens, or rows of the weights (70B on eight GPUs), or shorter ones (models below 1B) are faster separately.
inline bool is_large_enough(const TileSizes& sizes) {
  constexpr int64_t kFewestTokens = 256, kFewestChannels = 2048, kFewestColumns = 2048;
  return sizes.num_tokens >= kFewestTokens && sizes.k >= kFewestChannels && sizes.columns_of_weights() >= kFewestColumns;
}

}  // namespace prologue::cuda
