#include "tests/oracle/mla_prologue.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace prologue::test::oracle {

MlaPlace mla_place(int64_t position, int64_t slot, int64_t max_position, int past, int64_t num_slots) {
  MlaPlace place;
  if (position < 0) return {MlaStand::padding, -1, 0};
  if (max_position > 0 && position >= max_position) {
    if (past != 2) return {MlaStand::zeros, -1, 1};
    place.stand = MlaStand::copied;
  }
  if (slot >= num_slots) {
    place.fault_code = 2;
  } else if (slot >= 0) {
    place.slot = slot;
  }
  return place;
}

std::vector<MlaValue> mla_norm(const std::vector<double>& x, const std::vector<double>& weight, double offset, double eps) {
  double squares = 0.0;
  for (const double value : x) squares += value * value;
  const double root = std::sqrt(squares / static_cast<double>(x.size()) + eps);
  std::vector<MlaValue> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    y[i].value = x[i] / root * (weight.empty() ? 1.0 : offset + weight[i]);
    y[i].scale = std::fabs(y[i].value);
    if (!weight.empty()) y[i].scale += std::fabs(x[i] / root) * (std::fabs(offset) + std::fabs(weight[i]));
  }
  return y;
}

std::vector<MlaValue> mla_rotate(const std::vector<MlaValue>& x, bool interleaved, const std::vector<double>& cos,
                                 const std::vector<double>& sin) {
  std::vector<MlaValue> y(x.size());
  const size_t half = x.size() / 2;
  for (size_t i = 0; i < half; ++i) {
    const size_t a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + half;
    const double c = std::fabs(cos[i]), s = std::fabs(sin[i]);
    y[a] = {x[a].value * cos[i] - x[b].value * sin[i], x[a].scale * c + x[b].scale * s};
    y[b] = {x[a].value * sin[i] + x[b].value * cos[i], x[a].scale * s + x[b].scale * c};
  }
  return y;
}

std::vector<double> mla_codes(const std::vector<double>& x, float scale, Quantized type) {
  const float reciprocal = static_cast<float>(1.0 / static_cast<double>(scale));
  std::vector<double> values;
  for (const double value : x) {
    const auto scaled = static_cast<float>(value * static_cast<double>(reciprocal));
    values.push_back(nearest_value(static_cast<double>(scaled), type));
  }
  return values;
}

MlaRecord mla_record(const std::vector<double>& x) {
  MlaRecord record;
  for (size_t begin = 0; begin < x.size(); begin += 128) {
    double largest = 0.0;
    for (size_t i = begin; i < begin + 128; ++i) largest = std::max(largest, std::fabs(x[i]));
    float scale = 0x1p-13f;
    while (scale < static_cast<float>(largest / 448.0)) scale *= 2.0f;
    record.scales.push_back(scale);
    for (size_t i = begin; i < begin + 128; ++i) {
      const auto quotient = static_cast<float>(x[i] / static_cast<double>(scale));
      record.values.push_back(nearest_value(static_cast<double>(quotient), Quantized::e4m3));
    }
  }
  return record;
}

}  // namespace prologue::test::oracle
