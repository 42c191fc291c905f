// The frequencies of every rope scheme in long double, from the papers' formulas: wavelengths and rotations rather than
// transformers' steps. tests/layers/rope_scaling_test.cpp holds it against transformers' values first.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include <prologue/layers/rope/rope_scaling.h>

namespace prologue::test::oracle {

using Wide = long double;

struct RopeOracle {
  const RopeConfig& config;
  int64_t length;
  static constexpr Wide kCircle = 2 * std::numbers::pi_v<Wide>;

  Wide plain(int64_t i, Wide theta) const {
    return std::exp(-std::log(theta) * 2 * static_cast<Wide>(i) / static_cast<Wide>(config.rotary_dim));
  }
  Wide plain(int64_t i) const { return plain(i, static_cast<Wide>(config.theta)); }
  static Wide mix(Wide from, Wide to, Wide share) { return from + (to - from) * std::clamp<Wide>(share, 0, 1); }

  Wide at(int64_t i, const DefaultRope&) const { return plain(i); }
  Wide at(int64_t i, const LinearRope& s) const { return plain(i) / static_cast<Wide>(s.factor); }
  Wide at(int64_t i, const DynamicNtkRope& s) const {
    const Wide ratio = std::max<Wide>(1, static_cast<Wide>(length) / static_cast<Wide>(s.original_max_position));
    const Wide stretch = 1 + static_cast<Wide>(s.factor) * (ratio - 1);
    const Wide dim = static_cast<Wide>(config.rotary_dim);
    return plain(i, static_cast<Wide>(config.theta) * std::pow(stretch, dim / (dim - 2)));
  }
  Wide at(int64_t i, const YarnRope& s) const {
    // Pair x rotates original / (2 pi theta^(2x / dim)) times within the original context.
    const auto pair_of = [&](double rotations) {
      return static_cast<Wide>(config.rotary_dim) / 2 *
             std::log(static_cast<Wide>(s.original_max_position) / kCircle / static_cast<Wide>(rotations)) /
             std::log(static_cast<Wide>(config.theta));
    };
    Wide first = pair_of(s.beta_fast), last = pair_of(s.beta_slow);
    if (s.truncate) first = std::floor(first), last = std::ceil(last);
    first = std::max<Wide>(first, 0), last = std::min<Wide>(last, static_cast<Wide>(config.rotary_dim - 1));
    const Wide width = last == first ? 0.001L : last - first;
    return mix(plain(i), plain(i) / static_cast<Wide>(s.factor), (static_cast<Wide>(i) - first) / width);
  }
  Wide at(int64_t i, const LongRope& s) const {
    const bool beyond = length > s.original_max_position;
    return plain(i) / static_cast<Wide>((beyond ? s.long_factors : s.short_factors)[static_cast<size_t>(i)]);
  }
  Wide at(int64_t i, const Llama3Rope& s) const {
    const Wide rotations = static_cast<Wide>(s.original_max_position) * plain(i) / kCircle;
    const Wide low = static_cast<Wide>(s.low_freq_factor), high = static_cast<Wide>(s.high_freq_factor);
    return mix(plain(i) / static_cast<Wide>(s.factor), plain(i), (rotations - low) / (high - low));
  }
  Wide at(int64_t i, const ProportionalRope& s) const {
    const bool rotates = 2 * (i + 1) <= static_cast<int64_t>(s.partial_rotary_factor * static_cast<double>(config.rotary_dim));
    return rotates ? plain(i) / static_cast<Wide>(s.factor) : 0;
  }
  Wide at(int64_t i, const VerbatimRope& s) const { return static_cast<Wide>(s.inv_freq[static_cast<size_t>(i)]); }
};

inline std::vector<Wide> rope_inv_freq(const RopeConfig& config, int64_t sequence_length) {
  const RopeOracle oracle{config, sequence_length};
  std::vector<Wide> result;
  for (int64_t i = 0; i < config.rotary_dim / 2; ++i) {
    const Wide factor = config.freq_factors.empty() ? 1 : static_cast<Wide>(config.freq_factors[static_cast<size_t>(i)]);
    result.push_back(std::visit([&](const auto& scheme) { return oracle.at(i, scheme); }, config.scaling) / factor);
  }
  return result;
}

}  // namespace prologue::test::oracle
