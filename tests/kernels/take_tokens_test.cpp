#include <prologue/kernels/token_ops/take_tokens.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/arena.h"
#include "tests/support/random.h"
#include "tests/support/refusals.h"

namespace prologue::test {
namespace {

class TakeTokensTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Backends, TakeTokensTest, testing::ValuesIn(all_backends()),
                         [](const auto& backend) { return backend_name(backend.param); });

std::vector<int32_t> run_take(Backend backend, const std::vector<int32_t>& from, const std::vector<int32_t>& tokens,
                              const std::vector<int32_t>& token_ids) {
  Arena arena(backend);
  TakeTokensParams p;
  p.num_tokens = static_cast<int64_t>(from.size());
  p.num_sampled = static_cast<int64_t>(tokens.size());
  p.from = arena.input(from);
  p.tokens = arena.input(tokens);
  p.token_ids = arena.inout(token_ids);
  const Status status = arena.run([&](const Execution& execution) { return take_tokens(p, execution); });
  EXPECT_TRUE(status.ok()) << status.message();
  return arena.read(p.token_ids);
}

TEST_P(TakeTokensTest, TakesKeepsAndMarks) {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max(), kLeast = std::numeric_limits<int32_t>::min();
  EXPECT_EQ(run_take(GetParam(), {2, -1, 0, 3, kMost, kLeast, 2}, {70, 71, 72}, {1, 2, 3, 4, 5, 6, 7}),
            (std::vector<int32_t>{72, 2, 70, -1, -1, 6, 72}));
  EXPECT_EQ(run_take(GetParam(), {0, -1}, {}, {8, 9}), (std::vector<int32_t>{-1, 9}));
}

TEST_P(TakeTokensTest, AnyNumberOfTokens) {
  Random random(1);
  for (const int64_t num_tokens : {1, 31, 255, 256, 257, 3000}) {
    std::vector<int32_t> from, tokens, token_ids, want;
    for (int i = 0; i < 100; ++i) tokens.push_back(static_cast<int32_t>(random.integer(0, 99999)));
    for (int64_t t = 0; t < num_tokens; ++t) {
      from.push_back(static_cast<int32_t>(random.integer(-30, 110)));
      token_ids.push_back(static_cast<int32_t>(random.integer(0, 99999)));
      want.push_back(from.back() < 0 ? token_ids.back() : from.back() > 99 ? -1 : tokens.at(static_cast<size_t>(from.back())));
    }
    EXPECT_EQ(run_take(GetParam(), from, tokens, token_ids), want) << num_tokens;
  }
}

TEST_P(TakeTokensTest, RefusesWhatTheContractForbids) {
  using P = TakeTokensParams;
  const std::vector<Refusal<P>> refusals = {
      {[](P& p) { p.num_tokens = -1; }, "num_tokens is -1: it must lie in 0..2147483647"},
      {[](P& p) { p.num_sampled = -1; }, "num_sampled is -1: it must lie in 0..2147483647"},
      {[](P& p) { p.from = nullptr; }, "from is null"},
      {[](P& p) { p.tokens = nullptr; }, "tokens is null"},
      {[](P& p) { p.token_ids = nullptr; }, "token_ids is null"},
      {[](P& p) { p.token_ids = const_cast<int32_t*>(p.from); }, "token_ids overlaps from"},
      {[](P& p) { p.token_ids = const_cast<int32_t*>(p.tokens); }, "token_ids overlaps tokens"},
  };
  expect_refusals("take_tokens", refusals, [&](const auto& change) {
    Arena arena(GetParam());
    P p{2, 3, arena.input(std::vector<int32_t>(2)), arena.input(std::vector<int32_t>(3)), arena.output<int32_t>(2)};
    change(p);
    return refused(arena.run([&](const Execution& execution) { return take_tokens(p, execution); }), arena);
  });
}

TEST_P(TakeTokensTest, NoTokens) {
  Arena arena(GetParam());
  const TakeTokensParams p{0, 3, nullptr, nullptr, arena.output<int32_t>(1)};
  EXPECT_TRUE(arena.run([&](const Execution& execution) { return take_tokens(p, execution); }).ok());
  EXPECT_TRUE(arena.untouched());
}

}  // namespace
}  // namespace prologue::test
