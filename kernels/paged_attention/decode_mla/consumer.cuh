// A consumer of decode_mla_kernel is a warpgroup. It computes the scores of every other tile, and half of the output's channels. Lane l of
// a warp has the rows l / 4 and l / 4 + 8 of the warp, called halves.
#pragma once

#include <cuda_pipeline_primitives.h>

#include <prologue/kernels/base/device/cuda_groups.cuh>
#include <prologue/kernels/paged_attention/decode_mla/work.cuh>

namespace prologue::cuda {

// Each consumer has a named barrier; 0 is that of __syncthreads(). Where both meet is an mbarrier, and every thread arrives at an mbarrier,
// not one of each warp: racecheck follows only that.
inline constexpr int kMlaConsumerBarrier = 1;

template <class T>
struct MlaConsumer {
  using Shared = MlaShared<T>;
  static constexpr int kRows = Shared::kRows;
  static constexpr int kKeys = Shared::kKeys;
  static constexpr int kOwnChannels = kMlaValueDim / 2;
  static constexpr int kChunks = kMlaHeadDim / 8;

  const AttentionArgs& args;
  Shared& shared;
  const int thread = static_cast<int>(threadIdx.x);  // of the consumers
  const int consumer = __shfl_sync(0xffffffffu, thread / kWarpgroup, 0);
  const int lane = thread % 32;
  const int first_row = thread % kWarpgroup / 32 * 16 + lane / 4;  // of the work item; the other half: + 8
  const float score_scale;
  const uint64_t q_rows;
  const uint64_t k_rows;
  const uint64_t v_rows;
  StageIndex<2> at;  // of stages
  int meetings = 0;

  float score[kKeys / 2];           // four for every 8 keys: keys 2t and 2t + 1 of half 0, then of half 1, t = lane % 4
  float out[kOwnChannels / 2];      // the same of channels
  uint32_t weights[kKeys / 16][4];  // of keys: what the scores become

  // These belong to one work item.
  float shift[2];  // the maximum, scaled: a weight is 2^(score * score_scale - shift)
  float sum[2];
  bool fault[2];
  VisibleKeys visible[2];
  int all_see_from, all_see_to;  // positions that every row sees

  __device__ __forceinline__ MlaConsumer(const AttentionArgs& args, Shared& shared)
      : args(args),
        shared(shared),
        score_scale(args.cap_log2 > 0.0f ? 1.0f : args.score_scale),
        q_rows(matrix_descriptor(shared.q, 0, 8 * Shared::kRowBytes)),
        k_rows(matrix_descriptor(shared.k, 0, Shared::kGroupBytes)),
        v_rows(matrix_descriptor(&shared.k[0][consumer * (kOwnChannels / 64) * Shared::kPanelBytes], Shared::kPanelBytes,
                                 Shared::kGroupBytes)) {}

  __device__ __forceinline__ void run() {
    wait_for_previous_kernels();
    for (StageIndex<2> work_at;; work_at.advance()) {
      shared.work_full[work_at.index].wait(work_at.phase);
      const MlaWork& work = shared.work[work_at.index];
      if (work.tiles == 0) return;
      if (work.sequence.bad_rows && work.begins && work.first_packed == 0) {
        clear_bad_rows(args, work.sequence_index, 0, thread, kMlaConsumers);
      }
      meet();  // both are done with the previous work item
      begin(work);
      int first_key = work.position;
#pragma unroll 1
      for (int tile = 0; tile < work.tiles; ++tile, at.advance()) {
        if (at.index == consumer) {
          take_scores(work, first_key);
        } else {
          take_weights();
        }
        multiply_values();
        first_key += kKeys;
      }
      end_sums(work);
      if (args.item_blocks != nullptr && thread == 0 && work.begins) {
        args.item_blocks[work.sequence_index * args.row_tiles + work.first_packed / kRows] = {work.first_block, work.last_block};
      }
      if (work.first_block == work.last_block) {
        store(work);
      } else {
        store_part(work);
        if (args.item_blocks == nullptr) add_up_parts(work);
      }
      shared.work_empty[work_at.index].arrive();
    }
  }

 private:
  __device__ __forceinline__ void meet() {
    shared.both_there.arrive();
    shared.both_there.wait(meetings++ % 2);
  }

  // Copies q of the work item, together with the other consumer, and finds which positions its rows see.
  __device__ __forceinline__ void begin(const MlaWork& work) {
    const PagedAttentionParams& p = args.p;
    const Sequence& sequence = work.sequence;
    const int rows = work.rows, first_packed = work.first_packed;
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
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      shift[half] = -INFINITY;
      sum[half] = 0.0f;
      const int row = first_row + half * 8;
      visible[half] = VisibleKeys(args, row < rows ? sequence.limit((first_packed + row) / args.group) : 0);
    }
    all_see_to = sequence.limit(first_packed / args.group);
    all_see_from = lowest(args, sequence.limit(max(0, first_packed + rows - 1) / args.group));
    __pipeline_wait_prior(0);
    fence_shared_for_async();
    meet();
  }

  __device__ __forceinline__ void rescale_sums(const float (&rescale)[2]) {
    if (!__any_sync(0xffffffffu, rescale[0] != 1.0f || rescale[1] != 1.0f)) return;  // mostly, after the first tiles
#pragma unroll
    for (int half = 0; half < 2; ++half) sum[half] *= rescale[half];
#pragma unroll
    for (int i = 0; i < kOwnChannels / 2; ++i) out[i] *= rescale[i / 2 % 2];
  }

  __device__ __forceinline__ void multiply_values() {
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
  }

  // Clears positions that no row needs, in boxes that have others: their V is multiplied by 0, and must not be NaN.
  __device__ __forceinline__ void clear_unneeded_keys(const MlaWork& work, int first_key, unsigned char* stage) {
    const int low = min(max(0, work.first_key - first_key), kKeys);
    const int high = max(low, min(kKeys, work.key_limit - first_key));
    if (low == 0 && high == kKeys) return;
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

  // Computes the weights of a tile of this consumer's stage, and leaves them there for the other consumer.
  __device__ __forceinline__ void take_scores(const MlaWork& work, int first_key) {
    unsigned char* const stage = shared.k[at.index];
    shared.k_full[at.index].wait(at.phase);
    clear_unneeded_keys(work, first_key, stage);
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

    if (args.cap_log2 > 0.0f) {
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
        *reinterpret_cast<uint32_t*>(stage + Shared::weights_offset(first_row + i % 2 * 8, 2 * n + i / 2) + lane % 4 * 4) =
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
  }

  // Reads the weights of a tile of the other consumer's stage.
  __device__ __forceinline__ void take_weights() {
    shared.k_full[at.index].wait(at.phase);
    shared.p_full[at.index].wait(at.phase);
    const unsigned char* const stage = shared.k[at.index];
    const int row = thread % kWarpgroup / 32 * 16 + lane % 16;
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) load_matrices(weights[n], stage + Shared::weights_offset(row, 2 * n + lane / 16));
    float rescale[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      shift[half] = shared.maximum[at.index][first_row + half * 8];
      rescale[half] = shared.rescale[at.index][first_row + half * 8];
    }
    rescale_sums(rescale);
  }

  // Adds up the weights of the tiles of both consumers.
  __device__ __forceinline__ void end_sums(const MlaWork& work) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
      sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
      if (lane % 4 == 0) shared.sum[consumer][first_row + half * 8] = sum[half];
    }
    meet();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + half * 8;
      sum[half] = shared.sum[0][row] + shared.sum[1][row];
      fault[half] = work.sequence.too_long || (work.faulty[row / 32] >> (row % 32) & 1) != 0;
    }
  }

  __device__ __forceinline__ void store(const MlaWork& work) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + half * 8;
      const bool there = row < work.rows;
      const MlaOutRow to_row(args, work.sequence, there ? work.first_packed + row : 0);
      const bool records = consumer == 0 && lane % 4 == 0;
      const float by = there ? to_row.divisor(args, work.sequence, shift[half], sum[half], fault[half], records) : -1.0f;
      const float inverse = 1.0f / by;
      T* const to = static_cast<T*>(args.p.out.data) + to_row.offset + consumer * kOwnChannels;
#pragma unroll
      for (int four = 0; four < kOwnChannels / 32; ++four) {  // chunks of 8 channels
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int from = (four * 4 + i) * 4 + 2 * half;
          words[i] = by < 0.0f ? 0 : pack<T>(out[from] * inverse, out[from + 1] * inverse);
        }
        transpose_of_four(words, lane % 4);
        if (there) {
          *reinterpret_cast<uint4*>(to + (four * 4 + lane % 4) * 8) = {words[0], words[1], words[2], words[3]};
        }
      }
    }
  }

  __device__ __forceinline__ void store_part(const MlaWork& work) const {
    const int64_t part = part_of(work.first_block, blockIdx.y) * kRows;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + half * 8;
      if (row >= work.rows) continue;
      float* const to = args.partial_out + (part + row) * kMlaValueDim + consumer * kOwnChannels + lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < kOwnChannels / 8; ++i) {
        *reinterpret_cast<float2*>(to + i * 8) = {out[4 * i + 2 * half], out[4 * i + 2 * half + 1]};
      }
      if (consumer == 0 && lane % 4 == 0) args.partial_stats[part + row] = {shift[half], fault[half] ? -1.0f : sum[half]};
    }
  }

  // Adds up the parts in the block that is the last to have stored its own.
  __device__ __forceinline__ void add_up_parts(const MlaWork& work) {
    meet();
    if (thread == 0) shared.arrived = count_arrival(&args.counters[work.first_block]);
    meet();
    if (shared.arrived != static_cast<unsigned>(work.last_block - work.first_block)) return;
    if (thread == 0) args.counters[work.first_block] = 0;
    for (int i = thread; i < work.rows * (kMlaValueDim / 4); i += kMlaConsumers) {
      const int row = i / (kMlaValueDim / 4);
      const int d = i % (kMlaValueDim / 4) * 4;
      PartSums sums;
      add_parts<kRows>(args, work.first_block, work.first_block, work.last_block, row, d, sums);
      store_sums(args, work.sequence, work.first_packed + row, d, sums);
    }
  }
};

}  // namespace prologue::cuda
