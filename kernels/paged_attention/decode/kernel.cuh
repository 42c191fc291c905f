// A block = kRows packed rows of one kv head of one sequence, over one split of its keys; then combine_kernel, a block per packed
// row. kLanes lanes, each with a group or more of the channels, form a group (`stream` in the code) that takes every kStreams-th
// key.
#pragma once

#include <prologue/kernels/paged_attention/attention_args.cuh>
#include <prologue/kernels/paged_attention/cache_codes.cuh>

namespace prologue::cuda {

inline constexpr int kDecodeThreads = 128;
inline constexpr int kDecodeRowsPerSm = 16;   // packed rows of the blocks that a multiprocessor runs at a time
inline constexpr int kSplitGranularity = 32;  // a split is a multiple of this many keys

// The keys of one sequence and how they are divided into splits; a function of its length and the launch, so both kernels derive
// the same.
struct Splits {
  int begin;  // the first position that any row sees
  int size;   // positions of a split

  __device__ Splits(const AttentionArgs& args, const Sequence& sequence) : begin(lowest(args, sequence.limit(0))) {
    const int keys = (sequence.length - begin + args.num_splits - 1) / args.num_splits;
    size = (keys + kSplitGranularity - 1) / kSplitGranularity * kSplitGranularity;
  }
};

// Adds values[i] over kLanes lanes and deals the totals out: lane l is left with those from l * N / kLanes on (with more lanes
// than values, neighbours share one). This takes half the shuffles of adding each value separately, and later steps run once per
// value.
template <int kLanes, int N, int kSize>
__device__ inline void add_and_deal(float (&values)[kSize], int lane) {
  if constexpr (kLanes > 1) {
    constexpr int kOffset = kLanes / 2;
    constexpr int kKept = N > 1 ? N / 2 : 1;
    const bool upper = (lane & kOffset) != 0;
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      const float kept = N > 1 && upper ? values[i + N - kKept] : values[i];
      const float sent = N > 1 && !upper ? values[i + N - kKept] : values[i];
      values[i] = kept + __shfl_xor_sync(0xffffffffu, sent, kOffset);
    }
    add_and_deal<kOffset, kKept>(values, lane);
  }
}

// A row of q as floats, whatever its type in memory is.
template <int kChannels>
class QueryRow {
 public:
  __device__ float operator[](int c) const { return values_[c]; }

  __device__ void load(const PagedAttentionParams& p, int64_t offset, int64_t count, bool whole) {
    switch (p.dtype) {
      case DType::f16: return load_as<__half>(p.q.data, offset, count, whole);
      case DType::bf16: return load_as<__nv_bfloat16>(p.q.data, offset, count, whole);
      case DType::f32: return load_as<float>(p.q.data, offset, count, whole);
    }
  }

 private:
  template <class T>
  __device__ void load_as(const void* data, int64_t offset, int64_t count, bool whole) {
    constexpr int kVector = kGroup<T> < kChannels ? kGroup<T> : kChannels;
#pragma unroll
    for (int i = 0; i < kChannels; i += kVector) {
      const T* from = static_cast<const T*>(data) + offset + i;
      Vec<T, kVector> vector = {};
      if (whole) {
        if (i < count) vector = *reinterpret_cast<const Vec<T, kVector>*>(from);
      } else {
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          if (i + j < count) vector.values[j] = from[j];
        }
      }
#pragma unroll
      for (int j = 0; j < kVector; ++j) values_[i + j] = to_float(vector.values[j]);
    }
  }

  float values_[kChannels];
};

// Keys of a stream in one step, their loads in flight together: as many as the registers of the blocks of an SM hold.
template <class C, int kRows, int kChannels>
inline constexpr int kKeysAhead =
    !std::is_same_v<C, AnyElement> && (kRows * kChannels <= 16 || (!kIsFloat<C> && kChannels == 8)) ? 4 : 2;

template <class C, int kHeadDim, int kRows>
inline constexpr int kDecodeBlocksPerSm = kHeadDim > 256
                                              ? 2
                                              : kDecodeRowsPerSm / kRows / (std::is_same_v<C, float> && kHeadDim > 128 ? 2 : 1);

// C is what the cache holds, K and V alike, or AnyElement for any types of both. The scores of a step are distributed over the lanes of the
// stream, so a lane keeps the softmax of one row, own_row, with a maximum that all streams of the warp share. Scales of a
// quantised cache multiply scores and weights. Zero points are applied through sums: that of a row of q for K, that of the
// weights times zero points for V, which is one more number that every row accumulates.
template <class C, int kHeadDim, int kRows>
__global__ void __launch_bounds__(kDecodeThreads, kDecodeBlocksPerSm<C, kHeadDim, kRows>)
    decode_kernel(const __grid_constant__ AttentionArgs args) {
  constexpr bool kScaled = !kIsFloat<C>;
  constexpr bool kOneFormat = !std::is_same_v<C, AnyElement>;
  // With zero points a key has up to four numbers: a lane loads those of the keys whose scores it owns, and no others.
  constexpr bool kOwnScales = kHasZeroPoint<C>;
  constexpr int kSize = CacheGroup<C>::kSize;
  constexpr int kLanes = kHeadDim / kSize < 32 ? kHeadDim / kSize : 32;
  constexpr int kChannels = kHeadDim / kLanes;
  constexpr int kPieces = kChannels / kSize;
  constexpr int kStreams = kDecodeThreads / kLanes;
  constexpr int kKeys = kKeysAhead<C, kRows, kChannels>;
  constexpr int kScores = kRows * kKeys;
  constexpr int kOwned = kScores > kLanes ? kScores / kLanes : 1;    // scores of a lane
  constexpr int kSharers = kLanes > kScores ? kLanes / kScores : 1;  // lanes with the same score
  constexpr int kRowLanes = kLanes / kRows;                          // lanes with the same row
  constexpr int kWarps = kDecodeThreads / 32;
  const PagedAttentionParams& p = args.p;

  int64_t block = blockIdx.x;
  const int tile = static_cast<int>(block % args.row_tiles);
  block /= args.row_tiles;
  const int kv_head = static_cast<int>(block % p.kv.num_kv_heads);
  block /= p.kv.num_kv_heads;
  const int split = static_cast<int>(block % args.num_splits);
  const int64_t s = block / args.num_splits;
  const Sequence sequence = sequence_at(args, s);
  if (sequence.bad_rows && tile == 0 && split == 0) clear_bad_rows(args, s, kv_head);
  const int num_packed = sequence.num_rows * args.group;
  const int first_packed = tile * kRows;
  if (first_packed >= num_packed) return;

  const Splits splits(args, sequence);
  const int64_t split_begin = splits.begin + static_cast<int64_t>(split) * splits.size;
  if (split > 0 && split_begin >= sequence.length) return;  // combine_kernel does not look here either
  const int last_row = (min(first_packed + kRows, num_packed) - 1) / args.group;
  const int begin = max(static_cast<int>(split_begin), lowest(args, sequence.limit(first_packed / args.group)));
  const int end = static_cast<int>(min(split_begin + splits.size, static_cast<int64_t>(sequence.limit(last_row))));

  const int lane = threadIdx.x % kLanes;
  const int stream = threadIdx.x / kLanes;
  const int channel = lane * kChannels;
  QueryRow<kChannels> q[kRows];
  float out[kRows][kChannels];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int packed = first_packed + r;
    const bool exists = packed < num_packed;
    const int j = exists ? packed / args.group : 0;
    const int64_t row = (sequence.first_row + j) * p.q.token_stride +
                        (static_cast<int64_t>(kv_head) * args.group + packed % args.group) * p.q.head_stride;
    q[r].load(p, row + channel, exists ? p.head_dim - channel : 0, args.whole_groups);
#pragma unroll
    for (int c = 0; c < kChannels; ++c) out[r][c] = 0.0f;
  }

  const int own_row = lane / kRowLanes;
  const int own_key = lane % kRowLanes / kSharers * kOwned;
  const int own_packed = first_packed + own_row;
  const VisibleKeys visible(args, own_packed < num_packed ? sequence.limit(own_packed / args.group) : 0);
  float maximum = -INFINITY;
  float sum = 0.0f;
  [[maybe_unused]] float zero_sum = 0.0f;  // of the weights times the zero points of V

  const PagedKvView& kv = p.kv;
  const KvFormat& k_format = kv.k.format;
  const KvFormat& v_format = kOneFormat ? kv.k.format : kv.v.format;
  const int64_t key_channel = kv_head * kv.k.strides.head + channel;
  const int64_t value_channel = kv_head * kv.v.strides.head + channel;
  const bool k_scale_per_token = kScaled && k_format.scaling == KvScaling::token_head;
  const bool v_scale_per_token = kScaled && v_format.scaling == KvScaling::token_head;
  float score_scale = args.score_scale;
  float shared_value_scale = 1.0f;
  if constexpr (kScaled) {
    score_scale *= shared_scale(k_format, kv.k.scale, kv_head);
    shared_value_scale = shared_scale(v_format, kv.v.scale, kv_head);
  }
  [[maybe_unused]] const bool k_has_zero_point = kHasZeroPoint<C> && k_format.type == DType::uint4;
  [[maybe_unused]] const bool v_has_zero_point = kHasZeroPoint<C> && v_format.type == DType::uint4;
  [[maybe_unused]] float q_sum = 0.0f;  // of the channels of own_row; 0 where K has no zero points
  if constexpr (kHasZeroPoint<C>) {
    float sums[kRows] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) sums[r] += q[r][c];
    }
    add_and_deal<kLanes, kRows>(sums, lane);
    if (k_has_zero_point) q_sum = sums[0];
  }
  constexpr int kStep = kStreams * kKeys;
  unsigned faulty = 0;  // a bit per row
  int pages[kKeys];
  const auto load_pages = [&](int base) {
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      const int position = base + u * kStreams + stream;
      pages[u] = position < end ? sequence.pages[page_index(args, place_of(args, position))] : -1;
    }
  };
  load_pages(begin);
  for (int base = begin; base < end; base += kStep) {
    CacheGroup<C> k[kKeys][kPieces];
    CacheGroup<C> v[kKeys][kPieces];
    float k_scale[kOwnScales ? kOwned : kKeys];
    float v_scale[kOwnScales ? kOwned : kKeys];
    [[maybe_unused]] float k_zero_point[kOwned];
    [[maybe_unused]] float v_zero_point[kOwned];
    unsigned there = 0;  // a bit per key
    const auto load = [&](auto whole) {
#pragma unroll
      for (int u = 0; u < kKeys; ++u) {
        const int position = base + u * kStreams + stream;
        const CacheSlot slot = cache_slot(args, pages[u], place_of(args, position));
        const bool exists = slot.page >= 0;
        there |= static_cast<unsigned>(exists) << u;
        if (position < end && !exists) {
          faulty |= static_cast<unsigned>(rows_that_see<kRows>(args, sequence, first_packed, position));
        }
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
          const int d = piece * kSize;
          k[u][piece] = CacheGroup<C>::load(kv.k.data, slot.in(kv.k.strides) + key_channel + d,
                                            exists ? p.head_dim - channel - d : 0, whole, k_format.type);
          v[u][piece] = CacheGroup<C>::load(kv.v.data, slot.in(kv.v.strides) + value_channel + d,
                                            exists ? args.v_head_dim - channel - d : 0, whole, v_format.type);
        }
        if constexpr (kScaled && !kOwnScales) {
          k_scale[u] = k_scale_per_token && exists ? token_scale(kv.k.scale, kv.k.scale_strides, slot, kv_head) : 1.0f;
          v_scale[u] = v_scale_per_token && exists ? token_scale(kv.v.scale, kv.v.scale_strides, slot, kv_head) : 1.0f;
        }
      }
    };
    if (args.whole_groups) {  // branch outside the loop: the loads of all keys are issued before the first wait
      load(std::true_type());
    } else {
      load(std::false_type());
    }
    if constexpr (kOwnScales) {
#pragma unroll
      for (int i = 0; i < kOwned; ++i) {
        int page = -1;
#pragma unroll
        for (int u = 0; u < kKeys; ++u) page = own_key + i == u ? pages[u] : page;
        const CacheSlot slot = cache_slot(args, page, place_of(args, base + (own_key + i) * kStreams + stream));
        const bool exists = slot.page >= 0;
        k_scale[i] = k_scale_per_token && exists ? token_scale(kv.k.scale, kv.k.scale_strides, slot, kv_head) : 1.0f;
        v_scale[i] = v_scale_per_token && exists ? token_scale(kv.v.scale, kv.v.scale_strides, slot, kv_head) : 1.0f;
        k_zero_point[i] = k_has_zero_point && exists ? token_zero_point(kv.k.scale, kv.k.scale_strides, slot, kv_head) : 0.0f;
        v_zero_point[i] = v_has_zero_point && exists ? token_zero_point(kv.v.scale, kv.v.scale_strides, slot, kv_head) : 0.0f;
      }
    }
    load_pages(base + kStep);

    float score[kScores];
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      float key[kChannels];
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) k[u][piece].expand(key + piece * kSize, k_format.type);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float& sum_of_channels = score[r * kKeys + u];
        sum_of_channels = 0.0f;
#pragma unroll
        for (int c = 0; c < kChannels; ++c) sum_of_channels = fmaf(q[r][c], key[c], sum_of_channels);
      }
    }
    add_and_deal<kLanes, kScores>(score, lane);

    float value_scale[kOwned];  // of the keys whose scores this lane owns
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      value_scale[i] = 1.0f;
      if constexpr (kOwnScales) {
        score[i] *= k_scale[i];
        if constexpr (kHasZeroPoint<C>) score[i] = fmaf(k_zero_point[i], q_sum, score[i]);
        value_scale[i] = v_scale[i];
      } else if constexpr (kScaled) {
        float key_scale = 1.0f;
#pragma unroll
        for (int u = 0; u < kKeys; ++u) {
          if (own_key + i != u) continue;
          key_scale = k_scale[u];
          value_scale[i] = v_scale[u];
        }
        score[i] *= key_scale;
      }
    }
    float new_maximum = maximum;
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      const int position = base + (own_key + i) * kStreams + stream;
      score[i] *= score_scale;
      if (args.cap_log2 > 0.0f) score[i] = capped(args, score[i]);
      if ((there >> (own_key + i) & 1) == 0 || !visible.hold(position)) score[i] = -INFINITY;
      new_maximum = fmaxf(new_maximum, score[i]);
    }
#pragma unroll
    for (int offset = kSharers; offset < 32; offset *= 2) {
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
        if constexpr (kHasZeroPoint<C>) zero_sum = fmaf(score[i], v_zero_point[i], zero_sum);
        score[i] *= value_scale[i];
      }
    }
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      float value[kChannels];
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) v[u][piece].expand(value + piece * kSize, v_format.type);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int i = r * kKeys + u;
        const float weight = __shfl_sync(0xffffffffu, score[i % kOwned], i * kLanes / kScores, kLanes);
#pragma unroll
        for (int c = 0; c < kChannels; ++c) out[r][c] = fmaf(weight, value[c], out[r][c]);
      }
    }
  }

  // Combines the streams of a warp, then the warps of the block, each in a fixed order.
#pragma unroll
  for (int offset = kSharers; offset < 32; offset *= 2) {
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
  __shared__ float warp_out[kWarps][kRows][kHeadDim];
  __shared__ float2 warp_stats[kWarps][kRows];
  [[maybe_unused]] __shared__ float warp_zero_sum[kHasZeroPoint<C> ? kWarps : 1][kRows];
  __shared__ unsigned block_faulty;
  const int warp = threadIdx.x / 32;
  if (threadIdx.x == 0) block_faulty = 0;
  __syncthreads();
  if (faulty != 0) atomicOr(&block_faulty, faulty);
  if (threadIdx.x % 32 < kLanes) {
    if (lane % kRowLanes == 0) {
      warp_stats[warp][own_row] = {maximum, sum};
      if constexpr (kHasZeroPoint<C>) warp_zero_sum[warp][own_row] = zero_sum;
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) warp_out[warp][r][channel + c] = out[r][c];
    }
  }
  __syncthreads();

  const int head_dim = args.v_head_dim;
  for (int i = threadIdx.x; i < kRows * head_dim; i += kDecodeThreads) {
    const int r = i / head_dim;
    const int d = i % head_dim;
    const int packed = first_packed + r;
    if (packed >= num_packed) break;
    const int j = packed / args.group;
    const int head_in_group = packed % args.group;
    const bool fault = sequence.too_long || (block_faulty >> r & 1) != 0;
    float row_maximum = -INFINITY;
    for (int w = 0; w < kWarps; ++w) row_maximum = fmaxf(row_maximum, warp_stats[w][r].x);
    float row_sum = 0.0f;
    float value = 0.0f;
    [[maybe_unused]] float row_zero_sum = 0.0f;
    for (int w = 0; w < kWarps; ++w) {
      const float weight = weight_of(warp_stats[w][r].x, row_maximum);
      row_sum = fmaf(weight, warp_stats[w][r].y, row_sum);
      value = fmaf(weight, warp_out[w][r][d], value);
      if constexpr (kHasZeroPoint<C>) row_zero_sum = fmaf(weight, warp_zero_sum[w][r], row_zero_sum);
    }
    const int64_t q_head = static_cast<int64_t>(kv_head) * args.group + head_in_group;
    if constexpr (kScaled) value *= shared_value_scale;
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

inline constexpr int kCombineThreads = 256;

// A block = one packed row of one kv head of one sequence. Each warp sums every 8th split, a lane every 32nd channel.
template <int kHeadDim, int kRows>
__global__ void __launch_bounds__(kCombineThreads, 4) combine_kernel(const __grid_constant__ AttentionArgs args) {
  constexpr int kWarps = kCombineThreads / 32;
  constexpr int kMaxChannels = kHeadDim / 32;
  const PagedAttentionParams& p = args.p;
  const int packed = blockIdx.x % (args.row_tiles * kRows);
  const int64_t seq_and_head = blockIdx.x / (args.row_tiles * kRows);
  const int kv_head = static_cast<int>(seq_and_head % p.kv.num_kv_heads);
  const int64_t s = seq_and_head / p.kv.num_kv_heads;
  const Sequence sequence = sequence_at(args, s);
  const int j = packed / args.group;
  if (j >= sequence.num_rows) return;

  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int head_dim = args.v_head_dim;
  const Splits splits(args, sequence);
  const int num_splits = (sequence.length - splits.begin + splits.size - 1) / max(1, splits.size);
  const auto partial_of = [&](int split) {
    const int64_t block = ((s * args.num_splits + split) * p.kv.num_kv_heads + kv_head) * args.row_tiles + packed / kRows;
    return block * kRows + packed % kRows;
  };
  float maximum = -INFINITY;
  bool fault = sequence.too_long;
  for (int split = lane; split < num_splits; split += 32) {
    const float2 stats = args.partial_stats[partial_of(split)];
    maximum = fmaxf(maximum, stats.x);
    fault = fault || stats.y < 0.0f;
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, offset));
  fault = __any_sync(0xffffffffu, fault);

  float sum = 0.0f;
  float out[kMaxChannels] = {};
#pragma unroll 4
  for (int split = warp; split < num_splits; split += kWarps) {
    const int64_t partial = partial_of(split);
    const float2 stats = args.partial_stats[partial];
    const float weight = weight_of(stats.x, maximum);
    sum = fmaf(weight, stats.y, sum);
#pragma unroll
    for (int c = 0; c < kMaxChannels; ++c) {
      const int d = lane + c * 32;
      if (d < head_dim) out[c] = fmaf(weight, args.partial_out[partial * head_dim + d], out[c]);
    }
  }
  __shared__ float warp_sum[kWarps];
  __shared__ float warp_out[kWarps][kHeadDim];
  if (lane == 0) warp_sum[warp] = sum;
#pragma unroll
  for (int c = 0; c < kMaxChannels; ++c) warp_out[warp][lane + c * 32] = out[c];
  __syncthreads();

  if (fault && threadIdx.x == 0 && kv_head == 0 && packed % args.group == 0) record_row_fault(args, sequence, j);
  const int64_t q_head = static_cast<int64_t>(kv_head) * args.group + packed % args.group;
  const int64_t row = (sequence.first_row + j) * p.out.token_stride + q_head * p.out.head_stride;
  const float of_sink = sink_weight(p, q_head, maximum);
#pragma unroll
  for (int first = 0; first < kHeadDim; first += kCombineThreads) {
    const int d = first + threadIdx.x;
    if (d >= head_dim) return;
    float total = 0.0f;
    float value = 0.0f;
    for (int w = 0; w < kWarps; ++w) {
      total += warp_sum[w];
      value += warp_out[w][d];
    }
    total += of_sink;
    store_element(p.dtype, p.out.data, row + d, fault || sequence.limit(j) == 0 ? 0.0f : value / total);
  }
}

}  // namespace prologue::cuda
