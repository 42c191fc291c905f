// This file has what every backend of `sample` computes for one token: its adjusted logit, its rank, its part of the probability, its
// random number and its score. It is written once, so that all backends choose the same token from the same logits. Values outside their
// range have the meaning that sampling.h states.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include <prologue/kernels/base/faults.h>
#include <prologue/kernels/base/host_device.h>
#include <prologue/kernels/base/shared/exp.h>
#include <prologue/kernels/base/shared/rotation.h>
#include <prologue/kernels/token_ops/philox.h>
#include <prologue/kernels/token_ops/sampling.h>

namespace prologue {

// Holds what a row adds to its logits. A null pointer adds nothing.
struct Adjustments {
  const float* bias;
  const int32_t* counts;  // null, too, if all penalties are off
  float repetition, presence, frequency;
  // Drafts that count as generated: token_ids[draft_rows[i]], 0 <= i < num_drafts. Bit t % 64 of draft_bits is set for each draft t.
  const int32_t* token_ids;
  const int32_t* draft_rows;
  int64_t num_tokens;
  int32_t num_drafts;
  uint64_t draft_bits;

  // Returns draft i, or -1 if its row has no token.
  PROLOGUE_HOST_DEVICE int32_t draft(int32_t i) const {
    const int32_t row = draft_rows[i];
    return row >= 0 && row < num_tokens ? token_ids[row] : -1;
  }
};

PROLOGUE_HOST_DEVICE inline bool is_finite(float x) { return x - x == 0.0f; }

// Returns the row's place in its chain, or -1 if it is in none.
PROLOGUE_HOST_DEVICE inline int32_t place_in_chain(const SamplingRow& row, int64_t index) {
  return row.chain > 0 && row.chain <= kMaxChain && row.chain <= index + 1 ? row.chain - 1 : -1;
}

// Returns the adjustments of row `index`, which is `row`.
PROLOGUE_HOST_DEVICE inline Adjustments adjustments_of(const SamplingParams& p, const SamplingRow& row, int64_t index) {
  Adjustments a = {row.bias, row.counts, 1.0f, 0.0f, 0.0f, p.token_ids, nullptr, p.num_tokens, 0, 0};
  if (row.repetition_penalty > 0.0f && is_finite(row.repetition_penalty)) a.repetition = row.repetition_penalty;
  if (is_finite(row.presence_penalty)) a.presence = row.presence_penalty;
  if (is_finite(row.frequency_penalty)) a.frequency = row.frequency_penalty;
  if (a.repetition == 1.0f && a.presence == 0.0f && a.frequency == 0.0f) a.counts = nullptr;
  if (a.counts == nullptr || p.token_ids == nullptr || p.logit_rows == nullptr) return a;
  const int32_t place = place_in_chain(row, index);
  if (place < 1) return a;
  a.draft_rows = p.logit_rows + index - place + 1;
  a.num_drafts = place;
  for (int32_t i = 0; i < place; ++i) {
    if (const int32_t draft = a.draft(i); draft >= 0) a.draft_bits |= uint64_t{1} << (draft % 64);
  }
  return a;
}

// Returns the entry of counts after the token was generated once more.
PROLOGUE_HOST_DEVICE inline int32_t counted(int32_t count) {
  const int32_t before = count < 0 ? 0 : count;
  return before > INT32_MAX - 2 ? before : before + 2;
}

PROLOGUE_HOST_DEVICE inline bool changes_logits(const Adjustments& a) { return a.bias != nullptr || a.counts != nullptr; }

PROLOGUE_HOST_DEVICE inline float adjusted_logit(const Adjustments& a, int32_t token, float logit) {
  float x = logit;
  if (a.bias != nullptr) x = add_rounded(x, a.bias[token]);
  if (a.counts == nullptr) return x;
  int32_t count = a.counts[token];
  if ((a.draft_bits >> (token % 64) & 1) != 0) {
    for (int32_t i = 0; i < a.num_drafts; ++i) {
      if (a.draft(i) == token) count = counted(count);
    }
  }
  if (count > 0) x = x > 0.0f ? divide_rounded(x, a.repetition) : multiply_rounded(x, a.repetition);
  if (count > 1) {
    x = add_rounded(x, -multiply_rounded(a.frequency, static_cast<float>(count / 2)));
    x = add_rounded(x, -a.presence);
  }
  return x;
}

// Returns a key that is larger for larger logits. NaN comes last (0) and both zeros are equal.
PROLOGUE_HOST_DEVICE inline uint32_t logit_key(float logit) {
  const float canonical = logit + 0.0f;  // -0 becomes +0
  int32_t bits;
  std::memcpy(&bits, &canonical, sizeof bits);
  const uint32_t key = static_cast<uint32_t>(bits) ^ (static_cast<uint32_t>(bits >> 31) | 0x80000000u);
  return logit == logit ? key : 0;
}

// Returns the order (logit descending, id ascending) as one number: a token comes before another if its rank key is larger.
PROLOGUE_HOST_DEVICE inline uint64_t rank_key(float logit, int32_t token) {
  return (static_cast<uint64_t>(logit_key(logit)) << 32) | static_cast<uint32_t>(~token);
}

// Returns the token of a rank key.
PROLOGUE_HOST_DEVICE inline int32_t ranked_token(uint64_t key) { return static_cast<int32_t>(~static_cast<uint32_t>(key)); }

PROLOGUE_HOST_DEVICE inline bool is_greedy(const SamplingRow& row) { return !(row.temperature > 0.0f); }

// Returns (logit - largest) / temperature, at most 0. What is not a number counts as -infinity.
PROLOGUE_HOST_DEVICE inline float scaled_logit(float logit, float largest, float temperature) {
  if (logit == largest) return 0.0f;
  const float scaled = (logit - largest) / temperature;
  return scaled <= 0.0f ? scaled : -INFINITY;
}

// Returns p / max(p).
PROLOGUE_HOST_DEVICE inline float relative_probability(float scaled) { return exp_f32(scaled); }

// Returns p / max(p) as a multiple of 2^-40, rounded down: sums of these do not depend on their order.
PROLOGUE_HOST_DEVICE inline uint64_t probability_mass(float scaled) {
  return static_cast<uint64_t>(relative_probability(scaled) * 1099511627776.0f);
}

// Returns the mass that a prefix must reach for top_p, of the `total` mass of the tokens that are left.
PROLOGUE_HOST_DEVICE inline uint64_t top_p_target(uint64_t total, float top_p) {
  if (!(top_p > 0.0f)) return 1;
  const uint64_t target = static_cast<uint64_t>(ceil(static_cast<double>(top_p) * static_cast<double>(total)));
  return target < 1 ? 1 : target > total ? total : target;
}

PROLOGUE_HOST_DEVICE inline bool passes_min_p(float scaled, float min_p) {
  return !(min_p > 0.0f) || relative_probability(scaled) >= (min_p < 1.0f ? min_p : 1.0f);
}

// Returns the random word of a token.
PROLOGUE_HOST_DEVICE inline uint32_t token_random(const SamplingRow& row, int32_t token) {
  const uint64_t position = static_cast<uint64_t>(row.position);
  return philox4x32_10(static_cast<uint32_t>(row.seed), static_cast<uint32_t>(row.seed >> 32), static_cast<uint32_t>(position),
                       static_cast<uint32_t>(position >> 32), static_cast<uint32_t>(token), 0)
      .words[0];
}

// Returns the score whose argmax is the choice: scaled - log(-log(u)), u = (random + 1/2) 2^-32. In float64, because with u near 1 the last
// bits decide between improbable tokens.
PROLOGUE_HOST_DEVICE inline double gumbel_score(float scaled, uint32_t random) {
  const double u = (static_cast<double>(random) + 0.5) * 2.3283064365386962890625e-10;
  return static_cast<double>(scaled) - log(-log(u));
}

}  // namespace prologue
