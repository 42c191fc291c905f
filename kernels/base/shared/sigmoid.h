// This file has 1 / (1 + exp(-x)) in float32, written once for host and device, as exp.h: the same bits on both, and loops over it
// vectorise.
//
// Error: below 3 ulp of the result (a test measures it); 0 below -87. sigmoid(0) = 0.5 exactly, sigmoid(inf) = 1, NaN stays NaN.
#pragma once

#include <prologue/kernels/base/shared/exp.h>
#include <prologue/kernels/base/shared/rotation.h>

namespace prologue {

// Returns 1 / x, rounded once. Both are normal; `approximation` is 0 to 2 ulp above it. The first step brings it to within 1 ulp, where its
// error is known exactly. (A test checks this for every significand and every approximation.)
PROLOGUE_HOST_DEVICE inline float refine_reciprocal(float x, float approximation) {
  const float far = fused_multiply_add(-x, approximation, 1.0f);
  const float y = fused_multiply_add(fused_multiply_add(far, far, far), approximation, approximation);
  return fused_multiply_add(fused_multiply_add(-x, y, 1.0f), y, y);
}

// Returns 1 / x, rounded once, for x in 1..2^126. The device uses no branch, which a quotient has.
PROLOGUE_HOST_DEVICE inline float reciprocal(float x) {
#if defined(__CUDA_ARCH__)
  float within_one;  // ulp
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(within_one) : "f"(x));
  return refine_reciprocal(x, __int_as_float(__float_as_int(within_one) + 1));
#else
  return 1.0f / x;
#endif
}

PROLOGUE_HOST_DEVICE inline float sigmoid_f32(float x) {
  constexpr float kBound = 87.0f;  // exp(87) < 2^126
  float bounded = x > kBound ? kBound : x;
  bounded = bounded < -kBound ? -kBound : bounded;
  int32_t bits;
  const float mantissa = detail::exp_mantissa(-bounded, bits);
  const float exponential =
      mantissa * detail::power_of_two(static_cast<int32_t>(static_cast<uint32_t>(bits) - detail::kExpRoundBits));
  const float result = reciprocal(1.0f + exponential);
  return x < -kBound ? 0.0f : result;
}

}  // namespace prologue
