// Tests tables against the formula in long double (exact) and against Hugging Face's float32 recipe done step by step (reference). The
// frequencies have a test of their own: rope_scaling_test.cpp.
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

Result<std::vector<float>> table_of(const RopeConfig& config, int64_t max_position, RopePrecision precision) {
  PROLOGUE_ASSIGN_OR_RETURN(const RopeFrequencies frequencies, rope_frequencies(config, max_position, precision));
  return rope_cos_sin(frequencies, max_position, precision);
}

TEST(RopeTable, ExactIsTheFormulaRoundedOnce) {
  for (const int64_t dim : {2, 64, 72, 128}) {
    for (const double theta : {10000.0, 500000.0}) {
      const auto table = table_of(config(dim, theta), 4096, RopePrecision::exact);
      ASSERT_TRUE(table.ok());
      for (const int64_t p : {0, 1, 17, 4095}) {
        for (int64_t i = 0; i < dim / 2; ++i) {
          const long double angle =
              static_cast<long double>(p) *
              std::pow(static_cast<long double>(theta), -2.0L * static_cast<long double>(i) / static_cast<long double>(dim));
          const float* row = table->data() + p * dim;
          EXPECT_NEAR(row[i], static_cast<double>(std::cos(angle)), 6.0e-8) << p << " " << i;
          EXPECT_NEAR(row[dim / 2 + i], static_cast<double>(std::sin(angle)), 6.0e-8) << p << " " << i;
        }
      }
    }
  }
}

TEST(RopeTable, ReferenceFollowsTheFloat32Recipe) {
  const auto inv_freq = rope_frequencies(config(8, 10000.0), 0, RopePrecision::reference);
  ASSERT_TRUE(inv_freq.ok());
  const float want[] = {1.0f, 0.1f, 0.01f, 0.001f};
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(static_cast<float>(inv_freq->inv_freq[i]), want[i]);
  // The angle is a float32 product: 4095 * 0.1f rounded.
  const auto table = table_of(config(8, 10000.0), 4096, RopePrecision::reference);
  ASSERT_TRUE(table.ok());
  const float angle = 4095.0f * 0.1f;
  EXPECT_EQ((*table)[4095 * 8 + 1], static_cast<float>(std::cos(static_cast<double>(angle))));
  EXPECT_EQ((*table)[4095 * 8 + 5], static_cast<float>(std::sin(static_cast<double>(angle))));
}

TEST(RopeTable, TheAttentionFactorMultipliesCosAndSin) {
  const RopeFrequencies frequencies{{0.1f, 0.01f}, 1.2};
  const auto exact = rope_cos_sin(frequencies, 8, RopePrecision::exact);
  const auto reference = rope_cos_sin(frequencies, 8, RopePrecision::reference);
  ASSERT_TRUE(exact.ok() && reference.ok());
  for (int64_t p = 0; p < 8; ++p) {
    for (int64_t i = 0; i < 2; ++i) {
      const float product = static_cast<float>(p) * static_cast<float>(frequencies.inv_freq[static_cast<size_t>(i)]);
      const double exact_angle = static_cast<double>(p) * frequencies.inv_freq[static_cast<size_t>(i)],
                   angle = static_cast<double>(product);
      EXPECT_EQ(exact->data()[p * 4 + i], static_cast<float>(1.2 * std::cos(exact_angle)));
      EXPECT_EQ(exact->data()[p * 4 + 2 + i], static_cast<float>(1.2 * std::sin(exact_angle)));
      EXPECT_EQ(reference->data()[p * 4 + i], 1.2f * static_cast<float>(std::cos(angle)));
      EXPECT_EQ(reference->data()[p * 4 + 2 + i], 1.2f * static_cast<float>(std::sin(angle)));
    }
  }
}

TEST(RopeTable, OfAConfigurationIsPinnedAtItsLength) {
  RopeConfig dynamic = config(8, 10000.0);
  dynamic.style = RopeStyle::interleaved;
  dynamic.scaling = DynamicNtkRope{2.0, 16};
  for (const int64_t length : {16, 64}) {
    const auto table = RopeTable::create(dynamic, length, RopePrecision::reference, {});
    ASSERT_TRUE(table.ok()) << table.status().message();
    EXPECT_EQ(table->style(), RopeStyle::interleaved);
    EXPECT_EQ(table->rotary_dim(), 8);
    EXPECT_EQ(table->max_position(), length);
    const auto want = table_of(dynamic, length, RopePrecision::reference);
    EXPECT_EQ(std::vector<float>(table->cos_sin(), table->cos_sin() + length * 8), *want);
  }
  // The table has one sequence's frequencies, over more positions than the sequence has.
  const auto pinned = rope_frequencies(dynamic, 20, RopePrecision::reference);
  const auto table = RopeTable::create(dynamic.style, *pinned, 64, RopePrecision::reference, {});
  ASSERT_TRUE(table.ok());
  EXPECT_EQ(std::vector<float>(table->cos_sin(), table->cos_sin() + 64 * 8),
            *rope_cos_sin(*pinned, 64, RopePrecision::reference));
}

TEST(RopeTable, NamesWhatIsWrong) {
  EXPECT_EQ(RopeTable::create(config(7, 10000.0), 8, RopePrecision::exact, {}).status().message(),
            "rope: rotary_dim is 7: it must be even and between 2 and 65536");
  for (const int64_t max_position : {int64_t{-1}, int64_t{0}, int64_t{16777217}}) {
    const Status status = RopeTable::create(config(8, 10000.0), max_position, RopePrecision::exact, {}).status();
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_EQ(status.message(), str_cat("rope: max_position is ", max_position, ": it must be between 1 and 16777216"));
  }
  EXPECT_EQ(rope_cos_sin({}, 8, RopePrecision::exact).status().message(), "rope: there are no frequencies");
}

// Returns rows of a table on the device.
std::vector<float> rows_of(const RopeTable& table, int64_t first_row, int64_t num_rows) {
  const float* const begin = table.cos_sin() + first_row * table.rotary_dim();
  return {begin, begin + num_rows * table.rotary_dim()};
}

TEST(RopeTable, HasSeveralSetsOfFrequencies) {
  RopeConfig dynamic = config(8, 10000.0);
  dynamic.scaling = DynamicNtkRope{2.0, 16};
  RopeTable table = RopeTable::create(dynamic, 1, RopePrecision::exact, {}).value();
  EXPECT_TRUE(table.has_many_lengths());
  EXPECT_EQ(table.length_class(16), 0);
  EXPECT_EQ(table.length_class(17), 17);
  ASSERT_TRUE(table.make_sets(70, {}).ok());
  EXPECT_EQ(table.max_position(), 70);
  const float* const memory = table.cos_sin();
  const std::vector<std::pair<int64_t, int64_t>> sets = {{0, 0}, {20, 40}, {50, 20}};  // first row, length
  for (const auto& [row, length] : sets) ASSERT_TRUE(table.fill(row, 20, length, {}).ok());
  EXPECT_EQ(table.cos_sin(), memory);
  for (const auto& [row, length] : sets) {
    const RopeFrequencies frequencies = rope_frequencies(dynamic, length, RopePrecision::exact).value();
    EXPECT_EQ(rows_of(table, row, 20), rope_cos_sin(frequencies, 20, RopePrecision::exact).value());
  }
  EXPECT_NE(rows_of(table, 0, 20), rows_of(table, 20, 20));
  EXPECT_NE(rows_of(table, 20, 20), rows_of(table, 50, 20));
  EXPECT_EQ(table.fill(51, 20, 30, {}).message(), "rope: rows 51 to 70 are filled: the table has 70 rows");
  EXPECT_EQ(table.fill(-1, 2, 30, {}).message(), "rope: rows -1 to 0 are filled: the table has 70 rows");
  EXPECT_EQ(table.fill(0, 0, 30, {}).code(), StatusCode::invalid_argument);
  EXPECT_EQ(table.make_sets(0, {}).message(), "rope: num_rows is 0: it must be between 1 and 2147483647");

  // A table made of frequencies has these in every set.
  const RopeFrequencies frequencies = rope_frequencies(dynamic, 40, RopePrecision::exact).value();
  RopeTable plain = RopeTable::create(RopeStyle::neox, frequencies, 1, RopePrecision::exact, {}).value();
  EXPECT_EQ(plain.length_class(40), 0);
  EXPECT_FALSE(plain.has_many_lengths());
  ASSERT_TRUE(plain.make_sets(30, {}).ok());
  ASSERT_TRUE(plain.fill(10, 20, 99, {}).ok());
  EXPECT_EQ(rows_of(plain, 10, 20), rope_cos_sin(frequencies, 20, RopePrecision::exact).value());
}

}  // namespace
}  // namespace prologue
