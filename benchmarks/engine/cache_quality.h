// This file measures what a KV cache of another type costs in quality: the logits of a model over a text, against those of a reference.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <prologue/engine/engine.h>

namespace prologue::bench {

// Returns KL(p || q) = sum p log(p / q) in nats, of the softmax of two rows of logits of the same length, in float64. A logit of -inf is a
// probability of 0: the result is infinite if only q has it. NaN if a row is no distribution: it has NaN or +inf, or nothing but -inf.
double kl_divergence(std::span<const float> p_logits, std::span<const float> q_logits);

// Cuts `tokens` into pieces of `length` tokens, the last one of what is left. A piece begins with `bos`, which counts, unless that is
// negative. A last piece without two tokens of the text is left out. invalid_argument: length is not 2 or more, with BOS 3 or more, or the
// text has less than two tokens.
Result<std::vector<std::vector<int32_t>>> make_windows(std::span<const int32_t> tokens, int64_t length, int32_t bos);

// Says how a model runs.
struct QualityRun {
  // Weights and activations have this type; unset: the engine's choice, but matrices that are quantised in the file stay so.
  DType dtype = DType::unset;
  KvFormat k_format = {};  // of the cache; unset: the type of the activations
  KvFormat v_format = {};  // unset: that of K
  int64_t hadamard_block = 0;    // of Q and K
  int64_t v_hadamard_block = 0;  // of V
};
const char* weights_name(DType dtype);        // "float32"; "auto" if it is unset
std::string run_name(const QualityRun& run);  // "float32, cache int8 uint4, Hadamard 64, of V 64"

// Holds an entry for each predicted token: each token of a window but the first.
struct TokenQuality {
  std::vector<double> kl;       // from the reference
  std::vector<double> logprob;  // of the text's token
  std::vector<int32_t> argmax;
};

struct RunQuality {
  QualityRun run;               // the formats of the cache are not unset
  int64_t bytes_per_token = 0;  // of the cache, in all layers as if none had a window, with its scales
  double of_bfloat16 = 0.0;     // the same as a part of what a bfloat16 cache takes
  TokenQuality tokens;
};

// Runs the model of `options` in each of `runs`, over the windows, each a sequence of its own; the first run is the reference. Only one
// model is loaded at a time, and the reference's logits of one window are kept: length * vocab_size * 4 bytes. `progress` hears what comes
// next. Errors: those of Engine::load and Engine::score; data_loss: logits that are not numbers.
Result<std::vector<RunQuality>> compare_runs(const EngineOptions& options, std::span<const QualityRun> runs,
                                             std::span<const std::vector<int32_t>> windows,
                                             const std::function<void(size_t window, const QualityRun& run)>& progress = {});

struct QualitySummary {
  double mean_kl = 0.0;
  double mean_kl_error = 0.0;  // standard error, as if tokens were independent; 0 for one token
  double p999_kl = 0.0;        // nearest rank
  double max_kl = 0.0;
  double same_argmax = 0.0;  // part of the tokens
  double perplexity = 0.0;   // exp of minus the mean log probability
  double logprob_change = 0.0;  // mean magnitude of the change of the log probability of the text's token
};
// Neither is empty, and both have the same tokens.
QualitySummary summarise(const TokenQuality& tokens, const TokenQuality& reference);

}  // namespace prologue::bench
