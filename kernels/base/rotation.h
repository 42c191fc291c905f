// The arithmetic of the prologue, written once for host and device: every product and sum is rounded once, so that the fused
// and the unfused path, and the CPU and the GPU, give the same bits. (Host code is compiled with -ffp-contract=off; on the
// device the intrinsics keep the compiler from fusing.)
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

// x * y + z with one rounding, even if the processor has no such instruction.
PROLOGUE_HOST_DEVICE inline float fused_multiply_add(float x, float y, float z) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(x, y, z);
#else
  return __builtin_fmaf(x, y, z);
#endif
}

// Rotates (a, b) by an angle: a' = a cos - b sin, b' = a sin + b cos.
PROLOGUE_HOST_DEVICE inline void rotate_pair(float& a, float& b, float cos, float sin) {
  const float turned = add_rounded(multiply_rounded(a, cos), -multiply_rounded(b, sin));
  b = add_rounded(multiply_rounded(a, sin), multiply_rounded(b, cos));
  a = turned;
}

}  // namespace prologue
