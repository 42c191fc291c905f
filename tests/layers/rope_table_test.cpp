// Tables against the formula in long double (exact) and against Hugging Face's float32 recipe done step by step (reference).
#include <gtest/gtest.h>

#include <cmath>

#include <prologue/layers/rope/rope_table.h>

namespace prologue {
namespace {

RopeConfig config(int64_t rotary_dim, double theta) {
  RopeConfig result;
  result.rotary_dim = rotary_dim;
  result.theta = theta;
  return result;
}

TEST(RopeTable, ExactIsTheFormulaRoundedOnce) {
  for (const int64_t dim : {2, 64, 72, 128}) {
    for (const double theta : {10000.0, 500000.0}) {
      const auto table = rope_cos_sin(config(dim, theta), 4096, RopePrecision::exact);
      ASSERT_TRUE(table.ok());
      for (const int64_t p : {0, 1, 17, 4095}) {
        for (int64_t i = 0; i < dim / 2; ++i) {
          const long double angle =
              static_cast<long double>(p) * std::pow(static_cast<long double>(theta), -2.0L * static_cast<long double>(i) / static_cast<long double>(dim));
          const float* row = table->data() + p * dim;
          EXPECT_NEAR(row[i], static_cast<double>(std::cos(angle)), 6.0e-8) << p << " " << i;
          EXPECT_NEAR(row[dim / 2 + i], static_cast<double>(std::sin(angle)), 6.0e-8) << p << " " << i;
        }
      }
    }
  }
}

// inv_freq of transformers 4.57's LlamaRotaryEmbedding (torch 2.9, CPU), theta 10000, dim 8: printed as float32.
TEST(RopeTable, ReferenceFollowsTheFloat32Recipe) {
  const auto inv_freq = rope_inv_freq(config(8, 10000.0), RopePrecision::reference);
  ASSERT_TRUE(inv_freq.ok());
  const float want[] = {1.0f, 0.1f, 0.01f, 0.001f};
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(static_cast<float>((*inv_freq)[i]), want[i]);
  // The angle is a float32 product: 4095 * 0.1f rounded.
  const auto table = rope_cos_sin(config(8, 10000.0), 4096, RopePrecision::reference);
  ASSERT_TRUE(table.ok());
  const float angle = 4095.0f * 0.1f;
  EXPECT_EQ((*table)[4095 * 8 + 1], static_cast<float>(std::cos(static_cast<double>(angle))));
  EXPECT_EQ((*table)[4095 * 8 + 5], static_cast<float>(std::sin(static_cast<double>(angle))));
}

TEST(RopeTable, FrequencyFactorsDivide) {
  RopeConfig with_factors = config(8, 10000.0);
  with_factors.freq_factors = {1.0f, 2.0f, 4.0f, 8.0f};
  for (const RopePrecision precision : {RopePrecision::exact, RopePrecision::reference}) {
    const auto plain = rope_inv_freq(config(8, 10000.0), precision);
    const auto scaled = rope_inv_freq(with_factors, precision);
    ASSERT_TRUE(plain.ok() && scaled.ok());
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ((*scaled)[i] * static_cast<double>(1 << i), (*plain)[i]);
  }
}

TEST(RopeTable, NamesWhatIsWrong) {
  RopeConfig factors = config(8, 10000.0);
  factors.freq_factors = {1.0f, 2.0f};
  EXPECT_EQ(rope_inv_freq(config(7, 10000.0), RopePrecision::exact).status().message(),
            "rope: rotary_dim is 7: it must be even and at least 2");
  EXPECT_EQ(rope_inv_freq(config(8, -1.0), RopePrecision::exact).status().message(), "rope: theta is -1: it must be a positive number");
  EXPECT_EQ(rope_inv_freq(factors, RopePrecision::exact).status().message(),
            "rope: there are 2 frequency factors for rotary_dim 8: there must be rotary_dim / 2 = 4");
  factors.freq_factors = {1.0f, 2.0f, 0.0f, 1.0f};
  EXPECT_EQ(rope_inv_freq(factors, RopePrecision::exact).status().message(), "rope: frequency factor 2 is 0: it must be a positive number");
  EXPECT_EQ(rope_cos_sin(config(8, 10000.0), 0, RopePrecision::exact).status().message(),
            "rope: max_position is 0: it must be at least 1");
}

}  // namespace
}  // namespace prologue
