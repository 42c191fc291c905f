#include <prologue/kernels/base/shared/divisor.h>

#include <gtest/gtest.h>

#include <climits>
#include <cstdint>
#include <vector>

#include <prologue/kernels/base/divide_up.h>

#include "tests/support/random.h"

namespace prologue::test {
namespace {

void expect_exact(int32_t x, int32_t d) {
  const Divisor divisor(d);
  EXPECT_EQ(divisor, d);
  EXPECT_EQ(x / divisor, x / d) << x << " / " << d;
  EXPECT_EQ(x % divisor, x % d) << x << " % " << d;
}

// Around multiples, where a quotient that is slightly off shows.
TEST(DivisorTest, IsExactAroundMultiples) {
  std::vector<int32_t> divisors;
  for (int32_t d = 1; d <= 300; ++d) divisors.push_back(d);
  for (int bit = 9; bit < 31; ++bit) {
    for (int32_t near = -2; near <= 2; ++near) divisors.push_back(static_cast<int32_t>((int64_t{1} << bit) + near));
  }
  divisors.insert(divisors.end(), {INT_MAX - 1, INT_MAX, 641, 65521, 6700417, 1000000007});
  for (const int32_t d : divisors) {
    for (const int64_t quotient : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{3}, INT_MAX / int64_t{d} / 2,
                                   INT_MAX / int64_t{d} - 1, INT_MAX / int64_t{d}}) {
      for (int64_t x = quotient * d - 2; x <= quotient * d + 2; ++x) {
        if (x >= 0 && x <= INT_MAX) expect_exact(static_cast<int32_t>(x), d);
      }
    }
    expect_exact(INT_MAX, d);
  }
}

TEST(DivisorTest, IsExactForRandomNumbers) {
  Random random(1);
  for (int i = 0; i < 200000; ++i) {
    const auto x = static_cast<int32_t>(random.integer(0, INT_MAX));
    expect_exact(x, static_cast<int32_t>(random.integer(1, i % 2 == 0 ? 1000 : INT_MAX)));
  }
}

TEST(DivisorTest, ZeroAndNegativeNumbers) {
  const Divisor none, also_none(0), three(3);
  for (const int32_t x : {0, 1, 17, INT_MAX}) {
    EXPECT_EQ(x / none, 0);
    EXPECT_EQ(x % none, x);
    EXPECT_EQ(x % also_none, x);
  }
  for (const int32_t x : {-1, -3, INT_MIN}) {
    EXPECT_EQ(x / three, 0);
    EXPECT_EQ(x % three, x);
  }
}

TEST(DivideUp, RoundsUpAndDoesNotOverflow) {
  for (int64_t a = 0; a <= 100; ++a) {
    for (int b = 1; b <= 20; ++b) {
      int64_t quotient = 0;
      while (quotient * b < a) ++quotient;
      EXPECT_EQ(divide_up(a, b), quotient) << a << " / " << b;
      EXPECT_EQ(round_up(a, b), quotient * b) << a << " / " << b;
    }
  }
  EXPECT_EQ(divide_up(INT64_MAX, 2), (int64_t{1} << 62));
  EXPECT_EQ(divide_up(INT64_MAX, INT64_MAX), 1);
  EXPECT_EQ(round_up(INT64_MAX, 1), INT64_MAX);
}

}  // namespace
}  // namespace prologue::test
