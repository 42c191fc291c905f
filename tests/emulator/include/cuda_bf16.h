#pragma once

#include <cuda_runtime.h>

#include <prologue/kernels/base/dtype.h>

struct __nv_bfloat16 {
  uint16_t bits = 0;
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

inline float __bfloat162float(__nv_bfloat16 x) { return prologue::to_float(prologue::BFloat16{x.bits}); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  return {std::isnan(x) ? uint16_t{0x7fff} : prologue::to_bfloat16(x).bits};  // the GPU's one NaN
}
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)}; }
