// Makes the cos/sin table of a rotary embedding, and its frequencies, on the host.
//
//   angle(p, i) = p * inv_freq[i], i in [0, rotary_dim/2)
//   cos_sin[p]  = attention_factor * cos(angle(p, 0..rotary_dim/2)), then attention_factor * sin(...)
//
// With f[i] = theta^(-2i / rotary_dim), names and formulas as in Hugging Face's transformers:
//   none          f[i]
//   linear        f[i] / factor
//   dynamic_ntk   f[i] of theta * (factor * L / original - (factor - 1))^(rotary_dim / (rotary_dim - 2)),
//                 L = max(sequence_length, original)
//   yarn          f[i] for fast pairs (more than beta_fast rotations within the original context), f[i] / factor for slow pairs
//                 (fewer than beta_slow), a blend linear in i between them; its attention factor
//   long_rope     f[i] / short_factors[i], or / long_factors[i] if sequence_length > original; its attention factor
//   llama3        f[i] where the wavelength is below original / high_freq_factor, f[i] / factor where it is above
//                 original / low_freq_factor, a blend between
//   proportional  theta^(-2i / rotary_dim) / factor for the first partial_rotary_factor of the pairs, 0 for the others; rotary_dim is the
//                 whole head
//   verbatim      inv_freq
// A scheme reads only the members that its formula names. With freq_factors, frequency i is also divided by factor i.
//
// sequence_length changes the frequencies of dynamic_ntk and long_rope. Fix it when a sequence is admitted (prompt + maximum new tokens):
// later queries do not match keys in the cache that were rotated with other frequencies.
//
// precision   reference: the recipe that models were trained with, the float32 steps of transformers, each correctly rounded.
//             exact: float64 throughout, for measurements. At position 10^6 angles differ by up to 0.06 (docs/numerics.md)
//
// (In C++: layers/rope/rope_scaling.h and rope_table.h, which these call.)
#pragma once

#include <cstdint>

#include <prologue/layers/rope/rope_scaling.h>

namespace prologue::c {

enum class RopeScalingKind : int32_t { none = 0, linear, dynamic_ntk, yarn, long_rope, llama3, proportional, verbatim };

struct RopeTableParams {
  int64_t rotary_dim = 0;
  double theta = 10000.0;
  RopeScalingKind scaling = RopeScalingKind::none;
  RopePrecision precision = RopePrecision::reference;
  int64_t sequence_length = 0;  // dynamic_ntk, long_rope: of the sequence; 0 = within the original context
  double factor = 1.0;
  int64_t original_max_position = 0;
  double attention_factor = 0.0;  // yarn, verbatim; 0 = not given
  double beta_fast = 32.0;        // yarn
  double beta_slow = 1.0;
  double mscale = 0.0;  // 0 = not given
  double mscale_all_dim = 0.0;
  int32_t truncate = 1;          // yarn: the ends of the blend are rounded outwards to whole pairs (GPT-OSS: 0)
  double low_freq_factor = 1.0;  // llama3
  double high_freq_factor = 4.0;
  double partial_rotary_factor = 1.0;     // proportional
  const double* short_factors = nullptr;  // [rotary_dim / 2]; long_rope
  const double* long_factors = nullptr;
  double short_attention_factor = 0.0;  // 0 = not given
  double long_attention_factor = 0.0;
  const double* inv_freq = nullptr;     // [rotary_dim / 2]; verbatim
  const float* freq_factors = nullptr;  // [rotary_dim / 2] (ggml's rope_freqs); null = none
  uint64_t reserved[8] = {};            // zeros: docs/versioning.md
};

// Returns the frequencies, inv_freq [rotary_dim / 2], and the attention factor.
Status rope_frequencies(const RopeTableParams& params, double* inv_freq, double* attention_factor);
// Returns the table, cos_sin [max_position, rotary_dim].
Status rope_cos_sin(const RopeTableParams& params, int64_t max_position, float* cos_sin);

}  // namespace prologue::c
