// This file has element types, and the two 16-bit floats as host types. Conversions round to nearest even and keep NaN. They do not
// saturate: a number that is too large becomes infinity, as on the GPU.
#pragma once

#include <cstdint>
#include <cstring>

namespace prologue {

// unset: not given. Where that has a meaning, the member's comment says so (a cache of unset type has that of its operation);
// elsewhere it is an error.
enum class DType : int32_t {
  unset = 0,
  f32,
  f16,
  bf16,
  f64,
  fp8_e4m3,
  fp8_e5m2,
  int8,
  int4,   // two in a byte, the even one in the low half
  uint4,  // the same, 0..15
  int16,
  int32,
  int64,
  uint8,
  uint16,
  uint32,
  uint64,
  fp4_e2m1,  // two in a byte, as int4: a sign, 2 bits of exponent, 1 of mantissa; 0, 0.5, 1, 1.5, 2, 3, 4 and 6
};

constexpr bool dtype_valid(DType type) { return type > DType::unset && type <= DType::fp4_e2m1; }
// Hidden states, Q, K and V have these types.
constexpr bool dtype_is_activation(DType type) { return type >= DType::f32 && type <= DType::bf16; }
constexpr bool dtype_is_float(DType type) { return type >= DType::f32 && type <= DType::f64; }
// A cache may have the activations' types and the quantised ones.
constexpr bool dtype_is_quantized(DType type) {
  return (type >= DType::fp8_e4m3 && type <= DType::uint4) || type == DType::fp4_e2m1;
}
constexpr bool dtype_is_fp8(DType type) { return type == DType::fp8_e4m3 || type == DType::fp8_e5m2; }
constexpr bool dtype_is_kv(DType type) { return dtype_is_activation(type) || dtype_is_quantized(type); }
// Indices may have these types.
constexpr bool dtype_is_integer(DType type) { return type == DType::int8 || (type >= DType::int16 && type <= DType::uint64); }

constexpr int64_t dtype_bits(DType type) {
  switch (type) {
    case DType::int4:
    case DType::uint4:
    case DType::fp4_e2m1: return 4;
    case DType::fp8_e4m3:
    case DType::fp8_e5m2:
    case DType::int8:
    case DType::uint8: return 8;
    case DType::f16:
    case DType::bf16:
    case DType::int16:
    case DType::uint16: return 16;
    case DType::f32:
    case DType::int32:
    case DType::uint32: return 32;
    case DType::f64:
    case DType::int64:
    case DType::uint64: return 64;
    case DType::unset: break;
  }
  return 0;
}

// Returns the bytes of an element. Not for types of 4 bits.
constexpr int64_t dtype_size(DType type) { return dtype_bits(type) / 8; }

// Returns what `type` means if unset stands for `otherwise`.
constexpr DType resolve_dtype(DType type, DType otherwise) { return type == DType::unset ? otherwise : type; }

constexpr const char* dtype_name(DType type) {
  switch (type) {
    case DType::unset: return "unset";
    case DType::f32: return "float32";
    case DType::f16: return "float16";
    case DType::bf16: return "bfloat16";
    case DType::f64: return "float64";
    case DType::fp8_e4m3: return "fp8_e4m3";
    case DType::fp8_e5m2: return "fp8_e5m2";
    case DType::int8: return "int8";
    case DType::int4: return "int4";
    case DType::uint4: return "uint4";
    case DType::int16: return "int16";
    case DType::int32: return "int32";
    case DType::int64: return "int64";
    case DType::uint8: return "uint8";
    case DType::uint16: return "uint16";
    case DType::uint32: return "uint32";
    case DType::uint64: return "uint64";
    case DType::fp4_e2m1: return "fp4_e2m1";
  }
  return "unknown";
}

namespace detail {
inline uint32_t float_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float bits_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
#if defined(__F16C__)  // as in <immintrin.h>, which takes longer to read than the rest of this header and what it includes
inline float f16c_to_float(uint16_t bits) {
  using Halves [[gnu::vector_size(16)]] = short;
  return __builtin_ia32_vcvtph2ps(Halves{static_cast<short>(bits)})[0];
}
inline uint16_t f16c_from_float(float x) {
  using Floats [[gnu::vector_size(16)]] = float;
  constexpr int kToNearestEven = 0;
  return static_cast<uint16_t>(__builtin_ia32_vcvtps2ph(Floats{x}, kToNearestEven)[0]);
}
#endif
}  // namespace detail

struct BFloat16 {
  uint16_t bits = 0;
};

inline float to_float(BFloat16 x) { return detail::bits_float(static_cast<uint32_t>(x.bits) << 16); }

inline BFloat16 to_bfloat16(float x) {
  const uint32_t bits = detail::float_bits(x);
  const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return {static_cast<uint16_t>(is_nan ? (bits >> 16) | 0x40u : rounded >> 16)};
}

struct Float16 {
  uint16_t bits = 0;
};

inline float to_float(Float16 x) {
#if defined(__F16C__)
  return detail::f16c_to_float(x.bits);
#else
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t exponent = (x.bits >> 10) & 0x1fu;
  const uint32_t mantissa = x.bits & 0x3ffu;
  if (exponent == 0x1fu) return detail::bits_float(sign | 0x7f800000u | (mantissa << 13) | (mantissa != 0 ? 0x400000u : 0u));
  if (exponent != 0) return detail::bits_float(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 5.9604644775390625e-8f;  // 2^-24
  return sign != 0 ? -magnitude : magnitude;
#endif
}

inline Float16 to_float16(float x) {
#if defined(__F16C__)
  return {detail::f16c_from_float(x)};
#else
  const uint32_t bits = detail::float_bits(x);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu))};
  if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // 65520 and above round to infinity
  if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 aligns the subnormal grid with the mantissa's last bit
    const float aligned = detail::bits_float(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (detail::float_bits(aligned) - 0x3f000000u))};
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return {static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
#endif
}

inline float to_float(float x) { return x; }

// from_float<T>(x): one rounding to the storage type.
template <class T>
T from_float(float x);
template <>
inline float from_float<float>(float x) {
  return x;
}
template <>
inline BFloat16 from_float<BFloat16>(float x) {
  return to_bfloat16(x);
}
template <>
inline Float16 from_float<Float16>(float x) {
  return to_float16(x);
}

// Calls f with a value of the host type that stores `type`, one of the activations': the dispatch of the CPU implementations.
template <class F>
auto with_host_type(DType type, F&& f) {
  if (type == DType::f16) return f(Float16{});
  if (type == DType::bf16) return f(BFloat16{});
  return f(float{});
}

}  // namespace prologue
