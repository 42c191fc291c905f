// The operations on rows of tokens in float64, from their definitions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/support/tolerance.h"

namespace prologue::test::oracle {

// x [num_tokens, width]; weight and bias [width]. The last sum of an element is that of its centred value (a layer norm's), then that
// with its bias.
template <class T>
std::vector<Reference> norm(const std::vector<T>& x, bool layer, const std::vector<float>& weight, const std::vector<float>& bias,
                            double eps) {
  const size_t width = weight.size();
  std::vector<Reference> out;
  for (size_t begin = 0; begin < x.size(); begin += width) {
    const auto element = [&](size_t i) { return static_cast<double>(to_float(x[begin + i])); };
    double mean = 0.0, magnitude = 0.0, squares = 0.0;
    for (size_t i = 0; layer && i < width; ++i) {
      mean += element(i) / static_cast<double>(width);
      magnitude += std::fabs(element(i)) / static_cast<double>(width);
    }
    for (size_t i = 0; i < width; ++i) squares += std::pow(element(i) - mean, 2);
    const double root = std::sqrt(squares / static_cast<double>(width) + eps);
    for (size_t i = 0; i < width; ++i) {
      const double w = static_cast<double>(weight[i]), b = static_cast<double>(bias[i]);
      out.push_back(
          {(element(i) - mean) / root * w + b, (std::fabs(element(i)) + magnitude) / root * std::fabs(w) + std::fabs(b)});
    }
  }
  return out;
}

inline double silu(double x) { return x / (1.0 + std::exp(-x)); }
// It is 1 + tanh(y) = 2 / (1 + exp(-2 y)): the sum would cancel where y is far below 0, even in float64.
inline double gelu_tanh(double x) {
  const double y = std::sqrt(2.0 / std::acos(-1.0)) * (x + 0.044715 * x * x * x);
  return x / (1.0 + std::exp(-2.0 * y));
}

inline double gelu(double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }
inline double clamped_swiglu(double gate, double up, double limit, double alpha) {
  const double clamped_gate = std::min(gate, limit), clamped_up = std::clamp(up, -limit, limit);
  return (clamped_up + 1.0) * clamped_gate / (1.0 + std::exp(-alpha * clamped_gate));
}

// This is Philox4x32-10 as the paper's tables of constants give it.
inline std::vector<uint32_t> philox4x32_10(std::vector<uint32_t> counter, std::vector<uint32_t> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = 0xD2511F53ull * counter[0], b = 0xCD9E8D57ull * counter[2];
    const auto high = [](uint64_t x) { return static_cast<uint32_t>(x >> 32); };
    const auto low = [](uint64_t x) { return static_cast<uint32_t>(x & 0xffffffffull); };
    counter = {high(b) ^ counter[1] ^ key[0], low(b), high(a) ^ counter[3] ^ key[1], low(a)};
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  }
  return counter;
}

// What the sequence of a row has seen of one token.
struct TokenHistory {
  bool in_prompt = false;
  int64_t times_generated = 0;
};
struct Penalties {
  double repetition = 1.0, presence = 0.0, frequency = 0.0;
};

// Rounds each operation to float32: one operation on float32 numbers in float64, rounded again, is the same.
inline float adjusted_logit(float logit, float bias, const TokenHistory& history, const Penalties& penalties) {
  const auto rounded = [](double x) { return static_cast<double>(static_cast<float>(x)); };
  const double n = rounded(static_cast<double>(history.times_generated));
  double x = rounded(static_cast<double>(logit) + static_cast<double>(bias));
  if (history.in_prompt || history.times_generated > 0) {
    x = rounded(x > 0.0 ? x / penalties.repetition : x * penalties.repetition);
  }
  if (history.times_generated > 0) x = rounded(rounded(x - rounded(penalties.frequency * n)) - penalties.presence);
  return static_cast<float>(x);
}

struct SamplingRequest {
  double temperature = 0.0;
  int64_t top_k = 0;
  double top_p = 1.0;
  double min_p = 0.0;
  uint64_t seed = 0;
  int64_t position = 0;
};

// Returns the tokens that the filters keep, in order of (logit descending, id ascending).
inline std::vector<int32_t> kept_tokens(const std::vector<float>& logits, const SamplingRequest& request) {
  std::vector<int32_t> order;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isnan(logits[i])) order.push_back(static_cast<int32_t>(i));
  }
  const auto logit = [&](int32_t token) { return static_cast<double>(logits[static_cast<size_t>(token)]); };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logit(a) > logit(b); });
  if (request.top_k > 0 && request.top_k < static_cast<int64_t>(order.size())) order.resize(static_cast<size_t>(request.top_k));

  const auto p = [&](int32_t token) { return std::exp((logit(token) - logit(order[0])) / request.temperature); };
  if (request.top_p < 1.0) {
    double total = 0.0, sum = 0.0;
    for (const int32_t token : order) total += p(token);
    size_t count = 0;
    while (count < order.size() && (count == 0 || sum < request.top_p * total)) sum += p(order[count++]);
    order.resize(count);
  }
  if (request.min_p > 0.0) std::erase_if(order, [&](int32_t token) { return p(token) < request.min_p; });
  return order;
}

// logits without infinities, at least one a number.
inline int32_t sample(const std::vector<float>& logits, const SamplingRequest& request) {
  SamplingRequest filters = request;
  if (request.temperature == 0.0) filters = {1.0, 1, 1.0, 0.0, 0, 0};
  const std::vector<int32_t> kept = kept_tokens(logits, filters);
  if (request.temperature == 0.0) return kept[0];
  double best = -std::numeric_limits<double>::infinity();
  int32_t choice = 0;
  for (const int32_t token : kept) {
    const uint64_t position = static_cast<uint64_t>(request.position);
    const uint32_t random =
        philox4x32_10({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), static_cast<uint32_t>(token), 0},
                      {static_cast<uint32_t>(request.seed), static_cast<uint32_t>(request.seed >> 32)})[0];
    const double u = (random + 0.5) / 4294967296.0;
    const double score = static_cast<double>(logits[static_cast<size_t>(token)]) / request.temperature - std::log(-std::log(u));
    if (score > best) best = score, choice = token;
  }
  return choice;
}

struct LogProb {
  int32_t id = -1;
  double value = -std::numeric_limits<double>::infinity();
};

// Entry 0 is `token`; then the `top` most likely ones follow. logits: at least one is a finite number, none is +infinity.
inline std::vector<LogProb> logprobs(const std::vector<float>& logits, int64_t token, int64_t top) {
  const auto logit = [&](int64_t i) {
    const float x = logits[static_cast<size_t>(i)];
    return std::isnan(x) ? -std::numeric_limits<double>::infinity() : static_cast<double>(x);
  };
  const int64_t count = static_cast<int64_t>(logits.size());
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logit(a) > logit(b); });
  long double sum = 0.0L;
  for (auto i = order.rbegin(); i != order.rend(); ++i) sum += std::exp(static_cast<long double>(logit(*i) - logit(order[0])));
  const auto entry = [&](int64_t i) {
    return LogProb{static_cast<int32_t>(i), logit(i) - logit(order[0]) - static_cast<double>(std::log(sum))};
  };
  std::vector<LogProb> entries(static_cast<size_t>(top + 1));
  if (token >= 0 && token < count) entries[0] = entry(token);
  for (int64_t i = 0; i < std::min(top, count); ++i) entries[static_cast<size_t>(i + 1)] = entry(order[static_cast<size_t>(i)]);
  return entries;
}

// What end_step reads and writes, by sequence.
struct StepGroup {
  int64_t page_size = 0, num_pages = 0;
  std::vector<std::vector<int32_t>> pages;  // of each sequence
  std::vector<int64_t> slot_mapping;
};
struct StepState {
  std::vector<int32_t> cu_seqlens_q;
  std::vector<uint8_t> token_faults;
  std::vector<uint8_t> seq_faults;
  std::vector<int32_t> tokens, token_ids, seq_lens;
  std::vector<std::vector<int32_t>> positions;  // by axis
  std::vector<int64_t> row_positions;
  std::vector<StepGroup> groups;
};

inline void end_step(StepState& step, bool advance) {
  const size_t num_seqs = step.seq_faults.size();
  const auto clamped = [&](int32_t row) { return std::clamp<int64_t>(row, 0, static_cast<int64_t>(step.token_faults.size())); };
  for (size_t s = 0; s < num_seqs; ++s) {
    const int64_t begin = clamped(step.cu_seqlens_q[s]), end = std::max(begin, clamped(step.cu_seqlens_q[s + 1]));
    const auto first =
        std::find_if(step.token_faults.begin() + begin, step.token_faults.begin() + end, [](uint8_t code) { return code != 0; });
    step.seq_faults[s] = first == step.token_faults.begin() + end ? uint8_t{0} : *first;
  }
  std::fill(step.token_faults.begin(), step.token_faults.end(), uint8_t{0});
  for (size_t s = 0; advance && s < num_seqs; ++s) {
    if (step.seq_lens[s] <= 0 || step.seq_lens[s] == std::numeric_limits<int32_t>::max()) continue;
    const int64_t position = step.seq_lens[s]++;  // in the cache, of the token that comes
    step.token_ids[s] = step.tokens[s];
    for (std::vector<int32_t>& axis : step.positions) axis[s] = static_cast<int32_t>(int64_t{axis[s]} + 1);
    ++step.row_positions[s];
    for (StepGroup& group : step.groups) {
      int64_t offset = position;
      size_t entry = 0;
      for (; offset >= group.page_size; offset -= group.page_size) ++entry;
      int64_t& slot = group.slot_mapping[s];
      slot = std::numeric_limits<int64_t>::max();
      if (entry >= group.pages[s].size()) continue;
      const int64_t page = group.pages[s][entry];
      if (page >= 0 && page < group.num_pages) slot = page * group.page_size + offset;
    }
  }
}

}  // namespace prologue::test::oracle
