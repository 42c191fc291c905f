#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include <prologue/kernels/base/dtype.h>

namespace prologue {
namespace {

// IEEE 754, binary16.
double value_of(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  const double magnitude = exponent == 31  ? (mantissa != 0 ? std::nan("") : std::numeric_limits<double>::infinity())
                           : exponent != 0 ? std::ldexp(1024 + mantissa, exponent - 25)
                                           : std::ldexp(mantissa, -24);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

// Converts with the processor's instructions and without them.
TEST(Float16Test, EveryNumberConverts) {
  for (uint32_t i = 0; i < 0x10000; ++i) {
    const Float16 half{static_cast<uint16_t>(i)};
    const double want = value_of(half.bits);
    const float x = to_float(half);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(x)) << i;
      ASSERT_EQ(to_float16(x).bits, i | 0x200) << i;  // a quiet NaN with the same payload
    } else {
      ASSERT_EQ(x, want) << i;
      ASSERT_EQ(std::signbit(x), std::signbit(want)) << i;
      ASSERT_EQ(to_float16(x).bits, i) << i;
    }
  }
}

TEST(Float16Test, RoundsToNearestAndTiesToEven) {
  for (uint32_t i = 0; i < 0x7bff; ++i) {  // up to the largest number
    const float below = to_float(Float16{static_cast<uint16_t>(i)}), above = to_float(Float16{static_cast<uint16_t>(i + 1)});
    const float middle = below + (above - below) / 2;  // exact
    ASSERT_EQ(to_float16(middle).bits, i + i % 2) << i;
    ASSERT_EQ(to_float16(-middle).bits, 0x8000 | (i + i % 2)) << i;
    ASSERT_EQ(to_float16(std::nextafter(middle, below)).bits, i) << i;
    ASSERT_EQ(to_float16(std::nextafter(middle, above)).bits, i + 1) << i;
  }
  EXPECT_EQ(to_float16(65519.996f).bits, 0x7bff);
  EXPECT_EQ(to_float16(65520.0f).bits, 0x7c00);  // infinity
}

}  // namespace
}  // namespace prologue
