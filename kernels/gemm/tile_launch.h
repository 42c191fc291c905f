// Launches of kernels that work on tiles of x W^T (gemm_tiles.cuh): how many blocks share them out, and whether that is worth it. Host code.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <prologue/kernels/base/device/tensor_map.cuh>
#include <prologue/kernels/gemm/gemm_tiles.cuh>

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
  const int64_t last = tiles % clusters, divided = 2 * last <= clusters ? last : 0;
  a.whole = static_cast<int32_t>(tiles - divided);
  a.count = static_cast<int32_t>(tiles + divided);
  const int64_t halves = sizes.gated ? 2 : 1;
  const bool encoded =
      encode_map(a.x, x, sizes.k, {{sizes.num_tokens, x_stride, kTileTokens / 2}, {1, x_stride * sizes.num_tokens, 1}}) &&
      encode_map(a.weight, weight, sizes.k, {{sizes.n, sizes.k, tile_columns / kTileBlocks}, {halves, sizes.n * sizes.k, 1}});
  return encoded ? kTileBlocks * std::min(clusters, int64_t{a.count}) : 0;
}

// What the launch takes, in rounds of tiles of 256 columns on all clusters: measured on an H200, with k of 2048, 4096 and 8192.
inline double rounds_of_tiles(const GemmTiles& a, int64_t tile_columns, int64_t multiprocessors) {
  const bool wide = tile_columns > 128;
  const double clusters = static_cast<double>(multiprocessors / kTileBlocks), round = wide ? 1.0 : 0.56;
  const double begin_and_end = 6.0 / a.stages_of_k;
  return round * (std::ceil(a.whole / clusters) + (a.count > a.whole ? (wide ? 0.85 : 0.6) : 0.0)) + begin_and_end;
}

// The same for a GEMM that leaves no SM idle.
inline double fewest_rounds(const TileSizes& sizes, int64_t multiprocessors) {
  return static_cast<double>(sizes.num_tokens) / kTileTokens * static_cast<double>(sizes.columns_of_weights()) / 256.0 /
         static_cast<double>(multiprocessors);
}

// Separate kernels take some 1.1 times as long as those in the best case, 1.5 times in the worst.
inline constexpr double kMostOfFewestRounds = 1.23;

// Calls with fewer tokens, or rows of the weights (70B on eight GPUs), or shorter ones (models below 1B) are faster separately.
inline bool is_large_enough(const TileSizes& sizes) {
  constexpr int64_t kFewestTokens = 256, kFewestChannels = 2048, kFewestColumns = 2048;
  return sizes.num_tokens >= kFewestTokens && sizes.k >= kFewestChannels && sizes.columns_of_weights() >= kFewestColumns;
}

}  // namespace prologue::cuda
