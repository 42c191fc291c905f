// This file has the natural logarithm in float32, written once for host and device. It uses only operations that IEEE 754 rounds correctly,
// so both return the same bits.
//
// Defined for x >= 2^-126, infinity and NaN. Smaller or negative x return an unspecified number. Error: below 1 ulp of the
// result.
// log(1) = 0, log(inf) = inf, NaN stays NaN.
#pragma once

#include <cstdint>
#include <cstring>

#include <prologue/kernels/base/shared/rotation.h>

namespace prologue {

PROLOGUE_HOST_DEVICE inline float log_f32(float x) {
  if (!(x <= 3.40282347e38f)) return x;
  // x = 2^n (1 + r), 1 + r in [sqrt(1/2), sqrt(2)).
  constexpr uint32_t kRootHalf = 0x3f3504f3;
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  const int32_t exponent = static_cast<int32_t>(bits - kRootHalf) >> 23;
  bits -= static_cast<uint32_t>(exponent) << 23;
  float r;
  memcpy(&r, &bits, sizeof r);
  r = add_rounded(r, -1.0f);
  const float n = static_cast<float>(exponent);

  float p = 7.0376836292e-2f;  // (log(1 + r) - r + r^2 / 2) / r^3: the coefficients of Cephes logf
  p = fused_multiply_add(p, r, -1.1514610310e-1f);
  p = fused_multiply_add(p, r, 1.1676998740e-1f);
  p = fused_multiply_add(p, r, -1.2420140846e-1f);
  p = fused_multiply_add(p, r, 1.4249322787e-1f);
  p = fused_multiply_add(p, r, -1.6668057665e-1f);
  p = fused_multiply_add(p, r, 2.0000714765e-1f);
  p = fused_multiply_add(p, r, -2.4999993993e-1f);
  p = fused_multiply_add(p, r, 3.3333331174e-1f);
  const float squared = multiply_rounded(r, r);
  float tail = multiply_rounded(multiply_rounded(squared, r), p);
  tail = fused_multiply_add(n, -2.12194440e-4f, tail);  // n ln 2 in two parts, the second exact
  tail = fused_multiply_add(squared, -0.5f, tail);
  return fused_multiply_add(n, 0.693359375f, add_rounded(r, tail));
}

}  // namespace prologue
