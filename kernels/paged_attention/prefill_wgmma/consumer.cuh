// A consumer of prefill_wgmma_kernel is a warpgroup. It computes 64 rows of each tile of the block. Lane l of a warp has the rows l / 4 and
// l / 4 + 8 of the warp, called halves.
#pragma once

#include <prologue/kernels/base/device/cuda_groups.cuh>
#include <prologue/kernels/paged_attention/prefill_wgmma/parts.cuh>
#include <prologue/kernels/paged_attention/prefill_wgmma/work.cuh>

namespace prologue::cuda {

// These are named barriers; barrier 0 is that of __syncthreads().
inline constexpr int kBothBarrier = 1;   // of both consumers
inline constexpr int kOrderBarrier = 2;  // two, one for each

template <int kHeadDim, bool kSoftCap, bool kDivides, class Shared>
struct WgmmaConsumer {
  using T = typename Shared::Element;
  static constexpr bool kCodes = Shared::kCodes;
  static constexpr int kKeys = Shared::kKeys;
  static constexpr bool kAlternate = kHeadDim <= 128;  // larger heads: the multiplications are longer than the rest anyway

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
  StageIndex<Shared::kStages> k_at, v_at;
  unsigned q_phase = 0;

  float score[kKeys / 2];           // four for every 8 keys: keys 2t and 2t + 1 of half 0, then of half 1, t = lane % 4
  float out[kHeadDim / 2];          // the same of channels
  uint32_t weights[kKeys / 16][4];  // of keys: what the scores become

  // These belong to one tile of rows.
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
    if (kAlternate && consumer == 0) arrive_barrier(kOrderBarrier, kWgmmaConsumers);  // it begins
    wait_for_previous_kernels();
    let_next_kernel_start();
    for (StageIndex<2> work_at;; work_at.advance()) {
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
      if constexpr (kDivides) {
        work.parts == 1 ? store(work) : exchange_parts(work);
      } else {
        store(work);
      }
      release(shared.work_empty[work_at.index]);
    }
  }

 private:
  // Arrives once for each warp, when all its lanes are done.
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

  // Adds the tiles of keys from `first` to `end`.
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
      if constexpr (kAlternate) sync_barrier(kOrderBarrier + consumer, kWgmmaConsumers);
      multiply_keys();
      multiply_values();
      if constexpr (kAlternate) arrive_barrier(kOrderBarrier + 1 - consumer, kWgmmaConsumers);
      multiply_wait<1>();
      take_scores();
      weigh(key_tile, rescale);
      // This is never true, which the assembler does not know: it would move the wait before the work on the scores.
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

  // Takes the scores of the keys at k_at, which are complete.
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

  // Converts scores into weights, in place. The sums so far must be multiplied by `rescale`.
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

  // Called if several blocks have parts of this tile. Each leaves its sums in its shared memory, adds up those of its cluster for its range
  // of the channels, in chunks of 8, and stores the results. If there are several clusters, each leaves such sums in the workspace, and the
  // last one to arrive adds up all of them.
  __device__ __forceinline__ void exchange_parts(const PrefillWork& work) {
    const int v_chunks = args.v_head_dim / 8;
    const int cluster_blocks = min(work.parts, w.cluster_blocks), rank = work.part % w.cluster_blocks;
    const int clusters = work.parts / cluster_blocks, cluster = work.part / w.cluster_blocks;
    const int chunks = (v_chunks + cluster_blocks - 1) / cluster_blocks;  // of a block of the cluster, at most
    const int begin = min(v_chunks, rank * chunks), count = min(v_chunks - begin, chunks);
    // A thread has four numbers for its rows (stats()) and four for each chunk. Its buffer has all chunks, and then the totals of its range
    // of the channels.
    constexpr int kMostWords = kHeadDim / 8 + kHeadDim / 16;
    static_assert(sizeof(shared.q) + sizeof(shared.k) + sizeof(shared.v) >= kMostWords * kWgmmaConsumers * sizeof(float4));
    float4* const own = reinterpret_cast<float4*>(shared.q) + thread;
    float4* const totals = own + kHeadDim / 8 * kWgmmaConsumers;
    sync_barrier(kBothBarrier, kWgmmaConsumers);  // the other consumer reads Q, K and V no more
    shared.stats[thread] = stats();
#pragma unroll
    for (int i = 0; i < kHeadDim / 8; ++i) {
      if (i < v_chunks) own[i * kWgmmaConsumers] = {out[4 * i], out[4 * i + 1], out[4 * i + 2], out[4 * i + 3]};
    }
    sync_cluster();
    const float4* of_rank[kPrefillWgmmaClusterBlocks];
#pragma unroll
    for (int i = 0; i < kPrefillWgmmaClusterBlocks; ++i)
      of_rank[i] = in_block_of_cluster(own, static_cast<uint32_t>(min(i, cluster_blocks - 1)));
    const PrefillParts<kPrefillWgmmaClusterBlocks> parts(
        cluster_blocks, [&](int i) { return *in_block_of_cluster(&shared.stats[thread], static_cast<uint32_t>(i)); });
    take(parts);
    const int first_block = static_cast<int>(blockIdx.x) - cluster * cluster_blocks;
    const auto of_cluster = [&](int i, int word) {
      return reinterpret_cast<float4*>(args.partial_out) +
             ((first_block + i * cluster_blocks) * (1 + chunks) + word) * kWgmmaConsumers + thread;
    };
    fill_chunks(count, clusters == 1 ? totals : of_cluster(cluster, 1), [&](int chunk) {
      return chunk < count ? parts.add([&](int i) { return of_rank[i][(begin + chunk) * kWgmmaConsumers]; }) : float4{};
    });
    arrive_at_cluster();  // it has read what the others have

    bool last = true;
    if (clusters > 1) {
      *of_cluster(cluster, 0) = stats();
      uint32_t* const counter = &args.counters[first_block];
      sync_barrier(kBothBarrier, kWgmmaConsumers);
      if (thread == 0) shared.arrived = count_arrival(counter);
      sync_barrier(kBothBarrier, kWgmmaConsumers);
      last = shared.arrived == static_cast<unsigned>(clusters - 1);
      if (last) {
        if (thread == 0) *counter = 0;
        const PrefillParts<kPrefillWgmmaClusters> all(clusters, [&](int i) { return __ldcg(of_cluster(i, 0)); });
        take(all);
        fill_chunks(count, totals,
                    [&](int chunk) { return all.add([&](int i) { return __ldcg(of_cluster(i, 1 + min(chunk, count - 1))); }); });
      }
    }
    if (last) {
      const StoredRows stored = stored_rows(work, rank == 0);
#pragma unroll 1
      for (int chunk = 0; chunk < count; ++chunk) {
        const float4 sums = totals[chunk * kWgmmaConsumers];
        const int channel = (begin + chunk) * 8 + lane % 4 * 2;
        if (stored.there[0]) *reinterpret_cast<uint32_t*>(stored.to[0] + channel) = stored.word(0, sums.x, sums.y);
        if (stored.there[1]) *reinterpret_cast<uint32_t*>(stored.to[1] + channel) = stored.word(1, sums.z, sums.w);
      }
    }
    wait_for_cluster();  // nobody reads this block's sums any more
  }

  // Fills `count` chunks, several at a time, so that what `find` loads is in flight together. `find` may be called with chunks beyond the
  // last.
  template <class Find>
  __device__ __forceinline__ void fill_chunks(int count, float4* totals, const Find& find) const {
    constexpr int kAtOnce = kCodes ? 2 : 4;  // as registers allow
#pragma unroll 1
    for (int first = 0; first < count; first += kAtOnce) {
      float4 found[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) found[i] = find(first + i);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i < count) totals[(first + i) * kWgmmaConsumers] = found[i];
      }
    }
  }

  // Returns what other threads need of this thread's rows to add up its sums; a sum is not negative.
  __device__ __forceinline__ float4 stats() const {
    return {shift[0], shift[1], fault[0] ? -1.0f : sum[0], fault[1] ? -1.0f : sum[1]};
  }

  template <class Parts>
  __device__ __forceinline__ void take(const Parts& parts) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      shift[half] = parts.shift[half], sum[half] = parts.sum[half], fault[half] = parts.fault[half];
  }

  // Says where this thread's rows are stored, and what their sums become.
  struct StoredRows {
    T* to[2];
    float inverse[2];
    float value_scale = 1.0f;
    bool there[2];
    bool zero[2];

    __device__ __forceinline__ uint32_t word(int half, float low, float high) const {
      low = fmaf(low, inverse[half], 0.0f), high = fmaf(high, inverse[half], 0.0f);  // -0 becomes 0
      if constexpr (kCodes) low *= value_scale, high *= value_scale;
      return zero[half] ? 0 : pack<T>(low, high);
    }
  };

  // Called with the sums of all keys. `records` says that the thread's block records faults.
  __device__ __forceinline__ StoredRows stored_rows(const PrefillWork& work, bool records) const {
    const PagedAttentionParams& p = args.p;
    const RowTile& tile = work.tile;
    StoredRows stored;
    if constexpr (kCodes) stored.value_scale = shared_scale(p.kv.v.format, p.kv.v.scale, work.kv_head);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + half * 8;
      const int packed = tile.first_packed + row;
      const int j = packed / args.group;
      const int64_t q_head = static_cast<int64_t>(work.kv_head) * args.group + packed % args.group;
      const bool there = stored.there[half] = row < rows;
      if (records && there && fault[half] && lane % 4 == 0 && q_head == 0) record_row_fault(args, tile.sequence, j);
      stored.zero[half] = fault[half] || visible[half].count == 0;
      stored.inverse[half] = there ? 1.0f / (sum[half] + sink_weight(p, q_head, shift[half])) : 0.0f;
      stored.to[half] =
          static_cast<T*>(p.out.data) + (tile.sequence.first_row + j) * p.out.token_stride + q_head * p.out.head_stride;
    }
    return stored;
  }

  __device__ __forceinline__ void store(const PrefillWork& work) const {
    const int v_chunks = args.v_head_dim / 8;
    const StoredRows stored = stored_rows(work, true);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int four = 0; four < kHeadDim / 32; ++four) {  // chunks
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = (four * 4 + i) * 4 + 2 * half;
          words[i] = stored.word(half, out[at], out[at + 1]);
        }
        transpose_of_four(words, lane % 4);
        const int chunk = four * 4 + lane % 4;
        if (stored.there[half] && chunk < v_chunks) {
          *reinterpret_cast<uint4*>(stored.to[half] + chunk * 8) = {words[0], words[1], words[2], words[3]};
        }
      }
    }
  }
};

}  // namespace prologue::cuda
