// This file has what a thread holds of the packed rows of a block: a part of their queries and results, and the softmax of one of them.
#pragma once

#include <prologue/kernels/paged_attention/attention_args.cuh>
#include <prologue/kernels/paged_attention/cache_codes.cuh>
#include <prologue/kernels/paged_attention/decode/keys.cuh>
#include <prologue/kernels/paged_attention/decode/query_row.cuh>

namespace prologue::cuda {

// The warps of a block leave their sums here.
template <class C, int kHeadDim, int kRows>
struct DecodeSums {
  static constexpr int kWarps = kDecodeThreads / 32;
  float out[kWarps][kRows][kHeadDim];
  float2 stats[kWarps][kRows];  // the maximum and the sum of a row
  float zero_sum[kHasZeroPoint<C> ? kWarps : 1][kRows];
  unsigned faulty;  // a bit per row
};

// Adds them up in a fixed order, and stores the rows, or the block's part of them.
template <class C, int kHeadDim, int kRows>
__device__ __forceinline__ void store_rows(const AttentionArgs& args, const Sequence& sequence,
                                           const DecodeSums<C, kHeadDim, kRows>& sums, int kv_head, int first_packed,
                                           float value_scale) {
  constexpr int kWarps = DecodeSums<C, kHeadDim, kRows>::kWarps;
  const PagedAttentionParams& p = args.p;
  const int num_packed = sequence.num_rows * args.group;
  const int head_dim = args.v_head_dim;
  for (int i = threadIdx.x; i < kRows * head_dim; i += kDecodeThreads) {
    const int r = i / head_dim;
    const int d = i % head_dim;
    const int packed = first_packed + r;
    if (packed >= num_packed) break;
    const int j = packed / args.group;
    const int head_in_group = packed % args.group;
    const bool fault = sequence.too_long || (sums.faulty >> r & 1) != 0;
    float row_maximum = -INFINITY;
    for (int w = 0; w < kWarps; ++w) row_maximum = fmaxf(row_maximum, sums.stats[w][r].x);
    float row_sum = 0.0f;
    float value = 0.0f;
    [[maybe_unused]] float row_zero_sum = 0.0f;
    for (int w = 0; w < kWarps; ++w) {
      const float weight = weight_of(sums.stats[w][r].x, row_maximum);
      row_sum = fmaf(weight, sums.stats[w][r].y, row_sum);
      value = fmaf(weight, sums.out[w][r][d], value);
      if constexpr (kHasZeroPoint<C>) row_zero_sum = fmaf(weight, sums.zero_sum[w][r], row_zero_sum);
    }
    const int64_t q_head = static_cast<int64_t>(kv_head) * args.group + head_in_group;
    if constexpr (!kIsFloat<C>) value *= value_scale;
    if constexpr (kHasZeroPoint<C>) value += row_zero_sum;  // as much for every channel; parts of a split are added up with it
    if (args.num_splits > 1) {
      const int64_t partial = static_cast<int64_t>(blockIdx.x) * kRows + r;
      args.partial_out[partial * head_dim + d] = value;
      if (d == 0) args.partial_stats[partial] = {row_maximum, fault ? -1.0f : row_sum};
      continue;
    }
    if (fault && d == 0 && kv_head == 0 && head_in_group == 0) record_row_fault(args, sequence, j);
    row_sum += sink_weight(p, q_head, row_maximum);
    const int64_t row = (sequence.first_row + j) * p.out.token_stride + q_head * p.out.head_stride;
    store_element(p.dtype, p.out.data, row + d, fault || sequence.limit(j) == 0 ? 0.0f : value / row_sum);
  }
}

// The scores of a step are distributed over the lanes of a lane group, so a lane keeps the softmax of one row, own_row, with a maximum that
// is the same in all lane groups of the warp. Scales of a quantised cache multiply scores and weights. Zero points are applied through
// sums: that of a row of q for K, that of the weights times zero points for V, which is one more number that every row accumulates.
template <class C, int kHeadDim, int kRows>
struct DecodeRows {
  using Shape = DecodeShape<C, kHeadDim, kRows>;
  using Cache = DecodeCache<C, kHeadDim, kRows>;
  static constexpr bool kScaled = Shape::kScaled;
  static constexpr int kLanes = Shape::kLanes, kChannels = Shape::kChannels, kKeys = Shape::kKeys, kScores = Shape::kScores;
  static constexpr int kOwned = Shape::kOwned, kLanesPerScore = Shape::kLanesPerScore, kRowLanes = Shape::kRowLanes;

  const AttentionArgs& args;
  int lane;
  int own_row;
  VisibleKeys visible;  // to own_row
  QueryRow<kChannels> q[kRows];
  float q_sum = 0.0f;  // of the channels of own_row; 0 where K has no zero points
  float score_scale;
  float out[kRows][kChannels];
  float maximum = -INFINITY;
  float sum = 0.0f;
  float zero_sum = 0.0f;  // of the weights times the zero points of V

  __device__ __forceinline__ DecodeRows(const Cache& cache, int lane_of_group)
      : args(cache.args),
        lane(lane_of_group),
        own_row(lane / kRowLanes),
        visible(args, limit_of(cache, cache.first_packed + own_row)),
        score_scale(args.score_scale) {
    const PagedAttentionParams& p = args.p;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int packed = cache.first_packed + r;
      const bool exists = packed < cache.sequence.num_rows * args.group;
      const int j = exists ? packed / args.group : 0;
      const int64_t row = (cache.sequence.first_row + j) * p.q.token_stride +
                          (static_cast<int64_t>(cache.kv_head) * args.group + packed % args.group) * p.q.head_stride;
      q[r].load(p, row + cache.channel, exists ? p.head_dim - cache.channel : 0, args.whole_groups);
#pragma unroll
      for (int c = 0; c < kChannels; ++c) out[r][c] = 0.0f;
    }
    if constexpr (kScaled) score_scale *= shared_scale(cache.k_format(), p.kv.k.scale, cache.kv_head);
    if constexpr (kHasZeroPoint<C>) {
      float sums[kRows] = {};
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int c = 0; c < kChannels; ++c) sums[r] += q[r][c];
      }
      add_and_deal<kLanes, kRows>(sums, lane);
      if (cache.zero_point(cache.k_format())) q_sum = sums[0];
    }
  }

  // Adds the keys of a step, from position `base` on.
  __device__ __forceinline__ void add(const Cache& cache, const DecodeKeys<C, kHeadDim, kRows>& keys, int base) {
    float score[kScores];
    multiply(cache, keys, score);
    float value_scale[kOwned];  // of the keys whose scores this lane owns
    scale(cache, keys, score, value_scale);
    float new_maximum = maximum;
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      const int position = cache.position(base, cache.own_key + i);
      score[i] *= score_scale;
      if (args.cap_log2 > 0.0f) score[i] = capped(args, score[i]);
      if ((keys.there >> (cache.own_key + i) & 1) == 0 || !visible.hold(position)) score[i] = -INFINITY;
      new_maximum = fmaxf(new_maximum, score[i]);
    }
#pragma unroll
    for (int offset = kLanesPerScore; offset < 32; offset *= 2) {
      if (offset < kRowLanes || offset >= kLanes)
        new_maximum = fmaxf(new_maximum, __shfl_xor_sync(0xffffffffu, new_maximum, offset));
    }
    if (__any_sync(0xffffffffu, new_maximum != maximum)) {  // rarely, after the first steps
      const float rescale = weight_of(maximum, new_maximum);
      maximum = new_maximum;
      sum *= rescale;
      if constexpr (kHasZeroPoint<C>) zero_sum *= rescale;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float row_rescale = __shfl_sync(0xffffffffu, rescale, r * kRowLanes, kLanes);
#pragma unroll
        for (int c = 0; c < kChannels; ++c) out[r][c] *= row_rescale;
      }
    }
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      score[i] = weight_of(score[i], maximum);
      sum += score[i];
      if (kScaled && score[i] != 0.0f) {  // hidden ones may have any scale
        if constexpr (kHasZeroPoint<C>) zero_sum = fmaf(score[i], keys.v_zero_point[i], zero_sum);
        score[i] *= value_scale[i];
      }
    }
    accumulate(cache, keys, score);
  }

  // Adds up the lane groups of each warp, and leaves the result for the sum over the warps of the block. The order is fixed.
  __device__ __forceinline__ void leave(DecodeSums<C, kHeadDim, kRows>& sums, int channel) {
#pragma unroll
    for (int offset = kLanesPerScore; offset < 32; offset *= 2) {
      if (offset < kRowLanes || offset >= kLanes) {
        sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        if constexpr (kHasZeroPoint<C>) zero_sum += __shfl_xor_sync(0xffffffffu, zero_sum, offset);
      }
    }
#pragma unroll
    for (int offset = kLanes; offset < 32; offset *= 2) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int c = 0; c < kChannels; ++c) out[r][c] += __shfl_xor_sync(0xffffffffu, out[r][c], offset);
      }
    }
    const int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 < kLanes) {
      if (lane % kRowLanes == 0) {
        sums.stats[warp][own_row] = {maximum, sum};
        if constexpr (kHasZeroPoint<C>) sums.zero_sum[warp][own_row] = zero_sum;
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int c = 0; c < kChannels; ++c) sums.out[warp][r][channel + c] = out[r][c];
      }
    }
  }

 private:
  __device__ __forceinline__ static int limit_of(const Cache& cache, int packed) {
    return packed < cache.sequence.num_rows * cache.args.group ? cache.sequence.limit(packed / cache.args.group) : 0;
  }

  __device__ __forceinline__ void multiply(const Cache& cache, const DecodeKeys<C, kHeadDim, kRows>& keys,
                                           float (&score)[kScores]) {
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      float key[kChannels];
#pragma unroll
      for (int piece = 0; piece < Shape::kPieces; ++piece)
        keys.k[u][piece].expand(key + piece * Shape::kSize, cache.k_format().type);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float& sum_of_channels = score[r * kKeys + u];
        sum_of_channels = 0.0f;
#pragma unroll
        for (int c = 0; c < kChannels; ++c) sum_of_channels = fmaf(q[r][c], key[c], sum_of_channels);
      }
    }
    add_and_deal<kLanes, kScores>(score, lane);
  }

  __device__ __forceinline__ void scale(const Cache& cache, const DecodeKeys<C, kHeadDim, kRows>& keys, float (&score)[kScores],
                                        float (&value_scale)[kOwned]) {
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      value_scale[i] = 1.0f;
      if constexpr (Shape::kOwnScales) {
        score[i] *= keys.k_scale[i];
        if constexpr (kHasZeroPoint<C>) score[i] = fmaf(keys.k_zero_point[i], q_sum, score[i]);
        value_scale[i] = keys.v_scale[i];
      } else if constexpr (kScaled) {
        float key_scale = 1.0f;
#pragma unroll
        for (int u = 0; u < kKeys; ++u) {
          if (cache.own_key + i != u) continue;
          key_scale = keys.k_scale[u];
          value_scale[i] = keys.v_scale[u];
        }
        score[i] *= key_scale;
      }
    }
  }

  __device__ __forceinline__ void accumulate(const Cache& cache, const DecodeKeys<C, kHeadDim, kRows>& keys,
                                             const float (&score)[kScores]) {
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      float value[kChannels];
#pragma unroll
      for (int piece = 0; piece < Shape::kPieces; ++piece)
        keys.v[u][piece].expand(value + piece * Shape::kSize, cache.v_format().type);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int i = r * kKeys + u;
        const float weight = __shfl_sync(0xffffffffu, score[i % kOwned], i * kLanes / kScores, kLanes);
#pragma unroll
        for (int c = 0; c < kChannels; ++c) out[r][c] = fmaf(weight, value[c], out[r][c]);
      }
    }
  }
};

}  // namespace prologue::cuda
