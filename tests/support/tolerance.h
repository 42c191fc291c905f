// This file has tolerances per element, derived and not tuned:
//   |got - ref| <= 0.5 ulp_out(ref) + 16 * 2^-24 * scale,   scale = sum of |terms| of the last sum that made the element.
// Besides, fewer than 0.1 % of the elements (of at least 2000) may differ from the correctly rounded reference in 16-bit types.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <prologue/kernels/base/dtype.h>

namespace prologue::test {

template <class T>
struct FloatFormat;
template <>
struct FloatFormat<float> {
  static constexpr int mantissa_bits = 23, min_exponent = -126;
  static constexpr DType dtype = DType::f32;
};
template <>
struct FloatFormat<BFloat16> {
  static constexpr int mantissa_bits = 7, min_exponent = -126;
  static constexpr DType dtype = DType::bf16;
};
template <>
struct FloatFormat<Float16> {
  static constexpr int mantissa_bits = 10, min_exponent = -14;
  static constexpr DType dtype = DType::f16;
};

// Returns the distance between neighbours of T around x.
template <class T>
double ulp(double x) {
  const int exponent = x == 0.0 ? FloatFormat<T>::min_exponent : std::max(std::ilogb(x), FloatFormat<T>::min_exponent);
  return std::ldexp(1.0, exponent - FloatFormat<T>::mantissa_bits);
}

// Holds a reference element: its value and the scale of its last sum, both from the float64 oracle.
struct Reference {
  double value = 0.0;
  double scale = 0.0;
};

inline constexpr double kDefaultSteps = 16.0;

// Compares element by element; reports coordinates as index / row_width and index % row_width. `steps` is the factor before
// 2^-24 * scale (16 unless the operation's contract allows more, e.g. a sum of K terms). `rounds_once` says that the contract has
// no rounding to T but the last: only then must nearly all elements be the correctly rounded reference.
template <class T>
void expect_close(const std::vector<T>& got, const std::vector<Reference>& want, int64_t row_width, const char* what,
                  double steps = kDefaultSteps, bool rounds_once = true);

}  // namespace prologue::test
