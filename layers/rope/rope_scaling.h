// Computes the frequencies of a rotary embedding, for each scheme that models use to extend their context.
//
//   angle(p, i) = p * inv_freq[i], i in [0, rotary_dim/2);  attention_factor multiplies cos and sin
//
// Names and formulas are Hugging Face's (transformers, modeling_rope_utils.py); with f[i] = theta^(-2i / rotary_dim):
//   default       f[i]
//   linear        f[i] / factor
//   dynamic NTK   f[i] of theta * (factor * L / original - (factor - 1))^(rotary_dim / (rotary_dim - 2)),
//                 L = max(sequence_length, original)
//   YaRN          f[i] for fast pairs (more than beta_fast rotations within the original context), f[i] / factor for slow pairs
//                 (fewer than beta_slow), a blend linear in i between them; its attention factor
//   LongRoPE      f[i] / short_factors[i], or / long_factors[i] when sequence_length > original; its attention factor
//   Llama 3       f[i] where the wavelength is below original / high_freq_factor, f[i] / factor where it is above
//                 original / low_freq_factor, a blend between
//   proportional  theta^(-2i / rotary_dim) / factor for the first partial_rotary_factor of the pairs, 0 for the others, where
//                 rotary_dim is the whole head: pairs are (i, i + head_dim/2), also those with frequency 0 (Gemma 4's p-RoPE)
//   verbatim      frequencies given by the caller
// With any of them, ggml's frequency factors may be given: inv_freq[i] / freq_factors[i].
//
// Two schemes (dynamic NTK and LongRoPE) depend on the length of the sequence. Fix that length when a sequence is admitted: prompt +
// maximum new tokens. The keys in the cache were rotated with one set of frequencies; with another set, later queries would not match
// them. 0 means a sequence within the original context.
//
// Two ways to compute them (docs/numerics.md says why there are two):
//   exact      float64 throughout
//   reference  the float32 steps of transformers, one by one, each correctly rounded; steps that transformers computes with Python
//              floats are float64 here too
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include <prologue/kernels/base/rope.h>
#include <prologue/kernels/base/status.h>

namespace prologue {

enum class RopePrecision { reference, exact };

struct DefaultRope {};

struct LinearRope {
  double factor = 1.0;
};

struct DynamicNtkRope {
  double factor = 1.0;
  int64_t original_max_position = 0;
};

struct YarnRope {
  double factor = 1.0;
  int64_t original_max_position = 0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double mscale = 0.0;  // 0 = not given
  double mscale_all_dim = 0.0;
  // If it is not given, it is yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all_dim) if both are given, else yarn_mscale(factor,
  // 1).
  std::optional<double> attention_factor = std::nullopt;
  bool truncate = true;  // the ends of the blend are rounded outwards to whole pairs (gpt-oss: false)
};

struct LongRope {
  std::vector<double> short_factors;  // [rotary_dim / 2]
  std::vector<double> long_factors;
  int64_t original_max_position = 0;
  double factor = 1.0;  // how far the context was extended: maximum / original_max_position
  // The attention factors are for short and for long sequences. If not given: sqrt(1 + ln(factor) / ln(original_max_position)). A config's
  // attention_factor sets both; Phi-3.5-MoE has one for each (short_mscale, long_mscale).
  std::optional<double> short_attention_factor = std::nullopt;
  std::optional<double> long_attention_factor = std::nullopt;
};

struct Llama3Rope {
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_max_position = 0;
};

struct ProportionalRope {
  double partial_rotary_factor = 1.0;
  double factor = 1.0;
};

struct VerbatimRope {
  std::vector<double> inv_freq;  // [rotary_dim / 2]
  double attention_factor = 1.0;
};

using RopeScaling =
    std::variant<DefaultRope, LinearRope, DynamicNtkRope, YarnRope, LongRope, Llama3Rope, ProportionalRope, VerbatimRope>;

struct RopeConfig {
  RopeStyle style = RopeStyle::neox;
  int64_t rotary_dim = 0;
  double theta = 10000.0;
  RopeScaling scaling;
  // These are ggml's `rope_freqs.weight` (Llama 3's scaling in GGUF files): inv_freq[i] is divided by factor i; empty = none.
  std::vector<float> freq_factors;
};

struct RopeFrequencies {
  std::vector<double> inv_freq;  // [rotary_dim / 2]; float32 values in `reference`
  double attention_factor = 1.0;
};

// Returns the frequencies for a sequence that will be `sequence_length` tokens long.
PROLOGUE_API Result<RopeFrequencies> rope_frequencies(const RopeConfig& config, int64_t sequence_length, RopePrecision precision);

// Returns the shortest sequence length with the frequencies of `sequence_length`. 0 up to the original length, and for every length where
// the scheme does not depend on it; beyond, dynamic NTK: the length itself; LongRoPE: original_max_position + 1.
PROLOGUE_API int64_t rope_length_class(const RopeConfig& config, int64_t sequence_length);

// Returns DeepSeek's yarn_get_mscale: 0.1 * mscale * ln(scale) + 1, and 1 if scale <= 1.
PROLOGUE_API double yarn_mscale(double scale, double mscale);

// Returns the factor by which to multiply the softmax scale 1 / sqrt(head_dim): yarn_mscale(factor, mscale_all_dim)^2 if mscale_all_dim is
// given, else 1. Models with latent attention (DeepSeek V2 and V3) apply it in addition to the attention factor of the table. Plain YaRN
// models do not apply it.
PROLOGUE_API double yarn_softmax_factor(const YarnRope& yarn);

}  // namespace prologue
