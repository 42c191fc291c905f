// For NVRTC: what device code needs of the toolkit's <cuda_fp8.h>. GPUs that have instructions for it use them; for the others
// quantize.h has the same rules.
#pragma once

#include <cuda_fp16.h>

#include <prologue/kernels/base/shared/quantize.h>

enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };
using __nv_fp8x2_storage_t = unsigned short;

__device__ inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 x, __nv_saturation_t, __nv_fp8_interpretation_t format) {
  __nv_fp8x2_storage_t pair;
#if __CUDA_ARCH__ >= 890
  if (format == __NV_E5M2) {
    asm("{cvt.rn.satfinite.e5m2x2.f32 %0, %2, %1;}\n" : "=h"(pair) : "f"(x.x), "f"(x.y));
  } else {
    asm("{cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;}\n" : "=h"(pair) : "f"(x.x), "f"(x.y));
  }
#else
  const auto code = [format](float value) {
    return format == __NV_E5M2 ? prologue::to_fp8_e5m2(value) : prologue::to_fp8_e4m3(value);
  };
  pair = static_cast<__nv_fp8x2_storage_t>(code(x.y) << 8 | code(x.x));
#endif
  return pair;
}

__device__ inline __half2_raw __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t pair, __nv_fp8_interpretation_t format) {
  const auto half = [format](int code) {
    const auto byte = static_cast<unsigned char>(code);
    return __float2half_rn(format == __NV_E5M2 ? prologue::from_fp8_e5m2(byte) : prologue::from_fp8_e4m3(byte)).__x;
  };
  return {half(pair & 0xff), half(pair >> 8)};
}
