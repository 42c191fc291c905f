#include "tests/oracle/quantize.h"

#include <algorithm>
#include <cmath>

namespace prologue::test::oracle {

const std::vector<double>& code_values(Quantized type) {
  static const auto fp8 = [](int mantissa_bits, int bias, int codes) {
    std::vector<double> values;
    for (int code = 0; code < codes; ++code) {
      const int exponent = code >> mantissa_bits;
      const double fraction = static_cast<double>(code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits);
      values.push_back(exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1.0 + fraction, exponent - bias));
    }
    return values;
  };
  static const auto integers = [](int limit) {
    std::vector<double> values;
    for (int i = 0; i <= limit; ++i) values.push_back(i);
    return values;
  };
  static const std::vector<double> tables[] = {fp8(3, 7, 127), fp8(2, 15, 124), integers(127),
                                               integers(7),    integers(15),    fp8(1, 1, 8)};
  return tables[static_cast<int>(type)];
}

double largest_value(Quantized type) { return code_values(type).back(); }

double nearest_value(double x, Quantized type) {
  const std::vector<double>& values = code_values(type);
  if (type == Quantized::uint4) x = std::max(x, 0.0);
  const double magnitude = std::fabs(x);
  const size_t above = static_cast<size_t>(std::lower_bound(values.begin(), values.end(), magnitude) - values.begin());
  size_t code = above;
  if (above == values.size()) {
    code = above - 1;
  } else if (above > 0) {
    const double down = magnitude - values[above - 1], up = values[above] - magnitude;
    if (down < up || (down == up && above % 2 == 1)) code = above - 1;
  }
  return x < 0.0 ? -values[code] : values[code];
}

double value_of_code(uint8_t code, Quantized type) {
  if (type == Quantized::int8) return code < 128 ? code : code - 256;
  if (type == Quantized::uint4) return code & 15;
  if (type == Quantized::int4) return (code & 15) < 8 ? code & 15 : (code & 15) - 16;
  const std::vector<double>& values = code_values(type);
  if (type == Quantized::e2m1) return (code & 8) != 0 ? -values[code & 7] : values[code & 7];
  const size_t magnitude = code & 0x7f;
  const double value = magnitude < values.size() ? values[magnitude] : std::nan("");
  return code >= 128 ? -value : value;
}

}  // namespace prologue::test::oracle
