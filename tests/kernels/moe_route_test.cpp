#include <prologue/kernels/moe/moe_route.h>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/oracle/moe.h"
#include "tests/support/arena.h"
#include "tests/support/random.h"
#include "tests/support/refusals.h"
#include "tests/support/tolerance.h"
#include "tests/support/types.h"

namespace prologue::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

class MoeRouteTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};

struct Mode {
  ExpertWeighting weighting;
  bool normalize;
  oracle::Weighting reference;
};
constexpr Mode kModes[] = {{ExpertWeighting::softmax_then_top_k, false, oracle::Weighting::softmax_then_top_k},
                           {ExpertWeighting::softmax_then_top_k, true, oracle::Weighting::softmax_then_top_k},
                           {ExpertWeighting::top_k_then_softmax, false, oracle::Weighting::top_k_then_softmax},
                           {ExpertWeighting::sigmoid, false, oracle::Weighting::sigmoid}};

struct Routes {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

template <class T>
Routes run_route(Backend backend, const std::vector<T>& logits, int64_t num_experts, int64_t top_k, const Mode& mode,
                 int64_t stride = 0) {
  Arena arena(backend);
  MoeRouteParams p;
  p.logits_stride = stride == 0 ? num_experts : stride;
  p.num_tokens = static_cast<int64_t>(logits.size()) / p.logits_stride;
  p.num_experts = num_experts;
  p.top_k = top_k;
  p.dtype = FloatFormat<T>::dtype;
  p.weighting = mode.weighting;
  p.normalize = mode.normalize;
  p.logits = arena.input(logits, static_cast<int64_t>(sizeof(T)));
  p.expert_ids = arena.output<int32_t>(p.num_tokens * top_k);
  p.expert_weights = arena.output<float>(p.num_tokens * top_k);
  const Status status = arena.run([&](const Execution& execution) { return moe_route(p, execution); });
  EXPECT_TRUE(status.ok()) << status.message();
  return {arena.read(p.expert_ids), arena.read(p.expert_weights)};
}

template <class T>
void check(Backend backend, const std::vector<T>& logits, int64_t num_experts, int64_t top_k, int64_t stride) {
  for (const Mode& mode : kModes) {
    SCOPED_TRACE(testing::Message() << num_experts << " experts, top " << top_k << ", stride " << stride << ", weighting "
                                    << static_cast<int>(mode.weighting) << (mode.normalize ? ", normalize" : ""));
    const Routes got = run_route(backend, logits, num_experts, top_k, mode, stride);
    std::vector<int32_t> ids;
    std::vector<Reference> weights;
    for (size_t begin = 0; begin < logits.size(); begin += static_cast<size_t>(stride)) {
      std::vector<double> row;
      for (size_t i = 0; i < static_cast<size_t>(num_experts); ++i)
        row.push_back(static_cast<double>(to_float(logits[begin + i])));
      const oracle::Route want = oracle::route(row, top_k, mode.reference, mode.normalize);
      ids.insert(ids.end(), want.ids.begin(), want.ids.end());
      for (const double weight : want.weights) weights.push_back({weight, weight});
    }
    EXPECT_EQ(got.ids, ids);
    // Besides the usual roundings, the argument of exp, up to 20 here, is rounded.
    expect_close(got.weights, weights, top_k, "weights", 2.0 * kDefaultSteps);
  }
}

template <class T>
void check_curated_cases(Backend backend) {
  struct Shape {
    int64_t num_experts, top_k;
  };
  uint64_t seed = 1;
  for (const auto& [num_experts, top_k] : {Shape{1, 1}, Shape{8, 2}, Shape{16, 1}, Shape{31, 31}, Shape{32, 4}, Shape{33, 32},
                                           Shape{128, 8}, Shape{1000, 6}, Shape{1024, 32}}) {
    for (const int64_t num_tokens : {0, 1, 22}) {
      const int64_t stride = num_experts + (++seed % 2 == 0 ? 3 : 0);
      check(backend, Random(seed).normals<T>(num_tokens * stride, 3.0), num_experts, top_k, stride);
    }
  }
}

TEST_P(MoeRouteTest, MatchesOracleFloat32) { check_curated_cases<float>(GetParam()); }
// 16-bit logits have many ties.
TEST_P(MoeRouteTest, MatchesOracleBFloat16) { check_curated_cases<BFloat16>(GetParam()); }
TEST_P(MoeRouteTest, MatchesOracleFloat16) { check_curated_cases<Float16>(GetParam()); }

TEST_P(MoeRouteTest, OfEqualLogitsTheLowerIndexIsLarger) {
  const std::vector<float> logits = {0.0f, -0.0f, 2.0f, 2.0f, -1.0f, 0.0f};
  EXPECT_EQ(run_route(GetParam(), logits, 6, 5, kModes[0]).ids, (std::vector<int32_t>{2, 3, 0, 1, 5}));
}

TEST_P(MoeRouteTest, MinusInfinityIsNeverBeforeANumber) {
  const std::vector<float> logits = {-kInfinity, 1.0f, -kInfinity, -3e38f};
  for (const Mode& mode : kModes) {
    const Routes got = run_route(GetParam(), logits, 4, 3, mode);
    EXPECT_EQ(got.ids, (std::vector<int32_t>{1, 3, 0}));
    EXPECT_EQ(got.weights[1], 0.0f);
    EXPECT_EQ(got.weights[2], 0.0f);
    if (mode.weighting != ExpertWeighting::sigmoid) {
      EXPECT_EQ(got.weights[0], 1.0f);
    }
  }
}

TEST_P(MoeRouteTest, RowsWithoutALargestNumberHaveNanWeights) {
  const std::vector<float> logits = {1.0f, 2.0f,       3.0f,       kNan,       2.0f, 3.0f,       1.0f, kInfinity,
                                     3.0f, -kInfinity, -kInfinity, -kInfinity, 3.0f, -kInfinity, 1.0f};
  for (const Mode& mode : kModes) {
    const Routes got = run_route(GetParam(), logits, 3, 2, mode);
    EXPECT_EQ(got.ids, (std::vector<int32_t>{2, 1, 0, 1, 0, 1, 0, 1, 0, 2}));
    for (size_t i = 0; i < got.weights.size(); ++i) EXPECT_EQ(std::isnan(got.weights[i]), i >= 2 && i < 8) << i;
  }
}

TEST_P(MoeRouteTest, HasTheBitsOfTheCpu) {
#if !defined(__FMA__)
  GTEST_SKIP() << "this CPU code has no fused multiply-add";
#endif
  for (const int64_t num_experts : {5, 64, 200}) {
    const std::vector<BFloat16> logits = Random(9).normals<BFloat16>(40 * num_experts, 4.0);
    for (const Mode& mode : kModes) {
      const Routes got = run_route(GetParam(), logits, num_experts, 5, mode);
      const Routes want = run_route(Backend::cpu, logits, num_experts, 5, mode);
      EXPECT_EQ(got.ids, want.ids);
      EXPECT_EQ(got.weights, want.weights);
    }
  }
}

TEST_P(MoeRouteTest, RefusesWhatTheContractForbids) {
  constexpr StatusCode kInvalid = StatusCode::invalid_argument, kUnsupported = StatusCode::unsupported;
  using P = MoeRouteParams;
  const std::vector<Refusal<P>> refusals = {
      {[](P& p) { p.dtype = kNoType; }, kUnsupported,
       "dtype is the unknown type 99: supported are float32, float16 and bfloat16"},
      {[](P& p) { p.weighting = static_cast<ExpertWeighting>(3); }, kUnsupported,
       "weighting is 3: supported are softmax_then_top_k, top_k_then_softmax and sigmoid"},
      {[](P& p) { p.weighting = ExpertWeighting::sigmoid, p.normalize = true; }, kInvalid,
       "normalize is set, but weighting is not softmax_then_top_k"},
      {[](P& p) { p.num_tokens = -1; }, kInvalid, "num_tokens is -1: it must lie in 0..2147483648"},
      {[](P& p) { p.num_experts = 1025; }, kInvalid, "num_experts is 1025: it must lie in 1..1024"},
      {[](P& p) { p.top_k = 0; }, kInvalid, "top_k is 0: it must lie in 1..4"},
      {[](P& p) { p.top_k = 5; }, kInvalid, "top_k is 5: it must lie in 1..4"},
      {[](P& p) { p.num_experts = 100, p.top_k = 33; }, kInvalid, "top_k is 33: it must lie in 1..32"},
      {[](P& p) { p.logits = nullptr; }, kInvalid, "logits is null"},
      {[](P& p) { p.logits_stride = -1; }, kInvalid, "logits has the stride -1: strides must not be negative"},
      {[](P& p) { p.expert_ids = nullptr; }, kInvalid, "expert_ids is null"},
      {[](P& p) { p.expert_weights = nullptr; }, kInvalid, "expert_weights is null"},
      {[](P& p) { p.expert_weights = reinterpret_cast<float*>(p.expert_ids); }, kInvalid, "expert_ids overlaps expert_weights"},
      {[](P& p) { p.expert_weights = static_cast<float*>(const_cast<void*>(p.logits)); }, kInvalid,
       "expert_weights overlaps logits"},
  };
  expect_refusals("moe_route", refusals, [&](const auto& change) {
    Arena arena(GetParam());
    P p;
    p.num_tokens = 2;
    p.num_experts = 4;
    p.top_k = 2;
    p.dtype = DType::f32;
    p.logits = arena.input(std::vector<float>(8));
    p.logits_stride = 4;
    p.expert_ids = arena.output<int32_t>(4);
    p.expert_weights = arena.output<float>(4);
    change(p);
    return refused(arena.run([&](const Execution& execution) { return moe_route(p, execution); }), arena);
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, MoeRouteTest, testing::ValuesIn(all_backends()),
                         [](const auto& backend) { return backend_name(backend.param); });

}  // namespace
}  // namespace prologue::test
