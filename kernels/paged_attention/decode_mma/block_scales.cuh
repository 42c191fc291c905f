// Decode on tensor cores over block-scaled caches: the scales of a warp's keys of a tile. Lane l loads those of key l while the tile before
// is worked on, and then stores them in the ring as the products need them.
//
// Operands are float16, whose range is too small for powers of two of 8 bits. So in MXFP8 a scale of K multiplies a score, in float32. Other
// scales 2^e of a key are divided by the largest of them, 2^r, which takes the place of a scale of the token. A scale that is much smaller
// loses digits (docs/numerics.md). Scales of NVFP4 are float16 as they are.
#pragma once

#include <prologue/kernels/base/shared/block_scale.h>
#include <prologue/kernels/paged_attention/attention_args.cuh>
#include <prologue/kernels/paged_attention/decode_mma/rows.cuh>

namespace prologue::cuda {

// Whether a side has a float32 in the ring for each key, 2^r.
template <class C, bool kIsKey>
__device__ __forceinline__ bool has_largest_scales(const PagedHeads& side) {
  return kIsBlocks<C> && !(kIsKey && std::is_same_v<C, BlockFp8>)&&side.format.scaling == KvScaling::mx;
}

// Returns what sums of products of the codes are multiplied by at the end. Codes of e2m1 are multiplied as 2^-14 times as much.
template <class C>
__device__ __forceinline__ float factor_of_all(const PagedHeads& side, int kv_head) {
  if constexpr (std::is_same_v<C, BlockFp4>) {
    return side.format.scaling == KvScaling::nv ? tensor_scale_of(side.format, side.scale) * 0x1p14f : 0.5f;
  } else if constexpr (kIsBlocks<C>) {
    return 1.0f;
  } else {
    return shared_scale(side.format, side.scale, kv_head);
  }
}

// The scales of K of a stage, [key][block]: float32 for MXFP8, else float16.
template <class K, int kHeadDim, int kKeys>
struct KeyScales {
  using Scale = std::conditional_t<std::is_same_v<K, BlockFp8>, float, uint16_t>;
  static constexpr int kBlocks = kHeadDim / kBlockChannels<K>;
  alignas(16) Scale of_blocks[kKeys][kBlocks];
};

// The scales of V of a stage, float16: [group of 16 keys][block % kOfChunk][t][chunk of 32 channels][half][key of two]. Keys 2t and 2t + 1 of
// the first (half 0) or the last eight of a group are a pair.
template <class V, int kHeadDim, int kKeys>
struct ValueScales {
  static constexpr int kOfChunk = 32 / kBlockChannels<V>;  // blocks
  static constexpr int kChunks = kHeadDim / 32;
  static constexpr int kBlocks = kOfChunk * kChunks;
  static constexpr int kOfGroup = kBlocks * kKeyGroup;
  alignas(16) uint16_t of_blocks[kKeys / kKeyGroup * kOfGroup];

  __device__ static int index(int key, int block) {
    const int t = key % 8 / 2, chunk = block / kOfChunk;
    return key / kKeyGroup * kOfGroup + ((block % kOfChunk * 4 + t) * kChunks + chunk) * 4 + key % kKeyGroup / 8 * 2 + key % 2;
  }
};

// The scales of one key of a side, as they are stored. Those that there are not are 0.
template <int kBlocks>
struct BlockScaleCodes {
  static constexpr int kWords = (kBlocks + 3) / 4;
  uint32_t words[kWords];

  // Loads them as whole_words() says. The loads do not go through L1: there may be bytes beside these that the previous kernels write. The
  // page and the offset are not negative.
  __device__ __forceinline__ void load(const PagedHeads& side, int head_dim, int num_words, int page, int offset, int kv_head) {
    const PageStrides& strides = side.scale_strides;
    const auto product = [](int a, int64_t b) { return uint64_t{static_cast<uint32_t>(a)} * static_cast<uint64_t>(b); };
    const uint8_t* from = side.block_scale + product(page, strides.page) + product(kv_head, strides.head);
    if (num_words > 0) {
      const auto* const word = reinterpret_cast<const uint32_t*>(from + product(offset, strides.token));
#pragma unroll
      for (int w = 0; w < kWords; ++w) words[w] = w < num_words ? __ldcg(word + w) : 0;
      return;
    }
    // block_scale_offset() of one block after the other.
    const int num_blocks = head_dim / static_cast<int>(block_channels(side.format));
    const bool linear = side.block_scale_layout == BlockScaleLayout::linear;
    const int quarter = linear ? kBlocks : num_blocks / 4, step = linear ? 1 : 4;
    const int64_t to_next_row = strides.token - step * (quarter - 1);
    from += linear ? product(offset, strides.token) : product(offset / 4 * 4, strides.token) + static_cast<uint64_t>(offset % 4);
    int column = 0;
#pragma unroll
    for (int w = 0; w < kWords; ++w) words[w] = 0;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      if (block < num_blocks) words[block / 4] |= uint32_t{__ldcg(from)} << (block % 4 * 8);
      const bool last = ++column == quarter;
      from += last ? to_next_row : int64_t{step};
      if (last) column = 0;
    }
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (uint32_t& word : words) word = 0;
  }
  // Returns the number of words if all scales of the side are in whole aligned words, else 0.
  __device__ static int whole_words(const PagedHeads& side, int head_dim) {
    const PageStrides& strides = side.scale_strides;
    const int num_blocks = head_dim / static_cast<int>(block_channels(side.format));
    const auto all = reinterpret_cast<uintptr_t>(side.block_scale) | static_cast<uintptr_t>(strides.page) |
                     static_cast<uintptr_t>(strides.token) | static_cast<uintptr_t>(strides.head) |
                     static_cast<uintptr_t>(num_blocks);
    return side.block_scale_layout == BlockScaleLayout::linear && all % 4 == 0 ? num_blocks / 4 : 0;
  }

  __device__ int code(int block) const { return static_cast<int>(words[block / 4] >> (block % 4 * 8) & 255u); }
  // Returns the largest code of UE8M0 that is not NaN.
  __device__ int largest() const {
    int most = 0;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) most = max(most, code(block) == 255 ? 0 : code(block));
    return most;
  }
  // Returns 2^shift times the scale of UE8M0, divided by 2^(largest - 127). It may be NaN.
  __device__ float relative(int block, int largest, int shift) const {
    const int exponent = max(0, code(block) - largest + 127 + shift);
    return code(block) == 255 ? __uint_as_float(0x7fc00000u) : __uint_as_float(static_cast<uint32_t>(exponent) << 23);
  }
  // Returns two scales in float16.
  __device__ uint32_t pair_of_e4m3(int blocks) const { return halves_of_e4m3(words[blocks / 2], blocks % 2); }
  __device__ uint32_t pair_of_ue8m0(int first, int second, int largest, int shift) const {
    return pack<__half>(relative(first, largest, shift), relative(second, largest, shift));
  }
};

// The scales that are in flight, of the key of a lane.
template <class K, class V, int kHeadDim, int kKeys>
struct PendingBlockScales {
  using OfKeys = KeyScales<K, kHeadDim, kKeys>;
  using OfValues = ValueScales<V, kHeadDim, kKeys>;
  static constexpr int kFp4Shift = 15;  // a code is at most 6 * 2^-14: the product fits float16
  BlockScaleCodes<OfKeys::kBlocks> k;
  BlockScaleCodes<OfValues::kBlocks> v;

  // Converts the scales of blocks of 16 channels of e2m1 to pairs of float16. Sets `largest_scale` if the format has one.
  template <int kBlocks>
  __device__ __forceinline__ static void fp4_pairs(const BlockScaleCodes<kBlocks>& codes, const KvFormat& format,
                                                   uint32_t (&pairs)[kBlocks / 2], float& largest_scale) {
    if (format.scaling == KvScaling::nv) {
#pragma unroll
      for (int n = 0; n < kBlocks / 2; ++n) pairs[n] = codes.pair_of_e4m3(n);
    } else {
      const int largest = codes.largest();
      largest_scale = from_ue8m0(static_cast<uint8_t>(largest));
#pragma unroll
      for (int n = 0; n < kBlocks / 2; ++n) pairs[n] = codes.pair_of_ue8m0(n, n, largest, kFp4Shift);
    }
  }

  __device__ __forceinline__ void store(const PagedKvView& kv, int key, OfKeys& keys, OfValues& values, float* k_scales,
                                        float* v_scales) const {
    if constexpr (std::is_same_v<K, BlockFp8>) {
#pragma unroll
      for (int block = 0; block < OfKeys::kBlocks; ++block) {
        keys.of_blocks[key][block] = from_ue8m0(static_cast<uint8_t>(k.code(block)));
      }
    } else {
      uint32_t pairs[OfKeys::kBlocks / 2];
      fp4_pairs(k, kv.k.format, pairs, k_scales[key]);
      auto* const to = reinterpret_cast<uint2*>(keys.of_blocks[key]);
#pragma unroll
      for (int n = 0; n < OfKeys::kBlocks / 4; ++n) to[n] = {pairs[2 * n], pairs[2 * n + 1]};
    }
    uint32_t pairs[OfValues::kBlocks / 2];
    if constexpr (std::is_same_v<V, BlockFp8>) {
      const int largest = v.largest();
      v_scales[key] = from_ue8m0(static_cast<uint8_t>(largest));
#pragma unroll
      for (int n = 0; n < OfValues::kBlocks / 2; ++n) pairs[n] = v.pair_of_ue8m0(2 * n, 2 * n + 1, largest, 0);
    } else {
      fp4_pairs(v, kv.v.format, pairs, v_scales[key]);
    }
#pragma unroll
    for (int n = 0; n < OfValues::kBlocks / 2; ++n) {
      values.of_blocks[OfValues::index(key, 2 * n)] = static_cast<uint16_t>(pairs[n]);
      values.of_blocks[OfValues::index(key, 2 * n + 1)] = static_cast<uint16_t>(pairs[n] >> 16);
    }
  }
};

}  // namespace prologue::cuda
