#pragma once

#include <cuda_fp16.h>

using __nv_fp8_storage_t = uint8_t;
using __nv_fp8x2_storage_t = uint16_t;
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };

namespace emulator {

struct Fp8 {
  int mantissa_bits;
  int smallest_exponent;  // of normal numbers
  double largest;
};
inline Fp8 fp8(__nv_fp8_interpretation_t type) { return type == __NV_E4M3 ? Fp8{3, -6, 448.0} : Fp8{2, -14, 57344.0}; }

// Rounds to nearest even. What is too large becomes the largest number; NaN is 0x7f.
inline uint8_t to_fp8(float x, __nv_fp8_interpretation_t type) {
  const Fp8 format = fp8(type);
  if (std::isnan(x)) return 0x7f;
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  double magnitude = std::min(std::fabs(static_cast<double>(x)), format.largest);
  if (magnitude == 0.0) return sign;
  int exponent = std::max(std::ilogb(magnitude), format.smallest_exponent);
  const double quantum = std::ldexp(1.0, exponent - format.mantissa_bits);
  auto steps = static_cast<int>(std::nearbyint(magnitude / quantum));  // of the quantum; 2^mantissa_bits and more: normal
  const int biased = exponent - format.smallest_exponent;
  return static_cast<uint8_t>(sign | (steps + (biased << format.mantissa_bits)));
}

inline float from_fp8(uint8_t bits, __nv_fp8_interpretation_t type) {
  const Fp8 format = fp8(type);
  const int magnitude = bits & 0x7f, ones = 1 << format.mantissa_bits;
  float value = 0.0f;
  if (type == __NV_E4M3 && magnitude == 0x7f) {
    value = std::nanf("");
  } else if (type == __NV_E5M2 && magnitude >= 0x7c) {
    value = magnitude == 0x7c ? INFINITY : std::nanf("");
  } else {
    const int biased = magnitude / ones, mantissa = magnitude % ones;
    value = biased == 0 ? std::ldexp(static_cast<float>(mantissa), format.smallest_exponent - format.mantissa_bits)
                        : std::ldexp(static_cast<float>(mantissa + ones), format.smallest_exponent + biased - 1 - format.mantissa_bits);
  }
  return (bits & 0x80) != 0 ? -value : value;
}

}  // namespace emulator

inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 x, __nv_saturation_t, __nv_fp8_interpretation_t type) {
  return static_cast<uint16_t>(emulator::to_fp8(x.x, type) | emulator::to_fp8(x.y, type) << 8);
}
inline __half2_raw __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t x, __nv_fp8_interpretation_t type) {
  const auto half = [&](uint32_t bits) { return __float2half_rn(emulator::from_fp8(static_cast<uint8_t>(bits), type)).bits; };
  return {half(x & 0xffu), half(static_cast<uint32_t>(x) >> 8)};
}
