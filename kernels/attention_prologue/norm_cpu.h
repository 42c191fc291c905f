// The norms of Q, K and V on float32 rows. The order of every sum is fixed, and the same on the device, so that fused and
// unfused, CPU and GPU give the same bits: the two halves of a head are summed as binary trees of neighbours, then added; the
// heads of a token are added one after another.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/head_cpu.h>

namespace prologue::cpu {

// The sum of term(x[0 .. count)), neighbours first; count is padded with zeros to a power of two.
template <class F>
float tree_sum(const float* x, int64_t count, const F& term) {
  alignas(64) float terms[kMaxHeadDim];
  int64_t size = 1;
  while (size < count) size *= 2;
  for (int64_t i = 0; i < count; ++i) terms[i] = term(x[i]);
  std::fill(terms + count, terms + size, 0.0f);
  for (; size > 1; size /= 2) {
    for (int64_t i = 0; i < size / 2; ++i) terms[i] = terms[2 * i] + terms[2 * i + 1];
  }
  return terms[0];
}

template <class F>
float head_sum(const float* x, int64_t head_dim, const F& term) {
  const int64_t half = head_dim / 2;
  return tree_sum(x, half, term) + tree_sum(x + half, half, term);
}

inline float square_sum(const float* x, int64_t head_dim) {
  return head_sum(x, head_dim, [](float value) { return value * value; });
}

// What a row is shifted and multiplied by before the weight.
struct NormFactors {
  float mean = 0.0f;
  float inverse = 1.0f;
};

inline NormFactors rms_factors(float squares, int64_t count, float eps) {
  return {0.0f, 1.0f / std::sqrt(squares * (1.0f / static_cast<float>(count)) + eps)};
}

inline NormFactors head_factors(const float* x, int64_t head_dim, NormKind kind, float eps) {
  if (kind == NormKind::rms) return rms_factors(square_sum(x, head_dim), head_dim, eps);
  const float mean = head_sum(x, head_dim, [](float value) { return value; }) * (1.0f / static_cast<float>(head_dim));
  const float squares = head_sum(x, head_dim, [mean](float value) { return (value - mean) * (value - mean); });
  return {mean, rms_factors(squares, head_dim, eps).inverse};
}

template <class T>
void normalize(const HeadNorm& norm, const NormFactors& factors, int64_t head, int64_t count, float* x) {
  for (int64_t i = 0; i < count; ++i) x[i] = (x[i] - factors.mean) * factors.inverse;
  if (norm.weight != nullptr) {
    const T* weight = static_cast<const T*>(norm.weight) + head * norm.weight_head_stride;
    for (int64_t i = 0; i < count; ++i) x[i] *= norm.weight_offset + to_float(weight[i]);
  }
  if (norm.bias != nullptr) {
    const T* bias = static_cast<const T*>(norm.bias) + head * norm.weight_head_stride;
    for (int64_t i = 0; i < count; ++i) x[i] += to_float(bias[i]);
  }
}

}  // namespace prologue::cpu
