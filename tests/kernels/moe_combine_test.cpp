#include <prologue/kernels/moe/moe_combine.h>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/arena.h"
#include "tests/support/random.h"
#include "tests/support/refusals.h"
#include "tests/support/tolerance.h"
#include "tests/support/types.h"

namespace prologue::test {
namespace {

class MoeCombineTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};

struct Case {
  int64_t num_tokens, top_k, width;
  bool weighted = true, shared = false, in_place = false;
  int64_t misalign = 0;
};

template <class T>
std::vector<T> run_combine(Backend backend, const Case& c, const std::vector<T>& y, const std::vector<float>& weights,
                           const std::vector<T>& shared) {
  Arena arena(backend);
  T* const out = c.in_place ? arena.inout(shared, c.misalign) : arena.output<T>(c.num_tokens * c.width, c.misalign);
  MoeCombineParams p;
  p.num_tokens = c.num_tokens;
  p.top_k = c.top_k;
  p.width = c.width;
  p.dtype = FloatFormat<T>::dtype;
  p.y = arena.input(y, c.misalign);
  if (c.weighted) p.expert_weights = arena.input(weights);
  if (c.shared) p.shared = c.in_place ? out : arena.input(shared, c.misalign);
  p.out = out;
  const Status status = arena.run([&](const Execution& execution) { return moe_combine(p, execution); });
  EXPECT_TRUE(status.ok()) << status.message();
  return arena.read(out);
}

template <class T>
void check_curated_cases(Backend backend) {
  uint64_t seed = 1;
  for (const int64_t num_tokens : {0, 1, 3, 40}) {
    for (const int64_t top_k : {1, 2, 8, 32}) {
      for (const int64_t width : {1, 15, 64, 513, 2880}) {
        ++seed;
        const Case c = {num_tokens,
                        top_k,
                        width,
                        seed % 4 != 0,
                        seed % 3 != 0,
                        seed % 3 == 1,
                        seed % 5 == 0 ? static_cast<int64_t>(sizeof(T)) : 0};
        SCOPED_TRACE(testing::Message() << "T = " << num_tokens << ", top " << top_k << ", width " << width << ", seed " << seed);
        Random random(seed);
        const std::vector<T> y = random.normals<T>(num_tokens * top_k * width), shared = random.normals<T>(num_tokens * width);
        const std::vector<float> weights = random.normals<float>(num_tokens * top_k);
        std::vector<Reference> want;
        for (int64_t t = 0; t < num_tokens; ++t) {
          for (int64_t i = 0; i < width; ++i) {
            Reference sum;
            const auto add = [&](double term) { sum.value += term, sum.scale += std::fabs(term); };
            for (int64_t r = t * top_k; r < (t + 1) * top_k; ++r) {
              add(static_cast<double>(to_float(y[static_cast<size_t>(r * width + i)])) *
                  (c.weighted ? static_cast<double>(weights[static_cast<size_t>(r)]) : 1.0));
            }
            if (c.shared) add(static_cast<double>(to_float(shared[static_cast<size_t>(t * width + i)])));
            want.push_back(sum);
          }
        }
        const std::vector<T> got = run_combine(backend, c, y, weights, shared);
        expect_close(got, want, width, "out");
        const std::vector<T> cpu = run_combine(Backend::cpu, c, y, weights, shared);
        EXPECT_TRUE(got.empty() || std::memcmp(got.data(), cpu.data(), got.size() * sizeof(T)) == 0);
      }
    }
  }
}

TEST_P(MoeCombineTest, MatchesOracleAndTheCpuFloat32) { check_curated_cases<float>(GetParam()); }
TEST_P(MoeCombineTest, MatchesOracleAndTheCpuBFloat16) { check_curated_cases<BFloat16>(GetParam()); }
TEST_P(MoeCombineTest, MatchesOracleAndTheCpuFloat16) { check_curated_cases<Float16>(GetParam()); }

TEST_P(MoeCombineTest, RefusesWhatTheContractForbids) {
  constexpr StatusCode kInvalid = StatusCode::invalid_argument;
  using P = MoeCombineParams;
  const auto at = [](const void* pointer, int64_t elements) {
    return const_cast<float*>(static_cast<const float*>(pointer)) + elements;
  };
  const std::vector<Refusal<P>> refusals = {
      {[](P& p) { p.dtype = kNoType; }, StatusCode::unsupported,
       "dtype is the unknown type 99: supported are float32, float16 and bfloat16"},
      {[](P& p) { p.num_tokens = -1; }, kInvalid, "num_tokens is -1: it must lie in 0..2147483648"},
      {[](P& p) { p.top_k = 33; }, kInvalid, "top_k is 33: it must lie in 1..32"},
      {[](P& p) { p.width = 0; }, kInvalid, "width is 0: it must lie in 1..16777216"},
      {[](P& p) { p.y = nullptr; }, kInvalid, "y is null"},
      {[](P& p) { p.out = nullptr; }, kInvalid, "out is null"},
      {[&](P& p) { p.out = at(p.y, 0); }, kInvalid, "out overlaps y"},
      {[&](P& p) { p.out = at(p.shared, 1); }, kInvalid, "out overlaps shared"},
      {[&](P& p) { p.out = at(p.expert_weights, 0); }, kInvalid, "out overlaps expert_weights"},
  };
  expect_refusals("moe_combine", refusals, [&](const auto& change) {
    Arena arena(GetParam());
    P p;
    p.num_tokens = 2;
    p.top_k = 3;
    p.width = 4;
    p.dtype = DType::f32;
    p.y = arena.input(std::vector<float>(24));
    p.expert_weights = arena.input(std::vector<float>(6));
    p.shared = arena.input(std::vector<float>(8));
    p.out = arena.output<float>(8);
    change(p);
    return refused(arena.run([&](const Execution& execution) { return moe_combine(p, execution); }), arena);
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, MoeCombineTest, testing::ValuesIn(all_backends()),
                         [](const auto& backend) { return backend_name(backend.param); });

}  // namespace
}  // namespace prologue::test
