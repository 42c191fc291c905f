// For NVRTC: what device code needs of the toolkit's <cuda_bf16.h>, by the same instructions.
#pragma once

struct alignas(2) __nv_bfloat16 {
  unsigned short __x;
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

__device__ inline float __bfloat162float(__nv_bfloat16 a) {
  float result;
#if __CUDA_ARCH__ >= 900
  asm("{ cvt.f32.bf16 %0, %1;}\n" : "=f"(result) : "h"(a.__x));
#else
  asm("{ mov.b32 %0, {0,%1};}\n" : "=f"(result) : "h"(a.__x));
#endif
  return result;
}
__device__ inline __nv_bfloat16 __float2bfloat16_rn(float a) {
  __nv_bfloat16 result;
  asm("{  cvt.rn.bf16.f32 %0, %1;}\n" : "=h"(result.__x) : "f"(a));
  return result;
}
__device__ inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) {
  unsigned int pair;
  asm("{ cvt.rn.bf16x2.f32 %0, %2, %1;}\n" : "=r"(pair) : "f"(a), "f"(b));
  return reinterpret_cast<__nv_bfloat162&>(pair);
}
