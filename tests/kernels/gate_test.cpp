#include <prologue/kernels/token_ops/gate.h>

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
#include "tests/support/types.h"

namespace prologue::test {
namespace {

class GateTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};

enum class Out { apart, x, gate };

// The rows of the gate are columns of wider ones, as the product of a projection has them. What is between rows must keep its contents.
template <class T>
void check(Backend backend, int64_t num_tokens, int64_t width, int64_t padding, Out where, int64_t misalign, uint64_t seed) {
  SCOPED_TRACE(testing::Message() << "T = " << num_tokens << ", width " << width << ", padding " << padding << ", out "
                                  << static_cast<int>(where));
  Random random(seed);
  const int64_t stride = width + padding, gate_stride = where == Out::gate ? stride : 3 * width + padding;
  const std::vector<T> x = random.normals<T>(num_tokens * stride), gate = random.normals<T>(num_tokens * gate_stride, 4.0);
  Arena arena(backend);
  T* out = where == Out::x      ? arena.inout(x, misalign)
           : where == Out::gate ? arena.inout(gate, misalign)
                                : arena.output<T>(num_tokens * stride, misalign);
  const std::vector<T> before = where == Out::x ? x : where == Out::gate ? gate : poisoned<T>(num_tokens * stride);
  GateParams p = {num_tokens,
                  width,
                  FloatFormat<T>::dtype,
                  where == Out::x ? out : arena.input(x, misalign),
                  stride,
                  where == Out::gate ? out : arena.input(gate, misalign),
                  gate_stride,
                  out,
                  stride};
  const Status status = arena.run([&](const Execution& execution) { return prologue::gate(p, execution); });
  EXPECT_TRUE(status.ok()) << status.message();
  const std::vector<T> got = arena.read(out);
  std::vector<T> rows;
  std::vector<Reference> want;
  for (int64_t t = 0; t < num_tokens; ++t) {
    for (int64_t i = 0; i < stride; ++i) {
      const auto at = static_cast<size_t>(t * stride + i);
      if (i >= width) {
        EXPECT_EQ(std::memcmp(&got[at], &before[at], sizeof(T)), 0) << t << ", " << i;
        continue;
      }
      const double factor =
          1.0 / (1.0 + std::exp(-static_cast<double>(to_float(gate[static_cast<size_t>(t * gate_stride + i)]))));
      const double value = factor * static_cast<double>(to_float(x[at]));
      rows.push_back(got[at]);
      want.push_back({value, std::fabs(value)});
    }
  }
  expect_close(rows, want, width, "out", kDefaultSteps, sizeof(T) == 2);
}

template <class T>
void check_curated_cases(Backend backend) {
  uint64_t seed = 1;
  for (const int64_t num_tokens : {0, 1, 3, 65}) {
    for (const int64_t width : {1, 15, 64, 513, 2304}) {
      for (const Out where : {Out::apart, Out::x, Out::gate}) {
        ++seed;
        check<T>(backend, num_tokens, width,
                 seed % 3 == 0   ? 0
                 : seed % 3 == 1 ? 8
                                 : 5,
                 where, seed % 5 == 0 ? static_cast<int64_t>(sizeof(T)) : 0, seed);
      }
    }
  }
}

TEST_P(GateTest, MatchesTheFormulaFloat32) { check_curated_cases<float>(GetParam()); }
TEST_P(GateTest, MatchesTheFormulaBFloat16) { check_curated_cases<BFloat16>(GetParam()); }
TEST_P(GateTest, MatchesTheFormulaFloat16) { check_curated_cases<Float16>(GetParam()); }

TEST_P(GateTest, EndsOfTheRange) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  Arena arena(GetParam());
  float* out = arena.output<float>(6);
  const GateParams p = {1,          6,
                        DType::f32, arena.input(std::vector<float>{2.0f, 2.0f, 2.0f, 2.0f, kNan, 2.0f}),
                        6,          arena.input(std::vector<float>{0.0f, kInf, -kInf, -90.0f, 0.0f, kNan}),
                        6,          out,
                        6};
  ASSERT_TRUE(arena.run([&](const Execution& execution) { return prologue::gate(p, execution); }).ok());
  const std::vector<float> got = arena.read(out);
  EXPECT_EQ(got[0], 1.0f);
  EXPECT_EQ(got[1], 2.0f);
  EXPECT_EQ(got[2], 0.0f);
  EXPECT_EQ(got[3], 0.0f);
  EXPECT_TRUE(std::isnan(got[4]) && std::isnan(got[5]));
}

TEST_P(GateTest, RefusesWhatTheContractForbids) {
  constexpr StatusCode kInvalid = StatusCode::invalid_argument;
  using P = GateParams;
  const auto after = [](const void* pointer, int64_t elements) {
    return const_cast<float*>(static_cast<const float*>(pointer)) + elements;
  };
  const std::vector<Refusal<P>> refusals = {
      {[](P& p) { p.dtype = kNoType; }, StatusCode::unsupported,
       "dtype is the unknown type 99: supported are float32, float16 and bfloat16"},
      {[](P& p) { p.num_tokens = -2; }, kInvalid, "num_tokens is -2: it must lie in 0..2147483648"},
      {[](P& p) { p.width = 0; }, kInvalid, "width is 0: it must lie in 1..16777216"},
      {[](P& p) { p.x = nullptr; }, kInvalid, "x is null"},
      {[](P& p) { p.gate = nullptr; }, kInvalid, "gate is null"},
      {[](P& p) { p.out = nullptr; }, kInvalid, "out is null"},
      {[](P& p) { p.gate_stride = -4; }, kInvalid, "gate has the stride -4: strides must not be negative"},
      {[](P& p) { p.out_stride = 3; }, kInvalid,
       "out has the stride 3 where 4 elements lie: rows that are written must not overlap"},
      {[&](P& p) { p.out = after(p.x, 1); }, kInvalid, "out overlaps x"},
      {[&](P& p) { p.out = after(p.gate, 1); }, kInvalid, "out overlaps gate"},
  };
  expect_refusals("gate", refusals, [&](const auto& change) {
    Arena arena(GetParam());
    P p{2, 4, DType::f32, arena.input(std::vector<float>(8)), 4, arena.input(std::vector<float>(8)), 4, arena.output<float>(8),
        4};
    change(p);
    return refused(arena.run([&](const Execution& execution) { return prologue::gate(p, execution); }), arena);
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, GateTest, testing::ValuesIn(all_backends()),
                         [](const auto& backend) { return backend_name(backend.param); });

}  // namespace
}  // namespace prologue::test
