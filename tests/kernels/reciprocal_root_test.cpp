#include <prologue/kernels/base/shared/reciprocal_root.h>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "tests/support/bits.h"

namespace prologue::test {
namespace {

constexpr uint32_t kOne = 0x3f800000, kFour = 0x40800000, kInfinity = 0x7f800000;

float rounded_root(float x) { return static_cast<float>(1.0L / std::sqrt(static_cast<long double>(x))); }

// Returns the last approximation, of those within 4 units in the last place, from which the refined value is not `want`, or 99 if there is
// none.
int wrong_approximation(float x, float want) {
  int wrong = 99;
  for (int off = -4; off <= 4; ++off) {
    const float approximation = float_of(std::bit_cast<uint32_t>(want) + static_cast<uint32_t>(off));
    if (refine_reciprocal_root(x, approximation) != want) wrong = off;
  }
  return wrong;
}

// Tries every significand with an even and with an odd exponent. Other exponents scale both arguments by a power of two.
TEST(ReciprocalRootTest, IsRoundedOnceForEverySignificandAndApproximation) {
  for (uint32_t bits = kOne; bits < kFour; ++bits) {
    const float x = float_of(bits), want = rounded_root(x);
    ASSERT_EQ(reciprocal_root(x), want) << std::hexfloat << x;
    ASSERT_EQ(wrong_approximation(x, want), 99) << std::hexfloat << x;
  }
}

TEST(ReciprocalRootTest, EveryExponentAndSubnormals) {
  for (uint32_t bits = 1; bits < kInfinity; bits += bits < 0x00800000 ? 4099 : 65537) {
    const float x = float_of(bits), want = rounded_root(x);
    ASSERT_EQ(reciprocal_root(x), want) << std::hexfloat << x;
    ASSERT_EQ(wrong_approximation(x, want), 99) << std::hexfloat << x;
  }
}

TEST(ReciprocalRootTest, InfinityAndNan) {
  EXPECT_EQ(reciprocal_root(std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_TRUE(std::isnan(reciprocal_root(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace prologue::test
