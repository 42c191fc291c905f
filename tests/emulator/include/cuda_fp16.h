#pragma once

#include <cuda_runtime.h>

#include <prologue/kernels/base/dtype.h>

struct __half {
  uint16_t bits = 0;
};
struct alignas(4) __half2 {
  __half x, y;
};
struct alignas(4) __half2_raw {
  uint16_t x, y;
};

inline float __half2float(__half x) { return prologue::to_float(prologue::Float16{x.bits}); }
inline __half __float2half_rn(float x) {
  return {std::isnan(x) ? uint16_t{0x7fff} : prologue::to_float16(x).bits};  // the GPU's one NaN
}
inline __half2 __floats2half2_rn(float x, float y) { return {__float2half_rn(x), __float2half_rn(y)}; }
inline float __low2float(__half2 x) { return __half2float(x.x); }
inline float __high2float(__half2 x) { return __half2float(x.y); }
inline float2 __half22float2(__half2 x) { return {__half2float(x.x), __half2float(x.y)}; }
inline float2 __half22float2(__half2_raw x) { return {__half2float({x.x}), __half2float({x.y})}; }
