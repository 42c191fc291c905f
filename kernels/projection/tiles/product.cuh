// This way, which is for prompts, makes tiles of x W^T by wgmma, for kernels that do more with a tile than store it. While the next tile is
// multiplied, warps that multiply nothing finish this one.
//
// Blocks are persistent. A cluster of two works on two tiles at a time, of neighbouring tokens and the same columns: each block brings its
// own x and half of the weights, which TMA writes into both. In a block
//   one warp           copies x and weights by TMA into a ring of stages of 64 channels
//   three warps        finish the tile
//   two warpgroups     multiply, and store the tile, rounded to T, in shared memory
// The two warpgroups divide a tile's tokens. If the last wave has work for half of the clusters or less, its tiles have half of the tokens,
// and the two divide the columns.
//
// Sums are accumulated in float32 in the order of k, whatever the number of tokens.
#pragma once

#include <cstdint>

#include <prologue/kernels/projection/policy.h>
#include <prologue/kernels/base/device/cuda_types.cuh>
#include <prologue/kernels/base/device/head_unit.cuh>
#include <prologue/kernels/base/device/hopper.cuh>
#include <prologue/kernels/base/device/instructions.cuh>
#include <prologue/kernels/base/device/stage_index.cuh>
#include <prologue/kernels/projection/weights/dense.cuh>

namespace prologue::cuda {

inline constexpr int kTileTokens = policy::kTokensOfTile;
inline constexpr int kTileChannels = policy::kChannelsOfStage;  // what a swizzled row holds
inline constexpr int kTileBlocks = 2;                           // of a cluster
inline constexpr int kTileThreads = 3 * kWarpgroup;
inline constexpr int kTileFinishers = kWarpgroup - 32;
inline constexpr int kTileMultipliers = 2 * kWarpgroup;
inline constexpr int kTileHelpers = kTileFinishers + kTileMultipliers;  // of the last tile of a block
inline constexpr int kTileRegisters = 128;                              // of a thread, for its sums only

struct TilesArgs {
  CUtensorMap x;       // [num_tokens, k], boxes of half of a tile's tokens
  CUtensorMap weight;  // [n, k], boxes of kBoxRows of TileShared; gated: [2, n, k]
  int32_t num_tokens = 0;
  int32_t gated = 0;             // half of a tile's columns are rows of gate, the others the rows of up that go with them
  int32_t swapped_quarters = 0;  // the second and the third 32 of each 128 rows of the weights are swapped (kColumnsInParts)
  int32_t stages_of_k = 0;
  int32_t pairs = 0;    // of tiles, along the tokens
  int32_t columns = 0;  // tiles, along n
  int32_t whole = 0;    // of pairs * columns, those that are not divided
  int32_t count = 0;    // of the clusters' tiles, two for each that is divided
};

// Tiles of so many columns are three parts of 64, so a head of 128 channels may lie in two tiles: a part has whole rotary pairs.
inline constexpr int kColumnsInParts = 192;
inline constexpr int kPartColumns = 64;

// Says whether the tiles of the last wave may be divided.
constexpr bool may_divide_tiles(int64_t columns) { return columns != kColumnsInParts; }

// Returns the rows of the weights that are copied at once.
constexpr int64_t tile_box_rows(int64_t columns) { return columns == kColumnsInParts ? kPartColumns / 2 : columns / kTileBlocks; }

// W is the format of the weights (weights/).
template <class W, int kColumnsOfTile>
struct TileShared {
  using T = typename W::T;
  static constexpr int kColumns = kColumnsOfTile;
  static constexpr int kStages = kColumns > kColumnsInParts ? 3 : kColumns > 128 ? 4 : 5;
  static constexpr bool kDivides = may_divide_tiles(kColumns);
  static constexpr int kBoxRows = static_cast<int>(tile_box_rows(kColumns));
  static constexpr int kXRowBytes = kTileChannels * static_cast<int>(sizeof(T));  // of a stage
  static constexpr int kRow =
      kColumns +
      16 / static_cast<int>(sizeof(T));  // elements from a row of a tile to the next: eight rows are in different banks

  T x[kStages][kTileTokens][kTileChannels];
  typename W::Stored weight[kStages][kColumns][kTileChannels];
  T tile[kTileTokens][kRow];
  Barrier loaded[kStages];
  Barrier emptied[kStages];  // of this block and the other one, whose weights come into it
  Barrier made;              // the tile is there, if it is not the last
  Barrier finished;          // the tile may be overwritten
  Barrier helpers;           // the last tile is there, and the warps that help to finish it have arrived
  Barrier finishers;         // all finishing warps have arrived
};

// Runs first of all, and at the end: the blocks of a cluster write to each other's shared memory.
__device__ inline void meet_cluster() {
  __syncwarp();
  arrive_at_cluster();
  wait_for_cluster();
}

// One thread calls it; then meet_cluster() must follow.
template <class Shared>
__device__ inline void open_tiles(const TilesArgs& a, Shared& shared) {
  prefetch_map(a.x);
  prefetch_map(a.weight);
  if (shared_address(&shared) % 1024 != 0) __trap();  // the swizzle depends on it
  for (int i = 0; i < Shared::kStages; ++i) {
    shared.loaded[i].init(1);
    shared.emptied[i].init(kTileBlocks * kTileMultipliers / 32);
  }
  shared.made.init(kTileMultipliers);
  shared.finished.init(kTileFinishers);
  shared.helpers.init(kTileHelpers);
  shared.finishers.init(kTileFinishers);
  fence_barrier_init();
}

// All threads of a barrier wait for each other. (racecheck does not know bar.sync of a part of a block.)
__device__ inline void meet(Barrier& barrier, unsigned& phase) {
  barrier.arrive();
  barrier.wait(phase);
  phase ^= 1;
}

struct TilePosition {
  int token;   // the first of this block's tile
  int tokens;  // kTileTokens, or half
  int column;  // tile along n
};

// Walks over the tiles of a cluster: number blockIdx.x / kTileBlocks, then every so many as there are clusters. Tiles that are multiplied
// at a time are near each other along both sides, so that they find what they read in the L2.
class TileWalk {
 public:
  __device__ explicit TileWalk(const TilesArgs& a) : tiles_(a), number_(static_cast<int>(blockIdx.x) / kTileBlocks) {}
  __device__ bool inside() const { return number_ < tiles_.count; }
  __device__ bool is_last() const { return number_ + clusters() >= tiles_.count; }
  __device__ void advance() { number_ += clusters(); }
  __device__ void go_to_last() { number_ += (tiles_.count - 1 - number_) / clusters() * clusters(); }
  __device__ TilePosition position() const {
    constexpr int kPairs = 8;
    const int beyond = number_ - tiles_.whole;  // 0 or more: the number of a divided one
    const int number = beyond < 0 ? number_ : tiles_.whole + beyond / 2;
    const int of_group = kPairs * tiles_.columns, group = number / of_group, in_group = number - group * of_group;
    const int pairs = min(kPairs, tiles_.pairs - group * kPairs), column = in_group / pairs;
    const int first = (group * kPairs + in_group - column * pairs) * kTileBlocks * kTileTokens;
    const int rank = static_cast<int>(cluster_rank());
    if (beyond < 0) return {first + rank * kTileTokens, kTileTokens, column};
    return {first + (beyond % 2 * kTileBlocks + rank) * (kTileTokens / 2), kTileTokens / 2, column};
  }

 private:
  __device__ static int clusters() { return static_cast<int>(gridDim.x) / kTileBlocks; }
  const TilesArgs& tiles_;
  int number_;
};

// The row of the weights that is this column of the product, at multiples of 32.
__device__ inline int row_of_column(const TilesArgs& a, int column) {
  if (a.swapped_quarters == 0) return column;
  return (column & ~96) | (column & 32) << 1 | (column & 64) >> 1;
}

// One thread copies all stages of the block's tiles.
template <class W, class Shared>
__device__ inline void load_tiles(const TilesArgs& a, Shared& shared) {
  constexpr int kRows = Shared::kColumns / kTileBlocks, kBoxRows = Shared::kBoxRows;
  constexpr unsigned kBothBlocks = (1u << kTileBlocks) - 1;
  const int rank = static_cast<int>(cluster_rank());
  StageIndex<Shared::kStages> at;
  bool waits = true;
  for (TileWalk walk(a); walk.inside(); walk.advance()) {
    const TilePosition tile = walk.position();
    const int row = a.gated != 0 ? tile.column * kRows : tile.column * Shared::kColumns + rank * kRows;
    const int half = a.gated != 0 ? rank : 0;
#pragma unroll 1
    for (int stage = 0; stage < a.stages_of_k; ++stage, at.advance()) {
      Barrier& loaded = shared.loaded[at.index];
      shared.emptied[at.index].wait(at.phase ^ 1);
      loaded.arrive_and_expect(tile.tokens * Shared::kXRowBytes + Shared::kColumns * W::kBoxRowBytes);
#pragma unroll
      for (int i = 0; i < kRows; i += kBoxRows) {
        load_box_into_blocks(kBothBlocks, &shared.weight[at.index][rank * kRows + i], a.weight, loaded, stage * kTileChannels,
                             kRows > kBoxRows ? row_of_column(a, row + i) : row, half);
      }
      if (waits) wait_for_previous_kernels(), waits = false;  // they do not write weights
      for (int t = 0; t < tile.tokens; t += kTileTokens / 2) {
        load_box(&shared.x[at.index][t], a.x, loaded, stage * kTileChannels, tile.token + t, 0);
      }
    }
  }
  // It ends with the other block's last arrival.
  for (int i = 0; i < Shared::kStages; ++i, at.advance()) shared.emptied[at.index].wait(at.phase ^ 1);
}

// Multiplies a warpgroup's part of a tile, 64 tokens and 2 * kCount columns from these rows of a stage on, and stores it at the same rows
// and columns of the tile. `release` is called with each stage that is no longer read.
template <class W, int kCount, class Shared, class Release>
__device__ inline void multiply_tile(const TilesArgs& a, Shared& shared, StageIndex<Shared::kStages>& at, int token_row,
                                     int weight_row, unsigned free_phase, const Release& release) {
  using T = typename W::T;
  constexpr int kStrideOfX = 8 * Shared::kXRowBytes;  // from 8 rows to the next
  float sums[kCount];
#pragma unroll
  for (float& sum : sums) sum = 0.0f;
  int last = 0;
#pragma unroll 1
  for (int stage = 0; stage < a.stages_of_k; ++stage, at.advance()) {
    shared.loaded[at.index].wait(at.phase);
    const uint64_t x = matrix_descriptor(&shared.x[at.index][token_row], 0, kStrideOfX);
    const uint64_t weight = W::descriptor(&shared.weight[at.index][weight_row], 0);
    multiply_fence();
#pragma unroll
    for (int k = 0; k < kTileChannels / 16; ++k) {
      multiply_async<T>(sums, advance(x, k * 32), advance(weight, k * W::kStepBytes), k > 0 || stage > 0);
    }
    multiply_commit();
    if (stage > 0) {
      multiply_wait<1>();
      release(last);
    }
    last = at.index;
  }
  multiply_wait<0>();
  keep_in_order(sums);
  release(last);

  shared.finished.wait(free_phase);
  const int lane = threadIdx.x % 32;
  T* const to = &shared.tile[token_row + threadIdx.x % kWarpgroup / 32 * 16 + lane / 4][weight_row + lane % 4 * 2];
#pragma unroll
  for (int i = 0; i < kCount / 4; ++i) {
    store_bytes<4, false>(to + i * 8, pack<T, 2>(sums + i * 4));
    store_bytes<4, false>(to + i * 8 + 8 * Shared::kRow, pack<T, 2>(sums + i * 4 + 2));
  }
}

// Two warpgroups call it. They do not wait until the last tile is finished.
template <class W, class Shared>
__device__ inline void multiply_tiles(const TilesArgs& a, Shared& shared) {
  const int group = threadIdx.x / kWarpgroup - 1, lane = threadIdx.x % 32;
  const uint32_t block = cluster_rank() ^ static_cast<uint32_t>(lane);  // lanes 0 and 1: this one and the other
  const auto release = [&](int stage) {
    __syncwarp();
    if (lane < kTileBlocks) shared.emptied[stage].arrive_at(block);
  };
  StageIndex<Shared::kStages> at;
  unsigned free_phase = 1;
  for (TileWalk walk(a); walk.inside(); walk.advance(), free_phase ^= 1) {
    if (!Shared::kDivides || walk.position().tokens == kTileTokens) {
      multiply_tile<W, Shared::kColumns / 2>(a, shared, at, group * (kTileTokens / 2), 0, free_phase, release);
    } else if constexpr (Shared::kDivides) {
      multiply_tile<W, Shared::kColumns / 4>(a, shared, at, 0, group * (Shared::kColumns / 2), free_phase, release);
    }
    if (!walk.is_last()) shared.made.arrive();
  }
}

// The finishing warps call it, and for the last tile also the warps that have multiplied.
template <class Shared, class Prepare, class Finish>
__device__ inline void finish_tiles(const TilesArgs& a, Shared& shared, const Prepare& prepare, const Finish& finish) {
  const int thread = static_cast<int>(threadIdx.x) - 32;
  const bool helps = thread >= kTileFinishers;
  wait_for_previous_kernels();
  unsigned phase = 0, finishers_phase = 0, helpers_phase = 0;
  TileWalk walk(a);
  if (helps) walk.go_to_last();
  for (; walk.inside(); walk.advance(), phase ^= 1) {
    const TilePosition tile = walk.position();
    const bool last = walk.is_last();
    if (last) let_next_kernel_start();
    if (!helps) {
      meet(shared.finishers, finishers_phase);  // the tile before is finished
      prepare(tile, thread);
      if (!last) {
        meet(shared.finishers, finishers_phase);
        shared.made.wait(phase);
      }
    }
    if (last) meet(shared.helpers, helpers_phase);
    finish(tile, thread / 32, (last ? kTileHelpers : kTileFinishers) / 32);
    if (!last) shared.finished.arrive();
  }
}

// Runs a whole kernel. Each finishing thread calls `prepare(tile, thread)` while the tile is multiplied. `warps` warps call `finish(tile,
// warp, warps)` when it is in shared.tile and what was prepared is visible.
template <class W, class Shared, class Prepare, class Finish>
__device__ inline void run_tiles(const TilesArgs& a, Shared& shared, const Prepare& prepare, const Finish& finish) {
  if (threadIdx.x == 0) open_tiles(a, shared);
  meet_cluster();
  if (threadIdx.x < 32) {
    if (threadIdx.x == 0) load_tiles<W>(a, shared);
  } else {
    if (threadIdx.x >= kWarpgroup) multiply_tiles<W>(a, shared);
    finish_tiles(a, shared, prepare, finish);
  }
  meet_cluster();  // each has had all arrivals of the other
}

}  // namespace prologue::cuda
