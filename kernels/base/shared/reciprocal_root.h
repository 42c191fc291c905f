// Returns 1 / sqrt(x), rounded once, with the same bits on host and device.
#pragma once

#include <cmath>

#include <prologue/kernels/base/host_device.h>
#include <prologue/kernels/base/shared/rotation.h>

namespace prologue {

// x is positive and finite; `approximation` is at most 4 units in the last place (ulp) away. A Newton step brings it to within 1; the
// second step knows its residual 1 - x y^2 to about 2^-48, and no float32 has a reciprocal root that near to where rounding changes. (A
// test checks both steps for every significand and every approximation, so this holds whatever the processor's approximation is.)
PROLOGUE_HOST_DEVICE inline float refine_reciprocal_root(float x, float approximation) {
  float y = approximation;
  y = fused_multiply_add(multiply_rounded(0.5f, y), fused_multiply_add(-y, multiply_rounded(x, y), 1.0f), y);
  const float product = multiply_rounded(x, y), lost = fused_multiply_add(x, y, -product);
  const float residual = fused_multiply_add(-y, lost, fused_multiply_add(-y, product, 1.0f));
  const float step = fused_multiply_add(multiply_rounded(0.375f, residual), residual, multiply_rounded(0.5f, residual));
  return fused_multiply_add(y, step, y);
}

// x is positive; infinity gives 0. The device uses no branch: a root and a quotient, each rounded, have two of them.
PROLOGUE_HOST_DEVICE inline float reciprocal_root(float x) {
#if defined(__CUDA_ARCH__)
  const float root = refine_reciprocal_root(x, rsqrtf(x));
  return x == __int_as_float(0x7f800000) ? 0.0f : root;
#else
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x)));
#endif
}

}  // namespace prologue
