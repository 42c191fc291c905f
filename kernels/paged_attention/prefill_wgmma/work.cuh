// This file finds the work of a block of prefill_wgmma_kernel, and has what its warps exchange.
#pragma once

#include <prologue/kernels/base/device/hopper.cuh>
#include <prologue/kernels/paged_attention/attention_args.cuh>
#include <prologue/kernels/paged_attention/attention_instances.cuh>
#include <prologue/kernels/paged_attention/row_tile.cuh>
#include <prologue/kernels/paged_attention/wgmma_tools.cuh>

namespace prologue::cuda {

inline constexpr int kWgmmaConsumers = 2 * kWarpgroup;  // threads

// The producer of the keys tells the other warps this about a tile.
struct PrefillWork {
  RowTile tile;
  int kv_head = -1;  // -1: there is no more
  int begin = 0;     // tiles of keys, of this part
  int end = 0;
  int part = 0;
  int parts = 1;            // each of its own block; those of several clusters, or of some blocks of one
  unsigned faulty[4] = {};  // a bit per row
};

// Whether scores are scaled before their maximum is found, each by the scale of its key. That is needed if tokens have scales of their own,
// or if the scale of all tokens would not keep the largest product the largest score. Otherwise the scale of all tokens is in the scale of
// the scores.
__device__ inline bool scaled_at_once(const AttentionArgs& args, float shared_scale_of_k) {
  return args.p.kv.k.format.scaling == KvScaling::token_head || !(shared_scale_of_k > 0.0f);
}

template <class T, int kHeadDim, bool kOfCodes>
struct WgmmaShared {
  using Element = T;
  static constexpr bool kCodes = kOfCodes;  // what the cache holds
  static constexpr int kThreads = kPrefillWgmmaThreads<kHeadDim, kCodes>;
  static constexpr int kRegisters = kPrefillWgmmaRegisters<kHeadDim, kCodes>;  // of each at the launch
  static constexpr int kProducers = kThreads - kWgmmaConsumers;
  static constexpr int kRows = kPrefillWgmmaRows;
  static constexpr int kKeys = kPrefillWgmmaKeys<kHeadDim>;
  static constexpr int kPanels = kHeadDim / 64;
  static constexpr int kStages = kHeadDim == 64 ? 4 : 2;
  static constexpr int kRowBytes = 128;
  static constexpr int kPanelBytes = kKeys * kRowBytes;
  static constexpr int kStageBytes = kPanels * kPanelBytes;
  static constexpr int kCodesInFlight = kCodes ? kKeys * (kHeadDim < 128 ? kHeadDim : 128) / kPrefillWgmmaCodes : 1;
  alignas(1024) T q[kPanels][kRows][64];
  alignas(1024) T k[kStages][kPanels][kKeys][64];
  alignas(1024) T v[kStages][kPanels][kKeys][64];
  alignas(16) uint4 codes[2][kCodesInFlight];   // of K, and of V
  float k_scales[kStages][kCodes ? kKeys : 1];  // where scores are scaled at once
  float k_zero_points[kStages][kCodes ? kKeys : 1];
  Barrier work_full[2], work_empty[2], q_full, q_empty;
  Barrier k_full[kStages], k_empty[kStages], v_full[kStages], v_empty[kStages], v_copied;
  PrefillWork work[2];
  float4 stats[kWgmmaConsumers];  // of the rows of each, if several blocks work on a tile
  unsigned arrived;               // clusters of the tile that were done before this one
};

// Returns how many blocks each tile of the launch may have: those of some clusters if tiles may be divided, else 1.
__device__ inline int blocks_of_tiles(const AttentionArgs& args, const PrefillWgmmaParams& w) {
  if (w.cluster_blocks == 0) return 1;
  const int clusters = static_cast<int>(gridDim.x) / w.cluster_blocks;
  const int most = clusters / args.num_kv_heads;  // tiles of a kv head
  int tiles = 0;
  for (int64_t base = args.first_seq; base < args.p.num_seqs && tiles <= most; base += 32) {
    int of_lanes = row_tiles_of(args, base + threadIdx.x % 32, w.tile_rows);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) of_lanes += __shfl_xor_sync(0xffffffffu, of_lanes, offset);
    tiles += of_lanes;
  }
  if (tiles == 0 || tiles > most) return 1;
  return min(kPrefillWgmmaClusters, clusters / (tiles * args.num_kv_heads)) * w.cluster_blocks;
}

// Finds the next work of this block from `round` on. Blocks take tiles in the order of find_tile, forwards and backwards alternately, so
// that the sums of their keys are similar. If tiles have several blocks, there are enough blocks for all of them in one round.
template <int kKeys>
__device__ inline bool next_work(const AttentionArgs& args, const PrefillWgmmaParams& w, int blocks_of_tile, int& round,
                                 PrefillWork& work) {
  for (;;) {
    const int at = static_cast<int>(round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
    const int index = round++ * static_cast<int>(gridDim.x) + at;
    const int item = index / blocks_of_tile;
    work = PrefillWork();
    if (!find_tile(args, item / args.num_kv_heads, w.tile_rows, work.tile)) return false;
    const int begin = lowest(args, work.tile.first_limit) / kKeys;
    const int tiles = (work.tile.last_limit + kKeys - 1) / kKeys - begin;
    work.kv_head = item % args.num_kv_heads;
    work.part = index - item * blocks_of_tile;
    if (blocks_of_tile > 1 && tiles > kPrefillWgmmaWholeTiles) {
      work.parts = min(blocks_of_tile, tiles);
      if (work.parts > w.cluster_blocks) work.parts -= work.parts % w.cluster_blocks;
    }
    if (work.part >= work.parts) continue;
    work.begin = begin + tiles * work.part / work.parts;
    work.end = begin + tiles * (work.part + 1) / work.parts;
    return true;
  }
}

// Called by the warp that finds the work: publishes the next work when the other warps are done with the entry. This warp also reads it
// from shared memory, since it has few registers.
template <class Shared>
__device__ inline PrefillWork& publish_work(const AttentionArgs& args, const PrefillWgmmaParams& w, int blocks_of_tile,
                                            int& round, const StageIndex<2>& at, Shared& shared) {
  PrefillWork next;
  if (!next_work<Shared::kKeys>(args, w, blocks_of_tile, round, next)) next.kv_head = -1;
  shared.work_empty[at.index].wait(at.phase ^ 1);
  if (threadIdx.x % 32 == 0) {
    shared.work[at.index] = next;
    shared.work_full[at.index].arrive();
  }
  __syncwarp();
  return shared.work[at.index];
}

// Called by the same warp: loads the rows of Q when the consumers are done with the previous ones.
template <class Shared>
__device__ inline void copy_q(const AttentionArgs& args, const PrefillWgmmaParams& w, const PrefillWork& work, unsigned& phase,
                              Shared& shared) {
  shared.q_empty.wait(phase ^ 1);
  phase ^= 1;
  if (threadIdx.x % 32 != 0) return;
  shared.q_full.arrive_and_expect(Shared::kPanels * w.tile_rows * Shared::kRowBytes);
  const int token = work.tile.sequence.first_row + work.tile.first_packed / args.group;
#pragma unroll
  for (int panel = 0; panel < Shared::kPanels; ++panel) {
    load_box(shared.q[panel], w.q, shared.q_full, panel * 64, work.kv_head * args.group, token);
  }
}

// Marks the rows that see one of a lane's needed positions from `begin` to `end` on a bad page.
__device__ inline void mark_faulty_rows(const AttentionArgs& args, const PrefillWgmmaParams& w, PrefillWork& work, bool bad,
                                        int lane_begin, int lane_end) {
  for (unsigned left = __ballot_sync(0xffffffffu, bad); left != 0; left &= left - 1) {
    const int owner = __ffs(static_cast<int>(left)) - 1;
    const int begin = __shfl_sync(0xffffffffu, lane_begin, owner);
    const int end = __shfl_sync(0xffffffffu, lane_end, owner);
#pragma unroll 1
    for (int r = threadIdx.x % 32; r < w.tile_rows; r += 32) {
      const int packed = work.tile.first_packed + r;
      if (packed >= work.tile.num_packed) break;
      const int limit = work.tile.sequence.limit(packed / args.group);
      const bool sees = max(begin, lowest(args, limit)) < min(end, limit);
      if (sees) atomicOr(&work.faulty[r / 32], 1u << (r % 32));
    }
  }
}

}  // namespace prologue::cuda
