#include <prologue/kernels/rotary/rotary.h>

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <type_traits>

#include "tests/golden/rotary/rotary_goldens.h"
#include "tests/support/random.h"
#include "tests/support/rotary_results.h"
#include "tests/support/sparse_memory.h"
#include "tests/support/types.h"

namespace prologue::test {
namespace {

class RotaryTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }

  void check(const RotaryCase& c) {
    SCOPED_TRACE(c.describe());
    with_float_type(c.dtype, [&](auto type) {
      PlacedRotary<decltype(type)> placed(GetParam(), c);
      const Status status = placed.run();
      ASSERT_TRUE(status.ok()) << status.message();
      expect_matches(placed);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, RotaryTest, ::testing::ValuesIn(all_backends()),
                         [](const auto& instance) { return std::string(backend_name(instance.param)); });

TEST_P(RotaryTest, MatchesTheOracle) {
  for (const RotaryCase& c : rotary_cases()) {
    check(c);
    RotaryCase planned = c;
    planned.plan = true;
    if (c.seed % 7 == 0) check(planned);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST_P(RotaryTest, AnyStructMatchesTheOracle) {
  const uint64_t count = GetParam() == Backend::cpu ? 6000 : GetParam() == Backend::cuda ? 1500 : 300;
  for (uint64_t seed = 1; seed <= count; ++seed) {
    check(random_rotary_case(seed));
    if (::testing::Test::HasFailure()) return;
  }
}

// The values are the float32 values of the reference formulas, equal up to the order in which they round.
TEST_P(RotaryTest, MatchesTheReferenceFormulas) {
  for (const golden::RotaryGolden& g : golden::kRotaryGoldens) {
    SCOPED_TRACE(g.name);
    Arena arena(GetParam());
    const int64_t tokens = static_cast<int64_t>(g.table.size()) / g.rotary_dim;
    std::vector<int64_t> positions(static_cast<size_t>(tokens));
    std::iota(positions.begin(), positions.end(), 0);
    float* y = arena.output<float>(tokens * g.num_heads * g.head_dim);
    RotaryParams p;
    p.dtype = DType::f32;
    p.seq_len = tokens;
    p.head_dim = g.head_dim;
    p.num_tensors = 1;
    p.tensors[0] = rotary_tensor(arena.input(g.x), y, g.num_heads, batch_major_strides(tokens, g.num_heads, g.head_dim));
    p.rope.style = g.interleaved ? RopeStyle::interleaved : RopeStyle::neox;
    p.rope.rotary_dim = g.rotary_dim;
    set_cos_sin_table(p.rope, arena.input(g.table), DType::f32, tokens);
    p.rope.past_table = PastTable::zero;
    p.positions.ids = index_view(arena.input(positions));
    const Status status = arena.run([&](const Execution& execution) { return rotary(p, execution); });
    ASSERT_TRUE(status.ok()) << status.message();
    const std::vector<float> got = arena.read(y);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], g.y[i], 1e-6f) << i;
  }
}

// ---- properties -------------------------------------------------------------------------------------------------------------

TEST_P(RotaryTest, InverseUndoes) {
  for (const RopeSource source : {RopeSource::table, RopeSource::theta}) {
    RotaryCase c;
    c.dtype = c.type = DType::f64;
    c.bad_ids = false;
    c.source = source;
    c.num_blocks = 2;
    c.tensors = {{3}};
    PlacedRotary<double> placed(GetParam(), c);
    RotaryParams forth = placed.params();
    RotaryParams back = forth;
    double* again = placed.arena().output<double>(static_cast<int64_t>(placed.input().tensors[0].x.size()));
    back.rope.inverse = 1;
    back.tensors[0].x = forth.tensors[0].y;
    back.tensors[0].y = again;
    const Status status = placed.arena().run([&](const Execution& execution) {
      PROLOGUE_RETURN_IF_ERROR(rotary(forth, execution));
      return rotary(back, execution);
    });
    ASSERT_TRUE(status.ok()) << status.message();
    const std::vector<double> got = placed.arena().read(again);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], placed.input().tensors[0].x[i], 1e-14) << i;
  }
}

// Tables cut in half, doubled, interleaved, or combined are one table.
TEST_P(RotaryTest, EveryWayToStoreATableGivesTheSameBits) {
  constexpr int64_t kRows = 9, kPairs = 8, kTokens = 9;
  Random random(3);
  const std::vector<float> x = random.normals<float>(kTokens * 2 * kPairs);
  std::vector<float> cos, sin, combined(kRows * 2 * kPairs), pairs, full_cos(kRows * 2 * kPairs), full_sin(kRows * 2 * kPairs);
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t i = 0; i < kPairs; ++i) {
      cos.push_back(std::cos(static_cast<float>(r * (i + 1))));
      sin.push_back(std::sin(static_cast<float>(r * (i + 1))));
      const auto at = [&](int64_t column) { return static_cast<size_t>(r * 2 * kPairs + column); };
      combined[at(i)] = cos.back(), combined[at(kPairs + i)] = sin.back();
      pairs.push_back(cos.back()), pairs.push_back(sin.back());
      full_cos[at(i)] = full_cos[at(kPairs + i)] = cos.back();
      full_sin[at(i)] = full_sin[at(kPairs + i)] = sin.back();
    }
  }
  Arena arena(GetParam());
  const float* in = arena.input(x);
  const float* together = arena.input(pairs);
  Rope rope;
  rope.rotary_dim = 2 * kPairs;
  rope.past_table = PastTable::zero;
  std::vector<Rope> ways(4, rope);
  set_cos_and_sin(ways[0], arena.input(cos), arena.input(sin), DType::f32, kRows, kPairs, RopeWidth::half);
  set_cos_sin_table(ways[1], arena.input(combined), DType::f32, kRows);
  set_cos_and_sin(ways[2], arena.input(full_cos), arena.input(full_sin), DType::f32, kRows, 2 * kPairs, RopeWidth::full);
  ways[3] = ways[0];
  ways[3].cos = {together, 0, 2 * kPairs, 2};
  ways[3].sin = {together + 1, 0, 2 * kPairs, 2};
  std::vector<float*> out;
  for (size_t i = 0; i < ways.size(); ++i) out.push_back(arena.output<float>(kTokens * 2 * kPairs));
  const Status status = arena.run([&](const Execution& execution) {
    for (size_t i = 0; i < ways.size(); ++i) {
      RotaryParams p;
      p.dtype = DType::f32, p.seq_len = kTokens, p.head_dim = 2 * kPairs, p.num_tensors = 1;
      p.tensors[0] = rotary_tensor(in, out[i], 1, batch_major_strides(kTokens, 1, 2 * kPairs));
      p.rope = ways[i];
      PROLOGUE_RETURN_IF_ERROR(rotary(p, execution));
    }
    return Status();
  });
  ASSERT_TRUE(status.ok()) << status.message();
  for (size_t i = 1; i < ways.size(); ++i) EXPECT_EQ(arena.read(out[i]), arena.read(out[0])) << i;
}

TEST_P(RotaryTest, OffsetsBeyondTwoToThe31) {
  constexpr int64_t kFar = (int64_t{1} << 31) + 64, kHeadDim = 16;
  SparseMemory memory(GetParam(), (kFar + 3 * kHeadDim) * 4);
  if (memory.data() == nullptr) GTEST_SKIP() << "no memory";
  Random random(1);
  const std::vector<float> values = random.normals<float>(2 * kHeadDim);
  const Execution execution{backend_device(GetParam())};
  auto* data = static_cast<float*>(memory.data());
  for (int64_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(copy_to_device(data + i * kFar, values.data() + i * kHeadDim, kHeadDim * 4, execution).ok());
  }
  // The same two rows are tokens, heads or sequences, far apart.
  for (int dim = 0; dim < 3; ++dim) {
    RotaryParams p;
    p.head_dim = p.rope.rotary_dim = kHeadDim;
    p.dtype = DType::f32, p.batch = dim == 0 ? 2 : 1, p.seq_len = dim == 1 ? 2 : 1, p.num_tensors = 1;
    const RotaryStrides strides = {kFar, kFar, kFar, 1};
    p.tensors[0] = rotary_tensor(data, data, dim == 2 ? 2 : 1, strides);
    p.rope.source = RopeSource::theta;
    p.rope.theta = 100.0;
    p.positions.offset = 3;
    RotaryParams back = p;
    back.rope.inverse = 1;
    ASSERT_TRUE(rotary(p, execution).ok());
    ASSERT_TRUE(synchronize(execution).ok());
    std::vector<float> rotated(kHeadDim), again(kHeadDim);
    ASSERT_TRUE(copy_to_host(rotated.data(), data + kFar, kHeadDim * 4, execution).ok());
    ASSERT_TRUE(rotary(back, execution).ok());
    ASSERT_TRUE(copy_to_host(again.data(), data + kFar, kHeadDim * 4, execution).ok());
    for (size_t i = 0; i < kHeadDim; ++i) {
      EXPECT_NEAR(again[i], values[kHeadDim + i], 1e-5f) << dim;
      EXPECT_NE(rotated[i], values[kHeadDim + i]) << dim;
    }
  }
}

// Rows that go by token need no bound, and without one no position is too large: not the largest that each type can hold either.
TEST_P(RotaryTest, WithoutABoundNoPositionIsTooLarge) {
  constexpr int64_t kTokens = 4, kHeads = 3, kHeadDim = 64;
  const auto check_ids = [&](const auto& ids) {
    using Id = typename std::decay_t<decltype(ids)>::value_type;
    SCOPED_TRACE(str_cat(sizeof(Id), " bytes"));
    for (const bool lean : {true, false}) {  // attention_factor makes it the general kernel's
      Random random(8);
      Arena arena(GetParam());
      const std::vector<float> x = random.normals<float>(kTokens * kHeads * kHeadDim);
      RotaryParams p;
      p.dtype = DType::f32, p.seq_len = kTokens, p.head_dim = p.rope.rotary_dim = kHeadDim, p.num_tensors = 1;
      float* y = arena.output<float>(static_cast<int64_t>(x.size()));
      p.tensors[0] = rotary_tensor(arena.input(x), y, kHeads, batch_major_strides(kTokens, kHeads, kHeadDim));
      set_cos_and_sin(p.rope, arena.input(std::vector<float>(kTokens * kHeadDim / 2, 1.0f)),
                      arena.input(std::vector<float>(kTokens * kHeadDim / 2, 0.0f)), DType::f32, 0, kHeadDim / 2,
                      RopeWidth::half);
      p.rope.source = RopeSource::per_token;
      p.rope.attention_factor = lean ? 1.0 : 2.0;
      p.positions.ids = index_view(arena.input(ids));
      FaultRecord* faults = arena.inout(std::vector<FaultRecord>(1));
      p.faults = faults;
      const Status status = arena.run([&](const Execution& execution) { return rotary(p, execution); });
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(decode_fault(arena.read(faults)[0]).count, 0u);
      std::vector<float> want = x;  // not rotated, cos being 1, and the third token is padding where a number can be negative
      for (float& value : want) value *= lean ? 1.0f : 2.0f;
      std::vector<float> got = arena.read(y);
      if (std::is_signed_v<Id>) {
        for (int64_t i = 2 * kHeads * kHeadDim; i < 3 * kHeads * kHeadDim; ++i) {
          EXPECT_TRUE(std::isnan(got[static_cast<size_t>(i)]));
          got[static_cast<size_t>(i)] = want[static_cast<size_t>(i)];
        }
      }
      EXPECT_EQ(got, want);
    }
  };
  check_ids(std::vector<int32_t>{INT32_MAX, 0, -1, 7});
  check_ids(std::vector<int64_t>{INT64_MAX, INT64_MAX - 1, INT64_MIN, 7});
  check_ids(std::vector<uint64_t>{UINT64_MAX, uint64_t{1} << 63, 0, 7});
}

}  // namespace
}  // namespace prologue::test
