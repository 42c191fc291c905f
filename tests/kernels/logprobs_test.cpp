#include <prologue/kernels/token_ops/logprobs.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/oracle/token_ops.h"
#include "tests/support/arena.h"
#include "tests/support/random.h"
#include "tests/support/refusals.h"

namespace prologue::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class LogprobsTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Backends, LogprobsTest, testing::ValuesIn(all_backends()),
                         [](const auto& backend) { return backend_name(backend.param); });

struct Entries {
  std::vector<int32_t> ids;
  std::vector<float> values;
};

// logits is [tokens.size(), vocab_size]; between the rows are infinities that would win.
Entries run_logprobs(Backend backend, const std::vector<float>& logits, const std::vector<int32_t>& tokens, int64_t top,
                     int64_t padding = 0) {
  Arena arena(backend);
  LogprobsParams p;
  p.num_rows = static_cast<int64_t>(tokens.size());
  p.vocab_size = static_cast<int64_t>(logits.size() / tokens.size());
  p.logits_stride = p.vocab_size + padding;
  p.top = top;
  std::vector<float> strided(static_cast<size_t>(p.num_rows * p.logits_stride), kInfinity);
  for (int64_t r = 0; r < p.num_rows; ++r) {
    std::copy_n(logits.begin() + r * p.vocab_size, p.vocab_size, strided.begin() + r * p.logits_stride);
  }
  p.logits = arena.input(strided);
  p.tokens = arena.input(tokens);
  p.logprobs = arena.output<float>(p.num_rows * (top + 1));
  p.ids = arena.output<int32_t>(p.num_rows * (top + 1));
  const Status status = arena.run([&](const Execution& execution) { return logprobs(p, execution); });
  EXPECT_TRUE(status.ok()) << status.message();
  return {arena.read(p.ids), arena.read(p.logprobs)};
}

// The ids are compared exactly, the values within the contract's bound.
void expect_oracle(const Entries& got, const std::vector<float>& logits, const std::vector<int32_t>& tokens, int64_t top) {
  const size_t vocab_size = logits.size() / tokens.size(), width = static_cast<size_t>(top + 1);
  for (size_t r = 0; r < tokens.size(); ++r) {
    const auto begin = logits.begin() + static_cast<int64_t>(r * vocab_size);
    const std::vector<oracle::LogProb> want =
        oracle::logprobs(std::vector<float>(begin, begin + static_cast<int64_t>(vocab_size)), tokens[r], top);
    for (size_t i = 0; i < width; ++i) {
      const double value = static_cast<double>(got.values[r * width + i]);
      EXPECT_EQ(got.ids[r * width + i], want[i].id) << "vocabulary " << vocab_size << ", row " << r << ", entry " << i;
      if (std::isinf(want[i].value)) {
        EXPECT_EQ(value, want[i].value) << "vocabulary " << vocab_size << ", row " << r << ", entry " << i;
        continue;
      }
      const double size = static_cast<double>(vocab_size);
      const double bound = 0x1p-24 * std::fabs(want[i].value) + 0x1p-40 * size + 0x1p-22 * (1.0 + std::log(size));
      EXPECT_NEAR(value, want[i].value, bound) << "vocabulary " << vocab_size << ", row " << r << ", entry " << i;
    }
  }
}

TEST_P(LogprobsTest, MatchesOracle) {
  Random random(1);
  for (const int64_t vocab_size : {1, 2, 20, 31, 33, 257, 1000, 1024, 4097, 50257}) {
    for (const int64_t top : {0, 1, 5, 20}) {
      std::vector<float> logits;
      std::vector<int32_t> tokens;
      for (const double deviation : {0.0, 0.1, 3.0, 30.0, 1e-40, 1e36}) {
        const std::vector<float> row = random.normals<float>(vocab_size, deviation);
        logits.insert(logits.end(), row.begin(), row.end());
        tokens.push_back(static_cast<int32_t>(random.integer(0, vocab_size - 1)));
      }
      expect_oracle(run_logprobs(GetParam(), logits, tokens, top, 3), logits, tokens, top);
    }
  }
}

// The order among equals, and first tokens that all fall to one thread of a block.
TEST_P(LogprobsTest, OrderOfTheTop) {
  constexpr int64_t kVocab = 40 * 1024;
  std::vector<float> equal(kVocab, 1.0f), one_thread(kVocab, 0.0f), ties(kVocab);
  for (size_t i = 0; i < 40; ++i) one_thread[i * 1024 + 77] = 5.0f + static_cast<float>(i % 7);
  Random random(2);
  for (float& logit : ties) logit = std::round(static_cast<float>(2.0 * random.normal()));
  std::vector<float> logits;
  for (const std::vector<float>& row : {equal, one_thread, ties}) logits.insert(logits.end(), row.begin(), row.end());
  const std::vector<int32_t> tokens = {40959, 77, 12345};
  const Entries got = run_logprobs(GetParam(), logits, tokens, 20);
  expect_oracle(got, logits, tokens, 20);
  for (size_t i = 1; i <= 20; ++i) EXPECT_EQ(got.ids[i], static_cast<int32_t>(i) - 1);
}

TEST_P(LogprobsTest, TokensOutsideTheVocabulary) {
  const std::vector<float> row = {0.5f, -1.0f, 2.0f};
  const std::vector<int32_t> tokens = {-1, 3, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max(), 2};
  std::vector<float> logits;
  for (size_t r = 0; r < tokens.size(); ++r) logits.insert(logits.end(), row.begin(), row.end());
  const Entries got = run_logprobs(GetParam(), logits, tokens, 5);
  expect_oracle(got, logits, tokens, 5);  // entries 4 and 5 are past the vocabulary
  EXPECT_EQ(got.ids[0], -1);
  EXPECT_EQ(got.values[0], -kInfinity);
}

TEST_P(LogprobsTest, LogitsThatAreNotFinite) {
  const auto run = [&](const std::vector<float>& logits, int32_t token) {
    return run_logprobs(GetParam(), logits, {token}, static_cast<int64_t>(logits.size()));
  };
  const auto expect = [](const Entries& got, const std::vector<int32_t>& ids, const std::vector<double>& values) {
    EXPECT_EQ(got.ids, ids);
    for (size_t i = 0; i < values.size(); ++i) {
      const double value = static_cast<double>(got.values[i]);
      if (std::isinf(values[i]))
        EXPECT_EQ(value, values[i]) << i;
      else
        EXPECT_NEAR(value, values[i], 1e-6) << i;
    }
  };
  const double none = -static_cast<double>(kInfinity), half = -std::log(2.0);
  expect(run({1.0f, kNan, 1.0f, -kInfinity, -kNan}, 1), {1, 0, 2, 1, 3, 4}, {none, half, half, none, none, none});
  expect(run({3e38f, kInfinity, -kInfinity, kInfinity}, 0), {0, 1, 3, 0, 2}, {none, half, half, none, none});
  expect(run({-kInfinity, kNan, -kInfinity}, 2), {2, 0, 1, 2}, {none, none, none, none});
  expect(run({kNan}, 0), {0, 0}, {none, none});
  expect(run({-0.0f, 0.0f}, 0), {0, 0, 1}, {half, half, half});
}

TEST_P(LogprobsTest, SameBitsAsTheCpu) {
#if !defined(__FMA__)
  GTEST_SKIP() << "this processor type has no fused multiply-add";
#endif
  Random random(3);
  for (const int64_t vocab_size : {33, 5000, 32000}) {
    const std::vector<float> logits = random.normals<float>(4 * vocab_size, 4.0);
    const std::vector<int32_t> tokens = {0, 5, 31, 32};
    const Entries want = run_logprobs(Backend::cpu, logits, tokens, 7), got = run_logprobs(GetParam(), logits, tokens, 7);
    EXPECT_EQ(got.ids, want.ids);
    EXPECT_EQ(std::memcmp(got.values.data(), want.values.data(), got.values.size() * sizeof(float)), 0) << vocab_size;
  }
}

TEST_P(LogprobsTest, RefusesWhatTheContractForbids) {
  using P = LogprobsParams;
  const std::vector<Refusal<P>> refusals = {
      {[](P& p) { p.num_rows = -1; }, "num_rows is -1: it must lie in 0..2147483648"},
      {[](P& p) { p.vocab_size = 0; }, "vocab_size is 0: it must lie in 1..8388608"},
      {[](P& p) { p.vocab_size = 8388609; }, "vocab_size is 8388609: it must lie in 1..8388608"},
      {[](P& p) { p.top = -1; }, "top is -1: it must lie in 0..20"},
      {[](P& p) { p.top = 21; }, "top is 21: it must lie in 0..20"},
      {[](P& p) { p.logits_stride = 3; }, "logits_stride is 3: it must be at least vocab_size, 4"},
      {[](P& p) { p.logits_stride = int64_t{1} << 62; }, "logits reaches further than 2^60 bytes: its strides are too large"},
      {[](P& p) { p.logits = nullptr; }, "logits is null"},
      {[](P& p) { p.tokens = nullptr; }, "tokens is null"},
      {[](P& p) { p.logprobs = nullptr; }, "logprobs is null"},
      {[](P& p) { p.ids = nullptr; }, "ids is null"},
      {[](P& p) { p.logprobs = const_cast<float*>(p.logits); }, "logprobs overlaps logits"},
      {[](P& p) { p.ids = const_cast<int32_t*>(p.tokens); }, "ids overlaps tokens"},
      {[](P& p) { p.ids = reinterpret_cast<int32_t*>(p.logprobs); }, "logprobs overlaps ids"},
  };
  expect_refusals("logprobs", refusals, [&](const auto& change) {
    Arena arena(GetParam());
    P p{2,
        4,
        arena.input(std::vector<float>(8)),
        4,
        arena.input(std::vector<int32_t>(2)),
        2,
        arena.output<float>(6),
        arena.output<int32_t>(6)};
    change(p);
    return refused(arena.run([&](const Execution& execution) { return logprobs(p, execution); }), arena);
  });
}

TEST_P(LogprobsTest, NoRows) {
  Arena arena(GetParam());
  const LogprobsParams p{0, 4, nullptr, 4, nullptr, 2, arena.output<float>(1), nullptr};
  EXPECT_TRUE(arena.run([&](const Execution& execution) { return logprobs(p, execution); }).ok());
  EXPECT_TRUE(arena.untouched());
}

}  // namespace
}  // namespace prologue::test
