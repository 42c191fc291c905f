#include <cmath>

#include <prologue/layers/rope/rope_table.h>

namespace prologue {

Result<std::vector<double>> rope_inv_freq(const RopeConfig& config, RopePrecision precision) {
  if (config.rotary_dim < 2 || config.rotary_dim % 2 != 0) {
    return invalid_argument("rope: rotary_dim is ", config.rotary_dim, ": it must be even and at least 2");
  }
  if (!(config.theta > 0.0) || !std::isfinite(config.theta)) {
    return invalid_argument("rope: theta is ", config.theta, ": it must be a positive number");
  }
  const int64_t half = config.rotary_dim / 2;
  if (!config.freq_factors.empty() && static_cast<int64_t>(config.freq_factors.size()) != half) {
    return invalid_argument("rope: there are ", config.freq_factors.size(), " frequency factors for rotary_dim ", config.rotary_dim,
                            ": there must be rotary_dim / 2 = ", half);
  }
  std::vector<double> inv_freq(static_cast<size_t>(half));
  for (int64_t i = 0; i < half; ++i) {
    const double factor = config.freq_factors.empty() ? 1.0 : static_cast<double>(config.freq_factors[static_cast<size_t>(i)]);
    if (!(factor > 0.0) || !std::isfinite(factor)) {
      return invalid_argument("rope: frequency factor ", i, " is ", factor, ": it must be a positive number");
    }
    double& f = inv_freq[static_cast<size_t>(i)];
    if (precision == RopePrecision::exact) {
      f = std::pow(config.theta, -2.0 * static_cast<double>(i) / static_cast<double>(config.rotary_dim)) / factor;
    } else {
      const float exponent = static_cast<float>(2 * i) / static_cast<float>(config.rotary_dim);
      const float power = static_cast<float>(std::pow(static_cast<double>(static_cast<float>(config.theta)), static_cast<double>(exponent)));
      f = static_cast<double>(1.0f / power / static_cast<float>(factor));
    }
  }
  return inv_freq;
}

Result<std::vector<float>> rope_cos_sin(const RopeConfig& config, int64_t max_position, RopePrecision precision) {
  if (max_position < 1) return invalid_argument("rope: max_position is ", max_position, ": it must be at least 1");
  PROLOGUE_ASSIGN_OR_RETURN(const std::vector<double> inv_freq, rope_inv_freq(config, precision));
  const size_t half = inv_freq.size();
  std::vector<float> table(static_cast<size_t>(max_position) * 2 * half);
  for (int64_t p = 0; p < max_position; ++p) {
    float* row = table.data() + static_cast<size_t>(p) * 2 * half;
    for (size_t i = 0; i < half; ++i) {
      const double product = static_cast<double>(p) * inv_freq[i];
      const double angle = precision == RopePrecision::exact ? product : static_cast<double>(static_cast<float>(product));
      row[i] = static_cast<float>(std::cos(angle));
      row[half + i] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

Result<RopeTable> RopeTable::create(const RopeConfig& config, int64_t max_position, RopePrecision precision,
                                    const Execution& execution) {
  PROLOGUE_ASSIGN_OR_RETURN(const std::vector<float> table, rope_cos_sin(config, max_position, precision));
  const int64_t num_bytes = static_cast<int64_t>(table.size() * sizeof(float));
  RopeTable result;
  result.style_ = config.style;
  result.rotary_dim_ = config.rotary_dim;
  result.max_position_ = max_position;
  PROLOGUE_ASSIGN_OR_RETURN(result.memory_, Buffer::allocate(execution.device, num_bytes));
  PROLOGUE_RETURN_IF_ERROR(copy_to_device(result.memory_.data(), table.data(), num_bytes, execution));
  return result;
}

}  // namespace prologue
