// Decode loads the keys and values of a step from the cache to registers.
#pragma once

#include <type_traits>

#include <prologue/kernels/paged_attention/attention_args.cuh>
#include <prologue/kernels/paged_attention/cache_codes.cuh>

namespace prologue::cuda {

inline constexpr int kDecodeThreads = 128;

// A lane group has so many keys of a step, whose loads are in flight together: as many as the registers of the blocks of an SM hold.
template <class C, int kRows, int kChannels>
inline constexpr int kKeysAhead =
    !kIsAny<C> && (kRows * kChannels <= 16 || (!kIsFloat<C> && kChannels == 8)) ? 4 : 2;

// Says how channels, keys and scores are divided over the threads of a block. C is what the cache holds, or AnyElement.
template <class C, int kHeadDim, int kRows>
struct DecodeShape {
  static constexpr bool kScaled = !kIsFloat<C>;
  static constexpr bool kOneFormat = !kIsAny<C>;
  // With zero points a key has up to four numbers: a lane loads those of the keys whose scores it owns, and no others.
  static constexpr bool kOwnScales = kHasZeroPoint<C>;
  static constexpr int kSize = CacheGroup<C>::kSize;
  static constexpr int kLanes = kHeadDim / kSize < 32 ? kHeadDim / kSize : 32;
  static constexpr int kChannels = kHeadDim / kLanes;
  static constexpr int kPieces = kChannels / kSize;
  static constexpr int kLaneGroups = kDecodeThreads / kLanes;
  static constexpr int kKeys = kKeysAhead<C, kRows, kChannels>;
  static constexpr int kStep = kLaneGroups * kKeys;
  static constexpr int kScores = kRows * kKeys;
  static constexpr int kOwned = kScores > kLanes ? kScores / kLanes : 1;          // scores of a lane
  static constexpr int kLanesPerScore = kLanes > kScores ? kLanes / kScores : 1;  // lanes with the same score
  static constexpr int kRowLanes = kLanes / kRows;                                // lanes with the same row
};

// Says where a thread reads in the cache, and in which format.
template <class C, int kHeadDim, int kRows>
struct DecodeCache {
  using Shape = DecodeShape<C, kHeadDim, kRows>;
  const AttentionArgs& args;
  const Sequence& sequence;
  int kv_head;
  int channel;  // this lane's first
  int lane_group;
  int own_key;  // of a step: the first whose score is this lane's
  int first_packed;
  int end;
  int64_t key_channel;
  int64_t value_channel;

  __device__ __forceinline__ const PagedKvView& kv() const { return args.p.kv; }
  __device__ __forceinline__ const KvFormat& k_format() const { return kv().k.format; }
  __device__ __forceinline__ const KvFormat& v_format() const { return Shape::kOneFormat ? kv().k.format : kv().v.format; }
  __device__ __forceinline__ static bool per_token(const KvFormat& format) {
    return Shape::kScaled && format.scaling == KvScaling::token_head;
  }
  __device__ __forceinline__ static bool zero_point(const KvFormat& format) {
    return kHasZeroPoint<C> && format.type == DType::uint4;
  }
  __device__ __forceinline__ int position(int base, int key) const { return base + key * Shape::kLaneGroups + lane_group; }

  __device__ __forceinline__ void load_pages(int base, int (&pages)[Shape::kKeys]) const {
#pragma unroll
    for (int u = 0; u < Shape::kKeys; ++u) {
      const int at = position(base, u);
      pages[u] = at < end ? sequence.pages[page_index(args, logical_slot_of(args, at))] : -1;
    }
  }
};

// Holds what a lane group reads in a step.
template <class C, int kHeadDim, int kRows>
struct DecodeKeys {
  using Shape = DecodeShape<C, kHeadDim, kRows>;
  using Cache = DecodeCache<C, kHeadDim, kRows>;
  static constexpr int kScales = Shape::kOwnScales ? Shape::kOwned : Shape::kKeys;
  CacheGroup<C> k[Shape::kKeys][Shape::kPieces];
  CacheGroup<C> v[Shape::kKeys][Shape::kPieces];
  float k_scale[kScales];
  float v_scale[kScales];
  float k_zero_point[Shape::kOwned];
  float v_zero_point[Shape::kOwned];
  unsigned there = 0;  // a bit per key

  // Sets the bits in `faulty` of the rows that see a key without a page.
  __device__ __forceinline__ DecodeKeys(const Cache& cache, int base, const int (&pages)[Shape::kKeys], unsigned& faulty) {
    if (cache.args.whole_groups) {  // branch outside the loop: the loads of all keys are issued before the first wait
      load(cache, base, pages, std::true_type(), faulty);
    } else {
      load(cache, base, pages, std::false_type(), faulty);
    }
    if constexpr (Shape::kOwnScales) load_own_scales(cache, base, pages);
  }

 private:
  template <class Whole>
  __device__ __forceinline__ void load(const Cache& cache, int base, const int (&pages)[Shape::kKeys], Whole whole,
                                       unsigned& faulty) {
    const AttentionArgs& args = cache.args;
    const PagedKvView& kv = cache.kv();
#pragma unroll
    for (int u = 0; u < Shape::kKeys; ++u) {
      const int position = cache.position(base, u);
      const CacheSlot slot = cache_slot(args, pages[u], logical_slot_of(args, position));
      const bool exists = slot.page >= 0;
      there |= static_cast<unsigned>(exists) << u;
      if (position < cache.end && !exists) {
        faulty |= static_cast<unsigned>(rows_that_see<kRows>(args, cache.sequence, cache.first_packed, position));
      }
#pragma unroll
      for (int piece = 0; piece < Shape::kPieces; ++piece) {
        const int d = piece * Shape::kSize;
        k[u][piece] = CacheGroup<C>::load(kv.k.data, slot.in(kv.k.strides) + cache.key_channel + d,
                                          exists ? args.p.head_dim - cache.channel - d : 0, whole, cache.k_format().type);
        v[u][piece] = CacheGroup<C>::load(kv.v.data, slot.in(kv.v.strides) + cache.value_channel + d,
                                          exists ? args.v_head_dim - cache.channel - d : 0, whole, cache.v_format().type);
        if constexpr (std::is_same_v<C, AnyBlocks>) {
          const int channel = cache.channel + d;
          const auto factor = [&](const PagedHeads& side, int head_dim) {
            return exists && channel < head_dim ? block_factor_at(side, head_dim, slot, cache.kv_head, channel) : 1.0f;
          };
          k[u][piece].factor = factor(kv.k, static_cast<int>(args.p.head_dim));
          v[u][piece].factor = factor(kv.v, args.v_head_dim);
        }
      }
      if constexpr (Shape::kScaled && !Shape::kOwnScales) {
        k_scale[u] =
            cache.per_token(cache.k_format()) && exists ? token_scale(kv.k.scale, kv.k.scale_strides, slot, cache.kv_head) : 1.0f;
        v_scale[u] =
            cache.per_token(cache.v_format()) && exists ? token_scale(kv.v.scale, kv.v.scale_strides, slot, cache.kv_head) : 1.0f;
      }
    }
  }

  __device__ __forceinline__ void load_own_scales(const Cache& cache, int base, const int (&pages)[Shape::kKeys]) {
    const PagedKvView& kv = cache.kv();
    const KvFormat &k_format = cache.k_format(), &v_format = cache.v_format();
#pragma unroll
    for (int i = 0; i < Shape::kOwned; ++i) {
      int page = -1;
#pragma unroll
      for (int u = 0; u < Shape::kKeys; ++u) page = cache.own_key + i == u ? pages[u] : page;
      const CacheSlot slot = cache_slot(cache.args, page, logical_slot_of(cache.args, cache.position(base, cache.own_key + i)));
      const bool exists = slot.page >= 0;
      const auto scale = [&](const PagedHeads& side, const KvFormat& format) {
        return cache.per_token(format) && exists ? token_scale(side.scale, side.scale_strides, slot, cache.kv_head) : 1.0f;
      };
      const auto zero_point = [&](const PagedHeads& side, const KvFormat& format) {
        return cache.zero_point(format) && exists ? token_zero_point(side.scale, side.scale_strides, slot, cache.kv_head) : 0.0f;
      };
      k_scale[i] = scale(kv.k, k_format);
      v_scale[i] = scale(kv.v, v_format);
      k_zero_point[i] = zero_point(kv.k, k_format);
      v_zero_point[i] = zero_point(kv.v, v_format);
    }
  }
};

}  // namespace prologue::cuda
