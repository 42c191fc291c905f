// This file has the kernels of moe_gemm. A tile is up to 64 rows of y that have one expert; a block multiplies one tile by some of the
// expert's weight rows. `y^T = W x^T`: weight rows are the rows of the tensor cores' first operand, rows of x the columns of the second, so
// that few rows of x waste little.
//
// Products of k are added in the same order in all kernels of a type, whatever the tile is: 16-bit types in steps of 32, each two
// instructions; of its 8 elements in a step a lane gives the first 4 to one and the last 4 to the other. (So a lane loads 16 adjacent
// bytes, and neither needs a permutation in shared memory.) float32: lane i of a warp has the groups i, i + 32, ... of 4, one after
// another, and the lanes are added as a butterfly.
#pragma once

#include <cuda_pipeline_primitives.h>
#include <cub/block/block_scan.cuh>

#include <prologue/kernels/base/shared/rotation.h>
#include <prologue/kernels/moe/moe_gemm.h>
#include <prologue/kernels/moe/moe_route.h>
#include <prologue/kernels/base/device/cuda_groups.cuh>
#include <prologue/kernels/base/device/instructions.cuh>

namespace prologue::cuda {

// A tile has the rows order[begin], order[begin + 1], ... of y. An expert outside 0..num_experts-1: they become zeros. count = 0: no tile.
struct alignas(16) MoeTile {
  int32_t expert;
  int32_t begin;
  int32_t count;
  int32_t unused;
};

// Where the tiles are. Null: each row is a tile of its own.
struct MoeTiles {
  const MoeTile* tiles;
  const int32_t* order;
};

inline constexpr int kGroupThreads = 1024;
static_assert(kGroupThreads >= kMaxExperts, "a thread has one expert");

// This kernel has one block. It counts the rows of each expert, cuts them into tiles of tile_rows, and writes them to `order` by expert; rows
// without an expert come last. (In which order the rows of one expert are is left to chance; no result depends on it.)
__global__ void __launch_bounds__(kGroupThreads)
    moe_group_kernel(const __grid_constant__ MoeGemmParams p, int tile_rows, int max_tiles, MoeTile* tiles, int32_t* order) {
  using Scan = cub::BlockScan<int, kGroupThreads, cub::BLOCK_SCAN_WARP_SCANS>;
  __shared__ typename Scan::TempStorage storage;
  __shared__ int next[kMaxExperts + 1];  // [e]: the number of rows of expert e, then where its next row goes
  const int thread = static_cast<int>(threadIdx.x), num_experts = static_cast<int>(p.num_experts);
  const int num_rows = static_cast<int>(p.num_tokens * p.top_k);
  const auto expert_of_row = [&](int r) {
    const int32_t id = p.expert_ids[r];
    return id >= 0 && id < num_experts ? id : num_experts;
  };
  for (int e = thread; e <= num_experts; e += kGroupThreads) next[e] = 0;
  __syncthreads();
  for (int r = thread; r < num_rows; r += kGroupThreads) atomicAdd(&next[expert_of_row(r)], 1);
  __syncthreads();

  const auto tiles_of = [&](int rows) { return (rows + tile_rows - 1) / tile_rows; };
  const int rows = thread < num_experts ? next[thread] : 0;
  int first_row = 0, num_routed = 0, first_tile = 0, num_tiles = 0;
  Scan(storage).ExclusiveSum(rows, first_row, num_routed);
  __syncthreads();
  Scan(storage).ExclusiveSum(tiles_of(rows), first_tile, num_tiles);
  const auto write_tile = [&](int tile, int expert, int first, int count, int i) {
    tiles[tile + i] = {expert, first + i * tile_rows, min(tile_rows, count - i * tile_rows), 0};
  };
  for (int i = 0; i < tiles_of(rows); ++i) write_tile(first_tile, thread, first_row, rows, i);
  const int others = num_rows - num_routed;
  for (int i = thread; i < tiles_of(others); i += kGroupThreads) write_tile(num_tiles, num_experts, num_routed, others, i);
  for (int i = num_tiles + tiles_of(others) + thread; i < max_tiles; i += kGroupThreads) tiles[i] = {0, 0, 0, 0};
  if (thread < num_experts) next[thread] = first_row;
  if (thread == 0) next[num_experts] = num_routed;
  __syncthreads();
  for (int r = thread; r < num_rows; r += kGroupThreads) order[atomicAdd(&next[expert_of_row(r)], 1)] = r;
}

// Reads and writes the rows of one tile in a kernel.
struct MoeRows {
  const MoeGemmParams& p;
  MoeTile tile;
  const int32_t* order;

  __device__ MoeRows(const MoeGemmParams& params, const MoeTiles& tiles, int index) : p(params), order(tiles.order) {
    tile = tiles.tiles != nullptr ? tiles.tiles[index] : MoeTile{p.expert_ids[index], index, 1, 0};
  }
  __device__ bool has_expert() const { return tile.expert >= 0 && tile.expert < p.num_experts; }
  // Returns the row of y that row i of the tile is. Rows after the last one count as the last one.
  __device__ int64_t row(int i) const {
    i = tile.begin + min(i, tile.count - 1);
    return order == nullptr ? i : order[i];
  }
  template <class T>
  __device__ const T* x(int i) const {
    const int64_t r = row(i);
    return static_cast<const T*>(p.x) + (p.x_per_choice ? r : r / static_cast<int>(p.top_k)) * p.k;
  }
  // Returns weight row n of the expert. Rows after the last one count as the last one.
  template <class T>
  __device__ const T* weight(int64_t n) const {
    return static_cast<const T*>(p.weight) + (tile.expert * p.n + min(n, p.n - 1)) * p.k;
  }
  // Rounds an element of row i once and stores it, if both exist.
  template <class T>
  __device__ void store(int i, int64_t n, float sum) const {
    if (i >= tile.count || n >= p.n) return;
    const int64_t r = row(i);
    if (has_expert()) {
      if (p.row_scale != nullptr) sum = multiply_rounded(sum, p.row_scale[r]);
      if (p.bias != nullptr) sum = add_rounded(sum, to_float(static_cast<const T*>(p.bias)[tile.expert * p.n + n]));
    }
    static_cast<T*>(p.y)[r * p.n + n] = from_float<T>(sum);
  }
};

// Computes sums[16 weight rows, 8 rows of x] += one step of k. A lane has the weight rows lane / 4 (low) and lane / 4 + 8 (high), and row
// lane / 4 of x, each the elements 8 * (lane % 4) ... of the step.
template <class T>
__device__ inline void multiply_step(float (&sums)[4], const Group<T>& low, const Group<T>& high, const Group<T>& x) {
#pragma unroll
  for (int half = 0; half < 4; half += 2) {
    const uint32_t weights[4] = {low.words[half], high.words[half], low.words[half + 1], high.words[half + 1]};
    multiply_matrices<T>(sums, weights, x.words[half], x.words[half + 1]);
  }
}

// The sums are of the 16 weight rows from first_n on and the 8 rows of the tile from first_i on.
template <class T>
__device__ inline void store_sums(const MoeRows& rows, int64_t first_n, int first_i, const float (&sums)[4]) {
  const int lane = static_cast<int>(threadIdx.x % 32), n = lane / 4, i = lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < 4; ++j) rows.store<T>(first_i + i + j % 2, first_n + n + j / 2 * 8, sums[j]);
}

inline constexpr int kMoeStep = 32;  // elements of k

// With few rows memory is the limit, so every weight is loaded straight into registers, once. blockIdx.x is a tile of up to 8 * X_TILES
// rows, blockIdx.y 64 weight rows, of which a warp has 16.
inline constexpr int kFewRowsWarps = 4;
template <class T, int X_TILES>
__global__ void __launch_bounds__(32 * kFewRowsWarps)
    moe_few_rows_kernel(const __grid_constant__ MoeGemmParams p, MoeTiles tiles, bool whole) {
  constexpr int kAhead = X_TILES == 1 ? 8 : 2;  // steps whose loads are in flight together
  const MoeRows rows(p, tiles, static_cast<int>(blockIdx.x));
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int64_t first_n = (static_cast<int64_t>(blockIdx.y) * kFewRowsWarps + warp) * 16;
  if (rows.tile.count == 0 || first_n >= p.n) return;

  float sums[X_TILES][4] = {};
  if (rows.has_expert()) {
    const int64_t column = lane % 4 * 8;
    const T* const low = rows.weight<T>(first_n + lane / 4) + column;
    const T* const high = rows.weight<T>(first_n + lane / 4 + 8) + column;
    const T* x[X_TILES];
#pragma unroll
    for (int t = 0; t < X_TILES; ++t) x[t] = rows.x<T>(8 * t + lane / 4) + column;
    for (int64_t k = 0; k < p.k; k += kAhead * kMoeStep) {
      Group<T> weights[kAhead][2], values[kAhead][X_TILES];
#pragma unroll
      for (int step = 0; step < kAhead; ++step) {
        const int64_t at = k + step * kMoeStep, count = p.k - column - at;
        weights[step][0] = load_group(low + at, count, whole);
        weights[step][1] = load_group(high + at, count, whole);
#pragma unroll
        for (int t = 0; t < X_TILES; ++t) values[step][t] = load_group(x[t] + at, count, whole);
      }
#pragma unroll
      for (int step = 0; step < kAhead; ++step) {
        if (k + step * kMoeStep >= p.k) continue;
#pragma unroll
        for (int t = 0; t < X_TILES; ++t) multiply_step<T>(sums[t], weights[step][0], weights[step][1], values[step][t]);
      }
    }
  }
#pragma unroll
  for (int t = 0; t < X_TILES; ++t) store_sums<T>(rows, first_n, 8 * t, sums[t]);
}

// With many rows, weights and rows of x pass through shared memory. blockIdx.x is a tile of up to 64 rows, blockIdx.y 128 weight rows; each
// of the 2 x 2 warps has 64 weight rows and 32 rows of x.
inline constexpr int kManyRowsThreads = 128, kManyRowsN = 128, kManyRowsX = 64, kManyRowsStages = 4;
inline constexpr int kManyRowsStage = (kManyRowsN + kManyRowsX) * kMoeStep * 2;  // bytes
inline constexpr int kManyRowsShared = kManyRowsStages * kManyRowsStage + (kManyRowsN + kManyRowsX) * 8;
template <class T>
__global__ void __launch_bounds__(kManyRowsThreads)
    moe_many_rows_kernel(const __grid_constant__ MoeGemmParams p, MoeTiles tiles, bool whole) {
  constexpr int kLines = kManyRowsN + kManyRowsX,
                kParts = kMoeStep / kGroup<T>;          // a line: a step of a weight row or of a row of x
  Group<T>* const shared = dynamic_shared<Group<T>>();  // [stage, line, part]
  const T** const lines = reinterpret_cast<const T**>(shared + kManyRowsStages * kLines * kParts);
  const MoeRows rows(p, tiles, static_cast<int>(blockIdx.x));
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int64_t first_n = static_cast<int64_t>(blockIdx.y) * kManyRowsN;
  if (rows.tile.count == 0) return;

  float sums[4][4][4] = {};
  const int n_of_warp = warp / 2 * 64, x_of_warp = warp % 2 * 32;
  if (rows.has_expert()) {
    for (int line = static_cast<int>(threadIdx.x); line < kLines; line += kManyRowsThreads) {
      lines[line] = line < kManyRowsN ? rows.weight<T>(first_n + line) : rows.x<T>(line - kManyRowsN);
    }
    __syncthreads();
    const int num_steps = static_cast<int>((p.k + kMoeStep - 1) / kMoeStep);
    const auto fetch = [&](int step) {
      if (step < num_steps) {
        Group<T>* const stage = shared + step % kManyRowsStages * kLines * kParts;
#pragma unroll
        for (int c = static_cast<int>(threadIdx.x); c < kLines * kParts; c += kManyRowsThreads) {
          const int64_t column = static_cast<int64_t>(step) * kMoeStep + c % kParts * kGroup<T>;
          const T* const from = lines[c / kParts] + column;
          if (whole) {
            __pipeline_memcpy_async(stage + c, from, 16, column < p.k ? 0 : 16);
          } else {
            stage[c] = load_group(from, p.k - column, false);
          }
        }
      }
      __pipeline_commit();
    };
#pragma unroll
    for (int step = 0; step < kManyRowsStages - 1; ++step) fetch(step);
    for (int step = 0; step < num_steps; ++step) {
      __pipeline_wait_prior(kManyRowsStages - 2);
      __syncthreads();
      fetch(step + kManyRowsStages - 1);
      const Group<T>* const stage = shared + step % kManyRowsStages * kLines * kParts;
      const auto fragment = [&](int line) { return stage[line * kParts + lane]; };  // lines line ... line + 7
      Group<T> x[4];
#pragma unroll
      for (int t = 0; t < 4; ++t) x[t] = fragment(kManyRowsN + x_of_warp + 8 * t);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const Group<T> low = fragment(n_of_warp + 16 * n), high = fragment(n_of_warp + 16 * n + 8);
#pragma unroll
        for (int t = 0; t < 4; ++t) multiply_step<T>(sums[n][t], low, high, x[t]);
      }
    }
  }
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int t = 0; t < 4; ++t) store_sums<T>(rows, first_n + n_of_warp + 16 * n, x_of_warp + 8 * t, sums[n][t]);
  }
}

// float32, any number of rows: simple, for tests and small models. blockIdx.x = a tile of up to 8 rows, blockIdx.y = 32 weight rows, a
// warp 8 of them, one after another.
inline constexpr int kFloatWarps = 4, kFloatRowsOfWarp = 8, kFloatX = 8;
__global__ void __launch_bounds__(32 * kFloatWarps)
    moe_float_kernel(const __grid_constant__ MoeGemmParams p, MoeTiles tiles, bool whole) {
  const MoeRows rows(p, tiles, static_cast<int>(blockIdx.x));
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int64_t first_n = (static_cast<int64_t>(blockIdx.y) * kFloatWarps + warp) * kFloatRowsOfWarp;
  if (rows.tile.count == 0) return;
  const float* x[kFloatX];
#pragma unroll
  for (int t = 0; t < kFloatX; ++t) x[t] = rows.x<float>(t);

  for (int64_t n = first_n; n < min(first_n + kFloatRowsOfWarp, p.n); ++n) {
    float sums[kFloatX] = {};
    if (rows.has_expert()) {
      const float* const weight = rows.weight<float>(n);
      for (int64_t column = lane * kGroup<float>; column < p.k; column += 32 * kGroup<float>) {
        const int64_t count = p.k - column;
        const Group<float> w = load_group(weight + column, count, whole);
#pragma unroll
        for (int t = 0; t < kFloatX; ++t) {
          if (t >= rows.tile.count) break;
          const Group<float> values = load_group(x[t] + column, count, whole);
#pragma unroll
          for (int i = 0; i < kGroup<float>; ++i) sums[t] = __fmaf_rn(values[i], w[i], sums[t]);
        }
      }
    }
#pragma unroll
    for (int t = 0; t < kFloatX; ++t) {
#pragma unroll
      for (int offset = 16; offset > 0; offset /= 2) {
        sums[t] = add_rounded(sums[t], __shfl_xor_sync(0xffffffffu, sums[t], offset));
      }
      if (lane == t) rows.store<float>(t, n, sums[t]);
    }
  }
}

}  // namespace prologue::cuda
