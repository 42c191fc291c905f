// This file has erf in float32, written once for host and device, as exp.h: the same bits on both, and loops over it vectorise.
//
// Error: below 1.5 ulp of the result (a test measures it). erf(0) = 0, erf(+-inf) = +-1, NaN stays NaN.
#pragma once

#include <cmath>

#include <prologue/kernels/base/shared/exp.h>

namespace prologue {

// Both polynomials are N. Juffa's (minimax, published on Stack Overflow and NVIDIA's forum).
PROLOGUE_HOST_DEVICE inline float erf_f32(float x) {
  const float magnitude = std::fabs(x);
  const float squared = x * x;
  float p = -5.96761703e-4f;  // (erf(x) - x) / x up to 0.927734375
  p = multiply_add(p, squared, 4.99119423e-3f);
  p = multiply_add(p, squared, -2.67681349e-2f);
  p = multiply_add(p, squared, 1.12819925e-1f);
  p = multiply_add(p, squared, -3.76125336e-1f);
  p = multiply_add(p, squared, 1.28379166e-1f);
  const float near = multiply_add(p, x, x);
  const float bounded = magnitude > 4.0f ? 4.0f : magnitude;  // erf(4) rounds to 1
  const float bounded_squared = bounded * bounded;
  float q = multiply_add(-1.72853470e-5f, bounded, 3.83197126e-4f);  // log(1 - erf(x))
  const float r = multiply_add(-3.88396438e-3f, bounded, 2.42546219e-2f);
  q = multiply_add(q, bounded_squared, r);
  q = multiply_add(q, bounded, -1.06777877e-1f);
  q = multiply_add(q, bounded, -6.34846687e-1f);
  q = multiply_add(q, bounded, -1.28717512e-1f);
  const float far = 1.0f - exp_nonpositive(multiply_add(q, bounded, -bounded));
  return magnitude > 0.927734375f ? std::copysign(far, x) : near;
}

}  // namespace prologue
