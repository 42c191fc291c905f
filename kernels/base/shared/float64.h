// This file has the arithmetic of rotation.h in float64, and cos and sin of an exact product, as in angle.h: written once for host and
// device from operations that IEEE 754 rounds correctly, so that both sides return the same bits.
#pragma once

#include <cstdint>
#include <cstring>

#include <prologue/kernels/base/shared/rotation.h>

namespace prologue {

struct CosSin64 {
  double cos;
  double sin;
};

namespace detail {

// Returns the sum: x + y = sum + error exactly.
PROLOGUE_HOST_DEVICE inline double add_exactly(double x, double y, double& error) {
  const double sum = add_rounded(x, y);
  const double y_part = add_rounded(sum, -x);
  const double x_part = add_rounded(sum, -y_part);
  error = add_rounded(add_rounded(x, -x_part), add_rounded(y, -y_part));
  return sum;
}

}  // namespace detail

// Returns cos and sin of x * y. The product is never rounded: it is kept as two doubles, and pi/2 is subtracted as three. Error less than
// 0.75 * 2^-53 for |x * y| <= 2^31 (tests/kernels/float64_test.cpp); NaN beyond.
PROLOGUE_HOST_DEVICE inline CosSin64 cos_sin_of_product(double x, double y) {
  constexpr double kLargest = 0x1p31;
  constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
  constexpr double kHalfPi[3] = {0x1.921fb54442d18p+0, 0x1.1a62633145c07p-54, -0x1.f1976b7ed8fbcp-110};
  constexpr double kRound = 0x1.8p+52;  // adding it leaves the nearest integer in the low bits of the mantissa

  const double high = multiply_rounded(x, y);
  if (!(high <= kLargest && high >= -kLargest)) return {__builtin_nan(""), __builtin_nan("")};
  const double low = fused_multiply_add(x, y, -high);

  // r + r_low = high + low - quarter * pi/2, within [-0.79, 0.79].
  const double shifted = fused_multiply_add(high, kTwoOverPi, kRound);
  const double quarter = add_rounded(shifted, -kRound);
  const double first = fused_multiply_add(-quarter, kHalfPi[0], high);  // exact: below 1, and a multiple of 2^-53
  const double product = multiply_rounded(quarter, kHalfPi[1]);
  const double product_error = fused_multiply_add(quarter, kHalfPi[1], -product);
  double error_a, error_b;
  const double sum = detail::add_exactly(detail::add_exactly(first, low, error_a), -product, error_b);
  const double errors = add_rounded(add_rounded(error_a, error_b), -product_error);
  const double rest = fused_multiply_add(-quarter, kHalfPi[2], errors);
  const double r = add_rounded(sum, rest);
  const double r_low = add_rounded(add_rounded(sum, -r), rest);

  // These are the Taylor series of (sin(r) / r - 1) / r^2 and (cos(r) - 1 + r^2 / 2) / r^4: the omitted terms are below 2^-60.
  const double z = multiply_rounded(r, r);
  double sin_tail = fused_multiply_add(1.0 / 355687428096000.0, z, -1.0 / 1307674368000.0);
  sin_tail = fused_multiply_add(sin_tail, z, 1.0 / 6227020800.0);
  sin_tail = fused_multiply_add(sin_tail, z, -1.0 / 39916800.0);
  sin_tail = fused_multiply_add(sin_tail, z, 1.0 / 362880.0);
  sin_tail = fused_multiply_add(sin_tail, z, -1.0 / 5040.0);
  sin_tail = fused_multiply_add(sin_tail, z, 1.0 / 120.0);
  sin_tail = fused_multiply_add(sin_tail, z, -1.0 / 6.0);
  const double slope = fused_multiply_add(z, -0.5, 1.0);
  sin_tail = fused_multiply_add(sin_tail, multiply_rounded(r, z), multiply_rounded(r_low, slope));
  const double sin = add_rounded(r, sin_tail);

  double cos_tail = fused_multiply_add(-1.0 / 6402373705728000.0, z, 1.0 / 20922789888000.0);
  cos_tail = fused_multiply_add(cos_tail, z, -1.0 / 87178291200.0);
  cos_tail = fused_multiply_add(cos_tail, z, 1.0 / 479001600.0);
  cos_tail = fused_multiply_add(cos_tail, z, -1.0 / 3628800.0);
  cos_tail = fused_multiply_add(cos_tail, z, 1.0 / 40320.0);
  cos_tail = fused_multiply_add(cos_tail, z, -1.0 / 720.0);
  cos_tail = fused_multiply_add(cos_tail, z, 1.0 / 24.0);
  const double z_error = fused_multiply_add(r, r, -z);
  const double half = multiply_rounded(z, 0.5);
  const double head = add_rounded(1.0, -half);
  const double head_error = add_rounded(add_rounded(1.0, -head), -half);
  const double correction = fused_multiply_add(r, r_low, multiply_rounded(z_error, 0.5));
  cos_tail = fused_multiply_add(cos_tail, multiply_rounded(z, z), add_rounded(head_error, -correction));
  const double cos = add_rounded(head, cos_tail);

  uint64_t bits;
  memcpy(&bits, &shifted, sizeof bits);
  const bool swapped = (bits & 1u) != 0;
  const double even = swapped ? sin : cos;
  const double odd = swapped ? cos : sin;
  return {((bits + 1u) & 2u) != 0 ? -even : even, (bits & 2u) != 0 ? -odd : odd};
}

}  // namespace prologue
