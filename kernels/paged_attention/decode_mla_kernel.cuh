// Decode of multi-head latent attention on Hopper (sm_90a): one kv head of 576 channels, whose first 512 are V. wgmma, fed by TMA: K is
// read once, and its tile in shared memory is an operand of both products. The list of tiles, the shares of the blocks and the
// combination of their parts are those of decode_tiles.cuh: units of 64 packed rows, tiles of 64 keys.
//
// A block is two warpgroups that multiply (the consumers) and one whose first warp copies (the producer). In shared memory are q of the unit
// and two tiles of keys, the stages. Consumer c takes the scores of the tiles of stage c, all 64 rows x 64 keys, and turns them into weights;
// both consumers add to their half of the output, 64 rows x 256 channels, for every tile. So a tile goes through these steps:
//
//   k_full   the producer's copies are there             -> its consumer multiplies q and K, finds the new maxima and the weights
//   p_full   weights, maxima and factors of the sums     -> the other consumer reads them; both multiply weights and V
//   k_empty  both are done                               -> the producer fills the stage again
//
// The weights take the place of the tile's last 64 channels, which V does not have.
//
//   stage    [8 groups of 8 keys][9 panels of 64 channels][8 keys][64 channels], swizzled in rows of 128 bytes: one box of TMA has all
//            channels of 16 keys
//   work     two places: what a consumer needs to know of a unit; the producer is up to one unit ahead
//
// A part of a unit is up to 128 KiB. Where a unit may have more than a few, a second launch adds them up, a block for each row.
#pragma once

#include <cuda_pipeline_primitives.h>

#include <prologue/kernels/base/device/cuda_groups.cuh>
#include <prologue/kernels/base/device/hopper.cuh>
#include <prologue/kernels/paged_attention/attention_args.cuh>
#include <prologue/kernels/paged_attention/attention_instances.cuh>
#include <prologue/kernels/paged_attention/decode_parts.cuh>
#include <prologue/kernels/paged_attention/decode_tiles.cuh>
#include <prologue/kernels/paged_attention/wgmma_tools.cuh>

namespace prologue::cuda {

inline constexpr int kMlaConsumers = 2 * kWarpgroup;
static_assert(kDecodeMlaThreads == kMlaConsumers + kWarpgroup);
// Code for other GPUs is empty, and admits fewer threads.
inline constexpr int kDecodeMlaLaunchBound = PROLOGUE_HOPPER ? kDecodeMlaThreads : 32;

// Registers of a thread: what the threads are launched with is divided anew.
inline constexpr int kMlaProducerRegisters = 72;
inline constexpr int kMlaConsumerRegisters = 216;
static_assert(kMlaProducerRegisters + 2 * kMlaConsumerRegisters == 3 * kDecodeMlaRegisters);

// Named barriers of the consumers, each its own; 0 is that of __syncthreads(). Where both meet is an mbarrier, and every thread arrives at an
// mbarrier, not one of each warp: racecheck follows only that.
inline constexpr int kMlaConsumerBarrier = 1;

// A block's part of a unit: consecutive tiles.
struct MlaWork {
  Sequence sequence;
  int64_t sequence_index = 0;
  int tiles = 0;      // 0: there is no more work
  int position = 0;   // of the first tile
  int first_key = 0;  // the first position that a row of the unit needs, and
  int key_limit = 0;  // the position behind the last one
  int first_packed = 0;
  int rows = 0;         // packed rows of the unit
  int first_block = 0;  // the blocks that share it
  int last_block = 0;
  bool begins = false;      // with the unit's first tile
  unsigned faulty[2] = {};  // a bit per row
};

template <class T>
struct MlaShared {
  static constexpr int kRows = kDecodeMlaRows;
  static constexpr int kKeys = kDecodeMlaKeys;
  static constexpr int kPanels = kMlaHeadDim / 64;
  static constexpr int kRowBytes = 128;
  static constexpr int kPanelBytes = 8 * kRowBytes;          // of 8 keys
  static constexpr int kGroupBytes = kPanels * kPanelBytes;  // 8 keys
  static constexpr int kStageBytes = kKeys / 8 * kGroupBytes;
  alignas(1024) T q[kPanels][kRows][64];
  alignas(1024) unsigned char k[2][kStageBytes];
  Barrier work_full[2], work_empty[2], k_full[2], k_empty[2], p_full[2], both_there;
  MlaWork work[2];
  float maximum[2][kRows];  // of each stage: of its tile and those before it
  float rescale[2][kRows];  // what sums over the tiles before it are multiplied by
  float sum[2][kRows];      // of each consumer's tiles, at the end of a unit
  FindShare<kDecodeMlaThreads> find_share;
  unsigned arrived;

  // Of the weights of a row in a stage: chunk i has keys 8i to 8i + 7.
  static __device__ int weights_place(int row, int chunk) {
    return row / 8 * kGroupBytes + (kPanels - 1) * kPanelBytes + row % 8 * kRowBytes + (chunk ^ row % 8) * 16;
  }
};

// ---------------------------------------------------------------------------------------------------------------------
// Rows of the output

struct MlaOutRow {
  int j;  // query row
  int q_head;
  int64_t offset;

  __device__ MlaOutRow(const AttentionArgs& args, const Sequence& sequence, int packed)
      : j(packed / args.group),
        q_head(packed % args.group),
        offset((sequence.first_row + j) * args.p.out.token_stride + q_head * args.p.out.head_stride) {}
  // What the row's sums are divided by; 0: it is zeros. One of its threads records its fault.
  __device__ float divisor(const AttentionArgs& args, const Sequence& sequence, float maximum, float sum, bool fault,
                           bool records) const {
    if (fault && records && q_head == 0) record_row_fault(args, sequence, j);
    return fault || sequence.limit(j) == 0 ? 0.0f : sum + sink_weight(args.p, q_head, maximum);
  }
};

// The sums of four channels, which are complete.
__device__ inline void store_sums(const AttentionArgs& args, const Sequence& sequence, int packed, int d, PartSums& sums) {
  const MlaOutRow to(args, sequence, packed);
  const float by = to.divisor(args, sequence, sums.maximum, sums.sum, sums.fault, d == 0);
#pragma unroll
  for (float& value : sums.values) value = by == 0.0f ? 0.0f : value / by;
  store_four(args.p.dtype, args.p.out.data, to.offset + d, sums.values);
}

// ---------------------------------------------------------------------------------------------------------------------
// The producer

// A lane has 16 keys, and their page, which is -1, outside of the tensor, if no row of the unit needs them, or if there is no such page.
struct MlaBox {
  int page = -1;
  int slot = 0;
  bool bad = false;  // needed, and there is no such page
};

__device__ inline MlaBox mla_box_at(const AttentionArgs& args, const MlaWork& work, int position) {
  MlaBox box;
  if (max(position, work.first_key) < min(position + kDecodeMlaBoxSlots, work.key_limit)) {
    const int place = place_of(args, position);
    const CacheSlot slot = cache_slot(args, work.sequence.pages[page_index(args, place)], place);
    box.page = static_cast<int>(slot.page);
    box.slot = static_cast<int>(slot.offset);
    box.bad = slot.page < 0;
  }
  return box;
}

template <class T>
__device__ inline void produce_mla(const AttentionArgs& args, const CUtensorMap& map, MlaShared<T>& shared, const Share& share,
                                   TileCursor<kDecodeMlaRows, kDecodeMlaKeys>& cursor) {
  using Shared = MlaShared<T>;
  constexpr int kBoxes = Shared::kKeys / kDecodeMlaBoxSlots;  // of a tile
  constexpr int kTilesAtOnce = 32 / kBoxes;                   // whose pages a warp knows
  const int lane = threadIdx.x % 32;
  bool waiting = args.p.past_is_ready;  // for the previous kernels
  RingPlace<2> work_at, at;

  for (int64_t next = share.begin;; work_at.advance()) {
    MlaWork& work = shared.work[work_at.index];
    const int tiles = static_cast<int>(min(share.end - next, int64_t{cursor.of_sequence.tiles - cursor.tile}));
    shared.work_empty[work_at.index].wait(work_at.phase ^ 1);
    if (lane == 0) {
      work = MlaWork();
      if (next < share.end) {
        work.sequence = cursor.sequence;
        work.sequence_index = cursor.s;
        work.tiles = tiles;
        work.position = cursor.position();
        work.first_packed = cursor.first_packed();
        work.rows = min(Shared::kRows, cursor.num_packed(args) - work.first_packed);
        if (work.rows > 0) {
          work.first_key = lowest(args, cursor.sequence.limit(work.first_packed / args.group));
          work.key_limit = cursor.sequence.limit((work.first_packed + work.rows - 1) / args.group);
        }
        work.first_block = static_cast<int>(quotient(cursor.first, share.size));
        work.last_block = static_cast<int>(quotient(cursor.first + cursor.of_sequence.tiles - 1, share.size));
        work.begins = cursor.tile == 0;
      }
      shared.work_full[work_at.index].arrive();
    }
    __syncwarp();
    if (next >= share.end) return;

    MlaBox box;
    for (int tile = 0; tile < tiles; ++tile, at.advance()) {
      if (tile % kTilesAtOnce == 0) box = mla_box_at(args, work, work.position + (tile * kBoxes + lane) * kDecodeMlaBoxSlots);
      const bool of_tile = lane / kBoxes == tile % kTilesAtOnce;
      const int position = work.position + tile * Shared::kKeys;
      for (unsigned left = __ballot_sync(0xffffffffu, of_tile && box.bad); left != 0; left &= left - 1) {
        const int first = position + (__ffs(static_cast<int>(left)) - 1) % kBoxes * kDecodeMlaBoxSlots;
#pragma unroll 1
        for (int row = lane; row < work.rows; row += 32) {
          const int limit = work.sequence.limit((work.first_packed + row) / args.group);
          const bool sees = max(first, lowest(args, limit)) < min(first + kDecodeMlaBoxSlots, limit);
          if (sees) atomicOr(&work.faulty[row / 32], 1u << (row % 32));
        }
      }
      if (waiting && position + Shared::kKeys > work.sequence.length - work.sequence.num_rows) {
        wait_for_previous_kernels();
        waiting = false;
      }
      shared.k_empty[at.index].wait(at.phase ^ 1);
      __syncwarp();  // the faulty rows are known before the keys are there
      if (lane == 0) shared.k_full[at.index].arrive_and_expect(Shared::kStageBytes);
      __syncwarp();
      if (of_tile) {
        load_box(&shared.k[at.index][lane % kBoxes * (kDecodeMlaBoxSlots / 8) * Shared::kGroupBytes], map,
                 shared.k_full[at.index], 0, 0, 0, box.slot / 8, box.page);
      }
    }
    next += tiles;
    if (next < share.end) {
      cursor.tile += tiles - 1;
      cursor.advance(args);
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// A consumer, a warpgroup. Lane l of a warp has its rows l / 4 and l / 4 + 8, called halves.

template <class T>
__device__ inline void consume_mla(const AttentionArgs& args, MlaShared<T>& shared) {
  using Shared = MlaShared<T>;
  constexpr int kRows = Shared::kRows;
  constexpr int kKeys = Shared::kKeys;
  constexpr int kOwnChannels = kMlaValueDim / 2;
  const PagedAttentionParams& p = args.p;
  const int thread = static_cast<int>(threadIdx.x);  // of the consumers
  const int consumer = __shfl_sync(0xffffffffu, thread / kWarpgroup, 0);
  const int lane = thread % 32;
  const int first_row = thread % kWarpgroup / 32 * 16 + lane / 4;  // of the unit; the other half: + 8
  const bool soft_cap = args.cap_log2 > 0.0f;
  const float score_scale = soft_cap ? 1.0f : args.score_scale;
  const uint64_t q_rows = matrix_descriptor(shared.q, 0, 8 * Shared::kRowBytes);
  const uint64_t k_rows = matrix_descriptor(shared.k, 0, Shared::kGroupBytes);
  const uint64_t v_rows = matrix_descriptor(&shared.k[0][consumer * (kOwnChannels / 64) * Shared::kPanelBytes],
                                            Shared::kPanelBytes, Shared::kGroupBytes);
  float score[kKeys / 2];           // four for every 8 keys: keys 2t and 2t + 1 of half 0, then of half 1, t = lane % 4
  float out[kOwnChannels / 2];      // the same of channels
  uint32_t weights[kKeys / 16][4];  // of keys: what the scores become
  RingPlace<2> work_at, at;
  int meetings = 0;
  const auto meet = [&] {
    shared.both_there.arrive();
    shared.both_there.wait(meetings++ % 2);
  };

  wait_for_previous_kernels();
  for (;; work_at.advance()) {
    shared.work_full[work_at.index].wait(work_at.phase);
    const MlaWork& work = shared.work[work_at.index];
    const int tiles = work.tiles;
    if (tiles == 0) return;
    const Sequence& sequence = work.sequence;
    const int rows = work.rows, first_packed = work.first_packed;
    if (sequence.bad_rows && work.begins && first_packed == 0)
      clear_bad_rows(args, work.sequence_index, 0, thread, kMlaConsumers);

    meet();  // both are done with the unit before
    constexpr int kChunks = kMlaHeadDim / 8;
    for (int row = thread / 32; row < kRows; row += kMlaConsumers / 32) {
      const bool there = row < rows;
      const int packed = there ? first_packed + row : 0;
      const T* const from = static_cast<const T*>(p.q.data) + (sequence.first_row + packed / args.group) * p.q.token_stride +
                            packed % args.group * p.q.head_stride;
#pragma unroll
      for (int i = 0; i < (kChunks + 31) / 32; ++i) {
        const int chunk = i * 32 + lane;
        T* const to = &shared.q[min(chunk / 8, Shared::kPanels - 1)][row][(chunk % 8 ^ row % 8) * 8];
        if (chunk < kChunks) copy_or_clear(to, there ? from + chunk * 8 : p.q.data, there);
      }
    }
    __pipeline_commit();

#pragma unroll
    for (int i = 0; i < kOwnChannels / 2; ++i) out[i] = 0.0f;
    float shift[2] = {-INFINITY, -INFINITY};  // the maximum, scaled: a weight is 2^(score * score_scale - shift)
    float sum[2] = {0.0f, 0.0f};
    VisibleKeys visible[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + half * 8;
      visible[half] = VisibleKeys(args, row < rows ? sequence.limit((first_packed + row) / args.group) : 0);
    }
    const int all_see_to = sequence.limit(first_packed / args.group);
    const int all_see_from = lowest(args, sequence.limit(max(0, first_packed + rows - 1) / args.group));
    __pipeline_wait_prior(0);
    fence_shared_for_async();
    meet();

    const auto rescale_sums = [&](const float(&rescale)[2]) {
      if (!__any_sync(0xffffffffu, rescale[0] != 1.0f || rescale[1] != 1.0f)) return;  // mostly, after the first tiles
#pragma unroll
      for (int half = 0; half < 2; ++half) sum[half] *= rescale[half];
#pragma unroll
      for (int i = 0; i < kOwnChannels / 2; ++i) out[i] *= rescale[i / 2 % 2];
    };
    const auto multiply_values = [&] {
      keep_in_order(out);
      multiply_fence();
      const uint64_t v = advance(v_rows, at.index * Shared::kStageBytes);
#pragma unroll
      for (int step = 0; step < kKeys / 16; ++step)
        multiply_async<T>(out, weights[step], advance(v, step * 2 * Shared::kGroupBytes));
      multiply_commit();
      multiply_wait<0>();
      keep_in_order(out);
      shared.k_empty[at.index].arrive();
    };
    const auto take_scores = [&](int first_key) {
      unsigned char* const stage = shared.k[at.index];
      shared.k_full[at.index].wait(at.phase);
      // Positions that no row needs, in boxes that have others: V is multiplied by 0, and must not be NaN.
      const int low = min(max(0, work.first_key - first_key), kKeys);
      const int high = max(low, min(kKeys, work.key_limit - first_key));
      if (low > 0 || high < kKeys) {
        for (int i = thread % kWarpgroup; i < kKeys * kChunks; i += kWarpgroup) {
          const int key = i % kKeys;
          const int chunk = i / kKeys;
          if (key >= low && key < high) continue;
          *reinterpret_cast<uint4*>(stage + key / 8 * Shared::kGroupBytes + chunk / 8 * Shared::kPanelBytes +
                                    key % 8 * Shared::kRowBytes + chunk % 8 * 16) = uint4{0, 0, 0, 0};
        }
        fence_shared_for_async();
        sync_barrier(kMlaConsumerBarrier + consumer, kWarpgroup);
      }
      keep_in_order(score);
      multiply_fence();
      const uint64_t k = advance(k_rows, at.index * Shared::kStageBytes);
#pragma unroll
      for (int step = 0; step < kMlaHeadDim / 16; ++step) {
        const int q_at_step = step / 4 * kRows * Shared::kRowBytes + step % 4 * 32;
        const int k_at_step = step / 4 * Shared::kPanelBytes + step % 4 * 32;
        multiply_async<T>(score, advance(q_rows, q_at_step), advance(k, k_at_step), step > 0);
      }
      multiply_commit();
      multiply_wait<0>();
      keep_in_order(score);
      sync_barrier(kMlaConsumerBarrier + consumer, kWarpgroup);  // all its warps have multiplied: weights overwrite channels of K

      if (soft_cap) {
#pragma unroll
        for (int i = 0; i < kKeys / 2; ++i) score[i] = capped_roughly(args, score[i] * args.score_scale);
      }
      if (first_key + kKeys > all_see_to || first_key < all_see_from) {
        const int first_of_lane = first_key + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < kKeys / 2; ++i) {
          if (!visible[i / 2 % 2].hold(first_of_lane + i / 4 * 8 + i % 2)) score[i] = -INFINITY;
        }
      }
      float rescale[2], added[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float most = -INFINITY;
#pragma unroll
        for (int i = 0; i < kKeys / 2; i += 4) most = fmaxf(most, fmaxf(score[i + 2 * half], score[i + 2 * half + 1]));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        const float new_shift = fmaxf(shift[half], most * score_scale);
        const float minus = new_shift == -INFINITY ? 0.0f : -new_shift;
        rescale[half] = exp2_approximate(shift[half] + minus);
        shift[half] = new_shift;
        added[half] = 0.0f;
#pragma unroll
        for (int i = 0; i < kKeys / 2; i += 4) {
          float& even = score[i + 2 * half];
          float& odd = score[i + 2 * half + 1];
          even = exp2_approximate(fmaf(even, score_scale, minus));
          odd = exp2_approximate(fmaf(odd, score_scale, minus));
          added[half] += even + odd;
        }
      }
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          weights[n][i] = pack<T>(score[8 * n + 2 * i], score[8 * n + 2 * i + 1]);
          *reinterpret_cast<uint32_t*>(stage + Shared::weights_place(first_row + i % 2 * 8, 2 * n + i / 2) + lane % 4 * 4) =
              weights[n][i];
        }
      }
      if (lane % 4 == 0) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          shared.maximum[at.index][first_row + half * 8] = shift[half];
          shared.rescale[at.index][first_row + half * 8] = rescale[half];
        }
      }
      fence_shared_for_async();  // a later copy to the stage comes after these stores
      shared.p_full[at.index].arrive();
      rescale_sums(rescale);
#pragma unroll
      for (int half = 0; half < 2; ++half) sum[half] += added[half];
    };
    const auto take_weights = [&] {
      shared.k_full[at.index].wait(at.phase);
      shared.p_full[at.index].wait(at.phase);
      const unsigned char* const stage = shared.k[at.index];
      const int row = thread % kWarpgroup / 32 * 16 + lane % 16;
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) load_matrices(weights[n], stage + Shared::weights_place(row, 2 * n + lane / 16));
      float rescale[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        shift[half] = shared.maximum[at.index][first_row + half * 8];
        rescale[half] = shared.rescale[at.index][first_row + half * 8];
      }
      rescale_sums(rescale);
    };

    int first_key = work.position;
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile, at.advance()) {
      if (at.index == consumer) {
        take_scores(first_key);
      } else {
        take_weights();
      }
      multiply_values();
      first_key += kKeys;
    }

#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
      sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
      if (lane % 4 == 0) shared.sum[consumer][first_row + half * 8] = sum[half];
    }
    meet();
    bool fault[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + half * 8;
      sum[half] = shared.sum[0][row] + shared.sum[1][row];
      fault[half] = sequence.too_long || (work.faulty[row / 32] >> (row % 32) & 1) != 0;
    }

    if (args.unit_blocks != nullptr && thread == 0 && work.begins) {
      args.unit_blocks[work.sequence_index * args.row_tiles + first_packed / kRows] = {work.first_block, work.last_block};
    }
    if (work.first_block == work.last_block) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_row + half * 8;
        const bool there = row < rows;
        const MlaOutRow to_row(args, sequence, there ? first_packed + row : 0);
        const bool records = consumer == 0 && lane % 4 == 0;
        const float by = there ? to_row.divisor(args, sequence, shift[half], sum[half], fault[half], records) : 0.0f;
        const float inverse = by == 0.0f ? 0.0f : 1.0f / by;
        T* const to = static_cast<T*>(p.out.data) + to_row.offset + consumer * kOwnChannels;
#pragma unroll
        for (int four = 0; four < kOwnChannels / 32; ++four) {  // chunks of 8 channels
          uint32_t words[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int from = (four * 4 + i) * 4 + 2 * half;
            words[i] = by == 0.0f ? 0 : pack<T>(out[from] * inverse, out[from + 1] * inverse);
          }
          transpose_of_four(words, lane % 4);
          if (there) {
            *reinterpret_cast<uint4*>(to + (four * 4 + lane % 4) * 8) = {words[0], words[1], words[2], words[3]};
          }
        }
      }
    } else {
      const int64_t part = part_of(work.first_block, blockIdx.y) * kRows;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_row + half * 8;
        if (row >= rows) continue;
        float* const to = args.partial_out + (part + row) * kMlaValueDim + consumer * kOwnChannels + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < kOwnChannels / 8; ++i) {
          *reinterpret_cast<float2*>(to + i * 8) = {out[4 * i + 2 * half], out[4 * i + 2 * half + 1]};
        }
        if (consumer == 0 && lane % 4 == 0) args.partial_stats[part + row] = {shift[half], fault[half] ? -1.0f : sum[half]};
      }
      if (args.unit_blocks == nullptr) {
        meet();
        if (thread == 0) shared.arrived = count_arrival(&args.counters[work.first_block]);
        meet();
      }
      if (args.unit_blocks == nullptr && shared.arrived == static_cast<unsigned>(work.last_block - work.first_block)) {
        if (thread == 0) args.counters[work.first_block] = 0;
        for (int i = thread; i < rows * (kMlaValueDim / 4); i += kMlaConsumers) {
          const int row = i / (kMlaValueDim / 4);
          const int d = i % (kMlaValueDim / 4) * 4;
          PartSums sums;
          add_parts<kRows>(args, work.first_block, work.first_block, work.last_block, row, d, sums);
          store_sums(args, sequence, first_packed + row, d, sums);
        }
      }
    }
    shared.work_empty[work_at.index].arrive();
  }
}

template <class T>
__global__ void __launch_bounds__(kDecodeMlaLaunchBound, 1)
    decode_mla_kernel(const __grid_constant__ AttentionArgs args, const __grid_constant__ CUtensorMap map) {
#if PROLOGUE_HOPPER
  MlaShared<T>& shared = *swizzled_dynamic_shared<MlaShared<T>>();
  if (threadIdx.x == 0) {
    if (shared_address(&shared) % 1024 != 0) __trap();  // the swizzle would be another
    for (int i = 0; i < 2; ++i) {
      shared.work_full[i].init(1);
      shared.work_empty[i].init(kMlaConsumers);
      shared.k_full[i].init(1);
      shared.k_empty[i].init(kMlaConsumers);
      shared.p_full[i].init(kWarpgroup);
    }
    shared.both_there.init(kMlaConsumers);
    fence_barrier_init();
    prefetch_map(map);
  }
  let_next_kernel_start();
  if (!args.p.past_is_ready) wait_for_previous_kernels();
  TileCursor<kDecodeMlaRows, kDecodeMlaKeys> cursor;
  const Share share = find_share(args, shared.find_share, cursor);
  __syncthreads();
  if (share.begin >= share.end) {
    wait_for_previous_kernels();  // whoever waits for this kernel waits for them, too
    return;
  }
  if (threadIdx.x < kMlaConsumers) {
    claim_registers<kMlaConsumerRegisters>();
    consume_mla<T>(args, shared);
  } else {
    release_registers<kMlaProducerRegisters>();
    if (threadIdx.x < kMlaConsumers + 32) produce_mla<T>(args, map, shared, share, cursor);
  }
#endif
}

// ---------------------------------------------------------------------------------------------------------------------
// The second launch: a block for each unit and row. Four groups of threads add up a quarter of the parts each.

template <int kRows>  // of a unit
__global__ void __launch_bounds__(kMlaCombineThreads) mla_combine_kernel(const __grid_constant__ AttentionArgs args) {
  constexpr int kColumns = kMlaValueDim / 4;
  constexpr int kGroups = kMlaCombineThreads / kColumns;
  __shared__ PartSums shared[kGroups - 1][kColumns];
  let_next_kernel_start();
  wait_for_previous_kernels();
  const Sequence sequence = sequence_at(args, blockIdx.x / args.row_tiles);
  const int row = static_cast<int>(blockIdx.y);
  const int packed = static_cast<int>(blockIdx.x) % args.row_tiles * kRows + row;
  if (packed >= sequence.num_rows * args.group) return;
  const UnitBlocks blocks = args.unit_blocks[blockIdx.x];
  const int parts = blocks.last - blocks.first + 1;
  if (parts == 1) return;
  const int column = static_cast<int>(threadIdx.x) % kColumns;
  const int group = static_cast<int>(threadIdx.x) / kColumns;
  PartSums sums;
  add_parts<kRows>(args, blocks.first, blocks.first + parts * group / kGroups, blocks.first + parts * (group + 1) / kGroups - 1,
                   row, column * 4, sums);
  if (group > 0) shared[group - 1][column] = sums;
  __syncthreads();
  if (group > 0) return;
#pragma unroll
  for (int other = 0; other < kGroups - 1; ++other) {
    const PartSums& more = shared[other][column];
    const float both = fmaxf(sums.maximum, more.maximum);
    const float weight = weight_of(sums.maximum, both);
    const float other_weight = weight_of(more.maximum, both);
    sums.maximum = both;
    sums.fault = sums.fault || more.fault;
    sums.sum = fmaf(other_weight, more.sum, sums.sum * weight);
#pragma unroll
    for (int i = 0; i < 4; ++i) sums.values[i] = fmaf(other_weight, more.values[i], sums.values[i] * weight);
  }
  store_sums(args, sequence, packed, column * 4, sums);
}

}  // namespace prologue::cuda
