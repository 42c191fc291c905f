#include <prologue/kernels/base/shared/angle.h>

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "tests/support/random.h"

namespace prologue::test {
namespace {

// The bound that angle.h states, in units of 2^-24: half of one is the rounding to float32 itself.
constexpr double kBound = 0.84;

class Errors {
 public:
  void add(int32_t position, float inv_freq) {
    const double angle = static_cast<double>(position) * static_cast<double>(inv_freq);  // exact: 20 and 24 bits
    const CosSin got = cos_sin_of(position, inv_freq);
    largest_ = std::max(largest_, std::fabs(static_cast<double>(got.cos) - std::cos(angle)));
    largest_ = std::max(largest_, std::fabs(static_cast<double>(got.sin) - std::sin(angle)));
  }
  double units() const { return largest_ * 0x1p24; }

 private:
  double largest_ = 0.0;
};

TEST(Angle, IsExactlyReducedUpToTwoToThe20) {
  Errors errors;
  for (const double theta : {1e4, 5e5, 1e6, 1e7}) {
    for (const int64_t dim : {64, 96, 128}) {
      for (int64_t i = 0; i < dim / 2; ++i) {
        const float inv_freq = static_cast<float>(std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(dim)));
        for (int32_t p = 0; p < 64; ++p) errors.add(p, inv_freq);
        for (int32_t p = 64; p < 1 << 20; p += 1021) errors.add(p, inv_freq);
        for (int32_t p = (1 << 20) - 64; p <= 1 << 20; ++p) errors.add(p, inv_freq);
      }
    }
  }
  EXPECT_LE(errors.units(), kBound);
}

TEST(Angle, HoldsForAnyFrequency) {
  Random random(1);
  Errors errors;
  for (int i = 0; i < 2000000; ++i) {
    const float inv_freq = static_cast<float>(std::exp2(-30.0 * random.uniform()));
    errors.add(static_cast<int32_t>(random.integer(0, 1 << 20)), random.integer(0, 1) == 0 ? inv_freq : -inv_freq);
  }
  EXPECT_LE(errors.units(), kBound);
}

// Tries frequencies whose product with a position is next to a multiple of pi/2, where all of the angle cancels.
TEST(Angle, HoldsNextToMultiplesOfAQuarterTurn) {
  Random random(2);
  Errors errors;
  for (int i = 0; i < 200000; ++i) {
    const int32_t position = static_cast<int32_t>(random.integer(1, 1 << 20));
    const double quarter = static_cast<double>(random.integer(0, position * 5LL / 8)) * 1.5707963267948966;
    const float nearest = static_cast<float>(quarter / position);
    for (const float f : {std::nextafter(nearest, 0.0f), nearest, std::nextafter(nearest, 2.0f)}) errors.add(position, f);
  }
  EXPECT_LE(errors.units(), kBound);
}

// Near the largest products the quarter turn is chosen from a rounded angle, so that r leaves [-pi/4, pi/4] the furthest; the
// polynomials are at their worst there.
TEST(Angle, HoldsAtTheLargestProducts) {
  Random random(3);
  Errors errors;
  for (int i = 0; i < 2000000; ++i) {
    const auto position = static_cast<int32_t>(random.integer((1 << 20) - (1 << 18), 1 << 20));
    errors.add(position, 1.0f - static_cast<float>(random.integer(0, 1 << 22)) * 0x1p-24f);
  }
  errors.add(918015, 0x1.c7b1a8p-1f);  // the worst of 2e9 of them
  EXPECT_LE(errors.units(), kBound);
  EXPECT_GT(errors.units(), 0.82);  // what the header calls measured
}

// Every argument of the polynomials that a first turn reaches: position 1 leaves the frequency as it is.
TEST(Angle, HoldsForTheArgumentsOfTheFirstQuarter) {
  Errors errors;
  for (uint32_t bits = 0x38000000; bits < 0x3f490fdb; bits += 61) errors.add(1, std::bit_cast<float>(bits));  // 2^-15 .. pi/4
  EXPECT_LE(errors.units(), kBound);
}

TEST(Angle, PositionZeroIsExact) {
  for (const float inv_freq : {0.0f, 1e-30f, 1.0f, -1.0f}) {
    EXPECT_EQ(cos_sin_of(0, inv_freq).cos, 1.0f);
    EXPECT_EQ(cos_sin_of(0, inv_freq).sin, 0.0f);
  }
}

}  // namespace
}  // namespace prologue::test
