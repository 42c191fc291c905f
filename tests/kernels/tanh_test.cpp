#include <prologue/kernels/base/shared/tanh.h>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "tests/support/tolerance.h"

namespace prologue::test {
namespace {

// Tries every 97th float.
TEST(TanhTest, Within2Ulp) {
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 97) {
    const uint32_t low = static_cast<uint32_t>(bits);
    float x;
    std::memcpy(&x, &low, sizeof x);
    if (std::isnan(x)) continue;
    const double want = std::tanh(static_cast<double>(x));
    ASSERT_LE(std::fabs(static_cast<double>(tanh_f32(x)) - want), 2.0 * ulp<float>(want)) << x;
  }
}

TEST(TanhTest, SpecialValues) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(tanh_f32(0.0f), 0.0f);
  EXPECT_EQ(tanh_f32(-0.0f), 0.0f);
  EXPECT_EQ(tanh_f32(kInfinity), 1.0f);
  EXPECT_EQ(tanh_f32(-kInfinity), -1.0f);
  EXPECT_TRUE(std::isnan(tanh_f32(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace prologue::test
