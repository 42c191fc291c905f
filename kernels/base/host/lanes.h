// This is one SIMD register of floats: the widest that the compiler was told it may use (AVX-512, AVX2 with FMA, or the 16-byte vectors
// that GCC and Clang have for every processor). Loads widen 16-bit floats; addresses need only the alignment of their type.
#pragma once

#include <cstdint>
#include <cstring>

#include <prologue/kernels/base/dtype.h>

#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__) && defined(__F16C__))
#include <immintrin.h>
#endif

#if defined(__GNUC__) && !defined(__clang__)  // GCC 12 takes the undefined operands inside its own AVX-512 header for a mistake
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace prologue::cpu {

#if defined(__AVX512F__)

struct Lanes {
  static constexpr int kWidth = 16;
  static constexpr int kRegisters = 32;
  __m512 v;

  static Lanes zero() { return {_mm512_setzero_ps()}; }
  static Lanes broadcast(float x) { return {_mm512_set1_ps(x)}; }
  static Lanes load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static Lanes load(const BFloat16* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
  }
  static Lanes load(const Float16* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}; }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  friend Lanes operator+(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
  friend Lanes multiply_add(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
};

// out[i] = sum of the lanes of a[i]: adds while transposing, so that four sums cost little more than one.
inline void sum_lanes_of_four(const Lanes (&a)[4], float* out) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a[0].v, a[1].v), _mm512_unpackhi_ps(a[0].v, a[1].v));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(a[2].v, a[3].v), _mm512_unpackhi_ps(a[2].v, a[3].v));
  const __m512 abcd = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
  const __m128 low = _mm_add_ps(_mm512_extractf32x4_ps(abcd, 0), _mm512_extractf32x4_ps(abcd, 1));
  const __m128 high = _mm_add_ps(_mm512_extractf32x4_ps(abcd, 2), _mm512_extractf32x4_ps(abcd, 3));
  _mm_storeu_ps(out, _mm_add_ps(low, high));
}

// Returns the sum of registers, in the order in which sum_lanes_of_four adds the lanes of one.
inline Lanes sum_like_lanes(const Lanes (&a)[Lanes::kWidth]) {
  Lanes quads[4];
  for (int i = 0; i < 4; ++i) quads[i] = (a[4 * i] + a[4 * i + 2]) + (a[4 * i + 1] + a[4 * i + 3]);
  return (quads[0] + quads[1]) + (quads[2] + quads[3]);
}

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

struct Lanes {
  static constexpr int kWidth = 8;
  static constexpr int kRegisters = 16;
  __m256 v;

  static Lanes zero() { return {_mm256_setzero_ps()}; }
  static Lanes broadcast(float x) { return {_mm256_set1_ps(x)}; }
  static Lanes load(const float* p) { return {_mm256_loadu_ps(p)}; }
  static Lanes load(const BFloat16* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
  }
  static Lanes load(const Float16* p) { return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))}; }
  void store(float* p) const { _mm256_storeu_ps(p, v); }
  friend Lanes operator+(Lanes a, Lanes b) { return {_mm256_add_ps(a.v, b.v)}; }
  friend Lanes multiply_add(Lanes a, Lanes b, Lanes c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
};

inline void sum_lanes_of_four(const Lanes (&a)[4], float* out) {
  const __m256 abcd = _mm256_hadd_ps(_mm256_hadd_ps(a[0].v, a[1].v), _mm256_hadd_ps(a[2].v, a[3].v));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1)));
}

inline Lanes sum_like_lanes(const Lanes (&a)[Lanes::kWidth]) {
  return ((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7]));
}

#else

struct Lanes {
  static constexpr int kWidth = 4;
  static constexpr int kRegisters = 16;
  using Vector = float __attribute__((vector_size(16)));
  Vector v;

  static Lanes zero() { return broadcast(0.0f); }
  static Lanes broadcast(float x) { return {Vector{x, x, x, x}}; }
  static Lanes load(const float* p) {
    Lanes lanes;
    std::memcpy(&lanes.v, p, sizeof lanes.v);
    return lanes;
  }
  template <class T>
  static Lanes load(const T* p) {
    return {Vector{to_float(p[0]), to_float(p[1]), to_float(p[2]), to_float(p[3])}};
  }
  void store(float* p) const { std::memcpy(p, &v, sizeof v); }
  friend Lanes operator+(Lanes a, Lanes b) { return {a.v + b.v}; }
  friend Lanes multiply_add(Lanes a, Lanes b, Lanes c) { return {a.v * b.v + c.v}; }
};

inline void sum_lanes_of_four(const Lanes (&a)[4], float* out) {
  for (int i = 0; i < 4; ++i) out[i] = (a[i].v[0] + a[i].v[1]) + (a[i].v[2] + a[i].v[3]);
}

inline Lanes sum_like_lanes(const Lanes (&a)[Lanes::kWidth]) { return (a[0] + a[1]) + (a[2] + a[3]); }

#endif

// Loads the first `count` < kWidth elements at p, then zeros; reads nothing beyond them.
template <class T>
Lanes load_partial(const T* p, int64_t count) {
  T padded[Lanes::kWidth] = {};
  std::memcpy(static_cast<void*>(padded), p, static_cast<size_t>(count) * sizeof(T));
  return Lanes::load(padded);
}

}  // namespace prologue::cpu

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
