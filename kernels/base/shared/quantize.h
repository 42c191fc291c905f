// This file converts elements of a quantised cache. It is written once for host and device: conversions round to nearest even and saturate.
// KvFormat in views.h states the rules.
#pragma once

#include <cstdint>
#include <cstring>

#include <prologue/kernels/base/shared/rotation.h>
#include <prologue/kernels/base/views.h>

namespace prologue {

namespace detail {

PROLOGUE_HOST_DEVICE inline uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
PROLOGUE_HOST_DEVICE inline float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

inline constexpr uint32_t kInfinityBits = 0x7f800000u;

// fp8 types are selected by the bits of the mantissa: 3 is e4m3 (no infinities, 0x7f is NaN), 2 is e5m2.
template <int kMantissa>
struct Fp8Format {
  static constexpr int kBias = (1 << (6 - kMantissa)) - 1;
  static constexpr uint32_t kLargest = kMantissa == 3 ? 0x7e : 0x7b;
};

template <int kMantissa>
PROLOGUE_HOST_DEVICE inline uint8_t to_fp8(float x) {
  using Format = Fp8Format<kMantissa>;
  constexpr int kDropped = 23 - kMantissa;
  const uint32_t bits = bits_of(x);
  const uint32_t sign = (bits >> 24) & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > kInfinityBits) return 0x7f;
  uint32_t code;
  if (magnitude < static_cast<uint32_t>(128 - Format::kBias)
                      << 23) {  // subnormal: adding this aligns the grid with float's last bit
    constexpr float kAlign =
        static_cast<float>(uint64_t{1} << 23) / static_cast<float>(uint64_t{1} << (Format::kBias - 1 + kMantissa));
    code = bits_of(add_rounded(float_of(magnitude), kAlign)) - bits_of(kAlign);
  } else {
    const uint32_t rounded = magnitude + ((1u << (kDropped - 1)) - 1u) + ((magnitude >> kDropped) & 1u);
    code = (rounded >> kDropped) - (static_cast<uint32_t>(127 - Format::kBias) << kMantissa);
  }
  return static_cast<uint8_t>(sign | (code < Format::kLargest ? code : Format::kLargest));
}

template <int kMantissa>
PROLOGUE_HOST_DEVICE inline float from_fp8(uint8_t code) {
  using Format = Fp8Format<kMantissa>;
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t magnitude = code & 0x7fu;
  const bool special = kMantissa == 3 ? magnitude == 0x7fu : magnitude >= 0x7cu;
  if (special) return float_of(sign | kInfinityBits | (magnitude == 0x7cu ? 0u : 0x400000u));
  if (magnitude >> kMantissa == 0) {
    const float value = static_cast<float>(magnitude) / static_cast<float>(1 << (Format::kBias - 1 + kMantissa));
    return sign != 0 ? -value : value;
  }
  return float_of(sign | ((magnitude << (23 - kMantissa)) + (static_cast<uint32_t>(127 - Format::kBias) << 23)));
}

}  // namespace detail

PROLOGUE_HOST_DEVICE inline uint8_t to_fp8_e4m3(float x) { return detail::to_fp8<3>(x); }
PROLOGUE_HOST_DEVICE inline uint8_t to_fp8_e5m2(float x) { return detail::to_fp8<2>(x); }
PROLOGUE_HOST_DEVICE inline float from_fp8_e4m3(uint8_t code) { return detail::from_fp8<3>(code); }
PROLOGUE_HOST_DEVICE inline float from_fp8_e5m2(uint8_t code) { return detail::from_fp8<2>(code); }

// Returns the nearest integer in [-limit, limit], or 0 for NaN. limit < 2^22.
PROLOGUE_HOST_DEVICE inline int32_t to_integer(float x, int32_t limit) {
  const float bound = static_cast<float>(limit);
  if (!(x > -bound)) return x <= -bound ? -limit : 0;
  if (x > bound) return limit;
  constexpr float kRound = 0x1.8p+23f;
  return static_cast<int32_t>(detail::bits_of(add_rounded(x, kRound)) - detail::bits_of(kRound));
}

// Returns the largest number of a quantised type. A computed scale maps a head's largest magnitude to it.
PROLOGUE_HOST_DEVICE constexpr float kv_largest(DType type) {
  return type == DType::fp8_e4m3 ? 448.0f : type == DType::fp8_e5m2 ? 57344.0f : type == DType::int8 ? 127.0f : 7.0f;
}

// Returns |x| as bits, to find the largest magnitude of a head. As integers NaN > infinity > every number, so no NaN is lost.
PROLOGUE_HOST_DEVICE inline uint32_t magnitude_bits(float x) { return detail::bits_of(x) & 0x7fffffffu; }

struct HeadScale {
  float scale = 1.0f;
  float reciprocal = 1.0f;  // 0: the data are zeros
};

PROLOGUE_HOST_DEVICE inline HeadScale given_scale(float scale) { return {scale, divide_rounded(1.0f, scale)}; }

PROLOGUE_HOST_DEVICE inline HeadScale computed_scale(uint32_t largest_magnitude_bits, float largest) {
  if (largest_magnitude_bits >= detail::kInfinityBits) return {detail::float_of(0x7fc00000u), 0.0f};
  const float scale = divide_rounded(detail::float_of(largest_magnitude_bits), largest);
  const float reciprocal = divide_rounded(1.0f, scale);
  if (detail::bits_of(reciprocal) >= detail::kInfinityBits) return {0.0f, 0.0f};
  return {scale, reciprocal};
}

// Returns the code of x in a quantised type: a byte, or the low four bits of one (int4).
PROLOGUE_HOST_DEVICE inline uint8_t quantize(float x, float reciprocal, DType type) {
  if (reciprocal == 0.0f) return 0;
  const float scaled = multiply_rounded(x, reciprocal);
  if (type == DType::fp8_e4m3) return to_fp8_e4m3(scaled);
  if (type == DType::fp8_e5m2) return to_fp8_e5m2(scaled);
  if (type == DType::int8) return static_cast<uint8_t>(to_integer(scaled, 127));
  return static_cast<uint8_t>(to_integer(scaled, 7)) & 0x0fu;
}

PROLOGUE_HOST_DEVICE inline float dequantize(uint8_t code, float scale, DType type) {
  if (type == DType::fp8_e4m3) return multiply_rounded(from_fp8_e4m3(code), scale);
  if (type == DType::fp8_e5m2) return multiply_rounded(from_fp8_e5m2(code), scale);
  if (type == DType::int8) return multiply_rounded(static_cast<float>(static_cast<int8_t>(code)), scale);
  return multiply_rounded(static_cast<float>(static_cast<int8_t>(static_cast<uint8_t>(code << 4)) / 16), scale);
}

// ---- uint4: a scale and a zero point ----------------------------------------------------------------------------------------

// Returns x as an integer: -NaN < -infinity < ... < -0 < +0 < ... < infinity < NaN. So smallest and largest values do not depend on the
// order of comparisons, and no NaN is lost.
PROLOGUE_HOST_DEVICE inline uint32_t ordered_bits(float x) {
  const uint32_t bits = detail::bits_of(x);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}
PROLOGUE_HOST_DEVICE inline float from_ordered_bits(uint32_t ordered) {
  return detail::float_of(ordered >> 31 != 0 ? ordered & 0x7fffffffu : ~ordered);
}

struct AsymmetricScale : HeadScale {
  float zero_point = 0.0f;  // the value of code 0
};

PROLOGUE_HOST_DEVICE inline AsymmetricScale asymmetric_scale(float smallest, float largest) {
  const float range = add_rounded(largest, -smallest);
  if (magnitude_bits(range) >= detail::kInfinityBits) {  // also if one of the two is a NaN or an infinity
    const float nan = detail::float_of(0x7fc00000u);
    return {{nan, 0.0f}, nan};
  }
  const float scale = divide_rounded(range, 15.0f);
  const float reciprocal = divide_rounded(1.0f, scale);
  if (detail::bits_of(reciprocal) >= detail::kInfinityBits) return {{0.0f, 0.0f}, smallest};
  return {{scale, reciprocal}, smallest};
}

// Returns the code of x in a type of 4 bits. The zero point of int4 is 0, which changes no x.
PROLOGUE_HOST_DEVICE inline uint8_t quantize(float x, const AsymmetricScale& by, DType type) {
  if (by.reciprocal == 0.0f) return 0;
  const float steps = multiply_rounded(add_rounded(x, -by.zero_point), by.reciprocal);
  return static_cast<uint8_t>(to_integer(steps, type == DType::uint4 ? 15 : 7)) & 0x0fu;
}

}  // namespace prologue
