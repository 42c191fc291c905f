#include <prologue/kernels/rotary/rotary.h>

#include <gtest/gtest.h>

#include <functional>

#include "tests/golden/rotary/rotary_goldens.h"
#include "tests/support/prologue_case.h"

namespace prologue::test {
namespace {

class RotaryTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Backends, RotaryTest, ::testing::ValuesIn(all_backends()),
                         [](const auto& instance) { return std::string(backend_name(instance.param)); });

// The Q half of a prologue's case.
RotaryParams rotary_of(const AttentionPrologueParams& p) {
  RotaryParams r;
  r.num_tokens = p.num_tokens;
  r.num_heads = p.num_q_heads;
  r.head_dim = p.head_dim;
  r.dtype = p.dtype;
  r.x = p.q;
  r.y = p.q_out;
  r.style = p.rotation.style;
  r.rotary_dim = p.rotation.rotary_dim;
  r.cos_sin_cache = p.rotation.cos_sin;
  r.max_position = p.rotation.max_position;
  r.positions = p.places.positions;
  r.faults = p.faults;
  return r;
}

TEST_P(RotaryTest, MatchesTheOracle) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    with_host_type(dtype, [&](auto type) {
      using T = decltype(type);
      for (const PrologueCase& listed : prologue_cases()) {
        PrologueCase c = fit_to_type<T>(listed);
        c.bias_q = false;
        SCOPED_TRACE(str_cat(dtype_name(dtype), " ", c.describe()));
        PrologueData<T> data = make_data<T>(c);
        PlacedPrologue<T> placed(GetParam(), c, data);
        const RotaryParams params = rotary_of(placed.params());
        const Status status = placed.run([&](const Execution& execution) { return rotary(params, execution); });
        ASSERT_TRUE(status.ok()) << status.message();
        oracle::PrologueInput in = oracle_input(c, data);
        in.slots.clear();
        placed.expect_matches(oracle::attention_prologue(in));
        if (::testing::Test::HasFailure()) return;
      }
    });
  }
}

// The reference formulas' own float32 values: equal up to the order in which they round.
TEST_P(RotaryTest, MatchesTheReferenceFormulas) {
  for (const golden::RotaryGolden& g : golden::kRotaryGoldens) {
    SCOPED_TRACE(g.name);
    Arena arena(GetParam());
    const int64_t tokens = static_cast<int64_t>(g.table.size()) / g.rotary_dim;
    std::vector<int64_t> positions(static_cast<size_t>(tokens));
    std::iota(positions.begin(), positions.end(), 0);
    const int64_t width = g.num_heads * g.head_dim;
    RotaryParams p;
    p.num_tokens = tokens;
    p.num_heads = g.num_heads;
    p.head_dim = g.head_dim;
    p.x = {arena.input(g.x), width, g.head_dim};
    float* y = arena.output<float>(tokens * width);
    p.y = {y, width, g.head_dim};
    p.style = g.interleaved ? RopeStyle::interleaved : RopeStyle::neox;
    p.rotary_dim = g.rotary_dim;
    p.cos_sin_cache = arena.input(g.table);
    p.max_position = tokens;
    p.positions = arena.input(positions);
    const Status status = arena.run([&](const Execution& execution) { return rotary(p, execution); });
    ASSERT_TRUE(status.ok()) << status.message();
    const std::vector<float> got = arena.read(y);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], g.y[i], 1e-6f) << i;
  }
}

// Turning back by the negative sines gives the input again.
TEST_P(RotaryTest, ConjugateUndoes) {
  PrologueCase c;
  c.num_tokens = 33;
  c.bad_indices = false;
  c.rotary_dim = 32;
  const PrologueData<float> data = make_data<float>(c);
  PlacedPrologue<float> placed(GetParam(), c, data);
  std::vector<float> conjugate = data.table;
  for (int64_t i = 0; i < static_cast<int64_t>(conjugate.size()); ++i) {
    if (i % c.rotary_dim >= c.rotary_dim / 2) conjugate[static_cast<size_t>(i)] *= -1.0f;
  }
  const float* conjugate_table = placed.arena().input(conjugate);
  const RotaryParams forth = rotary_of(placed.params());
  RotaryParams back = forth;
  back.x = forth.y;
  back.cos_sin_cache = conjugate_table;
  const Status status = placed.run([&](const Execution& execution) {
    PROLOGUE_RETURN_IF_ERROR(rotary(forth, execution));
    return rotary(back, execution);
  });
  ASSERT_TRUE(status.ok()) << status.message();
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    const std::vector<float> row = placed.q_row(t);
    for (size_t i = 0; i < row.size(); ++i) EXPECT_NEAR(row[i], data.q[static_cast<size_t>(t) * row.size() + i], 2e-6f) << t;
  }
}

struct Refusal {
  const char* name;
  std::function<void(RotaryParams&)> change;
  StatusCode code;
  std::string message;
};

TEST_P(RotaryTest, RefusesWithASentence) {
  using P = RotaryParams;
  const auto invalid = StatusCode::invalid_argument;
  const auto missing = StatusCode::unsupported;
  const std::vector<Refusal> refusals = {
      {"too many tokens", [](P& p) { p.num_tokens = int64_t{1} << 31; }, invalid,
       "num_tokens is 2147483648: it must lie in 0..2147483647"},
      {"no heads", [](P& p) { p.num_heads = 0; }, invalid, "num_heads is 0: it must lie in 1..65536"},
      {"unknown type", [](P& p) { p.dtype = static_cast<DType>(3); }, missing,
       "dtype is the unknown type 3: supported are float32, float16 and bfloat16"},
      {"odd head_dim", [](P& p) { p.head_dim = 5; }, missing, "head_dim is 5: supported is every even number in 2..576"},
      {"unknown style", [](P& p) { p.style = static_cast<RopeStyle>(-1); }, missing,
       "the rope style is -1: supported are neox and interleaved"},
      {"negative rotary_dim", [](P& p) { p.rotary_dim = -2; }, invalid,
       "rotary_dim is -2: it must be even and lie in 0..head_dim, 64"},
      {"no table", [](P& p) { p.cos_sin_cache = nullptr; }, invalid, "cos_sin_cache is null"},
      {"no table rows", [](P& p) { p.max_position = -1; }, invalid, "max_position is -1: it must lie in 1..1099511627776"},
      {"no positions", [](P& p) { p.positions = nullptr; }, invalid, "positions is null"},
      {"unknown index type", [](P& p) { p.positions.type = static_cast<IndexType>(7); }, invalid,
       "positions.type is 7: it must be int32 or int64"},
      {"no x", [](P& p) { p.x.data = nullptr; }, invalid, "x is null"},
      {"no y", [](P& p) { p.y.data = nullptr; }, invalid, "y is null"},
      {"negative stride", [](P& p) { p.x.head_stride = -1; }, invalid, "x has the stride -1: strides must not be negative"},
      {"rows overlap", [](P& p) { p.y.head_stride = 2; }, invalid,
       "y has the stride 2 where 64 elements lie: rows that are written must not overlap"},
      {"y half over x", [](P& p) { p.y.data = static_cast<float*>(const_cast<void*>(p.x.data)) + 2; }, invalid, "y overlaps x"},
      {"y over the table", [](P& p) { p.max_position = 1, p.cos_sin_cache = static_cast<const float*>(p.y.data); }, invalid,
       "y overlaps cos_sin_cache"},
      {"y over the positions", [](P& p) { p.positions.data = p.y.data; }, invalid, "y overlaps positions"},
      {"fault record at a wrong byte", [](P& p) { p.faults = reinterpret_cast<FaultRecord*>(8); }, invalid,
       "faults lies at 0x8: it must be aligned to 16 bytes"},
  };
  PrologueCase c;
  c.num_tokens = 4;
  c.packed = false;
  const PrologueData<float> data = make_data<float>(c);
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.name);
    PlacedPrologue<float> placed(GetParam(), c, data);
    RotaryParams params = rotary_of(placed.params());
    refusal.change(params);
    const Status status = placed.run([&](const Execution& execution) { return rotary(params, execution); });
    EXPECT_EQ(status.code(), refusal.code);
    EXPECT_EQ(status.message(), "rotary: " + refusal.message);
    EXPECT_TRUE(placed.arena().untouched());
  }
}

}  // namespace
}  // namespace prologue::test
