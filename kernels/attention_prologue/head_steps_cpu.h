// The mathematics of one head, a row of float32 values: bias, norm, rotation, Hadamard transform, scale. On the device:
// head_steps.cuh.
//
// The order of every sum is fixed, and the same on the device (head_lanes.cuh), so that fused and unfused, CPU and GPU give the
// same bits: the two halves of a head are summed as binary trees of neighbours, then added; the heads of a token are added one
// after another.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/attention_prologue/hadamard.h>
#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/host/head_cpu.h>

namespace prologue::cpu {

// cos and sin of one token's pairs, and the channels that they rotate; rotary_dim = 0: none.
struct RotationRow {
  RopeStyle style = RopeStyle::neox;
  int64_t rotary_dim = 0;
  int64_t rotary_offset = 0;
  const float* cos = nullptr;
  const float* sin = nullptr;
};

// What happens to the heads of one of Q, K and V.
template <class T>
struct HeadSteps {
  int64_t num_heads = 0;
  int64_t width = 0;
  const T* bias = nullptr;
  HeadNorm norm;
  float token_sum = 0.0f;  // of the squares of all heads, for a norm over the token
  RotationRow rotation;    // of the token at hand
  int64_t hadamard_block = 0;
  float factor = 1.0f;  // the Q scale
  bool rounds = false;  // to T after each step
};

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

inline float inverse_root_mean(float sum, float inverse_count, float eps) { return 1.0f / std::sqrt(sum * inverse_count + eps); }

// Rounds the values as if they were stored as T and loaded again.
template <class T>
void round_step(float* x, const HeadSteps<T>& s) {
  if constexpr (!std::is_same_v<T, float>) {
    if (!s.rounds) return;
    T rounded[kMaxHeadDim];
    narrow(x, s.width, rounded);
    widen(rounded, s.width, x);
  }
}

// x -> (x - mean) / root mean square * (offset + weight) + bias; RMS: mean 0
template <class T>
void normalise(float* x, const HeadSteps<T>& s, int64_t h) {
  const HeadNorm& norm = s.norm;
  const bool of_token = norm.scope == NormScope::token;
  const float inverse_count = 1.0f / static_cast<float>(of_token ? s.num_heads * s.width : s.width);
  if (norm.kind == NormKind::layer) {
    const float mean = head_sum(x, s.width, [](float value) { return value; }) * inverse_count;
    for (int64_t i = 0; i < s.width; ++i) x[i] -= mean;
  }
  const float inverse = inverse_root_mean(of_token ? s.token_sum : square_sum(x, s.width), inverse_count, norm.eps);
  for (int64_t i = 0; i < s.width; ++i) x[i] *= inverse;
  if (norm.weight != nullptr) {
    const T* weight = static_cast<const T*>(norm.weight) + h * norm.weight_head_stride;
    for (int64_t i = 0; i < s.width; ++i) x[i] *= norm.weight_offset + to_float(weight[i]);
  }
  if (norm.bias != nullptr) {
    const T* bias = static_cast<const T*>(norm.bias) + h * norm.weight_head_stride;
    for (int64_t i = 0; i < s.width; ++i) x[i] += to_float(bias[i]);
  }
  round_step(x, s);
}

template <class T>
void rotate(float* values, const HeadSteps<T>& s) {
  const auto& [style, rotary_dim, rotary_offset, cos, sin] = s.rotation;
  if (rotary_dim == 0) return;
  float* x = values + rotary_offset;
  const int64_t half = rotary_dim / 2;
  if (style == RopeStyle::neox) {
    for (int64_t i = 0; i < half; ++i) rotate_pair(x[i], x[i + half], cos[i], sin[i]);
  } else {
    for (int64_t i = 0; i < half; ++i) rotate_pair(x[2 * i], x[2 * i + 1], cos[i], sin[i]);
  }
  round_step(values, s);
}

// Each block of channels times H / sqrt(block).
template <class T>
void hadamard_transform(float* x, const HeadSteps<T>& s) {
  const int64_t block = s.hadamard_block;
  if (block == 0) return;
  for (int64_t distance = 1; distance < block; distance *= 2) {
    for (int64_t first = 0; first < s.width; first += 2 * distance) {
      for (int64_t c = first; c < first + distance; ++c) {
        const float low = x[c], high = x[c + distance];
        x[c] = low + high;
        x[c + distance] = low - high;
      }
    }
  }
  const float factor = hadamard_factor(block);
  for (int64_t i = 0; i < s.width; ++i) x[i] *= factor;
  round_step(x, s);
}

// The steps before the norm, of head h.
template <class T>
void begin_head(float* x, const HeadSteps<T>& s, int64_t h) {
  if (s.bias != nullptr) {
    for (int64_t i = 0; i < s.width; ++i) x[i] += to_float(s.bias[h * s.width + i]);
    round_step(x, s);
  }
  if (s.norm.placement == NormPlacement::after_rope) rotate(x, s);
}

// All steps.
template <class T>
void finish_head(float* x, const HeadSteps<T>& s, int64_t h) {
  begin_head(x, s, h);
  if (s.norm.placement != NormPlacement::none) normalise(x, s, h);
  if (s.norm.placement != NormPlacement::after_rope) rotate(x, s);
  hadamard_transform(x, s);
  if (s.factor != 1.0f) {
    for (int64_t i = 0; i < s.width; ++i) x[i] *= s.factor;
    round_step(x, s);
  }
}

// Calls store(h, head) with every head of token t of `in`.
template <class T, class Store>
void for_each_head(HeadSteps<T> s, const HeadsView& in, int64_t t, const Store& store) {
  alignas(64) float values[kMaxHeadDim];
  if (s.norm.placement != NormPlacement::none && s.norm.scope == NormScope::token) {
    for (int64_t h = 0; h < s.num_heads; ++h) {
      widen(head_at<T>(in, t, h), s.width, values);
      begin_head(values, s, h);
      s.token_sum += square_sum(values, s.width);
    }
  }
  const bool all_changed =
      s.bias != nullptr || s.norm.placement != NormPlacement::none || s.hadamard_block != 0 || s.factor != 1.0f;
  const int64_t begin = all_changed ? 0 : s.rotation.rotary_offset;
  const int64_t end = all_changed ? s.width : begin + s.rotation.rotary_dim;
  for (int64_t h = 0; h < s.num_heads; ++h) {
    widen(head_at<T>(in, t, h), s.width, values);
    finish_head(values, s, h);
    store(h, FinishedHead<T>{values, s.width, head_at<T>(in, t, h), begin, end});
  }
}

}  // namespace prologue::cpu
