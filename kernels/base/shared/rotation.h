// This file has the arithmetic of the prologue, written once for host and device. It fixes what is rounded, and what a fused multiply-add
// rounds once, so that the fused and the unfused path, and the CPU and the GPU, give the same bits. (Host code is compiled with
// -ffp-contract=off; on the device the intrinsics keep the compiler from fusing anything else.)
#pragma once

#include <prologue/kernels/base/host_device.h>

namespace prologue {

PROLOGUE_HOST_DEVICE inline float add_rounded(float x, float y) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(x, y);
#else
  return x + y;
#endif
}

PROLOGUE_HOST_DEVICE inline float multiply_rounded(float x, float y) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(x, y);
#else
  return x * y;
#endif
}

PROLOGUE_HOST_DEVICE inline float divide_rounded(float x, float y) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(x, y);
#else
  return x / y;
#endif
}

// Returns x * y + z with one rounding, even if the processor has no such instruction.
PROLOGUE_HOST_DEVICE inline float fused_multiply_add(float x, float y, float z) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(x, y, z);
#else
  return __builtin_fmaf(x, y, z);
#endif
}

PROLOGUE_HOST_DEVICE inline double fused_multiply_add(double x, double y, double z) {
#if defined(__CUDA_ARCH__)
  return __fma_rn(x, y, z);
#else
  return __builtin_fma(x, y, z);
#endif
}

PROLOGUE_HOST_DEVICE inline double add_rounded(double x, double y) {
#if defined(__CUDA_ARCH__)
  return __dadd_rn(x, y);
#else
  return x + y;
#endif
}

PROLOGUE_HOST_DEVICE inline double multiply_rounded(double x, double y) {
#if defined(__CUDA_ARCH__)
  return __dmul_rn(x, y);
#else
  return x * y;
#endif
}

// Rotates a pair: a' = a cos_a - b sin_a, b' = b cos_b + a sin_b. The product with the sine is rounded, then the fused multiply-add. The
// prologue's pairs have one cos and one sin.
template <class A>
struct PairRotation {
  A cos_a, sin_a, cos_b, sin_b;
};

template <class A>
PROLOGUE_HOST_DEVICE inline void rotate_pair(A& a, A& b, const PairRotation<A>& by) {
  const A rotated = fused_multiply_add(a, by.cos_a, -multiply_rounded(b, by.sin_a));
  b = fused_multiply_add(b, by.cos_b, multiply_rounded(a, by.sin_b));
  a = rotated;
}

PROLOGUE_HOST_DEVICE inline void rotate_pair(float& a, float& b, float cos, float sin) {
  rotate_pair<float>(a, b, {cos, sin, cos, sin});
}

}  // namespace prologue
