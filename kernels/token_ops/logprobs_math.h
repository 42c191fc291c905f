// This file has what every backend of `logprobs` computes for one token. It is written once, so that all have the same bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include <prologue/kernels/base/shared/rotation.h>
#include <prologue/kernels/token_ops/sampling_math.h>

namespace prologue {

// NaN counts as -infinity.
PROLOGUE_HOST_DEVICE inline float ranked_logit(float logit) { return logit == logit ? logit : -INFINITY; }

PROLOGUE_HOST_DEVICE inline uint64_t logprob_rank_key(float logit, int32_t token) { return rank_key(ranked_logit(logit), token); }

// Returns exp(logit - largest) as a multiple of 2^-40.
PROLOGUE_HOST_DEVICE inline uint64_t logprob_mass(float logit, float largest) {
  return probability_mass(scaled_logit(ranked_logit(logit), largest, 1.0f));
}

// Returns log(mass * 2^-40) for mass >= 2^40, within 2^-48: 2^n m with m in [sqrt(1/2), sqrt(2)], and log(m) = 2 atanh((m - 1) / (m + 1)).
PROLOGUE_HOST_DEVICE inline double log_of_mass(uint64_t mass) {
  constexpr uint64_t kRootHalf = 0x3fe6a09e667f3bcd;
  const double x = static_cast<double>(mass) * 0x1p-40;
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  const int64_t exponent = static_cast<int64_t>(bits - kRootHalf) >> 52;
  bits -= static_cast<uint64_t>(exponent) << 52;
  double m;
  memcpy(&m, &bits, sizeof m);
  const double s = add_rounded(m, -1.0) / add_rounded(m, 1.0);
  const double z = multiply_rounded(s, s);
  double series = 1.0 / 17.0;  // the omitted terms are below 2^-50
  for (int k = 15; k >= 1; k -= 2) series = fused_multiply_add(series, z, 1.0 / k);
  return fused_multiply_add(static_cast<double>(exponent), 0.693147180559945309417, multiply_rounded(2.0 * s, series));
}

// log_sum: log_of_mass of the row.
PROLOGUE_HOST_DEVICE inline float logprob_of(float logit, float largest, double log_sum) {
  const float ranked = ranked_logit(logit);
  if (ranked == -INFINITY) return -INFINITY;
  const double scaled = ranked == largest ? 0.0 : add_rounded(static_cast<double>(ranked), -static_cast<double>(largest));
  return static_cast<float>(add_rounded(scaled, -log_sum));
}

}  // namespace prologue
