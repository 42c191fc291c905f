#include <prologue/kernels/token_ops/gather_cos_sin.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/arena.h"
#include "tests/support/random.h"
#include "tests/support/refusals.h"
#include "tests/support/types.h"

namespace prologue::test {
namespace {

class GatherCosSinTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Backends, GatherCosSinTest, testing::ValuesIn(all_backends()),
                         [](const auto& backend) { return backend_name(backend.param); });

struct GatherCase {
  int64_t num_tokens, rotary_dim, num_axes, stride_padding;
  bool with_pair_axis, bad_positions;
};

TEST_P(GatherCosSinTest, CopiesTheRowsOfEveryAxis) {
  constexpr int64_t kRows = 20;
  for (const GatherCase& c : std::vector<GatherCase>{{0, 8, 1, 0, false, false},
                                                     {1, 2, 1, 0, false, false},
                                                     {33, 128, 1, 0, false, true},
                                                     {257, 72, 3, 5, true, true},
                                                     {31, 576, 4, 0, true, false},
                                                     {8, 16, 2, 1, false, true}}) {
    SCOPED_TRACE(testing::Message() << "T=" << c.num_tokens << " r=" << c.rotary_dim << " axes=" << c.num_axes);
    Random random(3);
    std::vector<float> table = random.normals<float>(kRows * c.rotary_dim);
    table[0] = -0.0f;
    const int64_t stride = c.num_tokens + c.stride_padding, half = c.rotary_dim / 2;
    std::vector<int64_t> positions;
    for (int64_t i = 0; i < c.num_axes * stride; ++i) {
      const bool bad = c.bad_positions && i % 5 == 2;
      positions.push_back(bad ? (i % 2 == 0 ? -1 : kRows) : random.integer(0, kRows - 1));
    }
    std::vector<uint8_t> pair_axis;
    for (int64_t i = 0; i < half; ++i)
      pair_axis.push_back(static_cast<uint8_t>(i == 0 ? 200 : i % c.num_axes));  // 200 counts as 0
    Arena arena(GetParam());
    GatherCosSinParams p;
    p.num_tokens = c.num_tokens, p.rotary_dim = c.rotary_dim, p.max_position = kRows;
    p.cos_sin = arena.input(table);
    p.positions = index_view(static_cast<const int64_t*>(arena.input(positions)));
    p.num_axes = c.num_axes, p.position_axis_stride = stride;
    if (c.with_pair_axis) p.pair_axis = arena.input(pair_axis);
    p.out = arena.output<float>(c.num_tokens * c.rotary_dim);
    const Status status = arena.run([&](const Execution& execution) { return gather_cos_sin(p, execution); });
    ASSERT_TRUE(status.ok()) << status.message();
    const std::vector<float> got = arena.read(p.out);
    for (int64_t t = 0; t < c.num_tokens; ++t) {
      for (int64_t i = 0; i < c.rotary_dim; ++i) {
        const int64_t pair = i % half, axis = !c.with_pair_axis || pair == 0 ? 0 : pair % c.num_axes;
        const int64_t position = positions[static_cast<size_t>(axis * stride + t)];
        const float want = position < 0 || position >= kRows ? 0.0f : table[static_cast<size_t>(position * c.rotary_dim + i)];
        ASSERT_EQ(std::memcmp(&got[static_cast<size_t>(t * c.rotary_dim + i)], &want, sizeof want), 0) << t << ", " << i;
      }
    }
  }
}

// 16-bit values are widened exactly: all of them that are numbers.
TEST_P(GatherCosSinTest, WidensTablesOf16Bits) {
  constexpr int64_t kDim = 64, kRows = 1024;
  std::vector<uint16_t> table(kRows * kDim);
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<uint16_t>(i);
  std::vector<int32_t> positions;
  for (int32_t row = kRows - 1; row >= 0; --row) positions.push_back(row);
  for (const DType type : {DType::f16, DType::bf16}) {
    Arena arena(GetParam());
    GatherCosSinParams p;
    p.num_tokens = p.max_position = kRows, p.rotary_dim = kDim, p.type = type;
    p.cos_sin = arena.input(table);
    p.positions = index_view(static_cast<const int32_t*>(arena.input(positions)));
    p.out = arena.output<float>(kRows * kDim);
    const Status status = arena.run([&](const Execution& execution) { return gather_cos_sin(p, execution); });
    ASSERT_TRUE(status.ok()) << status.message();
    const std::vector<float> got = arena.read(p.out);
    for (int64_t i = 0; i < kRows * kDim; ++i) {
      const int64_t from = (kRows - 1 - i / kDim) * kDim + i % kDim;
      const int bits = static_cast<int>(from), digits = type == DType::f16 ? 10 : 7, bias = type == DType::f16 ? 15 : 127;
      const int exponent = (bits & 0x7fff) >> digits, fraction = bits & ((1 << digits) - 1);
      const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
      double want = sign * std::ldexp(fraction + (exponent > 0 ? 1 << digits : 0), std::max(exponent, 1) - bias - digits);
      if (exponent == (0x7fff >> digits)) want = sign * HUGE_VAL;
      const double value = static_cast<double>(got[static_cast<size_t>(i)]);
      if (exponent == (0x7fff >> digits) && fraction != 0) {
        ASSERT_TRUE(std::isnan(value)) << bits;
      } else {
        ASSERT_EQ(value, want) << bits;
        ASSERT_EQ(std::signbit(value), sign < 0.0) << bits;
      }
    }
  }
}

// If one of a token's axes is past the table, the token is not rotated at all.
TEST_P(GatherCosSinTest, IdentityPastTheTable) {
  constexpr int64_t kTokens = 5, kDim = 8, kHalf = kDim / 2, kAxes = 2, kRows = 10;
  const std::vector<float> table = Random(3).normals<float>(kRows * kDim);
  const std::vector<int64_t> positions = {0, 9, 10, 3, INT64_MAX, 1, INT64_MAX, 4, -1, 10};
  for (const PastTable past_table : {PastTable::record, PastTable::zero, PastTable::identity}) {
    Arena arena(GetParam());
    GatherCosSinParams p;
    p.num_tokens = kTokens, p.rotary_dim = kDim, p.max_position = kRows, p.past_table = past_table;
    p.cos_sin = arena.input(table);
    p.positions = index_view(static_cast<const int64_t*>(arena.input(positions)));
    p.num_axes = kAxes, p.position_axis_stride = kTokens;
    p.pair_axis = arena.input(std::vector<uint8_t>{0, 1, 0, 1});
    p.out = arena.output<float>(kTokens * kDim);
    const Status status = arena.run([&](const Execution& execution) { return gather_cos_sin(p, execution); });
    ASSERT_TRUE(status.ok()) << status.message();
    const std::vector<float> got = arena.read(p.out);
    for (int64_t t = 0; t < kTokens; ++t) {
      const bool past = positions[static_cast<size_t>(t)] >= kRows || positions[static_cast<size_t>(kTokens + t)] >= kRows;
      for (int64_t i = 0; i < kDim; ++i) {
        const int64_t position = positions[static_cast<size_t>(i % kHalf % 2 * kTokens + t)];
        float want = position < 0 || position >= kRows ? 0.0f : table[static_cast<size_t>(position * kDim + i)];
        if (past && past_table == PastTable::identity) want = i < kHalf ? 1.0f : 0.0f;
        ASSERT_EQ(got[static_cast<size_t>(t * kDim + i)], want) << t << ", " << i;
      }
    }
  }
}

TEST_P(GatherCosSinTest, RefusesOtherTypes) {
  Arena arena(GetParam());
  GatherCosSinParams p;
  p.rotary_dim = 4, p.max_position = 3, p.type = DType::f64;
  const Status status = arena.run([&](const Execution& execution) { return gather_cos_sin(p, execution); });
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_EQ(status.message(), "gather_cos_sin: type is float64: supported are float32, float16 and bfloat16");
}

TEST_P(GatherCosSinTest, RefusesWithASentence) {
  using P = GatherCosSinParams;
  const std::vector<Refusal<P>> refusals = {
      {[](P& p) { p.num_tokens = -1; }, "num_tokens is -1: it must lie in 0..2147483647"},
      {[](P& p) { p.rotary_dim = 0; }, "rotary_dim is 0: it must lie in 2..65536"},
      {[](P& p) { p.rotary_dim = 5; }, "rotary_dim is 5: it must be even"},
      {[](P& p) { p.max_position = 0; }, "max_position is 0: it must lie in 1..1099511627776"},
      {[](P& p) { p.num_axes = 5; }, "num_axes is 5: it must lie in 1..4"},
      {[](P& p) { p.positions.type = kNoType; }, "positions.type is the unknown type 99: it must be int32 or int64"},
      {[](P& p) { p.position_axis_stride = P().position_axis_stride; },
       "position_axis_stride is not set, but num_axes is 2: set it, to 0 where all share one row"},
      {[](P& p) { p.position_axis_stride = -2; }, "positions has the stride -2: strides must not be negative"},
      {[](P& p) { p.cos_sin = nullptr; }, "cos_sin is null"},
      {[](P& p) { p.positions.data = nullptr; }, "positions is null"},
      {[](P& p) { p.out = nullptr; }, "out is null"},
      {[](P& p) { p.out = static_cast<float*>(const_cast<void*>(p.cos_sin)); }, "out overlaps cos_sin"},
  };
  expect_refusals("gather_cos_sin", refusals, [&](const auto& change) {
    Arena arena(GetParam());
    P p;
    p.num_tokens = 2, p.rotary_dim = 4, p.max_position = 3, p.num_axes = 2, p.position_axis_stride = 2;
    p.cos_sin = arena.input(std::vector<float>(12));
    p.positions = index_view(static_cast<const int32_t*>(arena.input(std::vector<int32_t>(4))));
    p.out = arena.output<float>(8);
    change(p);
    return refused(arena.run([&](const Execution& execution) { return gather_cos_sin(p, execution); }), arena);
  });
}

}  // namespace
}  // namespace prologue::test
