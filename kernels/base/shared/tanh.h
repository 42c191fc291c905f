// This file has tanh in float32, written once for host and device, as exp.h: the same bits on both, and loops over it vectorise.
//
// Error: below 2 ulp of the result (measured over every float). tanh(0) = 0, tanh(+-inf) = +-1, NaN stays NaN.
#pragma once

#include <prologue/kernels/base/shared/exp.h>

namespace prologue {

PROLOGUE_HOST_DEVICE inline float tanh_f32(float x) {
  const float magnitude = x < 0.0f ? -x : x;
  const float squared = x * x;
  float p = -5.70498872745e-3f;  // (tanh(x) / x - 1) / x^2 up to 0.625: the coefficients of Cephes tanhf
  p = multiply_add(p, squared, 2.06390887954e-2f);
  p = multiply_add(p, squared, -5.37397155531e-2f);
  p = multiply_add(p, squared, 1.33314422036e-1f);
  p = multiply_add(p, squared, -3.33332819422e-1f);
  const float near = multiply_add(p * squared, x, x);
  const float e = exp_nonpositive(-2.0f * magnitude);  // does not overflow
  const float far = (1.0f - e) / (1.0f + e);
  return magnitude < 0.625f ? near : x < 0.0f ? -far : far;
}

}  // namespace prologue
