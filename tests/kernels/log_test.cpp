#include <prologue/kernels/base/shared/log.h>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "tests/support/bits.h"
#include "tests/support/tolerance.h"

namespace prologue::test {
namespace {

// Tries every 97th float from the smallest normal one to the largest, and every 7th next to 1, where the result is small.
TEST(LogTest, WithinOneUlp) {
  constexpr uint32_t kSmallest = 0x00800000, kInfinity = 0x7f800000, kOne = 0x3f800000;
  const auto check = [](uint32_t bits) {
    const float x = float_of(bits);
    const double want = std::log(static_cast<double>(x));
    ASSERT_LE(std::fabs(static_cast<double>(log_f32(x)) - want), ulp<float>(want)) << x;
  };
  for (uint32_t bits = kSmallest; bits < kInfinity && !HasFatalFailure(); bits += 97) check(bits);
  for (uint32_t bits = kOne - 0x1000000; bits < kOne + 0x1000000 && !HasFatalFailure(); bits += 7) check(bits);
}

TEST(LogTest, SpecialValues) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(log_f32(1.0f), 0.0f);
  EXPECT_EQ(log_f32(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(log_f32(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace prologue::test
