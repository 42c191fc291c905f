#include "tests/oracle/float8_gemm.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/oracle/quantize.h"

namespace prologue::test::oracle {

namespace {

// A quotient or product of two float32 numbers, rounded to float32: float64 has more than twice as many bits.
double rounded(double x) { return static_cast<double>(static_cast<float>(x)); }

}  // namespace

Float8Row quantized_to_e4m3(const std::vector<double>& x, int64_t group) {
  Float8Row row;
  for (size_t first = 0; first < x.size(); first += static_cast<size_t>(group)) {
    double largest = 0.0;
    bool finite = true;
    for (size_t i = first; i < first + static_cast<size_t>(group); ++i) {
      finite = finite && std::isfinite(x[i]);
      if (finite) largest = std::max(largest, std::fabs(x[i]));
    }
    const double scale = rounded(largest / largest_value(Quantized::e4m3)), reciprocal = rounded(1.0 / scale);
    const bool zero = largest == 0.0 || std::isinf(reciprocal);
    for (size_t i = first; i < first + static_cast<size_t>(group); ++i) {
      row.numbers.push_back(!finite || zero ? 0.0 : nearest_value(rounded(x[i] * reciprocal), Quantized::e4m3));
      row.scales.push_back(!finite ? std::numeric_limits<double>::quiet_NaN() : zero ? 0.0 : scale);
    }
  }
  return row;
}

}  // namespace prologue::test::oracle
