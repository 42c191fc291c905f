// Compares cos and sin of exact products with the C library's in long double, over products that long double holds exactly.
#include <prologue/kernels/base/shared/float64.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/random.h"

namespace prologue::test {
namespace {

TEST(Float64, CosAndSinOfAnExactProduct) {
  if (std::numeric_limits<long double>::digits < 64) GTEST_SKIP() << "long double is no wider than double here";
  Random random(7);
  long double largest = 0.0L;
  for (int i = 0; i < 400000; ++i) {
    // The factors have 11 and 53 bits, or 31 and 33 bits.
    const bool near = i % 2 == 0;
    const auto x = static_cast<double>(random.integer(0, near ? 2047 : (int64_t{1} << 31)));
    const double scale = std::ldexp(1.0, -static_cast<int>(random.integer(0, 20)));
    const double y =
        near ? random.uniform() * scale : std::ldexp(static_cast<double>(random.integer(1, int64_t{1} << 33)), -33) * scale;
    const CosSin64 got = cos_sin_of_product(i % 3 == 0 ? -x : x, y);
    const long double angle = static_cast<long double>(i % 3 == 0 ? -x : x) * static_cast<long double>(y);
    largest = std::max(largest, std::fabs(static_cast<long double>(got.cos) - std::cos(angle)));
    largest = std::max(largest, std::fabs(static_cast<long double>(got.sin) - std::sin(angle)));
  }
  RecordProperty("largest_error_in_2_53", std::to_string(static_cast<double>(largest * 0x1p53L)));
  EXPECT_LT(static_cast<double>(largest * 0x1p53L), 0.75);  // 0.5 is the rounding to float64
}

TEST(Float64, AtTheEdges) {
  EXPECT_EQ(cos_sin_of_product(0.0, 1.0).cos, 1.0);
  EXPECT_EQ(cos_sin_of_product(0.0, 1.0).sin, 0.0);
  EXPECT_FALSE(std::isnan(cos_sin_of_product(0x1p31, 1.0).cos));
  for (const double x : {0x1.0000001p31, -0x1.0000001p31, HUGE_VAL, std::nan("")}) {
    EXPECT_TRUE(std::isnan(cos_sin_of_product(x, 1.0).cos)) << x;
    EXPECT_TRUE(std::isnan(cos_sin_of_product(x, 1.0).sin)) << x;
  }
}

}  // namespace
}  // namespace prologue::test
