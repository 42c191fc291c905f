// Projections of few tokens, one after another, by blocks that stay: one for each SM, with some rows of the weights of each projection and all
// of k. A projection of the chain is a phase. The warps of a block:
//
//   4 multiply      by mma.m16n8k16, weights as its 16 rows, tokens as its columns. They share out a slot's rows and its channels; their sums
//                   meet in shared memory
//   1 copies        weights, by TMA, into slots of shared memory, of all phases, one after another, as far ahead as there are slots: it
//                   waits for nothing else
//   1 copies        x into the same slots, once all blocks are done with the phase before
//   1 adds up       the squares of a token, if the phase has a norm
//
// A norm is made where its row is: the phase before multiplies each channel by the norm's weight as it stores it, into a row of its own, and
// leaves the sum of the squares of its channels. The product of the next phase needs only a factor then.
//
// Blocks meet at counters in global memory, one for each phase. Half of an SM's shared memory and registers are left free: there a block of
// the next launch waits, and has weights on their way.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/shared/reciprocal_root.h>
#include <prologue/kernels/base/device/grid_counter.cuh>
#include <prologue/kernels/base/device/head_unit.cuh>
#include <prologue/kernels/base/device/hopper.cuh>
#include <prologue/kernels/base/device/instructions.cuh>
#include <prologue/kernels/projection/projection_output.cuh>

namespace prologue::cuda {

inline constexpr int kMostPhases = 4;
inline constexpr int kMostChainTokens = 16;
inline constexpr int kChainWarps = 4;  // that multiply
inline constexpr int kChainConsumers = kChainWarps * 32;
inline constexpr int kChainThreads = kChainConsumers + 96;
inline constexpr int kChainLaunchBound = PROLOGUE_HOPPER ? kChainThreads : 32;
inline constexpr int kChainBlocksOfSm = 2;
inline constexpr int kMostSlots = 12;
inline constexpr int kSlotBoxChannels = 64;  // of k: 128 bytes, a row of the swizzle
inline constexpr int kSlotRowBytes = 128;

struct Phase {
  OutputArgs output;
  int32_t k = 0;           // a multiple of 64
  int32_t rows = 0;        // of the weights, of a block, of all halves: a multiple of 8
  int32_t box_rows = 0;    // of one half
  int32_t boxes = 0;       // of 64 channels, in a slot
  int32_t blocks = 0;      // that have rows
  int32_t tiles = 0;       // of 16 rows, of a warp: a power of two
  int32_t log_groups = 0;  // of warps with rows of their own; the others of a group have other channels
  int32_t lanes = 0;       // of the output of a token: a power of two
  // Of the norm of x: what the blocks of the phase before have left, [block, token]; null = no norm.
  const float* squares = nullptr;
  int32_t squares_blocks = 0;
  float eps = 0.0f;
  float inverse_width = 0.0f;  // 1 / k
  // Of the norm of the next phase, if it has one: where its row goes, [token, n], and the squares.
  int32_t float_weights = 0;
  const char* next_weight = nullptr;  // null = 1
  char* next_x = nullptr;
  float* next_squares = nullptr;
};

struct ChainArgs {
  CUtensorMap weight[kMostPhases];  // [channel of 64, row, half, k / 64]: a box is a slot's; halves: of gate and of up, else one
  CUtensorMap x[kMostPhases];       // [channel of 64, token, k / 64]: likewise
  Phase phases[kMostPhases];
  int32_t num_phases = 0;
  int32_t num_tokens = 0;
  int32_t slots = 0;
  int32_t slot_bytes = 0;
  int32_t sums_at = 0;  // in shared memory
  int32_t tail_at = 0;  // in shared memory: ChainTail
  uint32_t* counters = nullptr;  // [num_phases] of blocks that are done with a phase, then of blocks that are done
};

struct ChainTail {
  Barrier loaded[kMostSlots];
  Barrier emptied[kMostSlots];
  Phase phases[kMostPhases];  // here they are read faster
  float factors[kMostChainTokens];  // of a norm
};

// Tiles of 16 rows that a warp can have.
inline constexpr int kMostTilesOfWarp = 8;

// Channels of a slot, and where the parts of a slot are.
struct SlotLayout {
  int weights_of_box, x_of_box, weight_bytes, x_bytes;
  __host__ __device__ SlotLayout(const Phase& p, int num_tokens)
      : weights_of_box(p.rows * kSlotRowBytes),
        x_of_box(num_tokens * kSlotRowBytes),
        weight_bytes(p.boxes * weights_of_box),
        x_bytes(p.boxes * x_of_box) {}
  __host__ __device__ int bytes() const { return weight_bytes + x_bytes; }
};

__host__ __device__ inline int slots_of_k(const Phase& p) {
  const int channels = p.boxes * kSlotBoxChannels;
  return (p.k + channels - 1) / channels;
}

// A slot, and the parity of its barriers' phase.
struct SlotPlace {
  int slot = 0;
  unsigned parity = 0;
  __device__ void advance(int slots) {
    if (++slot == slots) slot = 0, parity ^= 1;
  }
};

struct ChainMemory {
  unsigned char* memory;
  ChainTail* tail;
  float* sums;  // [part, token, rows_of_sums()]
  int slot_bytes;

  __device__ ChainMemory(const ChainArgs& a, unsigned char* shared)
      : memory(shared),
        tail(reinterpret_cast<ChainTail*>(shared + a.tail_at)),
        sums(reinterpret_cast<float*>(shared + a.sums_at)),
        slot_bytes(a.slot_bytes) {}
  __device__ unsigned char* slot(int i) const { return memory + i * slot_bytes; }
  // By all threads; then a __syncthreads().
  __device__ void open(const ChainArgs& a) const {
    static_assert(sizeof(Phase) % 4 == 0);
    const auto* const from = reinterpret_cast<const uint32_t*>(a.phases);
    auto* const to = reinterpret_cast<uint32_t*>(tail->phases);
    for (int i = threadIdx.x; i < a.num_phases * static_cast<int>(sizeof(Phase) / 4); i += kChainThreads) to[i] = from[i];
    if (threadIdx.x != 0) return;
    for (int s = 0; s < a.slots; ++s) {
      tail->loaded[s].init(2);
      tail->emptied[s].init(kChainWarps);
    }
    fence_barrier_init();
  }
};

__host__ __device__ inline int rows_of_sums(const Phase& p) { return p.rows + 4; }  // neighbours are in different banks

__device__ inline bool has_rows(const Phase& p) { return static_cast<int>(blockIdx.x) < p.blocks; }

// By one thread.
__device__ inline void load_weights(const ChainArgs& a, const ChainMemory& shared) {
  for (int n = 0; n < a.num_phases; ++n) prefetch_map(a.weight[n]);
  SlotPlace place;
  for (int n = 0; n < a.num_phases; ++n) {
    const Phase& p = shared.tail->phases[n];
    if (!has_rows(p)) continue;
    const SlotLayout layout(p, a.num_tokens);
    const int count = slots_of_k(p), first_row = static_cast<int>(blockIdx.x) * p.box_rows, boxes = p.boxes;
#pragma unroll 1
    for (int i = 0; i < count; ++i, place.advance(a.slots)) {
      shared.tail->emptied[place.slot].wait(place.parity ^ 1);
      Barrier& loaded = shared.tail->loaded[place.slot];
      loaded.arrive_and_expect(layout.weight_bytes);
      load_box(shared.slot(place.slot), a.weight[n], loaded, 0, first_row, 0, i * boxes);
    }
  }
}

// Until all blocks are done with what phase n needs.
__device__ inline void wait_for_phase(const ChainArgs& a, const ChainMemory& shared, int n) {
  if (n > 0) wait_for_blocks(a.counters + n - 1, static_cast<uint32_t>(shared.tail->phases[n - 1].blocks));
}

// By one thread.
__device__ inline void load_x(const ChainArgs& a, const ChainMemory& shared) {
  for (int n = 0; n < a.num_phases; ++n) prefetch_map(a.x[n]);
  wait_for_previous_kernels();
  SlotPlace place;
  for (int n = 0; n < a.num_phases; ++n) {
    const Phase& p = shared.tail->phases[n];
    if (!has_rows(p)) continue;
    wait_for_phase(a, shared, n);
    const SlotLayout layout(p, a.num_tokens);
    const int count = slots_of_k(p), boxes = p.boxes;
#pragma unroll 1
    for (int i = 0; i < count; ++i, place.advance(a.slots)) {
      shared.tail->emptied[place.slot].wait(place.parity ^ 1);
      Barrier& loaded = shared.tail->loaded[place.slot];
      loaded.arrive_and_expect(layout.x_bytes);
      load_box(shared.slot(place.slot) + layout.weight_bytes, a.x[n], loaded, 0, 0, i * boxes);
    }
  }
}

// The barrier between the warps that multiply, and the one that adds up squares.
inline constexpr int kSumsBarrier = 1, kStoredBarrier = 2;

// By one warp: the factors of a phase with a norm.
__device__ inline void make_factors(const ChainArgs& a, const ChainMemory& shared) {
  const int lane = threadIdx.x % 32;
  wait_for_previous_kernels();
  for (int n = 0; n < a.num_phases; ++n) {
    const Phase& p = shared.tail->phases[n];
    if (!has_rows(p) || p.squares == nullptr) continue;
    if (lane == 0) wait_for_phase(a, shared, n);
    __syncwarp();
    for (int t = 0; t < a.num_tokens; ++t) {
      float sum = 0.0f;
      for (int block = lane; block < p.squares_blocks; block += 32) sum += __ldcg(p.squares + block * a.num_tokens + t);
#pragma unroll
      for (int step = 1; step < 32; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
      if (lane == 0) shared.tail->factors[t] = reciprocal_root(fmaf(sum, p.inverse_width, p.eps));
    }
    sync_barrier(kSumsBarrier, kChainConsumers + 32);
  }
}

// By the warps that multiply, and with a norm by the one that makes its factors.
__device__ inline void wait_for_sums(const Phase& p) {
  sync_barrier(kSumsBarrier, p.squares == nullptr ? kChainConsumers : kChainConsumers + 32);
}

// A warp's part of a phase: kTiles tiles of 16 rows, every `parts`-th 16 channels of them. kTiles may be more than there are: nothing is made
// of the others.
template <int kTokenTiles, int kTiles>
struct PhaseSums {
  static constexpr int kChains = kTiles >= 4 ? 1 : 4 / kTiles;  // the next multiplication need not wait for the last
  static constexpr int kSteps = kTiles >= 8 ? 2 : 4;            // loaded at once
  float sums[kChains][kTiles][kTokenTiles][4] = {};
};

// Where a lane reads a slot.
struct SlotPart {
  const unsigned char* weights;  // its row of the first tile, of a box
  const unsigned char* x;        // of a box: beginning
  int weights_of_box;
  int parts;
};

// kSteps steps from `first` on, slot.parts apart.
template <class T, int kTokenTiles, int kTiles, int kSteps>
__device__ inline void multiply_steps(const SlotPart& slot, int num_tokens, int first, PhaseSums<kTokenTiles, kTiles>& to) {
  using Sums = PhaseSums<kTokenTiles, kTiles>;
  const int lane = threadIdx.x % 32;
  // Lane i gives the address of a row of one of the four 8 x 8 matrices of a fragment. Of weights: 16 rows of 8 channels, then of the next 8.
  // Of x: 8 tokens, the next 8 channels of them, then likewise 8 more tokens. Tokens that there are not are the first.
  const int row_chunk = lane / 16, row = lane % 8, token_chunk = lane / 8 % 2, token_of_tile = lane % 8 + lane / 16 * 8;
  uint32_t tokens[kSteps][kTokenTiles][2];
  uint32_t rows[kSteps][kTiles][4];
#pragma unroll
  for (int u = 0; u < kSteps; ++u) {
    const int step = first + u * slot.parts, box = step / 4, chunk = step % 4 * 2;
#pragma unroll
    for (int n = 0; n < kTokenTiles; n += 2) {
      const int t = n * 8 + token_of_tile, at = box * num_tokens + (t < num_tokens ? t : 0);
      uint32_t matrices[4];
      load_matrices(matrices, slot.x + at * kSlotRowBytes + ((chunk + token_chunk ^ at % 8) << 4));
      tokens[u][n][0] = matrices[0], tokens[u][n][1] = matrices[1];
      if constexpr (kTokenTiles > 1) tokens[u][n + 1][0] = matrices[2], tokens[u][n + 1][1] = matrices[3];
    }
    const unsigned char* const from = slot.weights + box * slot.weights_of_box + ((chunk + row_chunk ^ row) << 4);
#pragma unroll
    for (int m = 0; m < kTiles; ++m) load_matrices(rows[u][m], from + m * 16 * kSlotRowBytes);
  }
#pragma unroll
  for (int u = 0; u < kSteps; ++u) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
        multiply_matrices<T>(to.sums[u % Sums::kChains][m][n], rows[u][m], tokens[u][n][0], tokens[u][n][1]);
      }
    }
  }
}

// By the warps that multiply. Then the sums are in shared.sums, and may be read behind a barrier.
template <class T, int kTokenTiles, int kTiles>
__device__ inline void multiply_tiles(const ChainArgs& a, const ChainMemory& shared, const Phase& p, SlotPlace& place) {
  using Sums = PhaseSums<kTokenTiles, kTiles>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int group = warp & ((1 << p.log_groups) - 1), part = warp >> p.log_groups;
  const SlotLayout layout(p, a.num_tokens);
  const int count = slots_of_k(p), channels = p.boxes * kSlotBoxChannels, num_tokens = a.num_tokens, slots = a.slots, k = p.k;
  const int first_row = group * kTiles * 16, rows = p.rows, stride = rows_of_sums(p);
  const int parts = kChainWarps >> p.log_groups;
  const bool has_tiles = first_row < rows;
  Sums result;
#pragma unroll 1
  for (int i = 0; i < count; ++i, place.advance(slots)) {
    shared.tail->loaded[place.slot].wait(place.parity);
    if (has_tiles) {
      const unsigned char* const begin = shared.slot(place.slot);
      const SlotPart slot = {begin + (first_row + lane % 16) * kSlotRowBytes, begin + layout.weight_bytes, layout.weights_of_box, parts};
      const int steps = min(channels, k - i * channels) / 16;
      int step = part;
#pragma unroll 1
      for (; step + (Sums::kSteps - 1) * parts < steps; step += Sums::kSteps * parts) {
        multiply_steps<T, kTokenTiles, kTiles, Sums::kSteps>(slot, num_tokens, step, result);
      }
#pragma unroll 1
      for (; step < steps; step += parts) multiply_steps<T, kTokenTiles, kTiles, 1>(slot, num_tokens, step, result);
    }
    __syncwarp();
    if (lane == 0) shared.tail->emptied[place.slot].arrive();
  }
  if (!has_tiles) return;
  float* const to = shared.sums + part * num_tokens * stride + first_row + lane / 4;
#pragma unroll
  for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int t = n * 8 + lane % 4 * 2 + j;
      if (t >= num_tokens) continue;
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float sum = result.sums[0][m][n][half * 2 + j];
#pragma unroll
          for (int u = 1; u < Sums::kChains; ++u) sum += result.sums[u][m][n][half * 2 + j];
          if (first_row + m * 16 + half * 8 < rows) to[t * stride + m * 16 + half * 8] = sum;
        }
      }
    }
  }
}

template <class T, int kTokenTiles>
__device__ inline void multiply_phase(const ChainArgs& a, const ChainMemory& shared, const Phase& p, SlotPlace& place) {
  const int tiles = p.tiles;
  if (tiles == 1) return multiply_tiles<T, kTokenTiles, 1>(a, shared, p, place);
  if (tiles == 2) return multiply_tiles<T, kTokenTiles, 2>(a, shared, p, place);
  if (tiles == 4) return multiply_tiles<T, kTokenTiles, 4>(a, shared, p, place);
  multiply_tiles<T, kTokenTiles, 8>(a, shared, p, place);
}

// The products of kCount neighbouring rows and a token.
template <int kCount>
__device__ inline void gather_rows(const ChainArgs& a, const ChainMemory& shared, const Phase& p, int t, int row,
                                   float (&values)[kCount]) {
  const int parts = kChainWarps >> p.log_groups, row_stride = rows_of_sums(p), stride = a.num_tokens * row_stride;
  const float* const from = shared.sums + t * row_stride + row;
  Bytes<kCount * 4> sums[kChainWarps];
#pragma unroll
  for (int part = 0; part < kChainWarps; ++part) {
    if (part < parts) sums[part] = load_bytes<kCount * 4, false>(from + part * stride);
  }
#pragma unroll
  for (float& value : values) value = 0.0f;
#pragma unroll
  for (int part = 0; part < kChainWarps; ++part) {
    if (part >= parts) break;
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] += element<float, kCount>(sums[part], i);
  }
}

}  // namespace prologue::cuda
