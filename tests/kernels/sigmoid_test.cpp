#include <prologue/kernels/base/shared/sigmoid.h>

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tests/support/tolerance.h"

namespace prologue::test {
namespace {

// Tries every 97th float.
TEST(SigmoidTest, Within3Ulp) {
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 97) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (std::isnan(x)) continue;
    const float got = sigmoid_f32(x);
    if (x < -87.0f) {
      ASSERT_EQ(got, 0.0f) << x;
      continue;
    }
    const double want = 1.0 / (1.0 + std::exp(-static_cast<double>(x)));
    ASSERT_LE(std::fabs(static_cast<double>(got) - want), 3.0 * ulp<float>(want)) << x;
  }
}

TEST(SigmoidTest, SpecialValues) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(sigmoid_f32(0.0f), 0.5f);
  EXPECT_EQ(sigmoid_f32(-0.0f), 0.5f);
  EXPECT_EQ(sigmoid_f32(kInfinity), 1.0f);
  EXPECT_EQ(sigmoid_f32(-kInfinity), 0.0f);
  EXPECT_TRUE(std::isnan(sigmoid_f32(std::numeric_limits<float>::quiet_NaN())));
}

// Tries every significand. Other exponents scale by a power of two.
TEST(ReciprocalTest, IsRoundedOnceForEverySignificandAndApproximation) {
  for (uint32_t bits = 0x3f800000; bits < 0x40000000; ++bits) {
    const float x = std::bit_cast<float>(bits), want = static_cast<float>(1.0L / static_cast<long double>(x));
    ASSERT_EQ(reciprocal(x), want) << std::hexfloat << x;
    for (uint32_t above = 0; above <= 2; ++above) {
      const float approximation = std::bit_cast<float>(std::bit_cast<uint32_t>(want) + above);
      ASSERT_EQ(refine_reciprocal(x, approximation), want) << std::hexfloat << x << " from " << approximation;
    }
  }
}

}  // namespace
}  // namespace prologue::test
