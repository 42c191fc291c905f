#include <prologue/c/rope_table.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include <prologue/layers/rope/rope_table.h>

namespace prologue::c {

namespace {

std::optional<double> given(double value) { return value == 0.0 ? std::nullopt : std::optional<double>(value); }

template <class T>
std::vector<T> pairs(const RopeTableParams& params, const T* values) {
  return values == nullptr || params.rotary_dim < 2 ? std::vector<T>() : std::vector<T>(values, values + params.rotary_dim / 2);
}

Result<RopeFrequencies> frequencies(const char* operation, const RopeTableParams& p) {
  RopeConfig config;
  config.rotary_dim = p.rotary_dim;
  config.theta = p.theta;
  config.freq_factors = pairs(p, p.freq_factors);
  switch (p.scaling) {
    case RopeScalingKind::none: break;
    case RopeScalingKind::linear: config.scaling = LinearRope{p.factor}; break;
    case RopeScalingKind::dynamic_ntk: config.scaling = DynamicNtkRope{p.factor, p.original_max_position}; break;
    case RopeScalingKind::yarn:
      config.scaling = YarnRope{p.factor,         p.original_max_position,   p.beta_fast,    p.beta_slow, p.mscale,
                                p.mscale_all_dim, given(p.attention_factor), p.truncate != 0};
      break;
    case RopeScalingKind::long_rope:
      config.scaling = LongRope{pairs(p, p.short_factors),       pairs(p, p.long_factors),      p.original_max_position, p.factor,
                                given(p.short_attention_factor), given(p.long_attention_factor)};
      break;
    case RopeScalingKind::llama3:
      config.scaling = Llama3Rope{p.factor, p.low_freq_factor, p.high_freq_factor, p.original_max_position};
      break;
    case RopeScalingKind::proportional: config.scaling = ProportionalRope{p.partial_rotary_factor, p.factor}; break;
    case RopeScalingKind::verbatim:
      config.scaling = VerbatimRope{pairs(p, p.inv_freq), given(p.attention_factor).value_or(1.0)};
      break;
    default:
      return invalid_argument(operation, ": scaling is ", static_cast<int32_t>(p.scaling), ": it must be a rope_scaling_kind");
  }
  if (p.precision != RopePrecision::exact && p.precision != RopePrecision::reference) {
    return invalid_argument(operation, ": precision is ", static_cast<int32_t>(p.precision), ": it must be reference or exact");
  }
  return prologue::rope_frequencies(config, p.sequence_length, p.precision);
}

}  // namespace

Status rope_frequencies(const RopeTableParams& params, double* inv_freq, double* attention_factor) {
  if (inv_freq == nullptr || attention_factor == nullptr) {
    return invalid_argument("rope_frequencies: ", inv_freq == nullptr ? "inv_freq" : "attention_factor", " is null");
  }
  PROLOGUE_ASSIGN_OR_RETURN(const RopeFrequencies found, frequencies("rope_frequencies", params));
  std::copy(found.inv_freq.begin(), found.inv_freq.end(), inv_freq);
  *attention_factor = found.attention_factor;
  return {};
}

Status rope_cos_sin(const RopeTableParams& params, int64_t max_position, float* cos_sin) {
  if (cos_sin == nullptr) return invalid_argument("rope_cos_sin: cos_sin is null");
  PROLOGUE_ASSIGN_OR_RETURN(const RopeFrequencies found, frequencies("rope_cos_sin", params));
  PROLOGUE_ASSIGN_OR_RETURN(const std::vector<float> table, prologue::rope_cos_sin(found, max_position, params.precision));
  std::copy(table.begin(), table.end(), cos_sin);
  return {};
}

}  // namespace prologue::c
