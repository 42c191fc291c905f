// Elements of a paged cache on the device: eight codes of a quantised type become eight floats, exactly and without a branch, and
// elements whose type is known at run time only.
#pragma once

#include <cuda_fp8.h>

#include <type_traits>

#include <prologue/kernels/base/shared/quantize.h>
#include <prologue/kernels/base/device/cuda_groups.cuh>

namespace prologue::cuda {

// The element types of quantised caches.
template <DType kType>
struct Code {};
using Fp8E4M3 = Code<DType::fp8_e4m3>;
using Fp8E5M2 = Code<DType::fp8_e5m2>;
using Int8 = Code<DType::int8>;
using Int4 = Code<DType::int4>;

template <class C>
inline constexpr bool kIsFloat = std::is_same_v<C, float> || std::is_same_v<C, __half> || std::is_same_v<C, __nv_bfloat16>;

// Eight codes as they are in memory: 8 bytes, or 4 of int4 (in x).
template <DType kType>
__device__ inline void expand_codes(uint2 codes, float* values) {
  const uint32_t words[2] = {codes.x, codes.y};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    // 2^23 + the code as an unsigned number; subtracting what it is too much leaves the code.
    if constexpr (kType == DType::int8) {
      values[i] = __uint_as_float(__byte_perm(words[i / 4] ^ 0x80808080u, 0x4b000000u, 0x7650u + i % 4)) - 8388736.0f;
    } else if constexpr (kType == DType::int4) {
      values[i] = __uint_as_float(((words[0] ^ 0x88888888u) >> (4 * i) & 15u) | 0x4b000000u) - 8388616.0f;
    } else if (i % 2 == 0) {
      const uint32_t word = words[i / 4] >> (i % 4 * 8);
      __half2_raw pair;
      if constexpr (kType == DType::fp8_e5m2) {  // the upper byte of a float16
        const uint32_t bits = __byte_perm(word, 0, 0x1404);
        pair.x = static_cast<unsigned short>(bits);
        pair.y = static_cast<unsigned short>(bits >> 16);
      } else {
        pair = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(word), __NV_E4M3);
      }
      const float2 floats = __half22float2(pair);
      values[i] = floats.x;
      values[i + 1] = floats.y;
    }
  }
}

__device__ inline void expand_codes(DType type, uint2 codes, float* values) {
  switch (type) {
    case DType::fp8_e4m3: return expand_codes<DType::fp8_e4m3>(codes, values);
    case DType::fp8_e5m2: return expand_codes<DType::fp8_e5m2>(codes, values);
    case DType::int8: return expand_codes<DType::int8>(codes, values);
    default: return expand_codes<DType::int4>(codes, values);
  }
}

// `count` of eight codes at element `offset`, the others are zeros. Whole ones exist in full or (count <= 0) not at all, and are
// aligned to their size.
__device__ inline uint2 load_codes(const void* data, int64_t offset, int64_t count, bool whole, bool is_int4) {
  uint2 codes = {0, 0};
  const unsigned char* from = static_cast<const unsigned char*>(data) + (is_int4 ? offset / 2 : offset);
  if (whole) {
    if (count > 0 && is_int4) codes.x = *reinterpret_cast<const uint32_t*>(from);
    if (count > 0 && !is_int4) codes = *reinterpret_cast<const uint2*>(from);
    return codes;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {  // count is even: a byte of int4 is there or not
    if (i < (is_int4 ? count / 2 : count)) (i < 4 ? codes.x : codes.y) |= uint32_t{from[i]} << (i % 4 * 8);
  }
  return codes;
}

// A group of a cache of type C: what a lane loads with one instruction.
template <class C>
struct CacheGroup {
  static constexpr int kSize = kGroup<C>;
  Group<C> group;

  __device__ static CacheGroup load(const void* data, int64_t offset, int64_t count, bool whole) {
    return {load_group(static_cast<const C*>(data) + offset, count, whole)};
  }
  __device__ void expand(float* values) const {
#pragma unroll
    for (int i = 0; i < kSize; ++i) values[i] = group[i];
  }
};

template <DType kType>
struct CacheGroup<Code<kType>> {
  static constexpr int kSize = 8;
  uint2 codes;

  __device__ static CacheGroup load(const void* data, int64_t offset, int64_t count, bool whole) {
    return {load_codes(data, offset, count, whole, kType == DType::int4)};
  }
  __device__ void expand(float* values) const { expand_codes<kType>(codes, values); }
};

// One element of a cache, without its scale.
__device__ inline float load_cached(DType type, const void* data, int64_t i) {
  if (dtype_is_activation(type)) return load_element(type, data, i);
  const unsigned char* bytes = static_cast<const unsigned char*>(data);
  if (type == DType::int4) return dequantize(static_cast<uint8_t>(bytes[i / 2] >> (i % 2 * 4)), 1.0f, type);
  return dequantize(bytes[i], 1.0f, type);
}

}  // namespace prologue::cuda
