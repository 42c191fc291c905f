// A consumer of prefill_wgmma_kernel, a warpgroup: 64 rows of each tile of the block. Lane l of a warp has its rows l / 4 and l / 4 + 8, called
// halves.
#pragma once

#include <prologue/kernels/base/device/cuda_groups.cuh>
#include <prologue/kernels/paged_attention/prefill_wgmma_work.cuh>

namespace prologue::cuda {

// Named barriers: 0 is that of __syncthreads(); two each, one for each consumer.
inline constexpr int kTurnBarrier = 2;
inline constexpr int kPartBarrier = 4;

template <int kHeadDim, bool kSoftCap, class Shared>
struct WgmmaConsumer {
  using T = typename Shared::Element;
  static constexpr bool kCodes = Shared::kCodes;
  static constexpr int kKeys = Shared::kKeys;
  static constexpr bool kTurns = kHeadDim <= 128;  // larger heads: the multiplications are longer than the rest anyway

  const AttentionArgs& args;
  const PrefillWgmmaParams& w;
  Shared& shared;
  const int thread = static_cast<int>(threadIdx.x) - Shared::kProducers;  // of the consumers
  const int consumer = __shfl_sync(0xffffffffu, thread / kWarpgroup, 0);
  const int lane = thread % 32;
  const int first_row = thread / 32 * 16 + lane / 4;  // of the tile; the other half: + 8
  const uint64_t q_rows;
  const uint64_t k_rows;
  const uint64_t v_rows;
  RingPlace<Shared::kStages> k_at, v_at;
  unsigned q_phase = 0;

  float score[kKeys / 2];           // four for every 8 keys: keys 2t and 2t + 1 of half 0, then of half 1, t = lane % 4
  float out[kHeadDim / 2];          // the same of channels
  uint32_t weights[kKeys / 16][4];  // of keys: what the scores become

  // Of a tile of rows
  float score_scale;
  float weight_scale;
  bool at_once = false;  // scores are scaled before their maximum is found (scaled_at_once())
  int rows;              // of the tile
  float maximum[2];      // of the scores, not scaled
  float shift[2];        // scaled: a weight is 2^(score * weight_scale - shift)
  float sum[2];
  float q_sum[2];  // of a row's channels, where K has zero points
  bool fault[2];
  VisibleKeys visible[2];
  int all_see_from, all_see_to;  // positions that all rows of this consumer see

  __device__ __forceinline__ WgmmaConsumer(const AttentionArgs& args, const PrefillWgmmaParams& w, Shared& shared)
      : args(args),
        w(w),
        shared(shared),
        q_rows(matrix_descriptor(&shared.q[0][consumer * 64][0], 0, 8 * Shared::kRowBytes)),
        k_rows(matrix_descriptor(shared.k, 0, 8 * Shared::kRowBytes)),
        v_rows(matrix_descriptor(shared.v, Shared::kPanelBytes, 8 * Shared::kRowBytes)) {}

  __device__ __forceinline__ void run() {
    if (kTurns && consumer == 0) arrive_barrier(kTurnBarrier, kWgmmaConsumers);  // it begins
    wait_for_previous_kernels();
    let_next_kernel_start();
    for (RingPlace<2> work_at;; work_at.advance()) {
      shared.work_full[work_at.index].wait(work_at.phase);
      const PrefillWork& work = shared.work[work_at.index];
      if (work.kv_head < 0) return;
      const RowTile& tile = work.tile;
      if (tile.sequence.bad_rows && tile.first_packed == 0 && work.part == 0) {
        clear_bad_rows(args, tile.sequence_index, work.kv_head, thread, kWgmmaConsumers);
      }
      begin(work);
      if (work.begin < work.end) add_keys(work.begin, work.end);
      end_sums(work);
      if (work.parts == 1 || add_up_parts(work)) store(work);
      release(shared.work_empty[work_at.index]);
    }
  }

 private:
  // One arrival for each warp, when all its lanes are done.
  __device__ __forceinline__ void release(Barrier& empty) const {
    __syncwarp();
    if (lane == 0) empty.arrive();
  }

  __device__ __forceinline__ void begin(const PrefillWork& work) {
    const RowTile& tile = work.tile;
    const Sequence& sequence = tile.sequence;
    score_scale = args.score_scale;
    if constexpr (kCodes) {
      const float of_keys = shared_scale(args.p.kv.k.format, args.p.kv.k.scale, work.kv_head);
      at_once = scaled_at_once(args, of_keys);
      if (!at_once) score_scale *= of_keys;
    }
    weight_scale = kSoftCap ? 1.0f : score_scale;
    rows = min(w.tile_rows, tile.num_packed - tile.first_packed);
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) out[i] = 0.0f;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      maximum[half] = shift[half] = -INFINITY;
      sum[half] = q_sum[half] = 0.0f;
      const int row = first_row + half * 8;
      visible[half] = VisibleKeys(args, row < rows ? sequence.limit((tile.first_packed + row) / args.group) : 0);
    }
    const int first_of_consumer = tile.first_packed + min(consumer * 64, rows - 1);
    const int last_of_consumer = tile.first_packed + min(consumer * 64 + 63, rows - 1);
    all_see_to = sequence.limit(max(0, first_of_consumer) / args.group);
    all_see_from = lowest(args, sequence.limit(max(0, last_of_consumer) / args.group));
  }

  // The tiles of keys from first to end.
  __device__ __forceinline__ void add_keys(int first, int end) {
    float rescale[2];
    shared.q_full.wait(q_phase);
    q_phase ^= 1;
    multiply_keys();
    if constexpr (kCodes) {
      if (args.p.kv.k.format.type == DType::uint4) add_up_q();
    }
    multiply_wait<0>();
    take_scores();
    weigh(first, rescale);
    round_weights();
#pragma unroll 1
    for (int key_tile = first + 1; key_tile < end; ++key_tile) {
      if constexpr (kTurns) sync_barrier(kTurnBarrier + consumer, kWgmmaConsumers);
      multiply_keys();
      multiply_values();
      if constexpr (kTurns) arrive_barrier(kTurnBarrier + 1 - consumer, kWgmmaConsumers);
      multiply_wait<1>();
      take_scores();
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

  __device__ __forceinline__ void multiply_keys() {
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
  }

  __device__ __forceinline__ void multiply_values() {
    shared.v_full[v_at.index].wait(v_at.phase);
    keep_in_order(out);
    multiply_fence();
    const uint64_t v = advance(v_rows, v_at.index * Shared::kStageBytes);
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step)
      multiply_async<T>(out, weights[step], advance(v, step * 16 * Shared::kRowBytes));
    multiply_commit();
  }

  __device__ __forceinline__ void add_up_q() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + half * 8;
#pragma unroll 1
      for (int chunk = lane % 4; chunk < kHeadDim / 8; chunk += 4) {
        const auto* const at = &shared.q[chunk / 8][row][(chunk % 8 ^ row % 8) * 8];
        const Group<T> group = *reinterpret_cast<const Group<T>*>(at);
#pragma unroll
        for (int i = 0; i < 8; ++i) q_sum[half] += group[i];
      }
      q_sum[half] += __shfl_xor_sync(0xffffffffu, q_sum[half], 1);
      q_sum[half] += __shfl_xor_sync(0xffffffffu, q_sum[half], 2);
    }
  }

  // The scores of the keys at k_at are there.
  __device__ __forceinline__ void take_scores() {
    keep_in_order(score);
    if constexpr (kCodes) {
      if (at_once) {
        const bool zero_points = args.p.kv.k.format.type == DType::uint4;
#pragma unroll
        for (int i = 0; i < kKeys / 2; i += 4) {
          const int key = i / 4 * 8 + lane % 4 * 2;
          const float2 scales = *reinterpret_cast<const float2*>(&shared.k_scales[k_at.index][key]);
          score[i] *= scales.x, score[i + 1] *= scales.y, score[i + 2] *= scales.x, score[i + 3] *= scales.y;
          if (!zero_points) continue;
          const float2 zeros = *reinterpret_cast<const float2*>(&shared.k_zero_points[k_at.index][key]);
          score[i] = fmaf(zeros.x, q_sum[0], score[i]), score[i + 1] = fmaf(zeros.y, q_sum[0], score[i + 1]);
          score[i + 2] = fmaf(zeros.x, q_sum[1], score[i + 2]), score[i + 3] = fmaf(zeros.y, q_sum[1], score[i + 3]);
        }
      }
      shared.k_empty[k_at.index].arrive();  // each lane for the scales that it has read
    } else {
      release(shared.k_empty[k_at.index]);
    }
    k_at.advance();
  }

  // Scores become weights, in place. Sums so far are to be multiplied by `rescale`.
  __device__ __forceinline__ void weigh(int key_tile, float (&rescale)[2]) {
    if constexpr (kSoftCap) {
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) score[i] = capped_roughly(args, score[i] * score_scale);
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
      const float new_shift = most * weight_scale;
      const float minus = new_shift == -INFINITY ? 0.0f : -new_shift;
      rescale[half] = exp2_approximate(shift[half] + minus);
      shift[half] = new_shift;
      float added = 0.0f;
#pragma unroll
      for (int i = 0; i < kKeys / 2; i += 4) {
        float& low = score[i + 2 * half];
        float& high = score[i + 2 * half + 1];
        low = exp2_approximate(fmaf(low, weight_scale, minus));
        high = exp2_approximate(fmaf(high, weight_scale, minus));
        added += low + high;
      }
      sum[half] = fmaf(sum[half], rescale[half], added);
    }
  }

  __device__ __forceinline__ void round_weights() {
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) weights[n][i] = pack<T>(score[8 * n + 2 * i], score[8 * n + 2 * i + 1]);
    }
  }

  __device__ __forceinline__ void end_sums(const PrefillWork& work) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
      sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
      const int row = first_row + half * 8;
      fault[half] = work.tile.sequence.too_long || (work.faulty[row / 32] >> (row % 32) & 1) != 0;
    }
  }

  // Leaves this part's sums in the workspace, where each thread of the consumers has its own words, one behind the other's: word i + 1 is of
  // chunk i. True: it is the last part to be there, and the sums are those of all parts.
  __device__ __forceinline__ bool add_up_parts(const PrefillWork& work) {
    const int v_chunks = args.v_head_dim / 8, num_words = v_chunks + 1;
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
    if (shared.arrived[consumer] != static_cast<unsigned>(work.parts - 1)) return false;
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
    return true;
  }

  __device__ __forceinline__ void store(const PrefillWork& work) {
    const PagedAttentionParams& p = args.p;
    const RowTile& tile = work.tile;
    const int v_chunks = args.v_head_dim / 8;
    float value_scale = 1.0f;
    if constexpr (kCodes) value_scale = shared_scale(p.kv.v.format, p.kv.v.scale, work.kv_head);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + half * 8;
      const int packed = tile.first_packed + row;
      const int j = packed / args.group;
      const int64_t q_head = static_cast<int64_t>(work.kv_head) * args.group + packed % args.group;
      const bool there = row < rows;
      if (there && fault[half] && lane % 4 == 0 && work.kv_head == 0 && packed % args.group == 0)
        record_row_fault(args, tile.sequence, j);
      const bool zero = fault[half] || visible[half].count == 0;
      const float inverse = there ? 1.0f / (sum[half] + sink_weight(p, q_head, shift[half])) : 0.0f;
      T* const to = static_cast<T*>(p.out.data) + (tile.sequence.first_row + j) * p.out.token_stride + q_head * p.out.head_stride;
#pragma unroll
      for (int four = 0; four < kHeadDim / 32; ++four) {  // chunks of 8 channels
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = (four * 4 + i) * 4 + 2 * half;
          float low = fmaf(out[at], inverse, 0.0f), high = fmaf(out[at + 1], inverse, 0.0f);  // -0 becomes 0
          if constexpr (kCodes) low *= value_scale, high *= value_scale;
          words[i] = zero ? 0 : pack<T>(low, high);
        }
        transpose_of_four(words, lane % 4);
        const int chunk = four * 4 + lane % 4;
        if (there && chunk < v_chunks) *reinterpret_cast<uint4*>(to + chunk * 8) = {words[0], words[1], words[2], words[3]};
      }
    }
  }
};

}  // namespace prologue::cuda
