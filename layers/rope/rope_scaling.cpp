#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include <prologue/kernels/base/out_of_memory.h>
#include <prologue/layers/rope/rope_scaling.h>

namespace prologue {

namespace {

// ---- Checks that every scheme needs. Values must be finite in float32 too, because `reference` computes in float32. ----

bool finite(double value) { return std::abs(value) <= static_cast<double>(std::numeric_limits<float>::max()); }

Status positive(const char* name, double value) {
  if (value > 0.0 && finite(value)) return {};
  return invalid_argument("rope: ", name, " is ", value, ": it must be a positive number");
}

Status at_least_one(const char* name, double value) {
  if (value >= 1.0 && finite(value)) return {};
  return invalid_argument("rope: ", name, " is ", value, ": it must be a number not below 1");
}

Status check_original(int64_t original_max_position) {
  if (original_max_position >= 2) return {};
  return invalid_argument("rope: original_max_position is ", original_max_position, ": it must be at least 2");
}

Status check_factors(const char* name, const std::vector<double>& factors, int64_t half) {
  if (static_cast<int64_t>(factors.size()) != half) {
    return invalid_argument("rope: there are ", factors.size(), " ", name, ": there must be rotary_dim / 2 = ", half);
  }
  for (size_t i = 0; i < factors.size(); ++i) {
    if (!(factors[i] > 0.0) || !finite(factors[i])) {
      return invalid_argument("rope: number ", i, " of the ", name, " is ", factors[i], ": it must be a positive number");
    }
  }
  return {};
}

Status check_attention_factor(const std::optional<double>& attention_factor) {
  return attention_factor ? positive("attention_factor", *attention_factor) : Status();
}

double dynamic_theta(const RopeConfig& config, const DynamicNtkRope& dynamic, int64_t sequence_length) {
  const auto dim = static_cast<double>(config.rotary_dim);
  const auto original = static_cast<double>(dynamic.original_max_position);
  const double length = std::max(static_cast<double>(sequence_length), original);
  return config.theta * std::pow(dynamic.factor * length / original - (dynamic.factor - 1.0), dim / (dim - 2.0));
}

// YaRN blends between these pairs, in pairs from 0.
struct YarnRange {
  double low;
  double high;
};

YarnRange yarn_range(const RopeConfig& config, const YarnRope& yarn) {
  const auto dim = static_cast<double>(config.rotary_dim);
  // Returns the pair that makes that many rotations within the original context.
  const auto pair = [&](double rotations) {
    return dim * std::log(static_cast<double>(yarn.original_max_position) / (rotations * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(config.theta));
  };
  YarnRange range{pair(yarn.beta_fast), pair(yarn.beta_slow)};
  if (yarn.truncate) range = {std::floor(range.low), std::ceil(range.high)};
  return {std::max(range.low, 0.0), std::min(range.high, dim - 1.0)};
}

Status check(const RopeConfig&, const DefaultRope&, int64_t) { return {}; }

Status check(const RopeConfig&, const LinearRope& linear, int64_t) { return at_least_one("the linear factor", linear.factor); }

Status check(const RopeConfig& config, const DynamicNtkRope& dynamic, int64_t sequence_length) {
  PROLOGUE_RETURN_IF_ERROR(at_least_one("the dynamic factor", dynamic.factor));
  PROLOGUE_RETURN_IF_ERROR(check_original(dynamic.original_max_position));
  if (config.rotary_dim == 2) return invalid_argument("rope: rotary_dim is 2: dynamic scaling needs at least 4");
  return positive("the theta of dynamic scaling", dynamic_theta(config, dynamic, sequence_length));
}

Status check(const RopeConfig& config, const YarnRope& yarn, int64_t) {
  PROLOGUE_RETURN_IF_ERROR(at_least_one("the YaRN factor", yarn.factor));
  PROLOGUE_RETURN_IF_ERROR(check_original(yarn.original_max_position));
  PROLOGUE_RETURN_IF_ERROR(positive("beta_slow", yarn.beta_slow));
  PROLOGUE_RETURN_IF_ERROR(positive("beta_fast", yarn.beta_fast));
  if (yarn.beta_fast < yarn.beta_slow) {
    return invalid_argument("rope: beta_fast is ", yarn.beta_fast, ": it must not be below beta_slow, ", yarn.beta_slow);
  }
  for (const auto& [name, value] : {std::pair("mscale", yarn.mscale), std::pair("mscale_all_dim", yarn.mscale_all_dim)}) {
    if (!(value >= 0.0) || !finite(value)) {
      return invalid_argument("rope: ", name, " is ", value, ": it must be a positive number, or 0 for none");
    }
  }
  PROLOGUE_RETURN_IF_ERROR(check_attention_factor(yarn.attention_factor));
  if (!(config.theta > 1.0)) return invalid_argument("rope: theta is ", config.theta, ": YaRN needs more than 1");
  const YarnRange range = yarn_range(config, yarn);
  if (range.low > range.high) {
    return invalid_argument("rope: YaRN would blend from pair ", range.low, " to pair ", range.high, ": an original context of ",
                            yarn.original_max_position, " and theta ", config.theta, " do not fit together");
  }
  return {};
}

Status check(const RopeConfig& config, const LongRope& rope, int64_t) {
  PROLOGUE_RETURN_IF_ERROR(check_factors("short LongRoPE factors", rope.short_factors, config.rotary_dim / 2));
  PROLOGUE_RETURN_IF_ERROR(check_factors("long LongRoPE factors", rope.long_factors, config.rotary_dim / 2));
  PROLOGUE_RETURN_IF_ERROR(check_original(rope.original_max_position));
  PROLOGUE_RETURN_IF_ERROR(at_least_one("the LongRoPE factor", rope.factor));
  PROLOGUE_RETURN_IF_ERROR(check_attention_factor(rope.short_attention_factor));
  return check_attention_factor(rope.long_attention_factor);
}

Status check(const RopeConfig&, const Llama3Rope& llama3, int64_t) {
  PROLOGUE_RETURN_IF_ERROR(at_least_one("the Llama 3 factor", llama3.factor));
  PROLOGUE_RETURN_IF_ERROR(check_original(llama3.original_max_position));
  PROLOGUE_RETURN_IF_ERROR(positive("low_freq_factor", llama3.low_freq_factor));
  PROLOGUE_RETURN_IF_ERROR(positive("high_freq_factor", llama3.high_freq_factor));
  if (llama3.high_freq_factor <= llama3.low_freq_factor) {
    return invalid_argument("rope: high_freq_factor is ", llama3.high_freq_factor, ": it must be above low_freq_factor, ",
                            llama3.low_freq_factor);
  }
  return {};
}

Status check(const RopeConfig&, const ProportionalRope& proportional, int64_t) {
  PROLOGUE_RETURN_IF_ERROR(at_least_one("the proportional factor", proportional.factor));
  if (!(proportional.partial_rotary_factor >= 0.0) || !(proportional.partial_rotary_factor <= 1.0)) {
    return invalid_argument("rope: partial_rotary_factor is ", proportional.partial_rotary_factor,
                            ": it must be between 0 and 1");
  }
  return {};
}

Status check(const RopeConfig& config, const VerbatimRope& verbatim, int64_t) {
  if (static_cast<int64_t>(verbatim.inv_freq.size()) != config.rotary_dim / 2) {
    return invalid_argument("rope: there are ", verbatim.inv_freq.size(),
                            " given frequencies: there must be rotary_dim / 2 = ", config.rotary_dim / 2);
  }
  return positive("attention_factor", verbatim.attention_factor);
}

Status check_all(const RopeConfig& config, int64_t sequence_length) {
  constexpr int64_t kLargestDim = 65536;
  if (config.rotary_dim < 2 || config.rotary_dim > kLargestDim || config.rotary_dim % 2 != 0) {
    return invalid_argument("rope: rotary_dim is ", config.rotary_dim, ": it must be even and between 2 and ", kLargestDim);
  }
  if (sequence_length < 0) return invalid_argument("rope: sequence_length is ", sequence_length, ": it must not be negative");
  PROLOGUE_RETURN_IF_ERROR(positive("theta", config.theta));
  const int64_t half = config.rotary_dim / 2;
  if (!config.freq_factors.empty()) {
    PROLOGUE_RETURN_IF_ERROR(check_factors("frequency factors", {config.freq_factors.begin(), config.freq_factors.end()}, half));
  }
  return std::visit([&](const auto& scheme) { return check(config, scheme, sequence_length); }, config.scaling);
}

// ---- The schemes, in the arithmetic of Real: float32 (reference) or float64 (exact). ----
// Each operation on a Real below is one tensor operation in transformers; a double is a Python float. `number / tensor` is written as
// the product with the reciprocal, because torch computes it so.

template <class Real>
Real power(double base, Real exponent) {
  return static_cast<Real>(std::pow(static_cast<double>(static_cast<Real>(base)), static_cast<double>(exponent)));
}

// Returns theta^(2i / rotary_dim): the reciprocals of the plain frequencies.
template <class Real>
std::vector<Real> powers(double theta, int64_t rotary_dim) {
  std::vector<Real> result(static_cast<size_t>(rotary_dim / 2));
  for (size_t i = 0; i < result.size(); ++i) {
    result[i] = power(theta, static_cast<Real>(2 * i) / static_cast<Real>(rotary_dim));
  }
  return result;
}

template <class Real>
std::vector<Real> reciprocals(std::vector<Real> values) {
  for (Real& value : values) value = Real{1} / value;
  return values;
}

template <class Real>
std::vector<Real> frequencies(const RopeConfig& config, const DefaultRope&, int64_t) {
  return reciprocals(powers<Real>(config.theta, config.rotary_dim));
}

template <class Real>
std::vector<Real> frequencies(const RopeConfig& config, const LinearRope& linear, int64_t) {
  std::vector<Real> inv_freq = reciprocals(powers<Real>(config.theta, config.rotary_dim));
  for (Real& f : inv_freq) f /= static_cast<Real>(linear.factor);
  return inv_freq;
}

template <class Real>
std::vector<Real> frequencies(const RopeConfig& config, const DynamicNtkRope& dynamic, int64_t sequence_length) {
  return reciprocals(powers<Real>(dynamic_theta(config, dynamic, sequence_length), config.rotary_dim));
}

template <class Real>
std::vector<Real> frequencies(const RopeConfig& config, const YarnRope& yarn, int64_t) {
  YarnRange range = yarn_range(config, yarn);
  if (range.low == range.high) range.high += 0.001;
  std::vector<Real> inv_freq = powers<Real>(config.theta, config.rotary_dim);
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    const Real plain = Real{1} / inv_freq[i];
    const Real stretched = Real{1} / (static_cast<Real>(yarn.factor) * inv_freq[i]);
    const Real ramp = (static_cast<Real>(i) - static_cast<Real>(range.low)) / static_cast<Real>(range.high - range.low);
    const Real keep = Real{1} - std::clamp(ramp, Real{0}, Real{1});
    inv_freq[i] = stretched * (Real{1} - keep) + plain * keep;
  }
  return inv_freq;
}

template <class Real>
std::vector<Real> frequencies(const RopeConfig& config, const LongRope& rope, int64_t sequence_length) {
  const std::vector<double>& factors = sequence_length > rope.original_max_position ? rope.long_factors : rope.short_factors;
  std::vector<Real> inv_freq = powers<Real>(config.theta, config.rotary_dim);
  for (size_t i = 0; i < inv_freq.size(); ++i) inv_freq[i] = Real{1} / (static_cast<Real>(factors[i]) * inv_freq[i]);
  return inv_freq;
}

template <class Real>
std::vector<Real> frequencies(const RopeConfig& config, const Llama3Rope& llama3, int64_t) {
  const auto original = static_cast<double>(llama3.original_max_position);
  const auto factor = static_cast<Real>(llama3.factor);
  std::vector<Real> inv_freq = reciprocals(powers<Real>(config.theta, config.rotary_dim));
  for (Real& f : inv_freq) {
    const Real wavelength = Real{1} / f * static_cast<Real>(2.0 * std::numbers::pi);
    if (wavelength < static_cast<Real>(original / llama3.high_freq_factor)) continue;
    if (wavelength > static_cast<Real>(original / llama3.low_freq_factor)) {
      f /= factor;
    } else {
      const Real rotations = Real{1} / wavelength * static_cast<Real>(original);
      const Real smooth = (rotations - static_cast<Real>(llama3.low_freq_factor)) /
                          static_cast<Real>(llama3.high_freq_factor - llama3.low_freq_factor);
      f = (Real{1} - smooth) * f / factor + smooth * f;
    }
  }
  return inv_freq;
}

template <class Real>
std::vector<Real> frequencies(const RopeConfig& config, const ProportionalRope& proportional, int64_t) {
  const double num_rotated = std::floor(proportional.partial_rotary_factor * static_cast<double>(config.rotary_dim) / 2.0);
  std::vector<Real> inv_freq = reciprocals(powers<Real>(config.theta, config.rotary_dim));
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    inv_freq[i] = static_cast<double>(i) < num_rotated ? inv_freq[i] / static_cast<Real>(proportional.factor) : Real{0};
  }
  return inv_freq;
}

template <class Real>
std::vector<Real> frequencies(const RopeConfig&, const VerbatimRope& verbatim, int64_t) {
  return {verbatim.inv_freq.begin(), verbatim.inv_freq.end()};
}

template <class Real>
std::vector<double> scaled_frequencies(const RopeConfig& config, int64_t sequence_length) {
  std::vector<Real> inv_freq =
      std::visit([&](const auto& scheme) { return frequencies<Real>(config, scheme, sequence_length); }, config.scaling);
  for (size_t i = 0; i < config.freq_factors.size(); ++i) inv_freq[i] /= static_cast<Real>(config.freq_factors[i]);
  return {inv_freq.begin(), inv_freq.end()};
}

double attention_factor(const YarnRope& yarn) {
  if (yarn.attention_factor) return *yarn.attention_factor;
  if (yarn.mscale == 0.0 || yarn.mscale_all_dim == 0.0) return yarn_mscale(yarn.factor, 1.0);
  return yarn_mscale(yarn.factor, yarn.mscale) / yarn_mscale(yarn.factor, yarn.mscale_all_dim);
}

double attention_factor(const LongRope& rope, int64_t sequence_length) {
  const bool is_long = sequence_length > rope.original_max_position;
  const std::optional<double>& given = is_long ? rope.long_attention_factor : rope.short_attention_factor;
  return given.value_or(std::sqrt(1.0 + std::log(rope.factor) / std::log(static_cast<double>(rope.original_max_position))));
}

double attention_factor(const RopeScaling& scaling, int64_t sequence_length) {
  if (const auto* yarn = std::get_if<YarnRope>(&scaling)) return attention_factor(*yarn);
  if (const auto* rope = std::get_if<LongRope>(&scaling)) return attention_factor(*rope, sequence_length);
  if (const auto* verbatim = std::get_if<VerbatimRope>(&scaling)) return verbatim->attention_factor;
  return 1.0;
}

Result<RopeFrequencies> frequencies_of(const RopeConfig& config, int64_t sequence_length, RopePrecision precision) {
  PROLOGUE_RETURN_IF_ERROR(check_all(config, sequence_length));
  RopeFrequencies result;
  result.inv_freq = precision == RopePrecision::exact ? scaled_frequencies<double>(config, sequence_length)
                                                      : scaled_frequencies<float>(config, sequence_length);
  result.attention_factor = attention_factor(config.scaling, sequence_length);
  for (size_t i = 0; i < result.inv_freq.size(); ++i) {
    if (!finite(result.inv_freq[i])) {
      return invalid_argument("rope: frequency ", i, " is ", result.inv_freq[i], ": it must be a finite number");
    }
  }
  return result;
}

}  // namespace

int64_t rope_length_class(const RopeConfig& config, int64_t sequence_length) {
  if (const auto* dynamic = std::get_if<DynamicNtkRope>(&config.scaling)) {
    return sequence_length > dynamic->original_max_position ? sequence_length : 0;
  }
  if (const auto* rope = std::get_if<LongRope>(&config.scaling)) {
    return sequence_length > rope->original_max_position ? rope->original_max_position + 1 : 0;
  }
  return 0;
}

Result<RopeFrequencies> rope_frequencies(const RopeConfig& config, int64_t sequence_length, RopePrecision precision) {
  return catch_out_of_memory([&] { return frequencies_of(config, sequence_length, precision); });
}

double yarn_mscale(double scale, double mscale) { return scale <= 1.0 ? 1.0 : 0.1 * mscale * std::log(scale) + 1.0; }

double yarn_softmax_factor(const YarnRope& yarn) {
  if (yarn.mscale_all_dim == 0.0) return 1.0;
  const double mscale = yarn_mscale(yarn.factor, yarn.mscale_all_dim);
  return mscale * mscale;
}

}  // namespace prologue
