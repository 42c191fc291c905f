// The frequencies of a rotary embedding and its cos/sin table.
//
//   inv_freq[i] = theta^(-2i / rotary_dim), i in [0, rotary_dim/2), then scaled by the model's scheme
//   angle(p, i) = p * inv_freq[i]
//   table[p]    = cos(angle(p, 0..rotary_dim/2)) then sin(...)           float32
//
// Two ways to make them (docs/numerics.md says why there are two):
//   exact      float64 throughout, one rounding at the end
//   reference  the float32 recipe that models were trained and are served with (Hugging Face's steps), each step correctly
//              rounded: exponent = float32(2i) / float32(rotary_dim), inv_freq = 1 / theta^exponent, angle = float32(p) * inv_freq
#pragma once

#include <cstdint>
#include <vector>

#include <prologue/kernels/base/memory.h>
#include <prologue/kernels/base/views.h>

namespace prologue {

enum class RopePrecision { reference, exact };

struct RopeConfig {
  RopeStyle style = RopeStyle::neox;
  int64_t rotary_dim = 0;
  double theta = 10000.0;
  // ggml's `rope_freqs.weight` (Llama 3's scaling in GGUF files): inv_freq[i] is divided by factor i; empty = none.
  std::vector<float> freq_factors;
};

// inv_freq[rotary_dim / 2] as the table uses it; in float64 for `exact`, holding float32 values for `reference`.
Result<std::vector<double>> rope_inv_freq(const RopeConfig& config, RopePrecision precision);

// [max_position, rotary_dim] float32.
Result<std::vector<float>> rope_cos_sin(const RopeConfig& config, int64_t max_position, RopePrecision precision);

// The table on a device, shared by all layers that rotate alike.
class RopeTable {
 public:
  RopeTable() = default;
  static Result<RopeTable> create(const RopeConfig& config, int64_t max_position, RopePrecision precision, const Execution& execution);

  RopeStyle style() const { return style_; }
  int64_t rotary_dim() const { return rotary_dim_; }
  int64_t max_position() const { return max_position_; }
  const float* cos_sin() const { return memory_.as<float>(); }

 private:
  RopeStyle style_ = RopeStyle::neox;
  int64_t rotary_dim_ = 0;
  int64_t max_position_ = 0;
  Buffer memory_;
};

}  // namespace prologue
