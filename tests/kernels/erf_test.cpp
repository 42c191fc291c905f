#include <prologue/kernels/base/shared/erf.h>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "tests/support/tolerance.h"

namespace prologue::test {
namespace {

// Tries every 97th float.
TEST(ErfTest, Within1AndAHalfUlp) {
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 97) {
    const uint32_t low = static_cast<uint32_t>(bits);
    float x;
    std::memcpy(&x, &low, sizeof x);
    if (std::isnan(x)) continue;
    const double want = std::erf(static_cast<double>(x));
    ASSERT_LE(std::fabs(static_cast<double>(erf_f32(x)) - want), 1.5 * ulp<float>(want)) << x;
  }
}

TEST(ErfTest, SpecialValues) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(erf_f32(0.0f), 0.0f);
  EXPECT_EQ(erf_f32(-0.0f), 0.0f);
  EXPECT_EQ(erf_f32(kInfinity), 1.0f);
  EXPECT_EQ(erf_f32(-kInfinity), -1.0f);
  EXPECT_TRUE(std::isnan(erf_f32(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace prologue::test
