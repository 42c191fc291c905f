// This file has the order of experts and their weights, written once for the CPU and CUDA, so that both choose the same experts with the
// same bits.
//
// Sums over all experts have 32 partial sums, that of expert i in number i % 32 (a lane of a warp); then number i and number i + 16 are
// added, i and i + 8, and so on. Sums over the chosen experts are in their order.
#pragma once

#include <cstdint>
#include <cstring>

#include <prologue/kernels/base/shared/exp.h>
#include <prologue/kernels/base/shared/rotation.h>
#include <prologue/kernels/moe/moe_route.h>

namespace prologue {

inline constexpr int kExpertSums = 32;

// Returns an expert's logit and index in one number: the larger the number, the earlier the expert is chosen. NaN is larger than infinity.
PROLOGUE_HOST_DEVICE inline uint64_t expert_key(float logit, int32_t expert) {
  const float x = logit + 0.0f;  // -0 becomes 0
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  const uint32_t ordered = x != x ? 0xffffffffu : (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t{ordered} << 32 | static_cast<uint32_t>(~expert);
}
PROLOGUE_HOST_DEVICE inline int32_t expert_of(uint64_t key) { return static_cast<int32_t>(~static_cast<uint32_t>(key)); }
PROLOGUE_HOST_DEVICE inline float logit_of(uint64_t key) {
  const uint32_t ordered = static_cast<uint32_t>(key >> 32);
  const uint32_t bits = (ordered & 0x80000000u) != 0 ? ordered & 0x7fffffffu : ~ordered;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// Whether a row whose largest logit is this has weights.
PROLOGUE_HOST_DEVICE inline bool can_route(float largest) { return largest - largest == 0.0f; }

// Returns what an expert's weight is before the division by a sum of such terms (softmax), or the weight itself (sigmoid).
PROLOGUE_HOST_DEVICE inline float expert_term(ExpertWeighting weighting, float logit, float largest) {
  if (weighting == ExpertWeighting::sigmoid) return divide_rounded(1.0f, add_rounded(1.0f, exp_f32(-logit)));
  return exp_f32(add_rounded(logit, -largest));
}

}  // namespace prologue
