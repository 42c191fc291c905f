// Decode on tensor cores over block-scaled caches: the scales of a warp's keys of a tile. Lane l copies those of key l to the ring with the
// keys, as they are in the cache, and converts them there when the keys are used.
//
// Operands are float16, whose range is too small for powers of two of 8 bits. So in MXFP8 a scale of K multiplies a score, in float32. Other
// scales 2^e of a key are divided by the largest of them, 2^r, which takes the place of a scale of the token. A scale that is much smaller
// loses digits (docs/numerics.md). Scales of NVFP4 are float16 as they are.
#pragma once

#include <cuda_pipeline_primitives.h>

#include <prologue/kernels/base/shared/block_scale.h>
#include <prologue/kernels/paged_attention/attention_args.cuh>
#include <prologue/kernels/paged_attention/decode_mma/rows.cuh>

namespace prologue::cuda {

// Whether a side has a float32 in the ring for each key, 2^r.
template <class C, bool kIsKey>
__device__ __forceinline__ bool has_largest_scales(const PagedHeads& side) {
  constexpr bool kMultipliesScores = kIsKey && std::is_same_v<C, BlockFp8>;
  return kIsBlocks<C> && !kMultipliesScores && side.format.scaling == KvScaling::mx;
}

// Returns what sums of products of the codes are multiplied by at the end. Codes of e2m1 are multiplied as 2^-14 times as much.
template <class C>
__device__ __forceinline__ float block_factor_of_all(const PagedHeads& side) {
  if constexpr (std::is_same_v<C, BlockFp8>) return 1.0f;
  return side.format.scaling == KvScaling::nv ? tensor_scale_of(side.format, side.scale) * 0x1p14f : 0.5f;
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

// The scales of one key of a side, as the cache has them. Blocks that there are not have 0.
template <int kBlocks>
struct BlockScaleCodes {
  static constexpr int kBytes = kBlocks < 4 ? 4 : kBlocks;
  alignas(kBytes) uint32_t words[kBytes / 4];

  // Loads them one by one, in any layout: block_scale_offset() of one block after the other. The page and the offset are not negative.
  __device__ __forceinline__ void load(const PagedHeads& side, int head_dim, bool there, int page, int offset, int kv_head) {
    const PageStrides& strides = side.scale_strides;
    const int num_blocks = there ? head_dim / static_cast<int>(block_channels(side.format)) : 0;
    const bool linear = side.block_scale_layout == BlockScaleLayout::linear;
    const int quarter = linear ? kBlocks : num_blocks / 4, step = linear ? 1 : 4;
    const int64_t to_next_row = strides.token - step * (quarter - 1);
    const uint8_t* from = side.block_scale + page * strides.page + kv_head * strides.head;
    from += linear ? offset * strides.token : offset / 4 * 4 * strides.token + offset % 4;
    int column = 0;
#pragma unroll
    for (uint32_t& word : words) word = 0;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      if (block < num_blocks) words[block / 4] |= uint32_t{*from} << (block % 4 * 8);
      const bool last = ++column == quarter;
      from += last ? to_next_row : int64_t{step};
      if (last) column = 0;
    }
  }

  __device__ uint32_t code(int block) const { return words[block / 4] >> (block % 4 * 8) & 255u; }
  __device__ uint32_t pair_of_e4m3(int blocks) const { return halves_of_e4m3(words[blocks / 2], blocks % 2); }

  // Returns the largest code of UE8M0 among the first kCount. With kNan, 255 does not count.
  template <int kCount, bool kNan>
  __device__ uint32_t largest() const {
    uint32_t most = 0;
#pragma unroll
    for (int block = 0; block < kCount; ++block) most = max(most, kNan && code(block) == 255 ? 0u : code(block));
    return most;
  }
  // Returns 2^shift times the scale of a block, divided by 2^(largest - 127), or NaN for 255, which there is only with kNan.
  template <bool kNan>
  __device__ float relative(int block, uint32_t largest, int shift) const {
    if (kNan && code(block) == 255) return __uint_as_float(0x7fc00000u);
    return __uint_as_float(static_cast<uint32_t>(max(0, static_cast<int>(code(block) - largest) + 127 + shift)) << 23);
  }
};

// Converts the scales of a side of one key: to pairs of float16 for two blocks. Sets what takes the place of the token's scale, if the format
// has that. In MXFP4 the two blocks of a pair have one scale.
template <class C, bool kNan, int kBlocks>
__device__ __forceinline__ void relative_pairs(const BlockScaleCodes<kBlocks>& codes, uint32_t (&pairs)[kBlocks / 2],
                                               float& largest_scale) {
  constexpr bool kFp4 = std::is_same_v<C, BlockFp4>;
  constexpr int kShift = kFp4 ? 15 : 0;  // a code of e2m1 is at most 6 * 2^-14: the product fits float16
  constexpr int kStored = kFp4 ? kBlocks / 2 : kBlocks;
  const uint32_t largest = codes.template largest<kStored, kNan>();
#pragma unroll
  for (int n = 0; n < kBlocks / 2; ++n) {
    const float first = codes.template relative<kNan>(kFp4 ? n : 2 * n, largest, kShift);
    pairs[n] = pack<__half>(first, kFp4 ? first : codes.template relative<kNan>(2 * n + 1, largest, kShift));
  }
  largest_scale = from_ue8m0(static_cast<uint8_t>(largest));
}
template <class C, int kBlocks>
__device__ __forceinline__ void scale_pairs(const BlockScaleCodes<kBlocks>& codes, const KvFormat& format,
                                            uint32_t (&pairs)[kBlocks / 2], float& largest_scale) {
  constexpr int kStored = std::is_same_v<C, BlockFp4> ? kBlocks / 2 : kBlocks;
  if (format.scaling == KvScaling::nv) {
#pragma unroll
    for (int n = 0; n < kBlocks / 2; ++n) pairs[n] = codes.pair_of_e4m3(n);
  } else if (codes.template largest<kStored, false>() != 255) {
    relative_pairs<C, false>(codes, pairs, largest_scale);
  } else {
    relative_pairs<C, true>(codes, pairs, largest_scale);
  }
}

// Returns the bytes of a head's scales if those of K and of V can be copied asynchronously, with the same strides, else 0: they are kBlocks
// aligned bytes in the plain layout, or half as many (MXFP4).
template <int kBlocks>
__device__ inline int copied_scale_bytes(const PagedKvView& kv, int k_head_dim, int v_head_dim) {
  const PageStrides &k = kv.k.scale_strides, &v = kv.v.scale_strides;
  const bool half = kv.k.format.type == DType::fp4_e2m1 && kv.k.format.scaling == KvScaling::mx;
  const int bytes = half ? kBlocks / 2 : kBlocks;
  const auto all = reinterpret_cast<uintptr_t>(kv.k.block_scale) | reinterpret_cast<uintptr_t>(kv.v.block_scale) |
                   static_cast<uintptr_t>(k.page) | static_cast<uintptr_t>(k.token) | static_cast<uintptr_t>(k.head);
  const bool alike = kv.k.format.scaling == kv.v.format.scaling && k_head_dim == v_head_dim && k.page == v.page &&
                     k.token == v.token && k.head == v.head;
  const bool plain = kv.k.block_scale_layout == BlockScaleLayout::linear && kv.v.block_scale_layout == BlockScaleLayout::linear;
  const bool whole = k_head_dim == bytes * static_cast<int>(block_channels(kv.k.format)) && all % bytes == 0;
  return bytes >= 4 && alike && plain && whole ? bytes : 0;
}

// What a stage has of the scales of blocks.
template <class K, class V, int kHeadDim, int kKeys>
struct BlockScales {
  using OfKeys = KeyScales<K, kHeadDim, kKeys>;
  using OfValues = ValueScales<V, kHeadDim, kKeys>;
  alignas(16) BlockScaleCodes<OfKeys::kBlocks> k_codes[kKeys];
  alignas(16) BlockScaleCodes<OfValues::kBlocks> v_codes[kKeys];
  OfKeys k_blocks;
  OfValues v_blocks;

  // Copies those of a key, `bytes` being copied_scale_bytes(). The page and the offset are not negative.
  __device__ __forceinline__ void copy(const AttentionArgs& args, int key, int bytes, bool there, int page, int offset,
                                       int kv_head) {
    constexpr int kBlocks = OfKeys::kBlocks;
    static_assert(kBlocks == OfValues::kBlocks);
    const PagedKvView& kv = args.p.kv;
    if (bytes == 0) {
      BlockScaleCodes<kBlocks> k, v;
      k.load(kv.k, static_cast<int>(args.p.head_dim), there, page, offset, kv_head);
      v.load(kv.v, args.v_head_dim, there, page, offset, kv_head);
      k_codes[key] = k;
      v_codes[key] = v;
      return;
    }
    const PageStrides& strides = kv.k.scale_strides;
    const auto product = [](int a, int64_t b) { return uint64_t{static_cast<uint32_t>(a)} * static_cast<uint64_t>(b); };
    const uint64_t at = product(page, strides.page) + product(offset, strides.token) + product(kv_head, strides.head);
    const auto copy_bytes = [&](auto size) {
      constexpr int kSize = decltype(size)::value;
      if constexpr (kSize >= 4) {
        __pipeline_memcpy_async(k_codes[key].words, kv.k.block_scale + at, kSize, there ? 0 : kSize);
        __pipeline_memcpy_async(v_codes[key].words, kv.v.block_scale + at, kSize, there ? 0 : kSize);
      }
    };
    if (bytes == kBlocks) {
      copy_bytes(std::integral_constant<int, kBlocks>());
    } else {
      copy_bytes(std::integral_constant<int, kBlocks / 2>());
    }
  }

  // Converts those of a key, which the same lane has copied.
  __device__ __forceinline__ void convert(const PagedKvView& kv, int key, float& k_scale, float& v_scale) {
    const BlockScaleCodes<OfKeys::kBlocks> k = k_codes[key];
    const BlockScaleCodes<OfValues::kBlocks> v = v_codes[key];
    if constexpr (std::is_same_v<K, BlockFp8>) {
#pragma unroll
      for (int block = 0; block < OfKeys::kBlocks; ++block) {
        k_blocks.of_blocks[key][block] = from_ue8m0(static_cast<uint8_t>(k.code(block)));
      }
    } else {
      uint32_t pairs[OfKeys::kBlocks / 2];
      scale_pairs<K>(k, kv.k.format, pairs, k_scale);
      auto* const to = reinterpret_cast<uint2*>(k_blocks.of_blocks[key]);
#pragma unroll
      for (int n = 0; n < OfKeys::kBlocks / 4; ++n) to[n] = {pairs[2 * n], pairs[2 * n + 1]};
    }
    uint32_t pairs[OfValues::kBlocks / 2];
    scale_pairs<V>(v, kv.v.format, pairs, v_scale);
#pragma unroll
    for (int n = 0; n < OfValues::kBlocks / 2; ++n) {
      v_blocks.of_blocks[OfValues::index(key, 2 * n)] = static_cast<uint16_t>(pairs[n]);
      v_blocks.of_blocks[OfValues::index(key, 2 * n + 1)] = static_cast<uint16_t>(pairs[n] >> 16);
    }
  }
};

}  // namespace prologue::cuda
