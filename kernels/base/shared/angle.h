// This file has cos and sin of position * inv_freq, written once for host and device. Only operations that IEEE 754 rounds correctly are
// used, so both return the same bits.
//
// The product is never rounded. It is kept as two floats. pi/2 is subtracted as three floats (72 bits), and the rounding errors
// are kept too. For positions in [0, 2^20] and |position * inv_freq| <= 2^20 the argument of the polynomials is thus known to
// 2^-47, and cos and sin are off by less than 0.84 * 2^-24, where the correctly rounded value is off by up to 0.5 * 2^-24
// (docs/numerics.md has the proof; the worst angle found: 0.825, tests/kernels/angle_test.cpp). Rounding the angle to float32
// first, as a table's recipe may, is off by up to 0.06.
#pragma once

#include <cstdint>
#include <cstring>

#include <prologue/kernels/base/shared/rotation.h>

namespace prologue {

struct CosSin {
  float cos;
  float sin;
};

namespace detail {

// Returns the sum: x + y = sum + error exactly.
PROLOGUE_HOST_DEVICE inline float add_exactly(float x, float y, float& error) {
  const float sum = add_rounded(x, y);
  const float y_part = add_rounded(sum, -x);
  const float x_part = add_rounded(sum, -y_part);
  error = add_rounded(add_rounded(x, -x_part), add_rounded(y, -y_part));
  return sum;
}

}  // namespace detail

PROLOGUE_HOST_DEVICE inline CosSin cos_sin_of(int32_t position, float inv_freq) {
  constexpr float kTwoOverPi = 0x1.45f306p-1f;
  constexpr float kHalfPi[3] = {0x1.921fb6p+0f, -0x1.777a5cp-25f, -0x1.ee59dap-50f};
  constexpr float kRound = 0x1.8p+23f;  // adding it leaves the nearest integer in the low bits of the mantissa

  const float p = static_cast<float>(position);
  const float high = multiply_rounded(p, inv_freq);
  const float low = fused_multiply_add(p, inv_freq, -high);

  // r = high + low - quarter * pi/2, within [-0.87, 0.87].
  const float shifted = fused_multiply_add(high, kTwoOverPi, kRound);
  const float quarter = add_rounded(shifted, -kRound);
  const float first = fused_multiply_add(-quarter, kHalfPi[0], high);  // exact: below 1, and a multiple of 2^-24
  const float product = multiply_rounded(quarter, kHalfPi[1]);
  const float product_error = fused_multiply_add(quarter, kHalfPi[1], -product);
  float error_a, error_b;
  const float sum = detail::add_exactly(detail::add_exactly(first, low, error_a), -product, error_b);
  const float errors = add_rounded(add_rounded(error_a, error_b), -product_error);
  const float rest = fused_multiply_add(-quarter, kHalfPi[2], errors);
  const float r = add_rounded(sum, rest);
  const float r_low = add_rounded(add_rounded(sum, -r), rest);

  // These are minimax polynomials of (sin(r) / r - 1) / r^2 and (cos(r) - 1 + r^2 / 2) / r^4 on [-0.87, 0.87].
  const float z = multiply_rounded(r, r);
  float sin_tail = fused_multiply_add(2.7180656e-06f, z, -0.00019839492f);
  sin_tail = fused_multiply_add(sin_tail, z, 0.008333331f);
  sin_tail = fused_multiply_add(sin_tail, z, -0.16666667f);
  const float slope = fused_multiply_add(z, -0.5f, 1.0f);
  sin_tail = fused_multiply_add(sin_tail, multiply_rounded(r, z), multiply_rounded(r_low, slope));
  const float sin = add_rounded(r, sin_tail);

  float cos_tail = fused_multiply_add(2.4490799e-05f, z, -0.0013888009f);
  cos_tail = fused_multiply_add(cos_tail, z, 0.041666664f);
  const float z_error = fused_multiply_add(r, r, -z);
  const float half = multiply_rounded(z, 0.5f);
  const float head = add_rounded(1.0f, -half);
  const float head_error = add_rounded(add_rounded(1.0f, -head), -half);
  const float correction = fused_multiply_add(r, r_low, multiply_rounded(z_error, 0.5f));
  cos_tail = fused_multiply_add(cos_tail, multiply_rounded(z, z), add_rounded(head_error, -correction));
  const float cos = add_rounded(head, cos_tail);

  uint32_t bits;
  memcpy(&bits, &shifted, sizeof bits);
  const bool swapped = (bits & 1u) != 0;
  const float x = swapped ? sin : cos;
  const float y = swapped ? cos : sin;
  return {((bits + 1u) & 2u) != 0 ? -x : x, (bits & 2u) != 0 ? -y : y};
}

}  // namespace prologue
