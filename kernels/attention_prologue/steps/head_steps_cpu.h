// This is the mathematics of one head, a row of float32 values: bias, norm, rotation, Hadamard transform, scale, sigmoid. The same for the
// device is in steps/head_steps.cuh.
//
// The order of every sum is fixed, and the same on the device: head_sum.h; the heads of a token are added one after another.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/attention_prologue/steps/hadamard_cpu.h>
#include <prologue/kernels/attention_prologue/steps/head_plan.h>
#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/host/head_cpu.h>
#include <prologue/kernels/base/shared/head_sum.h>
#include <prologue/kernels/base/shared/reciprocal_root.h>
#include <prologue/kernels/base/shared/sigmoid.h>

namespace prologue::cpu {

// Holds cos and sin of one token's pairs, and the channels that they rotate; there are none if rotary_dim = 0.
struct RotationRow {
  RopeStyle style = RopeStyle::neox;
  int64_t rotary_dim = 0;
  int64_t rotary_offset = 0;
  int64_t num_blocks = 1;
  const float* cos = nullptr;
  const float* sin = nullptr;
};

// Describes what happens to the heads of one of Q, K, V and the groups of the token at hand.
template <class T>
struct HeadSteps : HeadPlan {
  float token_sum = 0.0f;  // of the squares of all heads, for a norm over the token
  RotationRow rotation;
  float factor = 1.0f;  // the Q scale, or the plan's constant

  HeadSteps() = default;
  explicit HeadSteps(const HeadPlan& plan) : HeadPlan(plan), factor(plan.constant) {}
};

// Adds in the order of head_sum.h.
template <class Term>
float head_sum(const float* x, int64_t head_dim, const Term& term) {
  constexpr int64_t kMost = kMaxHeadDim / 4;  // terms of a half
  static_assert((kMost & (kMost - 1)) == 0);
  const int64_t half = head_dim / 2;
  alignas(64) float halves[2][kMost];
  int64_t size = 1;
  while (2 * size < half) size *= 2;
  for (int i = 0; i < 2; ++i) {
    const float* of_half = x + i * half;
    for (int64_t n = 0; n < half / 2; ++n) halves[i][n] = term.pair(of_half[2 * n], of_half[2 * n + 1]);
    if (half % 2 != 0) halves[i][half / 2] = term.pair(of_half[half - 1], 0.0f);
    std::fill(halves[i] + (half + 1) / 2, halves[i] + size, 0.0f);
  }
  const auto add_neighbours = [&](float* sums) {
    for (int64_t n = 0; n < size / 2; ++n) sums[n] = sums[2 * n] + sums[2 * n + 1];
  };
  for (int channels = 2; channels < kSumPiece && size > 1; channels *= 2, size /= 2) {
    add_neighbours(halves[0]);
    add_neighbours(halves[1]);
  }
  for (int64_t n = 0; n < size; ++n) halves[0][n] += halves[1][n];
  for (; size > 1; size /= 2) add_neighbours(halves[0]);
  return halves[0][0];
}

inline float square_sum(const float* x, int64_t head_dim) { return head_sum(x, head_dim, SumOfSquares()); }

inline float inverse_root_mean(float sum, float inverse_count, float eps) {
  return reciprocal_root(fused_multiply_add(sum, inverse_count, eps));
}

// Rounds the values as if they were stored as T and loaded again.
template <class T>
void round_step(float* x, const HeadSteps<T>& s) {
  if constexpr (!std::is_same_v<T, float>) {
    if (s.rounds == 0) return;
    T rounded[kMaxHeadDim];
    narrow(x, s.width, rounded);
    widen(rounded, s.width, x);
  }
}

// Calls f with the weights, or biases, of head h: elements of T or of float32.
template <class T, class F>
void with_weights(const void* values, const HeadNorm& norm, int64_t h, const F& f) {
  if (values == nullptr) return;
  const int64_t at = h * norm.weight_head_stride;
  if (norm.weight_type == DType::f32) {
    f(static_cast<const float*>(values) + at);
  } else {
    f(static_cast<const T*>(values) + at);
  }
}

// x -> (x - mean) / root mean square * (offset + weight) + bias; RMS: mean 0
template <class T>
void normalise(float* x, const HeadSteps<T>& s, int64_t h) {
  const HeadNorm& norm = s.norm;
  const bool of_token = norm.scope == NormScope::token;
  if (norm.kind == NormKind::layer) {
    const float mean = head_sum(x, s.width, SumOfValues()) * s.inverse_count;
    for (int64_t i = 0; i < s.width; ++i) x[i] -= mean;
  }
  const float inverse = inverse_root_mean(of_token ? s.token_sum : square_sum(x, s.width), s.inverse_count, norm.eps);
  for (int64_t i = 0; i < s.width; ++i) x[i] *= inverse;
  with_weights<T>(norm.weight, norm, h, [&](const auto* weight) {
    for (int64_t i = 0; i < s.width; ++i) x[i] *= norm_factor(norm.weight_offset, to_float(weight[i]));
  });
  with_weights<T>(norm.bias, norm, h, [&](const auto* bias) {
    for (int64_t i = 0; i < s.width; ++i) x[i] += to_float(bias[i]);
  });
  round_step(x, s);
}

template <class T>
void rotate(float* values, const HeadSteps<T>& s) {
  const RotationRow& row = s.rotation;
  if (row.rotary_dim == 0) return;
  const int64_t pairs = row.rotary_dim / (2 * row.num_blocks);
  for (int64_t first = 0; first < row.rotary_dim / 2; first += pairs) {
    float* x = values + row.rotary_offset + 2 * first;
    const float *cos = row.cos + first, *sin = row.sin + first;
    if (row.style == RopeStyle::neox) {
      for (int64_t i = 0; i < pairs; ++i) rotate_pair(x[i], x[i + pairs], cos[i], sin[i]);
    } else {
      for (int64_t i = 0; i < pairs; ++i) rotate_pair(x[2 * i], x[2 * i + 1], cos[i], sin[i]);
    }
  }
  round_step(values, s);
}

template <class T>
void hadamard_transform(float* x, const HeadSteps<T>& s) {
  if (s.hadamard_block == 0) return;
  hadamard_transform(x, s.width, s.hadamard_block, s.hadamard_factor);
  round_step(x, s);
}

// Does the steps before the norm, of head h.
template <class T>
void begin_head(float* x, const HeadSteps<T>& s, int64_t h) {
  if (s.bias != nullptr) {
    const T* bias = static_cast<const T*>(s.bias) + h * s.width;
    for (int64_t i = 0; i < s.width; ++i) x[i] += to_float(bias[i]);
    round_step(x, s);
  }
  if (s.norm.placement == NormPlacement::after_rope) rotate(x, s);
}

// Does all steps.
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
  if (s.activation == HeadActivation::sigmoid) {
    for (int64_t i = 0; i < s.width; ++i) x[i] = sigmoid_f32(x[i]);
    round_step(x, s);
  }
}

// These are the heads of q, k, v or a group: whole, or with the rotated channels apart.
struct HeadsInput {
  HeadsView heads;
  HeadsView rotated = {};  // null: `heads` are whole
  int64_t rotary_dim = 0;
  int64_t rotary_offset = 0;
};

// Returns head h of token t, which has `width` channels. `whole` is room for a head that must be put together.
template <class T>
const T* whole_head(const HeadsInput& in, int64_t width, int64_t t, int64_t h, T* whole) {
  const T* x = head_at<T>(in.heads, t, h);
  if (in.rotated.data == nullptr) return x;
  std::copy_n(x, in.rotary_offset, whole);
  std::copy_n(head_at<T>(in.rotated, t, h), in.rotary_dim, whole + in.rotary_offset);
  std::copy_n(x + in.rotary_offset, width - in.rotary_offset - in.rotary_dim, whole + in.rotary_offset + in.rotary_dim);
  return whole;
}

// Calls store(h, head) with every head of token t of `in`.
template <class T, class Store>
void for_each_head(HeadSteps<T> s, const HeadsInput& in, int64_t t, const Store& store) {
  alignas(64) float values[kMaxHeadDim];
  alignas(64) T whole[kMaxHeadDim];
  if (s.norm.placement != NormPlacement::none && s.norm.scope == NormScope::token) {
    for (int64_t h = 0; h < s.num_heads; ++h) {
      widen(whole_head(in, s.width, t, h, whole), s.width, values);
      begin_head(values, s, h);
      s.token_sum += square_sum(values, s.width);
    }
  }
  const bool all_changed = changes(s) || s.factor != 1.0f;
  const int64_t begin = all_changed ? 0 : s.rotation.rotary_offset;
  const int64_t end = all_changed ? s.width : begin + s.rotation.rotary_dim;
  for (int64_t h = 0; h < s.num_heads; ++h) {
    const T* x = whole_head(in, s.width, t, h, whole);
    widen(x, s.width, values);
    finish_head(values, s, h);
    store(h, FinishedHead<T>{values, s.width, x, begin, end});
  }
}

}  // namespace prologue::cpu
