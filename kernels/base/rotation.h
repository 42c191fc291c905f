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

// (a, b) turned by an angle: a' = a cos - b sin, b' = a sin + b cos.
PROLOGUE_HOST_DEVICE inline void rotate_pair(float& a, float& b, float cos, float sin) {
#if defined(__CUDA_ARCH__)
  const float turned = __fsub_rn(__fmul_rn(a, cos), __fmul_rn(b, sin));
  b = __fadd_rn(__fmul_rn(a, sin), __fmul_rn(b, cos));
#else
  const float turned = (a * cos) - (b * sin);
  b = (a * sin) + (b * cos);
#endif
  a = turned;
}

}  // namespace prologue
