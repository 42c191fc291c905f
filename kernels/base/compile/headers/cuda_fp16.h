// For NVRTC: what device code needs of the toolkit's <cuda_fp16.h>, by the same instructions.
#pragma once

struct alignas(2) __half {
  unsigned short __x;
};
struct alignas(4) __half2 {
  __half x, y;
};
struct alignas(4) __half2_raw {
  unsigned short x, y;
};

__device__ inline float __half2float(__half a) {
  float result;
  asm("{  cvt.f32.f16 %0, %1;}\n" : "=f"(result) : "h"(a.__x));
  return result;
}
__device__ inline __half __float2half_rn(float a) {
  __half result;
  asm("{  cvt.rn.f16.f32 %0, %1;}\n" : "=h"(result.__x) : "f"(a));
  return result;
}

__device__ inline float __low2float(__half2 a) { return __half2float(a.x); }
__device__ inline float __high2float(__half2 a) { return __half2float(a.y); }
__device__ inline __half2 __floats2half2_rn(float a, float b) {
  unsigned int pair;
  asm("{ cvt.rn.f16x2.f32 %0, %2, %1; }\n" : "=r"(pair) : "f"(a), "f"(b));
  return reinterpret_cast<__half2&>(pair);
}
