#include <prologue/kernels/base/shared/exp.h>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "tests/support/bits.h"
#include "tests/support/tolerance.h"

namespace prologue::test {
namespace {

// Tries every 97th float.
TEST(ExpTest, Within2Ulp) {
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 97) {
    const float x = float_of(static_cast<uint32_t>(bits));
    if (std::isnan(x)) continue;
    const float got = exp_f32(x);
    const double want = std::exp(static_cast<double>(x));
    if (want > static_cast<double>(std::numeric_limits<float>::max())) {
      ASSERT_TRUE(got > 3.4e38f) << x;
    } else {
      ASSERT_LE(std::fabs(static_cast<double>(got) - want), 2.0 * ulp<float>(want)) << x;
    }
    if (x <= 0.0f) {
      ASSERT_TRUE(same_bits(exp_nonpositive(x), x < -87.0f ? 0.0f : got)) << x;
    }
  }
}

TEST(ExpTest, SpecialValues) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(exp_f32(0.0f), 1.0f);
  EXPECT_EQ(exp_f32(-0.0f), 1.0f);
  EXPECT_EQ(exp_f32(-kInfinity), 0.0f);
  EXPECT_EQ(exp_f32(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(exp_f32(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(exp_f32(-std::numeric_limits<float>::quiet_NaN())));
  EXPECT_EQ(exp_nonpositive(0.0f), 1.0f);
  EXPECT_EQ(exp_nonpositive(-kInfinity), 0.0f);
  EXPECT_TRUE(std::isnan(exp_nonpositive(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace prologue::test
