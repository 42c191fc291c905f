// This file says how the next token is chosen, and what a model's files say about it.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace prologue {

// Says how the next token is chosen; kernels/token_ops/sampling.h has the formulas. All defaults mean "off".
struct SamplingOptions {
  float temperature = 0.0f;                                // 0 = greedy
  int32_t top_k = 0;                                       // 0 = off
  float top_p = 1.0f;                                      // 1 = off
  float min_p = 0.0f;                                      // 0 = off
  uint64_t seed = 0;                                       // sample i of a request uses seed + i
  float repetition_penalty = 1.0f;                         // > 0; of tokens in the prompt or generated; 1 = off
  float presence_penalty = 0.0f;                           // of tokens that were generated
  float frequency_penalty = 0.0f;                          // for each time that a token was generated
  std::vector<std::pair<int32_t, float>> logit_bias = {};  // added to the logits of these tokens; -infinity forbids one
};

// Holds the values that a model's files recommend if nobody has chosen one: of generation_config.json, or of the keys general.sampling.* of
// a GGUF file. They are within the rules of SamplingOptions. Empty: the files do not name this one.
struct SamplingDefaults {
  std::optional<float> temperature = {};
  std::optional<int32_t> top_k = {};
  std::optional<float> top_p = {};
  std::optional<float> min_p = {};
  std::optional<float> repetition_penalty = {};

  // Returns `base` with the values that are named here.
  SamplingOptions over(SamplingOptions base) const {
    base.temperature = temperature.value_or(base.temperature);
    base.top_k = top_k.value_or(base.top_k);
    base.top_p = top_p.value_or(base.top_p);
    base.min_p = min_p.value_or(base.min_p);
    base.repetition_penalty = repetition_penalty.value_or(base.repetition_penalty);
    return base;
  }
};

}  // namespace prologue
