// Prefill on Hopper (sm_90a): wgmma, fed by TMA. A block is three warpgroups that live as long as the launch and work through its
// tiles of packed rows: two warps of the first (the producers) issue the copies, one finds a tile and copies Q and K, the other V; the two
// other warpgroups (the consumers) multiply 64 of its 128 rows each. What they share is handed over through pairs of barriers, full and empty:
//
//   work     two places   which tile of which kv head, and the keys: the producer is up to one tile ahead
//   q        one place    all rows of the tile, one box for 64 channels: tokens x the q heads of the kv head, which is the packed order
//   k, v     kStages      128 or 64 keys, one box for each page (at most kPrefillWgmmaMaxBoxSlots of its slots) and 64 channels
//
// Positions that no row of the tile needs, bad pages and channels beyond the head are outside of the tensor for TMA: they arrive as
// zeros. Where a box has positions that are needed and others, the producer of V overwrites V of the others, so that 0 * NaN is not added.
//
// A consumer issues the scores of the next keys before it adds up the values of these, and works on those scores meanwhile. The two
// consumers issue their multiplications in turns, so that one's exponentials run under the other's multiplications.
//
// A row takes the same steps whatever else its tile holds (see prefill_kernel.cuh): keys come in tiles that start at multiples of
// their size, in ascending order; for a tile without a key that the row sees, its maximum stays, the factor of its sums is 1.
//
// Few tiles with many keys are divided into parts, for more blocks; the last consumer to finish a part adds up all of them, in order.
#pragma once

#include <prologue/kernels/base/device/cuda_groups.cuh>
#include <prologue/kernels/base/device/hopper.cuh>
#include <prologue/kernels/paged_attention/attention_args.cuh>
#include <prologue/kernels/paged_attention/attention_instances.cuh>
#include <prologue/kernels/paged_attention/row_tile.cuh>
#include <prologue/kernels/paged_attention/wgmma_tools.cuh>

namespace prologue::cuda {

inline constexpr int kWgmmaConsumers = 2 * kWarpgroup;
static_assert(kPrefillWgmmaThreads == kWarpgroup + kWgmmaConsumers);
// Code for other GPUs is empty. It admits fewer threads: so the host knows.
inline constexpr int kWgmmaLaunchBound = PROLOGUE_HOPPER ? kPrefillWgmmaThreads : 32;

// Registers of a thread. A block has those that it was launched with: a consumer that claims what nobody has released waits for ever.
inline constexpr int kProducerRegisters = 72;
inline constexpr int kConsumerRegisters = 216;
static_assert(kProducerRegisters + 2 * kConsumerRegisters == 3 * kPrefillWgmmaRegisters);

// Named barriers: 0 is that of __syncthreads(); two each, one for each consumer.
inline constexpr int kTurnBarrier = 2;
inline constexpr int kPartBarrier = 4;

// What the producer of the keys tells the others of a tile.
struct PrefillWork {
  RowTile tile;
  int kv_head = -1;  // -1: there is no more
  int begin = 0;     // tiles of keys, of this part
  int end = 0;
  int part = 0;
  int parts = 1;
  int first_slot = 0;       // with several parts: that of part 0 in the workspace
  unsigned faulty[4] = {};  // a bit per row
};

template <class T, int kHeadDim>
struct WgmmaShared {
  static constexpr int kRows = kPrefillWgmmaRows;
  static constexpr int kKeys = kPrefillWgmmaKeys<kHeadDim>;
  static constexpr int kPanels = kHeadDim / 64;
  static constexpr int kStages = kHeadDim == 64 ? 4 : 2;
  static constexpr int kRowBytes = 128;
  static constexpr int kPanelBytes = kKeys * kRowBytes;
  static constexpr int kStageBytes = kPanels * kPanelBytes;
  alignas(1024) T q[kPanels][kRows][64];
  alignas(1024) T k[kStages][kPanels][kKeys][64];
  alignas(1024) T v[kStages][kPanels][kKeys][64];
  Barrier work_full[2], work_empty[2], q_full, q_empty;
  Barrier k_full[kStages], k_empty[kStages], v_full[kStages], v_empty[kStages], v_copied;
  PrefillWork work[2];
  unsigned arrived[2];  // of each consumer: the parts of its tile that were finished before its own
};

// ---------------------------------------------------------------------------------------------------------------------
// The producers, two warps: with small pages a tile has many boxes, which one warp issues too slowly

// How many parts each tile of the launch may have: one, unless the tiles leave most blocks without work.
__device__ inline int parts_of_tiles(const AttentionArgs& args, const PrefillWgmmaParams& w) {
  if (args.counters == nullptr) return 1;
  const int most = kPrefillWgmmaParts / 2 / args.num_kv_heads;  // of a kv head
  int tiles = 0;
  for (int64_t base = args.first_seq; base < args.p.num_seqs && tiles <= most; base += 32) {
    int of_lanes = row_tiles_of(args, base + threadIdx.x % 32, w.tile_rows);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) of_lanes += __shfl_xor_sync(0xffffffffu, of_lanes, offset);
    tiles += of_lanes;
  }
  return tiles == 0 || tiles > most ? 1 : kPrefillWgmmaParts / (tiles * args.num_kv_heads);
}

// The next work of this block from `round` on: blocks take tiles in the order of find_tile, forth and back, so that the sums of their
// keys are alike.
template <int kKeys>
__device__ inline bool next_work(const AttentionArgs& args, const PrefillWgmmaParams& w, int parts, int& round,
                                 PrefillWork& work) {
  for (;;) {
    const int at = static_cast<int>(round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
    const int index = round++ * static_cast<int>(gridDim.x) + at;
    const int unit = index / parts;
    work = PrefillWork();
    if (!find_tile(args, unit / args.num_kv_heads, w.tile_rows, work.tile)) return false;
    const int begin = lowest(args, work.tile.first_limit) / kKeys;
    const int tiles = (work.tile.last_limit + kKeys - 1) / kKeys - begin;
    work.kv_head = unit % args.num_kv_heads;
    work.part = index - unit * parts;
    work.parts = max(1, min(parts, (tiles + kPrefillWgmmaLeastTiles - 1) / kPrefillWgmmaLeastTiles));
    if (work.part >= work.parts) continue;
    work.begin = begin + tiles * work.part / work.parts;
    work.end = begin + tiles * (work.part + 1) / work.parts;
    work.first_slot = unit * parts;
    return true;
  }
}

// A lane has a box of a tile of keys: its page and its first slot there. The page is -1, outside of the tensor, if no row of the tile
// needs it, or if there is no such page.
struct Box {
  int page = -1;
  int slot = 0;
  bool bad = false;  // needed, and there is no such page
  int begin = 0;     // the needed positions
  int end = 0;
};

template <int kKeys>
__device__ inline Box box_of_lane(const AttentionArgs& args, const PrefillWgmmaParams& w, const RowTile& tile, int first_needed,
                                  int key_tile) {
  const int lane = threadIdx.x % 32;
  const int position = key_tile * kKeys + lane * w.box_slots;
  Box box;
  box.begin = max(position, first_needed);
  box.end = min(position + w.box_slots, tile.last_limit);
  if (lane * w.box_slots < kKeys && box.begin < box.end) {
    const int place = place_of(args, position);
    const CacheSlot slot = cache_slot(args, tile.sequence.pages[page_index(args, place)], place);
    box.page = static_cast<int>(slot.page);
    box.slot = static_cast<int>(slot.offset);
    box.bad = slot.page < 0;
  }
  return box;
}

// The rows that see a lane's bad box.
template <int kKeys>
__device__ inline void mark_faulty_rows(const AttentionArgs& args, const PrefillWgmmaParams& w, PrefillWork& work, const Box& box) {
  for (unsigned left = __ballot_sync(0xffffffffu, box.bad); left != 0; left &= left - 1) {
    const int owner = __ffs(static_cast<int>(left)) - 1;
    const int begin = __shfl_sync(0xffffffffu, box.begin, owner);
    const int end = __shfl_sync(0xffffffffu, box.end, owner);
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

// Every lane its box, of each panel.
template <class T, int kPanels, int kKeys>
__device__ inline void load_boxes(T (*to)[kKeys][64], const PrefillWgmmaParams& w, const CUtensorMap& map, Barrier& barrier, int kv_head,
                                  const Box& from) {
  const int first = threadIdx.x % 32 * w.box_slots;
  if (first >= kKeys) return;
#pragma unroll
  for (int panel = 0; panel < kPanels; ++panel) load_box(&to[panel][first], map, barrier, panel * 64, from.slot, kv_head, from.page);
}

// Finds the work; Q and the keys.
template <class T, int kHeadDim>
__device__ inline void produce_keys(const AttentionArgs& args, const PrefillWgmmaParams& w, WgmmaShared<T, kHeadDim>& shared) {
  using Shared = WgmmaShared<T, kHeadDim>;
  constexpr int kKeys = Shared::kKeys;
  const int lane = threadIdx.x % 32;
  if (!args.p.past_is_ready) wait_for_previous_kernels();
  const int parts = parts_of_tiles(args, w);
  RingPlace<2> work_at;
  RingPlace<Shared::kStages> at;
  unsigned q_phase = 0;

  for (int round = 0;; work_at.advance()) {
    PrefillWork& work = shared.work[work_at.index];  // the producer reads it there, too: it has few registers
    {
      PrefillWork next;
      if (!next_work<kKeys>(args, w, parts, round, next)) next.kv_head = -1;
      shared.work_empty[work_at.index].wait(work_at.phase ^ 1);
      if (lane == 0) {
        work = next;
        shared.work_full[work_at.index].arrive();
      }
      __syncwarp();
    }
    if (work.kv_head < 0) return;
    if (work.begin == work.end) continue;
    const int first_needed = lowest(args, work.tile.first_limit);

    wait_for_previous_kernels();
    shared.q_empty.wait(q_phase ^ 1);
    q_phase ^= 1;
    if (lane == 0) {
      shared.q_full.arrive_and_expect(Shared::kPanels * w.tile_rows * Shared::kRowBytes);
      const int token = work.tile.sequence.first_row + work.tile.first_packed / args.group;
#pragma unroll
      for (int panel = 0; panel < Shared::kPanels; ++panel) {
        load_box(shared.q[panel], w.q, shared.q_full, panel * 64, work.kv_head * args.group, token);
      }
    }
    for (int key_tile = work.begin; key_tile < work.end; ++key_tile, at.advance()) {
      const Box box = box_of_lane<kKeys>(args, w, work.tile, first_needed, key_tile);
      mark_faulty_rows<kKeys>(args, w, work, box);
      shared.k_empty[at.index].wait(at.phase ^ 1);
      __syncwarp();  // the faulty rows are known before the keys are there
      if (lane == 0) shared.k_full[at.index].arrive_and_expect(Shared::kStageBytes);
      __syncwarp();
      load_boxes<T, Shared::kPanels, kKeys>(shared.k[at.index], w, w.k, shared.k_full[at.index], work.kv_head, box);
    }
  }
}

template <class T, int kHeadDim>
__device__ inline void produce_values(const AttentionArgs& args, const PrefillWgmmaParams& w, WgmmaShared<T, kHeadDim>& shared) {
  using Shared = WgmmaShared<T, kHeadDim>;
  constexpr int kKeys = Shared::kKeys;
  const int lane = threadIdx.x % 32;
  RingPlace<2> work_at;
  RingPlace<Shared::kStages> at;
  unsigned copied_phase = 0;

  wait_for_previous_kernels();
  for (;; work_at.advance()) {
    shared.work_full[work_at.index].wait(work_at.phase);
    const PrefillWork& work = shared.work[work_at.index];
    if (work.kv_head < 0) return;
    const int first_needed = lowest(args, work.tile.first_limit);
    const int last_limit = work.tile.last_limit;
    for (int key_tile = work.begin; key_tile < work.end; ++key_tile, at.advance()) {
      const Box box = box_of_lane<kKeys>(args, w, work.tile, first_needed, key_tile);
      // In the tile's rows: those before `low` and from `high` on are not needed. Boxes without a needed one are zeros already.
      const int low = max(0, first_needed - key_tile * kKeys);
      const int high = min(kKeys, last_limit - key_tile * kKeys);
      const bool mixed = ((low | high) & (w.box_slots - 1)) != 0;  // a box is a power of two
      Barrier& full = shared.v_full[at.index];
      Barrier& copied = mixed ? shared.v_copied : full;
      shared.v_empty[at.index].wait(at.phase ^ 1);
      if (lane == 0) copied.arrive_and_expect(Shared::kStageBytes);
      __syncwarp();
      load_boxes<T, Shared::kPanels, kKeys>(shared.v[at.index], w, w.v, copied, work.kv_head, box);
      if (mixed) {
        copied.wait(copied_phase);
        copied_phase ^= 1;
        const int clear_begin = low & -w.box_slots;
        const int clear_end = (high + w.box_slots - 1) & -w.box_slots;
        for (int i = clear_begin * 8 + lane; i < clear_end * 8; i += 32) {
          if (i / 8 >= low && i / 8 < high) continue;
#pragma unroll
          for (int panel = 0; panel < Shared::kPanels; ++panel) {
            *reinterpret_cast<uint4*>(&shared.v[at.index][panel][i / 8][i % 8 * 8]) = uint4{0, 0, 0, 0};
          }
        }
        fence_shared_for_async();  // each lane's zeros, before wgmma reads them
        __syncwarp();
        if (lane == 0) full.arrive();
      }
    }
    __syncwarp();
    if (lane == 0) shared.work_empty[work_at.index].arrive();
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// A consumer, a warpgroup: 64 rows. Lane l of a warp has its rows l / 4 and l / 4 + 8, called halves.

template <class T, int kHeadDim, bool kSoftCap>
__device__ inline void consume(const AttentionArgs& args, const PrefillWgmmaParams& w, WgmmaShared<T, kHeadDim>& shared) {
  using Shared = WgmmaShared<T, kHeadDim>;
  constexpr int kKeys = Shared::kKeys;
  constexpr bool kTurns = kHeadDim <= 128;  // larger heads: the multiplications are longer than the rest anyway
  const PagedAttentionParams& p = args.p;
  const int thread = static_cast<int>(threadIdx.x) - kWarpgroup;  // of the consumers
  const int consumer = __shfl_sync(0xffffffffu, thread / kWarpgroup, 0);
  const int lane = thread % 32;
  const int first_row = thread / 32 * 16 + lane / 4;  // of the tile; the other half: + 8
  const int v_chunks = args.v_head_dim / 8;
  const float score_scale = kSoftCap ? 1.0f : args.score_scale;

  const uint64_t q_rows = matrix_descriptor(&shared.q[0][consumer * 64][0], 0, 8 * Shared::kRowBytes);
  const uint64_t k_rows = matrix_descriptor(shared.k, 0, 8 * Shared::kRowBytes);
  const uint64_t v_rows = matrix_descriptor(shared.v, Shared::kPanelBytes, 8 * Shared::kRowBytes);

  float score[kKeys / 2];           // four for every 8 keys: keys 2t and 2t + 1 of half 0, then of half 1, t = lane % 4
  float out[kHeadDim / 2];          // the same of channels
  uint32_t weights[kKeys / 16][4];  // of keys: what the scores become
  RingPlace<2> work_at;
  RingPlace<Shared::kStages> k_at, v_at;
  unsigned q_phase = 0;
  if (kTurns && consumer == 0) arrive_barrier(kTurnBarrier, kWgmmaConsumers);  // it begins
  wait_for_previous_kernels();
  let_next_kernel_start();

  // One arrival for each warp, when all its lanes are done.
  const auto release = [&](Barrier& empty) {
    __syncwarp();
    if (lane == 0) empty.arrive();
  };

  for (;; work_at.advance()) {
    shared.work_full[work_at.index].wait(work_at.phase);
    const PrefillWork& work = shared.work[work_at.index];
    const int kv_head = work.kv_head;
    if (kv_head < 0) return;
    const RowTile& tile = work.tile;
    const Sequence& sequence = tile.sequence;
    if (sequence.bad_rows && tile.first_packed == 0 && work.part == 0) {
      clear_bad_rows(args, tile.sequence_index, kv_head, thread, kWgmmaConsumers);
    }
    const int begin = work.begin, end = work.end;
    const int rows = min(w.tile_rows, tile.num_packed - tile.first_packed);  // of the tile

#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) out[i] = 0.0f;
    float maximum[2] = {-INFINITY, -INFINITY};  // of the scores, not scaled
    float shift[2] = {-INFINITY, -INFINITY};    // scaled: a weight is 2^(score * score_scale - shift)
    float sum[2] = {0.0f, 0.0f};
    VisibleKeys visible[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + half * 8;
      visible[half] = VisibleKeys(args, row < rows ? sequence.limit((tile.first_packed + row) / args.group) : 0);
    }
    // Positions that all rows of this consumer see.
    const int first_of_consumer = tile.first_packed + min(consumer * 64, rows - 1);
    const int last_of_consumer = tile.first_packed + min(consumer * 64 + 63, rows - 1);
    const int all_see_to = sequence.limit(max(0, first_of_consumer) / args.group);
    const int all_see_from = lowest(args, sequence.limit(max(0, last_of_consumer) / args.group));

    const auto multiply_keys = [&] {
      shared.k_full[k_at.index].wait(k_at.phase);
      keep_in_order(score);
      multiply_fence();
      const uint64_t k = advance(k_rows, k_at.index * Shared::kStageBytes);
#pragma unroll
      for (int step = 0; step < kHeadDim / 16; ++step) {
        const int q_at_step = step / 4 * Shared::kRows * Shared::kRowBytes + step % 4 * 32;
        const int k_at_step = step / 4 * Shared::kPanelBytes + step % 4 * 32;
        multiply_async<T>(score, advance(q_rows, q_at_step), advance(k, k_at_step), step > 0);
      }
      multiply_commit();
    };
    const auto multiply_values = [&] {
      shared.v_full[v_at.index].wait(v_at.phase);
      keep_in_order(out);
      multiply_fence();
      const uint64_t v = advance(v_rows, v_at.index * Shared::kStageBytes);
#pragma unroll
      for (int step = 0; step < kKeys / 16; ++step)
        multiply_async<T>(out, weights[step], advance(v, step * 16 * Shared::kRowBytes));
      multiply_commit();
    };
    // Scores become weights, in place. Sums so far are to be multiplied by `rescale`.
    const auto weigh = [&](int key_tile, float(&rescale)[2]) {
      if constexpr (kSoftCap) {
#pragma unroll
        for (int i = 0; i < kKeys / 2; ++i) score[i] = capped_roughly(args, score[i] * args.score_scale);
      }
      if ((key_tile + 1) * kKeys > all_see_to || key_tile * kKeys < all_see_from) {
        const int first_key = key_tile * kKeys + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < kKeys / 2; ++i) {
          if (!visible[i / 2 % 2].hold(first_key + i / 4 * 8 + i % 2)) score[i] = -INFINITY;
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float most = maximum[half];
#pragma unroll
        for (int i = 0; i < kKeys / 2; i += 4) most = fmaxf(most, fmaxf(score[i + 2 * half], score[i + 2 * half + 1]));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        maximum[half] = most;
        const float new_shift = most * score_scale;
        const float minus = new_shift == -INFINITY ? 0.0f : -new_shift;
        rescale[half] = exp2_approximate(shift[half] + minus);
        shift[half] = new_shift;
        float added = 0.0f;
#pragma unroll
        for (int i = 0; i < kKeys / 2; i += 4) {
          float& low = score[i + 2 * half];
          float& high = score[i + 2 * half + 1];
          low = exp2_approximate(fmaf(low, score_scale, minus));
          high = exp2_approximate(fmaf(high, score_scale, minus));
          added += low + high;
        }
        sum[half] = fmaf(sum[half], rescale[half], added);
      }
    };
    const auto round_weights = [&] {
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) weights[n][i] = pack<T>(score[8 * n + 2 * i], score[8 * n + 2 * i + 1]);
      }
    };

    if (begin < end) {
      float rescale[2];
      shared.q_full.wait(q_phase);
      q_phase ^= 1;
      multiply_keys();
      multiply_wait<0>();
      keep_in_order(score);
      release(shared.k_empty[k_at.index]);
      k_at.advance();
      weigh(begin, rescale);
      round_weights();
#pragma unroll 1
      for (int key_tile = begin + 1; key_tile < end; ++key_tile) {
        if constexpr (kTurns) sync_barrier(kTurnBarrier + consumer, kWgmmaConsumers);
        multiply_keys();
        multiply_values();
        if constexpr (kTurns) arrive_barrier(kTurnBarrier + 1 - consumer, kWgmmaConsumers);
        multiply_wait<1>();
        keep_in_order(score);
        release(shared.k_empty[k_at.index]);
        k_at.advance();
        weigh(key_tile, rescale);
        // Never true, which the assembler does not know: it would move the wait before the work on the scores.
        if (sum[0] + sum[1] < 0.0f) __trap();
        multiply_wait<0>();
        keep_in_order(out);
        release(shared.v_empty[v_at.index]);
        v_at.advance();
        round_weights();
#pragma unroll
        for (int i = 0; i < kHeadDim / 2; ++i) out[i] *= rescale[i / 2 % 2];
      }
      release(shared.q_empty);
      multiply_values();
      multiply_wait<0>();
      keep_in_order(out);
      release(shared.v_empty[v_at.index]);
      v_at.advance();
    }

    bool fault[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
      sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
      const int row = first_row + half * 8;
      fault[half] = sequence.too_long || (work.faulty[row / 32] >> (row % 32) & 1) != 0;
    }

    bool last = true;
    if (work.parts > 1) {
      // In the workspace each thread of the consumers has its own words, one behind the other's: word i + 1 is of chunk i.
      const int num_words = v_chunks + 1;
      const auto place = [&](int part, int word) {
        return reinterpret_cast<float4*>(args.partial_out) +
               (static_cast<int64_t>(work.first_slot + part) * num_words + word) * kWgmmaConsumers + thread;
      };
      *place(work.part, 0) = {shift[0], shift[1], fault[0] ? -1.0f : sum[0], fault[1] ? -1.0f : sum[1]};
#pragma unroll
      for (int i = 0; i < kHeadDim / 8; ++i) {
        if (i < v_chunks) *place(work.part, 1 + i) = {out[4 * i], out[4 * i + 1], out[4 * i + 2], out[4 * i + 3]};
      }
      uint32_t* const counter = &args.counters[work.first_slot + consumer];
      sync_barrier(kPartBarrier + consumer, kWarpgroup);
      if (thread % kWarpgroup == 0) shared.arrived[consumer] = count_arrival(counter);
      sync_barrier(kPartBarrier + consumer, kWarpgroup);
      last = shared.arrived[consumer] == static_cast<unsigned>(work.parts - 1);
      if (last) {
        if (thread % kWarpgroup == 0) *counter = 0;
#pragma unroll
        for (int i = 0; i < kHeadDim / 2; ++i) out[i] = 0.0f;
#pragma unroll
        for (int half = 0; half < 2; ++half) shift[half] = -INFINITY, sum[half] = 0.0f, fault[half] = false;
#pragma unroll 1
        for (int part = 0; part < work.parts; ++part) {
          const float4 stats = __ldcg(place(part, 0));
          float4 sums[kHeadDim / 8];  // loads that are in flight together
#pragma unroll
          for (int i = 0; i < kHeadDim / 8; ++i) sums[i] = i < v_chunks ? __ldcg(place(part, 1 + i)) : float4{};
          const float of_part[2] = {stats.z, stats.w};
          float old_weight[2], weight[2];
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float shift_of_part = half == 0 ? stats.x : stats.y;
            const float both = fmaxf(shift[half], shift_of_part);
            old_weight[half] = weight_of(shift[half], both);
            weight[half] = weight_of(shift_of_part, both);
            shift[half] = both;
            fault[half] = fault[half] || of_part[half] < 0.0f;
            sum[half] = fmaf(weight[half], of_part[half], sum[half] * old_weight[half]);
          }
#pragma unroll
          for (int i = 0; i < kHeadDim / 8; ++i) {
            out[4 * i] = fmaf(weight[0], sums[i].x, out[4 * i] * old_weight[0]);
            out[4 * i + 1] = fmaf(weight[0], sums[i].y, out[4 * i + 1] * old_weight[0]);
            out[4 * i + 2] = fmaf(weight[1], sums[i].z, out[4 * i + 2] * old_weight[1]);
            out[4 * i + 3] = fmaf(weight[1], sums[i].w, out[4 * i + 3] * old_weight[1]);
          }
        }
      }
    }
    if (last) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_row + half * 8;
        const int packed = tile.first_packed + row;
        const int j = packed / args.group;
        const int64_t q_head = static_cast<int64_t>(kv_head) * args.group + packed % args.group;
        const bool there = row < rows;
        if (there && fault[half] && lane % 4 == 0 && kv_head == 0 && packed % args.group == 0)
          record_row_fault(args, sequence, j);
        const bool zero = fault[half] || visible[half].count == 0;
        const float inverse = there ? 1.0f / (sum[half] + sink_weight(p, q_head, shift[half])) : 0.0f;
        T* const to = static_cast<T*>(p.out.data) + (sequence.first_row + j) * p.out.token_stride + q_head * p.out.head_stride;
#pragma unroll
        for (int four = 0; four < kHeadDim / 32; ++four) {  // chunks of 8 channels
          uint32_t words[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int at = (four * 4 + i) * 4 + 2 * half;
            words[i] = zero ? 0 : pack<T>(fmaf(out[at], inverse, 0.0f), fmaf(out[at + 1], inverse, 0.0f));  // -0 becomes 0
          }
          transpose_of_four(words, lane % 4);
          const int chunk = four * 4 + lane % 4;
          if (there && chunk < v_chunks) *reinterpret_cast<uint4*>(to + chunk * 8) = {words[0], words[1], words[2], words[3]};
        }
      }
    }
    release(shared.work_empty[work_at.index]);
  }
}

template <class T, int kHeadDim, bool kSoftCap>
__global__ void __launch_bounds__(kWgmmaLaunchBound, 1)
    prefill_wgmma_kernel(const __grid_constant__ AttentionArgs args, const __grid_constant__ PrefillWgmmaParams w) {
#if PROLOGUE_HOPPER
  using Shared = WgmmaShared<T, kHeadDim>;
  Shared& shared = *swizzled_dynamic_shared<Shared>();
  constexpr int kConsumerWarps = kWgmmaConsumers / 32;
  if (threadIdx.x == 0) {
    if (shared_address(&shared) % 1024 != 0) __trap();  // the swizzle would be another
    for (int i = 0; i < 2; ++i) {
      shared.work_full[i].init(1);
      shared.work_empty[i].init(kConsumerWarps + 1);  // and the warp that copies V
    }
    shared.q_full.init(1);
    shared.q_empty.init(kConsumerWarps);
    for (int i = 0; i < Shared::kStages; ++i) {
      shared.k_full[i].init(1);
      shared.k_empty[i].init(kConsumerWarps);
      shared.v_full[i].init(1);
      shared.v_empty[i].init(kConsumerWarps);
    }
    shared.v_copied.init(1);
    fence_barrier_init();
    prefetch_map(w.q);
    prefetch_map(w.k);
    prefetch_map(w.v);
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    release_registers<kProducerRegisters>();
    if (threadIdx.x < 32) {
      produce_keys(args, w, shared);
    } else if (threadIdx.x < 64) {
      produce_values(args, w, shared);
    }
  } else {
    claim_registers<kConsumerRegisters>();
    consume<T, kHeadDim, kSoftCap>(args, w, shared);
  }
#endif
}

}  // namespace prologue::cuda
