#include <algorithm>
#include <cmath>
#include <utility>

#include <prologue/kernels/base/out_of_memory.h>
#include <prologue/layers/rope/rope_table.h>

namespace prologue {

namespace {

struct CosSin {
  float cos;
  float sin;
};

CosSin entry(int64_t position, double inv_freq, double attention_factor, RopePrecision precision) {
  const double angle = static_cast<double>(position) * inv_freq;
  if (precision == RopePrecision::exact) {
    return {static_cast<float>(std::cos(angle) * attention_factor), static_cast<float>(std::sin(angle) * attention_factor)};
  }
  const auto rounded = static_cast<double>(static_cast<float>(angle));
  const auto factor = static_cast<float>(attention_factor);
  return {static_cast<float>(std::cos(rounded)) * factor, static_cast<float>(std::sin(rounded)) * factor};
}

Result<std::vector<float>> fill_table(const RopeFrequencies& frequencies, int64_t max_position, RopePrecision precision) {
  constexpr int64_t kLargestPosition = int64_t{1} << 24;  // float32 holds every position below
  if (max_position < 1 || max_position > kLargestPosition) {
    return invalid_argument("rope: max_position is ", max_position, ": it must be between 1 and ", kLargestPosition);
  }
  const size_t half = frequencies.inv_freq.size();
  if (half == 0) return invalid_argument("rope: there are no frequencies");
  std::vector<float> table(static_cast<size_t>(max_position) * 2 * half);
  for (int64_t p = 0; p < max_position; ++p) {
    float* row = table.data() + static_cast<size_t>(p) * 2 * half;
    for (size_t i = 0; i < half; ++i) {
      const CosSin value = entry(p, frequencies.inv_freq[i], frequencies.attention_factor, precision);
      row[i] = value.cos;
      row[half + i] = value.sin;
    }
  }
  return table;
}

}  // namespace

Result<std::vector<float>> rope_cos_sin(const RopeFrequencies& frequencies, int64_t max_position, RopePrecision precision) {
  return catch_out_of_memory([&] { return fill_table(frequencies, max_position, precision); });
}

Result<RopeTable> RopeTable::create(RopeStyle style, const RopeFrequencies& frequencies, int64_t max_position,
                                    RopePrecision precision, const Execution& execution) {
  return catch_out_of_memory([&]() -> Result<RopeTable> {
    RopeTable result;
    result.style_ = style;
    result.frequencies_ = frequencies;
    result.precision_ = precision;
    PROLOGUE_RETURN_IF_ERROR(result.reserve(max_position, execution));
    return result;
  });
}

Status RopeTable::reserve(int64_t max_position, const Execution& execution) {
  if (max_position <= max_position_ && max_position_ > 0) return {};
  return catch_out_of_memory([&]() -> Status {
    PROLOGUE_ASSIGN_OR_RETURN(const std::vector<float> table, rope_cos_sin(frequencies_, max_position, precision_));
    const int64_t num_bytes = static_cast<int64_t>(table.size() * sizeof(float));
    PROLOGUE_ASSIGN_OR_RETURN(Buffer memory, Buffer::allocate(execution.device, num_bytes));
    PROLOGUE_RETURN_IF_ERROR(copy_to_device(memory.data(), table.data(), num_bytes, execution));
    memory_ = std::make_shared<const Buffer>(std::move(memory));
    max_position_ = max_position;
    return {};
  });
}

Result<RopeTable> RopeTable::create(const RopeConfig& config, int64_t max_position, RopePrecision precision,
                                    const Execution& execution) {
  PROLOGUE_ASSIGN_OR_RETURN(const RopeFrequencies frequencies,
                            rope_frequencies(config, std::max<int64_t>(max_position, 0), precision));
  return catch_out_of_memory([&]() -> Result<RopeTable> {
    PROLOGUE_ASSIGN_OR_RETURN(RopeTable table, create(config.style, frequencies, max_position, precision, execution));
    table.config_ = config;
    return table;
  });
}

Status RopeTable::make_sets(int64_t num_rows, const Execution& execution) {
  if (num_rows < 1 || num_rows > INT32_MAX) {
    return invalid_argument("rope: num_rows is ", num_rows, ": it must be between 1 and ", INT32_MAX);
  }
  return catch_out_of_memory([&]() -> Status {
    PROLOGUE_ASSIGN_OR_RETURN(Buffer memory, Buffer::allocate(execution.device, num_rows * rotary_dim() * 4));
    memory_ = std::make_shared<const Buffer>(std::move(memory));
    max_position_ = num_rows;
    return {};
  });
}

Status RopeTable::fill(int64_t first_row, int64_t num_rows, int64_t sequence_length, const Execution& execution) {
  if (first_row < 0 || num_rows < 1 || num_rows > max_position_ || first_row > max_position_ - num_rows) {
    return invalid_argument("rope: rows ", first_row, " to ", first_row + num_rows - 1, " are filled: the table has ",
                            max_position_, " rows");
  }
  return catch_out_of_memory([&]() -> Status {
    RopeFrequencies frequencies = frequencies_;
    if (config_) {
      PROLOGUE_ASSIGN_OR_RETURN(frequencies, rope_frequencies(*config_, sequence_length, precision_));
    }
    PROLOGUE_ASSIGN_OR_RETURN(const std::vector<float> rows, rope_cos_sin(frequencies, num_rows, precision_));
    return copy_to_device(memory_->as<float>() + first_row * rotary_dim(), rows.data(),
                          static_cast<int64_t>(rows.size() * sizeof(float)), execution);
  });
}

}  // namespace prologue
