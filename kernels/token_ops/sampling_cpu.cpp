#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>
#include <numeric>

#include <prologue/kernels/base/host/parallel.h>
#include <prologue/kernels/token_ops/backends.h>
#include <prologue/kernels/token_ops/sampling_math.h>

namespace prologue::cpu {

namespace {

constexpr int kBlock = 64;  // tokens whose keys and random numbers are computed together, in vectors

struct Logits {
  const float* values;
  int32_t count;
  Adjustments adjustments;
};

// Calls f(token, adjusted logit, its key) for the tokens with a rank key of at least `floor`, in the order of their ids.
template <class F>
void for_each_token(const Logits& logits, uint64_t floor, const F& f) {
  const uint32_t floor_key = static_cast<uint32_t>(floor >> 32);
  for (int32_t begin = 0; begin < logits.count; begin += kBlock) {
    const int32_t count = std::min(kBlock, logits.count - begin);
    const float* values = logits.values + begin;
    float adjusted[kBlock];
    if (changes_logits(logits.adjustments)) {
      for (int32_t i = 0; i < count; ++i) adjusted[i] = adjusted_logit(logits.adjustments, begin + i, values[i]);
      values = adjusted;
    }
    uint32_t keys[kBlock];
    for (int32_t i = 0; i < count; ++i) keys[i] = logit_key(values[i]);
    for (int32_t i = 0; i < count; ++i) {
      if (keys[i] > floor_key || (keys[i] == floor_key && rank_key(values[i], begin + i) >= floor)) {
        f(begin + i, values[i], keys[i]);
      }
    }
  }
}

struct Largest {
  int32_t token = -1;      // the first of the order; -1: no logit is a number
  float logit = 0.0f;      // adjusted
  bool nan_given = false;  // whether one of the logits is NaN, before they are adjusted
};

Largest largest(const Logits& logits) {
  Largest best;
  uint32_t best_key = 0;
  for_each_token(logits, 0, [&](int32_t token, float logit, uint32_t key) {
    if (key > best_key)
      best.token = token, best.logit = logit, best_key = key;
    else if (key == 0)
      best.nan_given = best.nan_given || std::isnan(logits.values[token]);
  });
  return best;
}

// Returns the rank key of the last token of the shortest prefix (of the tokens with a rank key of at least `floor`) whose weights sum to
// target(the sum of all). The logit is found digit by digit with histograms, without sorting; then the id among equals.
template <class Weight, class Target>
uint64_t prefix_end(const Logits& logits, uint64_t floor, const Weight& weight, const Target& target) {
  constexpr int kDigitBits = 11;
  uint64_t remaining = 0, prefix = 0;
  for (int shift = 2 * kDigitBits; shift >= 0; shift -= kDigitBits) {
    uint64_t histogram[1 << kDigitBits] = {};
    for_each_token(logits, floor, [&](int32_t, float logit, uint64_t key) {
      if (key >> (shift + kDigitBits) == prefix) histogram[(key >> shift) & ((1 << kDigitBits) - 1)] += weight(logit);
    });
    if (shift == 2 * kDigitBits) remaining = target(std::accumulate(std::begin(histogram), std::end(histogram), uint64_t{0}));
    uint64_t digit = (1 << kDigitBits) - 1;
    for (; digit > 0 && histogram[digit] < remaining; --digit) remaining -= histogram[digit];
    prefix = (prefix << kDigitBits) | digit;
  }
  uint64_t end = floor;
  for_each_token(logits, floor, [&](int32_t token, float logit, uint64_t key) {
    if (key != prefix || remaining == 0) return;
    const uint64_t mass = weight(logit);
    if (mass >= remaining) end = rank_key(logit, token);
    remaining -= std::min(mass, remaining);
  });
  return end;
}

int32_t choose(const Logits& logits, const Largest& top, const SamplingRow& row) {
  if (top.token < 0) return 0;
  if (is_greedy(row)) return top.token;
  const auto scaled_of = [&](float logit) { return scaled_logit(logit, top.logit, row.temperature); };

  uint64_t floor = 0;
  if (row.top_k > 0 && row.top_k < logits.count) {
    floor = prefix_end(
        logits, floor, [](float) { return uint64_t{1}; }, [&](uint64_t) { return static_cast<uint64_t>(row.top_k); });
  }
  if (!(row.top_p >= 1.0f)) {
    floor = prefix_end(
        logits, floor, [&](float logit) { return probability_mass(scaled_of(logit)); },
        [&](uint64_t total) { return top_p_target(total, row.top_p); });
  }

  int32_t choice = top.token;
  double best = -std::numeric_limits<double>::infinity();
  int32_t tokens[kBlock];
  float scaled[kBlock];
  int kept = 0;
  const auto draw = [&] {
    uint32_t random[kBlock];
    for (int i = 0; i < kept; ++i) random[i] = token_random(row, tokens[i]);
    for (int i = 0; i < kept; ++i) {
      // -log(u) >= 1 - u >= 2^-(c + 1), c the leading zeros of 2^32 - 1 - random: a bound that spares most logarithms.
      if (scaled[i] + 0.69315 * (std::countl_zero(~random[i]) + 1) < best) continue;
      const double score = gumbel_score(scaled[i], random[i]);
      if (score > best) best = score, choice = tokens[i];
    }
    kept = 0;
  };
  constexpr double kLargestGumbel = 22.88;  // -log(-log(1 - 2^-33)), rounded up
  for_each_token(logits, floor, [&](int32_t token, float logit, uint32_t) {
    const float x = scaled_of(logit);
    if (x + kLargestGumbel < best || !passes_min_p(x, row.min_p)) return;
    tokens[kept] = token;
    scaled[kept] = x;
    if (++kept == kBlock) draw();
  });
  draw();
  return choice;
}

}  // namespace

Status sample(const SamplingParams& params, const Execution& execution) {
  parallel_for(params.num_rows, execution.num_threads, [&](int64_t r) {
    const SamplingRow& row = params.rows[r];
    const Logits logits{params.logits + r * params.logits_stride, static_cast<int32_t>(params.vocab_size),
                        adjustments_of(params, row, r)};
    const Largest top = largest(logits);
    const int32_t choice = choose(logits, top, row);
    params.tokens[r] = choice;
    if (row.counts != nullptr && place_in_chain(row, r) < 0) row.counts[choice] = counted(row.counts[choice]);
    const FaultCode fault = top.nan_given ? FaultCode::logits_not_a_number : FaultCode::none;
    if (params.row_faults != nullptr) params.row_faults[r] = static_cast<uint8_t>(fault);
  });
  return {};
}

}  // namespace prologue::cpu
