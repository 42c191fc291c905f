// Decode on tensor cores: a warp copies its part of the tiles from the cache to its ring of stages in shared memory.
#pragma once

#include <cuda_pipeline_primitives.h>

#include <prologue/kernels/paged_attention/attention_instances.cuh>
#include <prologue/kernels/paged_attention/decode_mma/block_scales.cuh>
#include <prologue/kernels/paged_attention/decode_mma/rows.cuh>
#include <prologue/kernels/paged_attention/decode_tiles.cuh>

namespace prologue::cuda {

// A stage of a ring has the K and V of a warp's kKeys keys of a tile.
template <class K, class V, int kHeadDim, int kKeys>
struct DecodeMmaStage {
  unsigned char k[kKeys * Keys<K, kHeadDim>::kRowBytes];
  unsigned char v[kKeys * Values<V, kHeadDim>::kRowBytes];
};

// The scales of blocks of a stage; nothing if K and V are not block-scaled.
template <class K, class V, int kHeadDim, int kKeys>
struct StageBlockScales {};
template <DType kK, DType kV, int kHeadDim, int kKeys>
struct StageBlockScales<BlockCode<kK>, BlockCode<kV>, kHeadDim, kKeys>
    : BlockScales<BlockCode<kK>, BlockCode<kV>, kHeadDim, kKeys> {};

// This is the rest of a stage: which keys have no page, and scales.
template <class K, class V, int kHeadDim, int kKeys>
struct DecodeMmaKeys : StageBlockScales<K, V, kHeadDim, kKeys> {
  static constexpr bool kScaled = !kIsFloat<K> || !kIsFloat<V>;
  static constexpr bool kZeroPoints = kHasZeroPoint<K> || kHasZeroPoint<V>;
  unsigned missing;  // a bit for each key that should be there and has no page
  float k_scales[kScaled ? kKeys : 1];
  float v_scales[kScaled ? kKeys : 1];
  float k_zero_points[kZeroPoints ? kKeys : 1];
  float v_zero_points[kZeroPoints ? kKeys : 1];
};

// Whether the tokens of a side have scales of their own.
template <class K, class V>
__device__ __forceinline__ bool scale_per_token(const PagedHeads& side) {
  constexpr bool kHasCodes = !kIsFloat<K> || !kIsFloat<V>;
  return kHasCodes && !kIsBlocks<K> && side.format.scaling == KvScaling::token_head;
}

// A lane copies the same chunk of several rows, and knows the page of key lane % kKeys of the tile that is copied next. If 16 keys are
// always in one page, and none of them is missing, the addresses of all rows follow from that of the first. kRows is the number of packed
// rows of a work item.
template <class K, class V, int kHeadDim, int kRows, int kKeys>
struct DecodeMmaCopies {
  using KeysOf = Keys<K, kHeadDim>;
  using ValuesOf = Values<V, kHeadDim>;
  using Stage = DecodeMmaStage<K, V, kHeadDim, kKeys>;
  using StageKeys = DecodeMmaKeys<K, V, kHeadDim, kKeys>;
  static constexpr bool kBlocks = kIsBlocks<K>;
  static constexpr int kGroups = kKeys / kKeyGroup;
  static constexpr int kTileKeys = kDecodeMmaWarps * kKeys;
  using Cursor = TileCursor<kRows, kTileKeys>;

  const AttentionArgs& args;
  const TileRange& range;
  Stage* const ring;
  StageKeys* const ring_keys;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int k_chunks;
  const int v_chunks;
  const int stages;
  const bool keys_in_one_page;
  Cursor tile;     // that is copied next
  int64_t number;  // its index in the list
  int page = -1;
  bool needed = false;
  int scale_bytes = 0;  // of a head's scales of blocks: copied_scale_bytes()

  __device__ __forceinline__ DecodeMmaCopies(const AttentionArgs& args, const TileRange& range, const Cursor& first, Stage* ring,
                                             StageKeys* ring_keys)
      : args(args),
        range(range),
        ring(ring),
        ring_keys(ring_keys),
        k_chunks(static_cast<int>(args.p.head_dim) * kElementBits<K> / 128),
        v_chunks(args.v_head_dim * kElementBits<V> / 128),
        stages(has_few_stages() ? 2 : args.stages),
        keys_in_one_page(int{args.page_size} % kKeyGroup == 0 && int{args.ring_size} % kKeyGroup == 0),
        tile(first),
        number(range.begin) {
    if (k_chunks * 16 < KeysOf::kRowBytes) {  // the channels that K does not have are zeros
      for (int stage = 0; stage < stages; ++stage) {
        uint4* const chunks = reinterpret_cast<uint4*>(ring[stage].k);
        for (int i = lane; i < kKeys * KeysOf::kRowBytes / 16; i += 32) chunks[i] = uint4{0, 0, 0, 0};
      }
      __syncwarp();
    }
    if constexpr (kBlocks) {
      scale_bytes =
          copied_scale_bytes<kHeadDim / kBlockChannels<K>>(args.p.kv, static_cast<int>(args.p.head_dim), args.v_head_dim);
    }
  }

  __device__ __forceinline__ void find_page() {
    const int position = tile.position() + warp * kKeys + lane % kKeys;
    needed = number < range.end && position >= tile.of_sequence.begin && position < tile.sequence.length;
    page = needed ? tile.sequence.pages[page_index(args, logical_slot_of(args, position))] : -1;
  }

  // Whether the previous kernels do not write what would be copied. What they write must not be in a line of L1 before they have: copies of
  // 16 bytes do not go through it, scales do.
  __device__ __forceinline__ bool is_past() const {
    return !kBlocks && !scale_per_token<K, V>(args.p.kv.k) && !scale_per_token<K, V>(args.p.kv.v) &&
           tile.position() + warp * kKeys + kKeys <= tile.sequence.length - tile.sequence.num_rows;
  }

  // Fills a stage from the next tile, if there is one. Every call commits one group of copies, an empty one at the end. What needs nothing but
  // the page comes before `before_copies`.
  template <class BeforeCopies>
  __device__ __forceinline__ void copy_next(int stage, const BeforeCopies& before_copies) {
    if (number < range.end) {
      fill(ring[stage], ring_keys[stage], before_copies);
      if (++number < range.end) tile.advance(args);
      find_page();
    }
    __pipeline_commit();
  }

  // Converts the scales of blocks of a stage whose copies are there. All lanes see them after __syncwarp().
  __device__ __forceinline__ void convert_scales(int stage) {
    if constexpr (kBlocks) {
      StageKeys& keys = ring_keys[stage];
      if (lane < kKeys) keys.convert(args.p.kv, lane, keys.k_scales[lane], keys.v_scales[lane]);
    }
  }

  __device__ __forceinline__ void wait_for_oldest() const {
    if (stages == 2) {
      __pipeline_wait_prior(0);
    } else if (stages == 3) {
      __pipeline_wait_prior(1);
    } else {
      __pipeline_wait_prior(kMaxDecodeMmaStages - 2);
    }
    __syncwarp();  // the copies of all lanes are there, and all lanes are done with the stage that is filled next
  }

 private:
  // With more bytes in flight the memory is slower: measured, 1 to 3 % (docs/tuning/decode.md).
  __device__ __forceinline__ bool has_few_stages() const {
    constexpr int kKeysOfAllWarps = (kHeadDim > 128 ? 1 : 2) * kTileKeys;
    return range.size >= kLongRange && (k_chunks + v_chunks) * 16 * kKeysOfAllWarps >= kEnoughInFlight;
  }

  template <class BeforeCopies>
  __device__ __forceinline__ void fill(Stage& stage, StageKeys& keys, const BeforeCopies& before_copies) {
    const PagedKvView& kv = args.p.kv;
    const int first_key = tile.position() + warp * kKeys;
    const bool bad = needed && (page < 0 || page >= kv.num_pages);
    const unsigned missing = __ballot_sync(0xffffffffu, lane < kKeys && bad);
    const int first_needed = max(0, tile.of_sequence.begin - first_key);
    const auto num_needed = static_cast<unsigned>(max(0, min(kKeys, tile.sequence.length - first_key) - first_needed));
    const CopiedRows<kElementBits<K>, KeysOf> k_rows(kv.k, tile.kv_head, k_chunks);
    const CopiedRows<kElementBits<V>, ValuesOf> v_rows(kv.v, tile.kv_head, v_chunks);
    constexpr bool kAlike = kIsFloat<K> && kIsFloat<V>;  // rows of K and of V have one width and one layout in a stage
    const int64_t k_to_v = static_cast<const char*>(kv.v.data) - static_cast<const char*>(kv.k.data);
    const unsigned char *k_from[kGroups], *v_from[kGroups];  // the lane's first row of a group that is in one page
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int known = min(max(first_needed, group * kKeyGroup), group * kKeyGroup + kKeyGroup - 1);
      const int page_of_group = max(0, __shfl_sync(0xffffffffu, page, known));
      const int offset = logical_slot_of(args, first_key + group * kKeyGroup) % args.page_size;
      k_from[group] = k_rows.at(page_of_group, offset + k_rows.first_row);
      if (!kAlike || !args.same_rows) v_from[group] = v_rows.at(page_of_group, offset + v_rows.first_row);
    }
    if (lane == 0) keys.missing = missing;
    before_copies();
    if (!keys_in_one_page || missing != 0) {
      const int page_or_none = needed && !bad ? page : -1;
      const int offset = logical_slot_of(args, first_key + lane % kKeys) % args.page_size;
      k_rows.copy_each(stage.k, kKeys, page_or_none, offset);
      v_rows.copy_each(stage.v, kKeys, page_or_none, offset);
    } else {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        if (!kAlike || !args.same_rows) {
          k_rows.template copy_group<false, false>(stage.k, group, k_from[group], first_needed, num_needed);
          v_rows.template copy_group<false, false>(stage.v, group, v_from[group], first_needed, num_needed);
        } else if (num_needed < kKeys) {
          k_rows.template copy_group<false, true>(stage.k, group, k_from[group], first_needed, num_needed, stage.v, k_to_v);
        } else {
          k_rows.template copy_group<true, true>(stage.k, group, k_from[group], 0, kKeys, stage.v, k_to_v);
        }
      }
    }
    if constexpr (kBlocks) {
      if (lane < kKeys) {
        const bool there = needed && !bad;
        const int offset = logical_slot_of(args, first_key + lane) % args.page_size;
        keys.copy(args, lane, scale_bytes, there, there ? page : 0, offset, tile.kv_head);
      }
    }
    const bool k_has_scales = scale_per_token<K, V>(kv.k), v_has_scales = scale_per_token<K, V>(kv.v);
    if (k_has_scales || v_has_scales) {
      const bool there = needed && !bad;
      const CacheSlot slot = {there ? page : 0, logical_slot_of(args, first_key + lane % kKeys) % args.page_size};
      const auto copy_scales = [&](const PagedHeads& side, float* scales, float* zero_points, bool has_zero_points) {
        if (lane >= kKeys) return;
        const float* const from = side.scale + (there ? slot.in(side.scale_strides) + tile.kv_head * side.scale_strides.head : 0);
        __pipeline_memcpy_async(scales + lane, from, 4, there ? 0 : 4);
        if (has_zero_points) __pipeline_memcpy_async(zero_points + lane, from + (there ? 1 : 0), 4, there ? 0 : 4);
      };
      if (k_has_scales) copy_scales(kv.k, keys.k_scales, keys.k_zero_points, kHasZeroPoint<K>);
      if (v_has_scales) copy_scales(kv.v, keys.v_scales, keys.v_zero_points, kHasZeroPoint<V>);
    }
  }
};

}  // namespace prologue::cuda
