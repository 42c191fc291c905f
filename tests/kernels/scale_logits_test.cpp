#include <prologue/kernels/token_ops/scale_logits.h>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/arena.h"
#include "tests/support/random.h"
#include "tests/support/refusals.h"
#include "tests/support/tolerance.h"

namespace prologue::test {
namespace {

class ScaleLogitsTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};

std::vector<float> run_scale(Backend backend, const std::vector<float>& x, int64_t width, float scale, float soft_cap,
                             bool in_place = false, int64_t misalign = 0) {
  Arena arena(backend);
  float* out = in_place ? arena.inout(x, misalign) : arena.output<float>(static_cast<int64_t>(x.size()), misalign);
  const ScaleLogitsParams p{
      static_cast<int64_t>(x.size()) / width, width, in_place ? out : arena.input(x, misalign), out, scale, soft_cap};
  const Status status = arena.run([&](const Execution& execution) { return scale_logits(p, execution); });
  EXPECT_TRUE(status.ok()) << status.message();
  return arena.read(out);
}

TEST_P(ScaleLogitsTest, MatchesTheFormula) {
  uint64_t seed = 1;
  for (const int64_t num_rows : {0, 1, 3}) {
    for (const int64_t width : {1, 7, 1000, 4096, 10001}) {
      for (const float soft_cap : {0.0f, 30.0f}) {
        for (const float scale : {1.0f, 0.0625f}) {
          SCOPED_TRACE(testing::Message() << num_rows << " x " << width << ", scale " << scale << ", cap " << soft_cap);
          const std::vector<float> x = Random(++seed).normals<float>(num_rows * width, 40.0);
          std::vector<Reference> want;
          for (const float each : x) {
            const double scaled = static_cast<double>(each) * static_cast<double>(scale), cap = static_cast<double>(soft_cap);
            const double value = soft_cap == 0.0f ? scaled : cap * std::tanh(scaled / cap);
            want.push_back({value, std::fabs(value)});
          }
          expect_close(run_scale(GetParam(), x, width, scale, soft_cap, seed % 2 == 0, seed % 3 == 0 ? 4 : 0), want, width,
                       "out");
        }
      }
    }
  }
}

TEST_P(ScaleLogitsTest, InfinitiesAreCappedAndNanStays) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN(), 3e38f};
  const std::vector<float> got = run_scale(GetParam(), x, 4, 2.0f, 30.0f);
  EXPECT_EQ(got[0], 30.0f);
  EXPECT_EQ(got[1], -30.0f);
  EXPECT_TRUE(std::isnan(got[2]));
  EXPECT_EQ(got[3], 30.0f);
}

TEST_P(ScaleLogitsTest, RefusesWhatTheContractForbids) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  using P = ScaleLogitsParams;
  const std::vector<Refusal<P>> refusals = {
      {[](P& p) { p.num_rows = -2; }, "num_rows is -2: it must lie in 0..2147483648"},
      {[](P& p) { p.width = 0; }, "width is 0: it must lie in 1..16777216"},
      {[](P& p) { p.scale = kNan; }, "scale is nan: it must be finite"},
      {[](P& p) { p.soft_cap = -1.0f; }, "soft_cap is -1: it must be finite and not negative"},
      {[](P& p) { p.soft_cap = kNan; }, "soft_cap is nan: it must be finite and not negative"},
      {[](P& p) { p.scale = 1e30f, p.soft_cap = 1e-20f; }, "scale is 1e+30 and soft_cap is 1e-20: their quotient must be finite"},
      {[](P& p) { p.x = nullptr; }, "x is null"},
      {[](P& p) { p.out = nullptr; }, "out is null"},
      {[](P& p) { p.out = const_cast<float*>(p.x) + 1; }, "out overlaps x"},
  };
  expect_refusals("scale_logits", refusals, [&](const auto& change) {
    Arena arena(GetParam());
    P p{2, 4, arena.input(std::vector<float>(8)), arena.output<float>(8), 1.0f, 30.0f};
    change(p);
    return refused(arena.run([&](const Execution& execution) { return scale_logits(p, execution); }), arena);
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, ScaleLogitsTest, testing::ValuesIn(all_backends()),
                         [](const auto& backend) { return backend_name(backend.param); });

}  // namespace
}  // namespace prologue::test
