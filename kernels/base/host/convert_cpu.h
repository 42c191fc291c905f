// This file converts rows of floats on the CPU. Widening to float32 is exact; narrowing rounds once to nearest even. Eight elements at a
// time, because compilers do not vectorise the float16 conversion automatically.
#pragma once

#include <cstdint>
#include <cstring>

#include <prologue/kernels/base/dtype.h>

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace prologue::cpu {

inline void widen8(const float* x, float* y) { std::memcpy(y, x, 8 * sizeof(float)); }
inline void widen8(const BFloat16* x, float* y) {
  for (int i = 0; i < 8; ++i) y[i] = to_float(x[i]);
}
inline void widen8(const Float16* x, float* y) {
#if defined(__F16C__)
  _mm256_storeu_ps(y, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))));
#else
  for (int i = 0; i < 8; ++i) y[i] = to_float(x[i]);
#endif
}

inline void narrow8(const float* x, float* y) { std::memcpy(y, x, 8 * sizeof(float)); }
inline void narrow8(const float* x, BFloat16* y) {
  for (int i = 0; i < 8; ++i) y[i] = to_bfloat16(x[i]);
}
inline void narrow8(const float* x, Float16* y) {
#if defined(__F16C__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(y), _mm256_cvtps_ph(_mm256_loadu_ps(x), _MM_FROUND_TO_NEAREST_INT));
#else
  for (int i = 0; i < 8; ++i) y[i] = to_float16(x[i]);
#endif
}

template <class T>
void widen(const T* x, int64_t count, float* y) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) widen8(x + i, y + i);
  for (; i < count; ++i) y[i] = to_float(x[i]);
}

inline void widen(const float* x, int64_t count, float* y) { std::memcpy(y, x, static_cast<size_t>(count) * sizeof(float)); }

template <class T>
void narrow(const float* x, int64_t count, T* y) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) narrow8(x + i, y + i);
  for (; i < count; ++i) y[i] = from_float<T>(x[i]);
}

}  // namespace prologue::cpu
