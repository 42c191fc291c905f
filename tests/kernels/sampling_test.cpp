#include <prologue/kernels/token_ops/sampling.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <prologue/kernels/token_ops/philox.h>
#include <prologue/kernels/token_ops/sampling_math.h>

#include "tests/oracle/token_ops.h"
#include "tests/support/arena.h"
#include "tests/support/random.h"
#include "tests/support/refusals.h"
#include "tests/support/source_path.h"

namespace prologue::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class SamplingTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};

// logits is [rows.size(), vocab_size]; between the rows are infinities that would win.
std::vector<int32_t> run_sample(Backend backend, const std::vector<float>& logits, const std::vector<SamplingRow>& rows,
                                int64_t padding = 0) {
  Arena arena(backend);
  SamplingParams p;
  p.num_rows = static_cast<int64_t>(rows.size());
  p.vocab_size = static_cast<int64_t>(logits.size() / rows.size());
  p.logits_stride = p.vocab_size + padding;
  std::vector<float> strided(static_cast<size_t>(p.num_rows * p.logits_stride), kInfinity);
  for (int64_t r = 0; r < p.num_rows; ++r) {
    std::copy_n(logits.begin() + r * p.vocab_size, p.vocab_size, strided.begin() + r * p.logits_stride);
  }
  p.logits = arena.input(strided);
  p.rows = arena.input(rows);
  p.tokens = arena.output<int32_t>(p.num_rows);
  const Status status = arena.run([&](const Execution& execution) { return sample(p, execution); });
  EXPECT_TRUE(status.ok()) << status.message();
  return arena.read(p.tokens);
}

int32_t run_one(Backend backend, const std::vector<float>& logits, const SamplingRow& row) {
  return run_sample(backend, logits, {row})[0];
}

// Draws from one row of logits under `count` positions.
std::vector<int32_t> run_positions(Backend backend, const std::vector<float>& logits, SamplingRow row, int64_t count) {
  std::vector<float> all;
  std::vector<SamplingRow> rows;
  for (row.position = 0; row.position < count; ++row.position) {
    all.insert(all.end(), logits.begin(), logits.end());
    rows.push_back(row);
  }
  return run_sample(backend, all, rows);
}

// Random123's own known answers (kat_vectors: philox4x32 10).
TEST(PhiloxTest, KnownAnswers) {
  const struct {
    std::vector<uint32_t> counter, key, want;
  } answers[] = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
       {0xffffffff, 0xffffffff},
       {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       {0xa4093822, 0x299f31d0},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const auto& [counter, key, want] : answers) {
    const Philox4x32 got = philox4x32_10(key[0], key[1], counter[0], counter[1], counter[2], counter[3]);
    EXPECT_EQ(std::vector<uint32_t>(got.words, got.words + 4), want);
    EXPECT_EQ(oracle::philox4x32_10(counter, key), want);
  }
}

TEST(SamplingMathTest, KeysFollowTheOrder) {
  const std::vector<float> descending = {kInfinity, 3e38f,      1.0f, std::nextafter(1.0f, 0.0f), 1e-45f, 0.0f, -1e-45f, -1.0f,
                                         -3e38f,    -kInfinity, kNan};
  for (size_t i = 0; i + 1 < descending.size(); ++i) EXPECT_GT(logit_key(descending[i]), logit_key(descending[i + 1])) << i;
  EXPECT_EQ(logit_key(0.0f), logit_key(-0.0f));
  EXPECT_EQ(logit_key(kNan), 0u);
  EXPECT_EQ(logit_key(-kNan), 0u);
  EXPECT_GT(rank_key(1.0f, 5), rank_key(1.0f, 6));
  EXPECT_GT(rank_key(1.0f, 6), rank_key(0.5f, 0));
}

TEST_P(SamplingTest, GreedyTakesTheLargestAndTheLowestOfEquals) {
  const SamplingRow greedy;
  const auto run = [&](const std::vector<float>& logits) { return run_one(GetParam(), logits, greedy); };
  EXPECT_EQ(run({5.0f}), 0);
  EXPECT_EQ(run({1.0f, 3.0f, 2.0f}), 1);
  EXPECT_EQ(run({1.0f, 3.0f, 3.0f, 3.0f}), 1);
  EXPECT_EQ(run({-0.0f, 0.0f}), 0);
  EXPECT_EQ(run({0.0f, -0.0f}), 0);
  EXPECT_EQ(run({kNan, -2.0f, kNan, -1.0f, kNan}), 3);
  EXPECT_EQ(run({kNan, -kInfinity, -kInfinity}), 1);
  EXPECT_EQ(run({1.0f, kInfinity, kInfinity}), 1);
  EXPECT_EQ(run({kNan, kNan, kNan}), 0);
  EXPECT_EQ(run({-kNan, -1e-45f, 1e-45f, 0.0f}), 2);
  for (const int64_t vocab_size : {2, 31, 32, 33, 257, 1025, 49152}) {
    std::vector<float> logits(static_cast<size_t>(vocab_size), -3.0f);
    for (const int64_t winner : {int64_t{0}, vocab_size / 2, vocab_size - 1}) {
      std::vector<float> row = logits;
      row[static_cast<size_t>(winner)] = -2.5f;
      EXPECT_EQ(run(row), winner) << vocab_size;
    }
    EXPECT_EQ(run(logits), 0) << vocab_size;
  }
}

// Rows of normal logits under all combinations of filters, on vocabularies round the vector and block sizes.
TEST_P(SamplingTest, MatchesOracle) {
  Random random(1);
  for (const int64_t vocab_size : {1, 2, 31, 32, 33, 257, 1000, 4097, 49152}) {
    std::vector<float> logits;
    std::vector<SamplingRow> rows;
    for (const float temperature : {0.0f, 0.3f, 1.0f, 5.0f}) {
      for (const int32_t top_k : {0, 1, 7, 100000}) {
        for (const float top_p : {1.0f, 0.9f, 0.2f}) {
          for (const float min_p : {0.0f, 0.1f}) {
            if (vocab_size > 5000 && (top_k == 1 || top_p == 0.2f)) continue;
            const std::vector<float> row = random.normals<float>(vocab_size, 3.0);
            logits.insert(logits.end(), row.begin(), row.end());
            rows.push_back({temperature, top_k, top_p, min_p, random.bits(), random.integer(0, 1 << 20)});
          }
        }
      }
    }
    const std::vector<int32_t> got = run_sample(GetParam(), logits, rows, 3);
    for (size_t r = 0; r < rows.size(); ++r) {
      const auto begin = logits.begin() + static_cast<int64_t>(r) * vocab_size;
      const SamplingRow& row = rows[r];
      const int32_t want = oracle::sample(std::vector<float>(begin, begin + vocab_size),
                                          {static_cast<double>(row.temperature), row.top_k, static_cast<double>(row.top_p),
                                           static_cast<double>(row.min_p), row.seed, row.position});
      EXPECT_EQ(got[r], want) << "vocabulary " << vocab_size << ", temperature " << row.temperature << ", top_k " << row.top_k
                              << ", top_p " << row.top_p << ", min_p " << row.min_p;
    }
  }
}

// There are few rows of many tokens: a GPU then gives a row 8, 4 or 2 blocks (64 blocks in all), each of which has some of the tokens. At
// such a temperature all that the filters keep is about as likely, so that one token too many, or too few, moves a good part of the draws.
TEST_P(SamplingTest, FewRowsMatchOracle) {
  PROLOGUE_EMULATE_ONCE(GetParam());
  Random random(11);
  constexpr int64_t kVocab = 9000;
  std::vector<SamplingRow> rows;
  for (const int32_t top_k : {0, 3, 9, 4000}) {
    for (const float top_p : {1.0f, 0.5f}) {
      for (int draw = 0; draw < 12; ++draw)
        rows.push_back({50.0f, top_k, top_p, 0.0f, random.bits(), random.integer(0, 1 << 20)});
    }
  }
  const std::vector<float> logits = random.normals<float>(static_cast<int64_t>(rows.size()) * kVocab, 1.5);
  std::vector<int32_t> want;
  for (size_t r = 0; r < rows.size(); ++r) {
    const auto begin = logits.begin() + static_cast<int64_t>(r) * kVocab;
    const SamplingRow& row = rows[r];
    want.push_back(oracle::sample(std::vector<float>(begin, begin + kVocab),
                                  {static_cast<double>(row.temperature), row.top_k, static_cast<double>(row.top_p),
                                   static_cast<double>(row.min_p), row.seed, row.position}));
  }
  ASSERT_EQ(rows.size(), 96u);
  for (const size_t at_once : {6u, 12u, 24u}) {
    for (size_t first = 0; first < rows.size(); first += at_once) {
      const std::vector<float> some(logits.begin() + static_cast<int64_t>(first) * kVocab,
                                    logits.begin() + static_cast<int64_t>(first + at_once) * kVocab);
      const std::vector<int32_t> got = run_sample(
          GetParam(), some, {rows.begin() + static_cast<int64_t>(first), rows.begin() + static_cast<int64_t>(first + at_once)});
      for (size_t i = 0; i < at_once; ++i) {
        const SamplingRow& row = rows[first + i];
        EXPECT_EQ(got[i], want[first + i]) << at_once << " rows at once, temperature " << row.temperature << ", top_k "
                                           << row.top_k << ", top_p " << row.top_p;
      }
    }
  }
}

TEST_P(SamplingTest, MatchesGoldenChoices) {
  std::ifstream file(source_path("tests/golden/sampling/choices.txt"));
  std::string line;
  int count = 0;
  while (std::getline(file, line)) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream fields(line);
    int64_t number = 0, vocab_size = 0;
    int32_t token = 0;
    SamplingRow row;
    fields >> number >> vocab_size >> row.temperature >> row.top_k >> row.top_p >> row.min_p >> row.seed >> row.position >> token;
    ASSERT_FALSE(fields.fail()) << line;
    std::vector<float> logits;
    for (int64_t i = 0; i < vocab_size; ++i) {
      logits.push_back(static_cast<float>((i * 7919 + number * 104729) % 4096) / 256.0f - 8.0f);
    }
    EXPECT_EQ(run_one(GetParam(), logits, row), token) << line;
    ++count;
  }
  EXPECT_EQ(count, 96);
}

// The filters that leave one token, or only equals of the largest.
TEST_P(SamplingTest, FiltersDownToOneToken) {
  PROLOGUE_EMULATE_ONCE(GetParam());
  Random random(2);
  for (int i = 0; i < 20; ++i) {
    const std::vector<float> logits = random.normals<float>(1000);
    const int32_t largest = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    const uint64_t seed = random.bits();
    EXPECT_EQ(run_one(GetParam(), logits, {2.0f, 1, 1.0f, 0.0f, seed, i}), largest);
    EXPECT_EQ(run_one(GetParam(), logits, {2.0f, 0, 1e-6f, 0.0f, seed, i}), largest);
    EXPECT_EQ(run_one(GetParam(), logits, {2.0f, 0, 1.0f, 1.0f, seed, i}), largest);
    EXPECT_EQ(run_one(GetParam(), logits, {1e-30f, 0, 1.0f, 0.0f, seed, i}), largest);
  }
}

std::set<int32_t> chosen(const std::vector<int32_t>& tokens) { return {tokens.begin(), tokens.end()}; }

// Among equals the lower ids stay.
TEST_P(SamplingTest, FiltersBreakTiesByTheLowerId) {
  PROLOGUE_EMULATE_ONCE(GetParam());
  std::vector<float> logits(40, -1.0f);
  for (const size_t i : {3, 8, 9, 20, 21, 22, 30, 31, 38, 39}) logits[i] = 2.0f;  // ten equals; the others weigh e^-3 each
  const SamplingRow row{1.0f, 0, 1.0f, 0.0f, 5, 0};
  const auto run = [&](SamplingRow changed) { return chosen(run_positions(GetParam(), logits, changed, 400)); };

  SamplingRow filtered = row;
  filtered.top_k = 3;
  EXPECT_EQ(run(filtered), (std::set<int32_t>{3, 8, 9}));
  filtered.top_k = 10;
  EXPECT_EQ(run(filtered), (std::set<int32_t>{3, 8, 9, 20, 21, 22, 30, 31, 38, 39}));
  filtered.top_p = 0.5f;  // of the ten that are left: exactly five
  EXPECT_EQ(run(filtered), (std::set<int32_t>{3, 8, 9, 20, 21}));
  filtered.top_p = 0.51f;
  EXPECT_EQ(run(filtered), (std::set<int32_t>{3, 8, 9, 20, 21, 22}));
  filtered.top_k = 0;  // the thirty others weigh 1.49 of 11.49: 0.51 of all is 5.86
  EXPECT_EQ(run(filtered), (std::set<int32_t>{3, 8, 9, 20, 21, 22}));
  filtered.top_p = 1.0f;
  filtered.min_p = 0.05f;  // e^-3 = 0.0498
  EXPECT_EQ(run(filtered), (std::set<int32_t>{3, 8, 9, 20, 21, 22, 30, 31, 38, 39}));
  filtered.min_p = 0.049f;
  EXPECT_GT(run(filtered).size(), 10u);
}

// Makes 30000 draws from known probabilities: the statistic of 7 degrees of freedom exceeds 45 once in ten million seeds.
TEST_P(SamplingTest, DrawsFollowTheProbabilities) {
  PROLOGUE_EMULATE_ONCE(GetParam());
  const std::vector<double> p = {0.3, 0.25, 0.2, 0.1, 0.06, 0.05, 0.03, 0.01};
#ifdef PROLOGUE_CUDA_EMULATED
  constexpr int64_t kDraws = 3000;  // each is a block of 1024 threads
#else
  constexpr int64_t kDraws = 30000;
#endif
  for (const float temperature : {1.0f, 0.5f}) {
    std::vector<float> logits;
    for (const double x : p) logits.push_back(temperature * static_cast<float>(std::log(x)) + 3.0f);
    for (const uint64_t seed : {uint64_t{1}, uint64_t{0x123456789abcdef0}}) {
      std::vector<int64_t> counts(p.size());
      for (const int32_t token : run_positions(GetParam(), logits, {temperature, 0, 1.0f, 0.0f, seed, 0}, kDraws)) {
        ++counts.at(static_cast<size_t>(token));
      }
      double chi_square = 0.0;
      for (size_t i = 0; i < p.size(); ++i) {
        const double expected = p[i] * kDraws;
        chi_square += std::pow(static_cast<double>(counts[i]) - expected, 2) / expected;
      }
      EXPECT_LT(chi_square, 45.0) << "temperature " << temperature << ", seed " << seed;
    }
  }
}

// Over a large vocabulary of equals every part of it is drawn from: 4 blocks of 1024 in 4000 draws, 1000 each (+- 6 sigma).
TEST_P(SamplingTest, DrawsReachTheWholeVocabulary) {
  PROLOGUE_EMULATE_ONCE(GetParam());
  const std::vector<float> logits(4096, 1.0f);
  std::vector<SamplingRow> rows;
  std::vector<int64_t> counts(4);
  for (int64_t batch = 0; batch < 40; ++batch) {
    std::vector<float> all;
    rows.clear();
    for (int64_t i = 0; i < 100; ++i) {
      all.insert(all.end(), logits.begin(), logits.end());
      rows.push_back({1.0f, 0, 1.0f, 0.0f, 77, batch * 100 + i});
    }
    for (const int32_t token : run_sample(GetParam(), all, rows)) ++counts.at(static_cast<size_t>(token) / 1024);
  }
  for (const int64_t count : counts) EXPECT_NEAR(static_cast<double>(count), 1000.0, 6.0 * std::sqrt(4000 * 0.25 * 0.75));
}

TEST_P(SamplingTest, IndependentOfTheBatchAndItsOrder) {
  Random random(3);
  constexpr int64_t kRows = 33, kVocab = 500;
  std::vector<float> logits = random.normals<float>(kRows * kVocab);
  std::vector<SamplingRow> rows;
  for (int64_t r = 0; r < kRows; ++r) {
    rows.push_back({0.9f, r % 3 == 0 ? 50 : 0, r % 2 == 0 ? 0.9f : 1.0f, 0.0f, random.bits(), random.integer(0, 9999)});
  }
  const std::vector<int32_t> batch = run_sample(GetParam(), logits, rows);
  std::vector<int64_t> order(kRows);
  std::iota(order.begin(), order.end(), 0);
  random.shuffle(order);
  std::vector<float> shuffled_logits;
  std::vector<SamplingRow> shuffled_rows;
  for (const int64_t r : order) {
    shuffled_logits.insert(shuffled_logits.end(), logits.begin() + r * kVocab, logits.begin() + (r + 1) * kVocab);
    shuffled_rows.push_back(rows[static_cast<size_t>(r)]);
  }
  const std::vector<int32_t> shuffled = run_sample(GetParam(), shuffled_logits, shuffled_rows, 1);
  for (size_t i = 0; i < order.size(); ++i) EXPECT_EQ(shuffled[i], batch[static_cast<size_t>(order[i])]) << order[i];
  for (const int64_t r : {0, 16, 32}) {
    const std::vector<float> alone(logits.begin() + r * kVocab, logits.begin() + (r + 1) * kVocab);
    EXPECT_EQ(run_one(GetParam(), alone, rows[static_cast<size_t>(r)]), batch[static_cast<size_t>(r)]) << r;
  }
}

TEST_P(SamplingTest, SeedAndPositionChangeTheChoice) {
  const std::vector<float> logits(1000, 0.0f);
  std::vector<float> all;
  std::vector<SamplingRow> rows;
  for (uint64_t i = 0; i < 50; ++i) {  // every bit of the seed and of the position counts
    all.insert(all.end(), logits.begin(), logits.end());
    rows.push_back(i < 25 ? SamplingRow{1.0f, 0, 1.0f, 0.0f, uint64_t{1} << (2 * i + 13), 0}
                          : SamplingRow{1.0f, 0, 1.0f, 0.0f, 0, int64_t{1} << (2 * (i - 25) + 13)});
  }
  EXPECT_GT(chosen(run_sample(GetParam(), all, rows)).size(), 40u);
}

// Rows that draw have logits that are not finite.
TEST_P(SamplingTest, NanAndInfinitiesWhenDrawing) {
  PROLOGUE_EMULATE_ONCE(GetParam());
  const SamplingRow row{1.0f, 0, 1.0f, 0.0f, 9, 0};
  SamplingRow top_p = row, top_k = row;
  top_p.top_p = 0.9f;
  top_k.top_k = 3;
  for (const SamplingRow& filters : {row, top_p, top_k}) {
    const auto run = [&](const std::vector<float>& logits) { return chosen(run_positions(GetParam(), logits, filters, 200)); };
    EXPECT_EQ(run({kNan, 1.0f, -kInfinity, 1.0f, kNan}), (std::set<int32_t>{1, 3}));
    EXPECT_EQ(run({kNan, 1.0f, kInfinity, 5.0f}), (std::set<int32_t>{2}));
    EXPECT_EQ(run({0.0f, kInfinity, kNan, kInfinity}), (std::set<int32_t>{1, 3}));
    EXPECT_EQ(run({kNan, kNan}), (std::set<int32_t>{0}));
    EXPECT_EQ(run({3e38f, -3e38f, 3e38f}), (std::set<int32_t>{0, 2}));
  }
}

// What is outside its range lies on the device and cannot be refused: it has a meaning.
TEST_P(SamplingTest, ParametersOutsideTheirRange) {
  const std::vector<float> logits = {1.0f, 2.0f, 2.0f, 0.0f};
  const auto run = [&](const SamplingRow& row) { return chosen(run_positions(GetParam(), logits, row, 100)); };
  const std::set<int32_t> all = {0, 1, 2, 3}, first = {1}, largest = {1, 2};
  EXPECT_EQ(run({-1.0f, 0, 1.0f, 0.0f, 1, 0}), first);
  EXPECT_EQ(run({kNan, 0, 1.0f, 0.0f, 1, 0}), first);
  EXPECT_EQ(run({2.0f, -5, 1.0f, 0.0f, 1, 0}), all);
  EXPECT_EQ(run({2.0f, std::numeric_limits<int32_t>::max(), 1.0f, 0.0f, 1, 0}), all);
  EXPECT_EQ(run({2.0f, 0, 0.0f, 0.0f, 1, 0}), first);
  EXPECT_EQ(run({2.0f, 0, -1.0f, 0.0f, 1, 0}), first);
  EXPECT_EQ(run({2.0f, 0, kNan, 0.0f, 1, 0}), first);
  EXPECT_EQ(run({2.0f, 0, 7.0f, 0.0f, 1, 0}), all);
  EXPECT_EQ(run({2.0f, 0, 1.0f, 3.0f, 1, 0}), largest);
  EXPECT_EQ(run({2.0f, 0, 1.0f, -1.0f, 1, 0}), all);
  EXPECT_EQ(run({2.0f, 0, 1.0f, kNan, 1, 0}), all);
  EXPECT_EQ(run({kInfinity, 0, 1.0f, 0.0f, 1, 0}), all);
}

// Holds a row with what its pointers point to; what is empty becomes null.
struct AdjustedRow {
  SamplingRow row;
  std::vector<int32_t> counts;
  std::vector<float> bias;
};
struct Ran {
  std::vector<int32_t> tokens;
  std::vector<std::vector<int32_t>> counts;
  std::vector<uint8_t> row_faults;
};

Ran run_adjusted(Backend backend, const std::vector<float>& logits, const std::vector<AdjustedRow>& adjusted_rows) {
  Arena arena(backend);
  SamplingParams p;
  p.num_rows = static_cast<int64_t>(adjusted_rows.size());
  p.vocab_size = p.logits_stride = static_cast<int64_t>(logits.size() / adjusted_rows.size());
  std::vector<SamplingRow> rows;
  for (const AdjustedRow& each : adjusted_rows) {
    rows.push_back(each.row);
    if (!each.counts.empty()) rows.back().counts = arena.inout(each.counts);
    if (!each.bias.empty()) rows.back().bias = arena.input(each.bias);
  }
  p.logits = arena.input(logits);
  p.rows = arena.input(rows);
  p.tokens = arena.output<int32_t>(p.num_rows);
  p.row_faults = arena.output<uint8_t>(p.num_rows);
  const Status status = arena.run([&](const Execution& execution) { return sample(p, execution); });
  EXPECT_TRUE(status.ok()) << status.message();
  Ran ran{arena.read(p.tokens), {}, arena.read(p.row_faults)};
  for (const SamplingRow& row : rows) {
    ran.counts.push_back(row.counts == nullptr ? std::vector<int32_t>() : arena.read(row.counts));
  }
  return ran;
}

int32_t encoded(const oracle::TokenHistory& history) {
  return static_cast<int32_t>(2 * history.times_generated + (history.in_prompt ? 1 : 0));
}

// Token 1 is adjusted, token 0 has the number that should result: it wins as the equal with the lower id, and loses when it is the
// next smaller number.
TEST_P(SamplingTest, AdjustsLogitsBitForBit) {
  Random random(11);
  std::vector<float> logits;
  std::vector<AdjustedRow> rows;
  for (int i = 0; i < 400; ++i) {
    const float logit = static_cast<float>(8.0 * random.normal()), bias = i % 3 == 0 ? 0.0f : static_cast<float>(random.normal());
    const oracle::TokenHistory history = {random.integer(0, 1) == 0,
                                          random.integer(0, 1) * random.integer(1, i % 5 == 0 ? 1 << 28 : 9)};
    const auto some = [&](double value) { return random.integer(0, 3) == 0 ? 0.0f : static_cast<float>(value); };
    SamplingRow row;
    row.repetition_penalty = random.integer(0, 3) == 0 ? 1.0f : static_cast<float>(0.5 + random.uniform());
    row.presence_penalty = some(random.normal());
    row.frequency_penalty = some(random.normal());
    const float want =
        oracle::adjusted_logit(logit, bias, history,
                               {static_cast<double>(row.repetition_penalty), static_cast<double>(row.presence_penalty),
                                static_cast<double>(row.frequency_penalty)});
    for (const float rival : {want, std::nextafter(want, -kInfinity)}) {
      logits.insert(logits.end(), {rival, logit});
      rows.push_back({row, {0, encoded(history)}, {}});
      if (bias != 0.0f) rows.back().bias = {0.0f, bias};
    }
  }
  const Ran ran = run_adjusted(GetParam(), logits, rows);
  for (size_t r = 0; r < rows.size(); ++r) {
    EXPECT_EQ(ran.tokens[r], r % 2) << "row " << r;
    std::vector<int32_t> counts = rows[r].counts;
    counts[r % 2] += 2;
    EXPECT_EQ(ran.counts[r], counts) << "row " << r;
  }
}

// Rows with a bias, with counts, with both and with neither in one batch, under the filters.
TEST_P(SamplingTest, AdjustedRowsMatchOracle) {
  Random random(12);
  for (const int64_t vocab_size : {1, 33, 257, 4097, 20000}) {
    const size_t size = static_cast<size_t>(vocab_size);
    std::vector<float> logits;
    std::vector<AdjustedRow> rows;
    std::vector<int32_t> want;
    for (int i = 0; i < 24; ++i) {
      const std::vector<float> row_logits = random.normals<float>(vocab_size, 3.0);
      logits.insert(logits.end(), row_logits.begin(), row_logits.end());
      const SamplingRow filters[] = {{},
                                     {0.8f, 0, 1.0f, 0.0f, random.bits(), i},
                                     {1.3f, 7, 0.9f, 0.0f, random.bits(), i},
                                     {0.7f, 0, 0.8f, 0.05f, random.bits(), i}};
      AdjustedRow row{filters[i % 4], {}, {}};
      oracle::Penalties penalties;
      std::vector<oracle::TokenHistory> history(size);
      if (i / 4 % 2 == 1) {
        for (oracle::TokenHistory& each : history) {
          each = {random.integer(0, 3) == 0, random.integer(0, 3) == 0 ? random.integer(1, 20) : 0};
          row.counts.push_back(encoded(each));
        }
        row.row.repetition_penalty = 1.2f, row.row.presence_penalty = 0.4f, row.row.frequency_penalty = 0.1f;
        penalties = {static_cast<double>(1.2f), static_cast<double>(0.4f), static_cast<double>(0.1f)};
      }
      if (i / 8 % 3 > 0) row.bias = random.normals<float>(vocab_size, 2.0);
      std::vector<float> adjusted;
      for (size_t t = 0; t < size; ++t) {
        adjusted.push_back(oracle::adjusted_logit(row_logits[t], row.bias.empty() ? 0.0f : row.bias[t], history[t], penalties));
      }
      want.push_back(
          oracle::sample(adjusted, {static_cast<double>(row.row.temperature), row.row.top_k, static_cast<double>(row.row.top_p),
                                    static_cast<double>(row.row.min_p), row.row.seed, row.row.position}));
      rows.push_back(std::move(row));
    }
    const Ran ran = run_adjusted(GetParam(), logits, rows);
    for (size_t r = 0; r < rows.size(); ++r) {
      EXPECT_EQ(ran.tokens[r], want[r]) << "vocabulary " << vocab_size << ", row " << r;
      std::vector<int32_t> counts = rows[r].counts;
      if (!counts.empty()) counts.at(static_cast<size_t>(want[r])) += 2;
      EXPECT_EQ(ran.counts[r], counts) << "vocabulary " << vocab_size << ", row " << r;
      EXPECT_EQ(ran.row_faults[r], 0) << r;
    }
  }
}

// A row of a chain is sampled as a row by itself whose counts have its drafts; the counts of the chain stay as they are.
TEST_P(SamplingTest, RowsOfAChainCountTheirDrafts) {
  Random random(15);
  for (const int64_t vocab_size : {9, 300, 5000}) {
    const auto size = static_cast<size_t>(vocab_size);
    std::vector<float> logits;
    std::vector<AdjustedRow> alone;
    std::vector<SamplingRow> rows;
    std::vector<int32_t> token_ids, logit_rows;
    std::vector<std::vector<int32_t>> counts;  // of each chain
    std::vector<size_t> chain_of_row;
    for (int c = 0; c < 8; ++c) {
      const auto length = static_cast<int32_t>(c == 0 ? kMaxChain : random.integer(1, 6));
      counts.emplace_back();
      for (size_t t = 0; t < size; ++t) counts.back().push_back(static_cast<int32_t>(random.integer(0, 5)));
      std::vector<int32_t> with_drafts = counts.back();
      for (int32_t i = 0; i < length; ++i) {
        const auto token = static_cast<int32_t>(random.integer(0, std::min<int64_t>(vocab_size, 6) - 1));  // some come twice
        for (int64_t skipped = random.integer(0, 2); skipped > 0; --skipped) token_ids.push_back(0);       // tokens without rows
        logit_rows.push_back(static_cast<int32_t>(token_ids.size()));
        token_ids.push_back(token);
        if (i > 0) with_drafts[static_cast<size_t>(token)] += 2;
        SamplingRow row{c % 2 == 0 ? 0.0f : 0.9f, c % 3 == 0 ? 5 : 0, 1.0f, 0.0f, random.bits(), i};
        row.repetition_penalty = 1.3f, row.presence_penalty = 0.5f, row.frequency_penalty = 0.4f;
        alone.push_back({row, with_drafts, {}});
        row.chain = c == 7 && length == 1 ? 0 : i + 1;
        rows.push_back(row);
        chain_of_row.push_back(counts.size() - 1);
        const std::vector<float> own = random.normals<float>(vocab_size, 1.0);
        logits.insert(logits.end(), own.begin(), own.end());
      }
    }
    const Ran want = run_adjusted(GetParam(), logits, alone);
    Arena arena(GetParam());
    std::vector<int32_t*> placed;
    for (const std::vector<int32_t>& each : counts) placed.push_back(arena.inout(each));
    for (size_t r = 0; r < rows.size(); ++r) rows[r].counts = placed[chain_of_row[r]];
    SamplingParams p;
    p.num_rows = static_cast<int64_t>(rows.size());
    p.vocab_size = p.logits_stride = vocab_size;
    p.logits = arena.input(logits);
    p.rows = arena.input(rows);
    p.tokens = arena.output<int32_t>(p.num_rows);
    p.num_tokens = static_cast<int64_t>(token_ids.size());
    p.token_ids = arena.input(token_ids);
    p.logit_rows = arena.input(logit_rows);
    const Status status = arena.run([&](const Execution& execution) { return sample(p, execution); });
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(arena.read(p.tokens), want.tokens) << "vocabulary " << vocab_size;
    for (size_t c = 0; c < counts.size(); ++c) {
      std::vector<int32_t> left = counts[c];
      const size_t last = rows.size() - 1;
      if (chain_of_row[last] == c && rows[last].chain == 0) left[static_cast<size_t>(want.tokens[last])] += 2;
      EXPECT_EQ(arena.read(placed[c]), left) << "chain " << c;
    }
  }
}

TEST_P(SamplingTest, BiasForbidsTokens) {
  std::vector<float> logits, bias(300, -kInfinity);
  std::vector<AdjustedRow> rows;
  bias[250] = 0.0f;
  for (const SamplingRow& row : {SamplingRow{}, SamplingRow{1.0f, 0, 1.0f, 0.0f, 3, 0}, SamplingRow{2.0f, 5, 0.9f, 0.1f, 3, 1}}) {
    std::vector<float> row_logits(300, 50.0f);
    row_logits[7] = kInfinity;
    row_logits[250] = -90.0f;
    logits.insert(logits.end(), row_logits.begin(), row_logits.end());
    rows.push_back({row, {}, bias});
  }
  const Ran ran = run_adjusted(GetParam(), logits, rows);
  EXPECT_EQ(ran.tokens, (std::vector<int32_t>{250, 250, 250}));
  EXPECT_EQ(ran.row_faults, (std::vector<uint8_t>{0, 0, 0}));  // infinity - infinity is not the model's NaN
}

TEST_P(SamplingTest, RecordsLogitsThatAreNotNumbers) {
  constexpr uint8_t kFault = static_cast<uint8_t>(FaultCode::logits_not_a_number);
  for (const int64_t vocab_size : {1, 5, 3000}) {
    const size_t size = static_cast<size_t>(vocab_size);
    std::vector<float> logits(4 * size, 1.0f);
    logits[size - 1] = kNan;              // the last of row 0
    logits[2 * size + size / 2] = -kNan;  // one of row 2, which has a bias
    logits[3 * size] = kInfinity;
    const SamplingRow draw{1.0f, 0, 1.0f, 0.0f, 3, 0};
    const Ran ran = run_adjusted(GetParam(), logits,
                                 {{{}, {}, {}}, {draw, {}, {}}, {draw, {}, std::vector<float>(size, 1.0f)}, {draw, {}, {}}});
    EXPECT_EQ(ran.row_faults, (std::vector<uint8_t>{kFault, 0, kFault, 0})) << vocab_size;
  }
}

// What is outside its range has a meaning, and every choice is counted.
TEST_P(SamplingTest, PenaltiesAndCountsOutsideTheirRange) {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  const auto run = [&](float repetition, float presence, float frequency, const std::vector<int32_t>& counts) {
    SamplingRow row;
    row.repetition_penalty = repetition, row.presence_penalty = presence, row.frequency_penalty = frequency;
    return run_adjusted(GetParam(), {1.0f, 2.0f}, {{row, counts, {}}}).counts[0];
  };
  for (const float off : {kNan, kInfinity, -kInfinity}) {
    EXPECT_EQ(run(off, off, off, {0, 9}), (std::vector<int32_t>{0, 11}));
    EXPECT_EQ(run(4.0f, off, off, {0, 9}), (std::vector<int32_t>{2, 9}));
    EXPECT_EQ(run(off, 3.0f, off, {0, 9}), (std::vector<int32_t>{2, 9}));
    EXPECT_EQ(run(off, off, 0.5f, {0, 9}), (std::vector<int32_t>{2, 9}));
  }
  EXPECT_EQ(run(0.0f, 0.0f, 0.0f, {0, 9}), (std::vector<int32_t>{0, 11}));
  EXPECT_EQ(run(-2.0f, 0.0f, 0.0f, {0, 9}), (std::vector<int32_t>{0, 11}));
  EXPECT_EQ(run(4.0f, 3.0f, 3.0f, {0, -9}), (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(run(1.0f, 0.0f, 0.0f, {0, kMost}), (std::vector<int32_t>{0, kMost}));
  EXPECT_EQ(run(1.0f, 0.0f, 0.0f, {0, kMost - 1}), (std::vector<int32_t>{0, kMost - 1}));
  EXPECT_EQ(run(1.0f, 0.0f, 0.0f, {0, kMost - 2}), (std::vector<int32_t>{0, kMost}));
  EXPECT_EQ(run_adjusted(GetParam(), {kNan, kNan}, {{{}, {4, 4}, {}}}).counts[0], (std::vector<int32_t>{6, 4}));
}

// A prompt's token gets the repetition penalty, and no other.
TEST_P(SamplingTest, ThePromptIsNotGenerated) {
  SamplingRow row;
  row.presence_penalty = row.frequency_penalty = 100.0f;
  EXPECT_EQ(run_adjusted(GetParam(), {1.0f, 2.0f}, {{row, {0, 1}, {}}}).tokens[0], 1);
  EXPECT_EQ(run_adjusted(GetParam(), {1.0f, 2.0f}, {{row, {0, 2}, {}}}).tokens[0], 0);
  row.repetition_penalty = 3.0f;
  EXPECT_EQ(run_adjusted(GetParam(), {1.0f, 2.0f}, {{row, {0, 1}, {}}}).tokens[0], 0);
}

TEST_P(SamplingTest, RefusesWhatTheContractForbids) {
  using P = SamplingParams;
  const std::vector<Refusal<P>> refusals = {
      {[](P& p) { p.num_rows = -1; }, "num_rows is -1: it must lie in 0..2147483648"},
      {[](P& p) { p.vocab_size = 0; }, "vocab_size is 0: it must lie in 1..8388608"},
      {[](P& p) { p.vocab_size = 8388609; }, "vocab_size is 8388609: it must lie in 1..8388608"},
      {[](P& p) { p.logits_stride = 3; }, "logits_stride is 3: it must be at least vocab_size, 4"},
      {[](P& p) { p.logits_stride = int64_t{1} << 62; }, "logits reaches further than 2^60 bytes: its strides are too large"},
      {[](P& p) { p.logits = nullptr; }, "logits is null"},
      {[](P& p) { p.rows = nullptr; }, "rows is null"},
      {[](P& p) { p.tokens = nullptr; }, "tokens is null"},
      {[](P& p) { p.tokens = reinterpret_cast<int32_t*>(const_cast<float*>(p.logits)); }, "tokens overlaps logits"},
      {[](P& p) { p.tokens = reinterpret_cast<int32_t*>(const_cast<SamplingRow*>(p.rows)); }, "tokens overlaps rows"},
      {[](P& p) { p.row_faults = reinterpret_cast<uint8_t*>(const_cast<float*>(p.logits)); }, "row_faults overlaps logits"},
      {[](P& p) { p.row_faults = reinterpret_cast<uint8_t*>(const_cast<SamplingRow*>(p.rows)); }, "row_faults overlaps rows"},
      {[](P& p) { p.row_faults = reinterpret_cast<uint8_t*>(p.tokens); }, "tokens overlaps row_faults"},
      {[](P& p) { p.token_ids = p.tokens; }, "token_ids is given and logit_rows is null: chains need both"},
      {[](P& p) { p.logit_rows = p.tokens; }, "logit_rows is given and token_ids is null: chains need both"},
      {[](P& p) { p.token_ids = p.logit_rows = p.tokens, p.num_tokens = 2; }, "tokens overlaps token_ids"},
      {[](P& p) { p.token_ids = p.logit_rows = p.tokens, p.num_tokens = -1; }, "num_tokens is -1: it must lie in 0..2147483647"},
  };
  expect_refusals("sample", refusals, [&](const auto& change) {
    Arena arena(GetParam());
    P p{2, 4, arena.input(std::vector<float>(8)), 4, arena.input(std::vector<SamplingRow>(2)), arena.output<int32_t>(2)};
    change(p);
    return refused(arena.run([&](const Execution& execution) { return sample(p, execution); }), arena);
  });
}

TEST_P(SamplingTest, NoRows) {
  Arena arena(GetParam());
  const SamplingParams p{0, 4, nullptr, 4, nullptr, arena.output<int32_t>(1)};
  EXPECT_TRUE(arena.run([&](const Execution& execution) { return sample(p, execution); }).ok());
  EXPECT_TRUE(arena.untouched());
}

TEST(SamplingCpuTest, CudaWithoutCuda) {
  if (built_with_cuda()) GTEST_SKIP() << "built with CUDA";
  Arena arena(Backend::cpu);
  const SamplingParams p{
      1, 4, arena.input(std::vector<float>(4)), 4, arena.input(std::vector<SamplingRow>(1)), arena.output<int32_t>(1)};
  const Status status = arena.run([&](Execution execution) {
    execution.device = Device::cuda;
    return sample(p, execution);
  });
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_EQ(status.message(), "sample: device is cuda, but this library was built without CUDA");
  EXPECT_TRUE(arena.untouched());
}

INSTANTIATE_TEST_SUITE_P(Backends, SamplingTest, testing::ValuesIn(all_backends()),
                         [](const auto& backend) { return backend_name(backend.param); });

}  // namespace
}  // namespace prologue::test
