// This file reads elements of a paged cache on the device. Eight codes of a quantised type become eight floats, exactly and without a
// branch; single elements may have a type that is known only at run time. Nothing here applies a code's scale or zero point.
#pragma once

#include <type_traits>

#include <prologue/kernels/base/shared/block_scale.h>
#include <prologue/kernels/base/shared/quantize.h>
#include <prologue/kernels/base/device/cuda_groups.cuh>
#include <prologue/kernels/base/device/instructions.cuh>

namespace prologue::cuda {

// These are the element types of quantised caches.
template <DType kType>
struct Code {};
using Fp8E4M3 = Code<DType::fp8_e4m3>;
using Fp8E5M2 = Code<DType::fp8_e5m2>;
using Int8 = Code<DType::int8>;
using Int4 = Code<DType::int4>;
using UInt4 = Code<DType::uint4>;

// These are the element types of block-scaled caches. BlockFp8 is MXFP8. BlockFp4 is MXFP4 or NVFP4, known at run time.
template <DType kType>
struct BlockCode {};
using BlockFp8 = BlockCode<DType::fp8_e4m3>;
using BlockFp4 = BlockCode<DType::fp4_e2m1>;
template <class C>
inline constexpr bool kIsBlocks = std::is_same_v<C, BlockFp8> || std::is_same_v<C, BlockFp4>;

// Stands for any type of a cache, known only at run time.
struct AnyElement {};
// Stands for any type, and for block-scaled formats.
struct AnyBlocks {};
template <class C>
inline constexpr bool kIsAny = std::is_same_v<C, AnyElement> || std::is_same_v<C, AnyBlocks>;

template <class C>
inline constexpr bool kIsFloat = std::is_same_v<C, float> || std::is_same_v<C, __half> || std::is_same_v<C, __nv_bfloat16>;

// Whether a cache of C may have zero points.
template <class C>
inline constexpr bool kHasZeroPoint = std::is_same_v<C, UInt4> || kIsAny<C>;

// Converts two codes of a word of 8-bit codes to two float16, exactly: codes 0 and 1 if i = 0, else codes 2 and 3.
template <DType kType>
__device__ inline uint32_t halves_of_bytes(uint32_t word, int i) {
  if constexpr (kType == DType::fp8_e4m3) {
    return halves_of_e4m3(word, i);
  } else if constexpr (kType == DType::fp8_e5m2) {  // the upper byte of a float16
    return __byte_perm(word, 0, i == 0 ? 0x1404 : 0x3424);
  } else {  // int8: 1024 + 128 + the code, less that
    return subtract_halves(__byte_perm(word ^ 0x80808080u, 0x64646464u, i == 0 ? 0x4140 : 0x4342), 0x64806480u);
  }
}

// Converts eight codes to floats. `codes` is as in memory: 8 bytes, or for 4-bit types 4 bytes (in x).
template <DType kType>
__device__ inline void expand_codes(uint2 codes, float* values) {
  const uint32_t words[2] = {codes.x, codes.y};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    // The word is 2^23 + the code as an unsigned number; subtracting the excess leaves the code.
    if constexpr (kType == DType::int8) {
      values[i] = __uint_as_float(__byte_perm(words[i / 4] ^ 0x80808080u, 0x4b000000u, 0x7650u + i % 4)) - 8388736.0f;
    } else if constexpr (kType == DType::int4) {
      values[i] = __uint_as_float(((words[0] ^ 0x88888888u) >> (4 * i) & 15u) | 0x4b000000u) - 8388616.0f;
    } else if constexpr (kType == DType::uint4) {
      values[i] = __uint_as_float((words[0] >> (4 * i) & 15u) | 0x4b000000u) - 8388608.0f;
    } else if (i % 2 == 0) {
      const uint32_t pair = halves_of_bytes<kType>(words[i / 4], i % 4 / 2);
      const float2 floats = __half22float2(*reinterpret_cast<const __half2*>(&pair));
      values[i] = floats.x;
      values[i + 1] = floats.y;
    }
  }
}

// Converts eight codes, in the layout that expand_codes takes, to pairs of float16 in their order, exactly.
template <DType kType>
__device__ inline void expand_to_halves(uint2 codes, uint32_t (&pairs)[4]) {
  if constexpr (dtype_bits(kType) == 4) {
    constexpr bool kSigned = kType == DType::int4;
    const uint32_t word = kSigned ? codes.x ^ 0x88888888u : codes.x;
    const uint32_t even = word & 0x0f0f0f0fu, odd = word >> 4 & 0x0f0f0f0fu;
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // 1024 + the code (int4: + 8), less that
      const uint32_t bytes = __byte_perm(even, odd, i < 2 ? 0x5140 : 0x7362);
      const uint32_t with_exponent = __byte_perm(bytes, 0x64646464u, i % 2 == 0 ? 0x4140 : 0x4342);
      pairs[i] = subtract_halves(with_exponent, kSigned ? 0x64086408u : 0x64006400u);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = halves_of_bytes<kType>(i < 2 ? codes.x : codes.y, i % 2);
  }
}

// kWithUint4 says that the type may be uint4.
template <bool kWithUint4>
__device__ inline void expand_codes(DType type, uint2 codes, float* values) {
  if (kWithUint4 && type == DType::uint4) return expand_codes<DType::uint4>(codes, values);
  switch (type) {
    case DType::fp8_e4m3: return expand_codes<DType::fp8_e4m3>(codes, values);
    case DType::fp8_e5m2: return expand_codes<DType::fp8_e5m2>(codes, values);
    case DType::int8: return expand_codes<DType::int8>(codes, values);
    default: return expand_codes<DType::int4>(codes, values);
  }
}

// Loads `count` of eight codes at element `offset`; the others become zeros. Whole ones exist in full or (count <= 0) not at all, and are
// aligned to their size.
__device__ inline uint2 load_codes(const void* data, int64_t offset, int64_t count, bool whole, bool four_bits) {
  uint2 codes = {0, 0};
  const unsigned char* from = static_cast<const unsigned char*>(data) + (four_bits ? offset / 2 : offset);
  if (whole) {
    if (count > 0 && four_bits) codes.x = *reinterpret_cast<const uint32_t*>(from);
    if (count > 0 && !four_bits) codes = *reinterpret_cast<const uint2*>(from);
    return codes;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {  // count is even: a byte of two codes is there or not
    if (i < (four_bits ? count / 2 : count)) (i < 4 ? codes.x : codes.y) |= uint32_t{from[i]} << (i % 4 * 8);
  }
  return codes;
}

// A group is what a lane loads from a cache of type C with one instruction. `type` is C's type, or the one that AnyElement is at run time.
template <class C>
struct CacheGroup {
  static constexpr int kSize = kGroup<C>;
  Group<C> group;

  __device__ static CacheGroup load(const void* data, int64_t offset, int64_t count, bool whole, DType) {
    return {load_group(static_cast<const C*>(data) + offset, count, whole)};
  }
  __device__ void expand(float* values, DType) const {
#pragma unroll
    for (int i = 0; i < kSize; ++i) values[i] = group[i];
  }
};

template <DType kType>
struct CacheGroup<Code<kType>> {
  static constexpr int kSize = 8;
  uint2 codes;

  __device__ static CacheGroup load(const void* data, int64_t offset, int64_t count, bool whole, DType) {
    return {load_codes(data, offset, count, whole, dtype_bits(kType) == 4)};
  }
  __device__ void expand(float* values, DType) const { expand_codes<kType>(codes, values); }
};

// Holds eight elements as they are in memory, so that a load is not waited for where it is issued. Only float32 needs the second half.
template <>
struct CacheGroup<AnyElement> {
  static constexpr int kSize = 8;
  Group<float> first;
  Group<float> second;

  __device__ static CacheGroup load(const void* data, int64_t offset, int64_t count, bool whole, DType type) {
    CacheGroup group = {};
    if (type == DType::f32) {
      const float* from = static_cast<const float*>(data) + offset;
      group.first = load_group(from, count, whole);
      group.second = load_group(from + 4, count - 4, whole);
    } else if (dtype_is_activation(type)) {  // 16 bits of either kind
      const Group<__half> halves = load_group(static_cast<const __half*>(data) + offset, count, whole);
#pragma unroll
      for (int i = 0; i < 4; ++i) group.first.words[i] = halves.words[i];
    } else {
      const uint2 codes = load_codes(data, offset, count, whole, dtype_bits(type) == 4);
      group.first.words[0] = codes.x;
      group.first.words[1] = codes.y;
    }
    return group;
  }
  __device__ void expand(float* values, DType type) const {
    switch (type) {
      case DType::f32: return copy(values, [&](int i) { return i < 4 ? first[i] : second[i - 4]; });
      case DType::f16: return copy(values, [&](int i) { return as<__half>()[i]; });
      case DType::bf16: return copy(values, [&](int i) { return as<__nv_bfloat16>()[i]; });
      default: return expand_codes<true>(type, make_uint2(first.words[0], first.words[1]), values);
    }
  }

 private:
  template <class T>
  __device__ Group<T> as() const {
    return {{first.words[0], first.words[1], first.words[2], first.words[3]}};
  }
  template <class F>
  __device__ static void copy(float* values, const F& element) {
#pragma unroll
    for (int i = 0; i < kSize; ++i) values[i] = element(i);
  }
};

// The same with the factor of the block that the eight elements are in. A type whose scales are others has the factor 1.
template <>
struct CacheGroup<AnyBlocks> : CacheGroup<AnyElement> {
  float factor = 1.0f;

  __device__ static CacheGroup load(const void* data, int64_t offset, int64_t count, bool whole, DType type) {
    return {CacheGroup<AnyElement>::load(data, offset, count, whole, type)};
  }
  __device__ void expand(float* values, DType type) const {
    if (type == DType::fp4_e2m1) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) {  // the bits of a float that is 2^126 times as small
        const uint32_t code = first.words[0] >> (4 * i);
        values[i] = __uint_as_float((code & 7u) << 22 | (code & 8u) << 28) * 0x1p126f;
      }
    } else {
      CacheGroup<AnyElement>::expand(values, type);
    }
#pragma unroll
    for (int i = 0; i < kSize; ++i) values[i] *= factor;
  }
};

// Returns one element of a cache, without its scale.
__device__ inline float load_cached(DType type, const void* data, int64_t i) {
  if (dtype_is_activation(type)) return load_element(type, data, i);
  const unsigned char* bytes = static_cast<const unsigned char*>(data);
  if (type == DType::int4) return dequantize(static_cast<uint8_t>(bytes[i / 2] >> (i % 2 * 4)), 1.0f, type);
  return dequantize(bytes[i], 1.0f, type);
}

// Does the same, and also reads uint4.
__device__ inline float load_cached_of_any_format(DType type, const void* data, int64_t i) {
  if (type != DType::uint4) return load_cached(type, data, i);
  return static_cast<float>(static_cast<const unsigned char*>(data)[i / 2] >> (i % 2 * 4) & 15);
}

// Does the same, and also reads fp4_e2m1, without the scale of its block.
__device__ inline float load_cached_of_any_blocks(DType type, const void* data, int64_t i) {
  if (type != DType::fp4_e2m1) return load_cached_of_any_format(type, data, i);
  return from_fp4_e2m1(static_cast<uint8_t>(static_cast<const unsigned char*>(data)[i / 2] >> (i % 2 * 4)));
}

}  // namespace prologue::cuda
