#include <prologue/kernels/rotary/rotary.h>

#include <gtest/gtest.h>

#include <numeric>

#include "tests/golden/rotary/rotary_goldens.h"
#include "tests/support/arena.h"

namespace prologue::test {
namespace {

class RotaryTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Backends, RotaryTest, ::testing::ValuesIn(all_backends()),
                         [](const auto& instance) { return std::string(backend_name(instance.param)); });

// The reference formulas' own float32 values: equal up to the order in which they round.
TEST_P(RotaryTest, MatchesTheReferenceFormulas) {
  for (const golden::RotaryGolden& g : golden::kRotaryGoldens) {
    SCOPED_TRACE(g.name);
    Arena arena(GetParam());
    const int64_t tokens = static_cast<int64_t>(g.table.size()) / g.rotary_dim;
    std::vector<int64_t> positions(static_cast<size_t>(tokens));
    std::iota(positions.begin(), positions.end(), 0);
    const int64_t count = tokens * g.num_heads * g.head_dim;
    float* y = arena.output<float>(count);
    RotaryParams p;
    p.seq_len = tokens;
    p.head_dim = g.head_dim;
    p.num_tensors = 1;
    p.tensors[0] = rotary_tensor(arena.input(g.x), y, g.num_heads, batch_major_strides(tokens, g.num_heads, g.head_dim));
    p.style = g.interleaved ? RopeStyle::interleaved : RopeStyle::neox;
    p.rotary_dim = g.rotary_dim;
    p.angles = cos_sin_cache(arena.input(g.table), FloatType::f32, tokens, g.rotary_dim);
    p.positions.ids = arena.input(positions);
    const Status status = arena.run([&](const Execution& execution) { return rotary(p, execution); });
    ASSERT_TRUE(status.ok()) << status.message();
    const std::vector<float> got = arena.read(y);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], g.y[i], 1e-6f) << i;
  }
}

}  // namespace
}  // namespace prologue::test
