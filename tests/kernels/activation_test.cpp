#include <prologue/kernels/token_ops/activation.h>

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
#include "tests/support/tolerance.h"
#include "tests/support/types.h"

namespace prologue::test {
namespace {

constexpr Activation kActivations[] = {Activation::silu, Activation::gelu_tanh, Activation::gelu,
                                       Activation::relu, Activation::relu2,     Activation::clamped_swiglu};

class ActivationTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};

// Lists what is done to the rows of x.
struct Case {
  Activation kind = Activation::silu;
  bool gated = true;
  int64_t width = 0;
  int64_t groups = 1;
  int64_t padding = 0;  // elements between the rows of x
  int64_t misalign = 0;
  float limit = 7.0f, alpha = 1.702f;

  int64_t columns() const { return groups * width * (gated ? 2 : 1); }
};

std::vector<Case> all_kinds(int64_t width) {
  std::vector<Case> cases;
  for (const Activation kind : kActivations) {
    for (const bool gated : {true, false}) {
      if (gated || kind != Activation::clamped_swiglu) cases.push_back({kind, gated, width});
    }
  }
  return cases;
}

// Returns x without its padding.
template <class T>
std::vector<T> run_activation(Backend backend, const Case& c, const std::vector<T>& x) {
  Arena arena(backend);
  ActivationParams p;
  p.num_tokens = static_cast<int64_t>(x.size()) / c.columns();
  p.groups = c.groups;
  p.width = c.width;
  p.dtype = FloatFormat<T>::dtype;
  p.kind = c.kind;
  p.gated = c.gated;
  p.limit = c.limit;
  p.alpha = c.alpha;
  p.x_stride = c.columns() + c.padding;
  std::vector<T> rows = poisoned<T>(p.num_tokens * p.x_stride);
  for (int64_t t = 0; t < p.num_tokens; ++t) {
    std::copy_n(x.begin() + t * c.columns(), c.columns(), rows.begin() + t * p.x_stride);
  }
  p.x = arena.input(rows, c.misalign);
  T* out = arena.output<T>(p.num_tokens * c.groups * c.width, c.misalign);
  p.out = out;
  const Status status = arena.run([&](const Execution& execution) { return activation(p, execution); });
  EXPECT_TRUE(status.ok()) << status.message();
  return arena.read(out);
}

// silu, clamped_swiglu, relu and relu2 are products and quotients: their scale is their size. gelu's last sum is 1 + tanh or 1 + erf:
// half of x on either side. What is below 1e-36 (silu of less than -80) may become 0, because exp(-x) leaves float32: 16 * 2^-24 * 1e-29.
Reference reference(const Case& c, double x, double up) {
  const bool has_sum = c.kind == Activation::gelu_tanh || c.kind == Activation::gelu;
  double value = 0.0;
  switch (c.kind) {
    case Activation::silu: value = oracle::silu(x); break;
    case Activation::gelu_tanh: value = oracle::gelu_tanh(x); break;
    case Activation::gelu: value = oracle::gelu(x); break;
    case Activation::relu: value = std::max(x, 0.0); break;
    case Activation::relu2: value = std::pow(std::max(x, 0.0), 2); break;
    case Activation::clamped_swiglu: {
      value = oracle::clamped_swiglu(x, up, static_cast<double>(c.limit), static_cast<double>(c.alpha));
      // The argument of exp, a product, is rounded before: its error is a factor on a gate far below 0.
      return {value,
              (1.0 + std::fabs(static_cast<double>(c.alpha) * x) / 16.0) * std::fabs(value) + 1e-29 * (std::fabs(up) + 1.0)};
    }
  }
  return {value * up, has_sum ? std::fabs(x * up) : std::fabs(value * up) + 1e-29 * std::fabs(up)};
}

template <class T>
std::vector<Reference> reference(const Case& c, const std::vector<T>& x) {
  std::vector<Reference> out;
  const auto width = static_cast<size_t>(c.width), columns = width * (c.gated ? 2 : 1);
  for (size_t begin = 0; begin < x.size(); begin += columns) {
    for (size_t i = begin; i < begin + width; ++i) {
      const double up = c.gated ? static_cast<double>(to_float(x[i + width])) : 1.0;
      out.push_back(reference(c, static_cast<double>(to_float(x[i])), up));
    }
  }
  return out;
}

template <class T>
void check(Backend backend, const Case& c, const std::vector<T>& x) {
  SCOPED_TRACE(testing::Message() << "activation " << static_cast<int>(c.kind) << (c.gated ? " gated" : "") << ", " << x.size()
                                  << " elements, width " << c.width << ", groups " << c.groups << ", padding " << c.padding);
  // gelu far below 0 is a small difference of large numbers: not as good as its rounding.
  expect_close(run_activation(backend, c, x), reference(c, x), c.width, "out", kDefaultSteps, c.kind != Activation::gelu);
}

template <class T>
void check_curated_cases(Backend backend) {
  uint64_t seed = 1;
  for (const int64_t width : {1, 7, 64, 513, 1536}) {
    for (Case c : all_kinds(width)) {
      for (const int64_t num_tokens : {0, 1, 2, 33, 129}) {
        ++seed;
        c.groups = seed % 3 == 0 ? 4 : 1;
        c.padding = seed % 4 == 0 ? 8 : seed % 4 == 1 ? 3 : 0;
        c.misalign = seed % 5 == 0 ? static_cast<int64_t>(sizeof(T)) : 0;
        check(backend, c, Random(seed).normals<T>(num_tokens * c.columns(), 3.0));
      }
    }
  }
}

TEST_P(ActivationTest, MatchesOracleFloat32) { check_curated_cases<float>(GetParam()); }
TEST_P(ActivationTest, MatchesOracleBFloat16) { check_curated_cases<BFloat16>(GetParam()); }
TEST_P(ActivationTest, MatchesOracleFloat16) { check_curated_cases<Float16>(GetParam()); }

// The oracle's gelus are the formulas of the contract.
TEST(ActivationOracleTest, GeluIsItsDefinition) {
  for (double x = -8.0; x <= 8.0; x += 0.125) {
    const double with_tanh = 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
    EXPECT_NEAR(oracle::gelu_tanh(x), with_tanh, 4e-15) << x;
    EXPECT_NEAR(oracle::gelu(x), 0.5 * x * (1.0 + std::erf(x / std::sqrt(2.0))), 4e-15) << x;
  }
}

// Tries every gate from -120 to 120 in steps of 1/16: that is through the range where exp over- and underflows.
TEST_P(ActivationTest, WholeRangeOfGates) {
  for (const Case& c : all_kinds(240 * 16 + 1)) {
    std::vector<float> x;
    for (int i = -120 * 16; i <= 120 * 16; ++i) x.push_back(static_cast<float>(i) / 16.0f);
    x.resize(static_cast<size_t>(c.columns()), 1.5f);
    check(GetParam(), c, x);
  }
}

TEST_P(ActivationTest, ClampsGateFromAboveAndUpOnBothSides) {
  const std::vector<float> x = {7.5f, 100.0f, -7.5f, 2.0f, 2.0f, 2.0f, /* up */ 0.5f, 0.5f, 0.5f, 9.0f, -9.0f, -2.0f};
  const std::vector<float> clamped = {3.0f, 3.0f, -7.5f, 2.0f, 2.0f, 2.0f, /* up */ 0.5f, 0.5f, 0.5f, 3.0f, -3.0f, -2.0f};
  const Case c = {Activation::clamped_swiglu, true, 6, 1, 0, 0, 3.0f, 0.5f};
  check(GetParam(), c, x);
  EXPECT_EQ(run_activation(GetParam(), c, x), run_activation(GetParam(), c, clamped));
}

TEST_P(ActivationTest, ExtremeValues) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  for (const Case& c : all_kinds(7)) {
    SCOPED_TRACE(testing::Message() << static_cast<int>(c.kind) << (c.gated ? " gated" : ""));
    //                          gates                                             ups
    std::vector<float> x = {0.0f, -0.0f, 1e15f, -1e15f, kInfinity, kNan, 1.0f, 1.0f, 1.0f, 2.0f, 1.0f, 1.0f, 1.0f, kNan};
    x.resize(static_cast<size_t>(c.columns()));
    const std::vector<float> got = run_activation(GetParam(), c, x);
    const bool clamps = c.kind == Activation::clamped_swiglu, squares = c.kind == Activation::relu2;
    EXPECT_EQ(got[0], 0.0f);
    EXPECT_EQ(got[1], 0.0f);
    EXPECT_FLOAT_EQ(got[2],
                    (c.gated ? 2.0f : 1.0f) * (squares ? 1e30f : 1e15f) * (clamps ? 0.0f : 1.0f) + (clamps ? got[2] : 0.0f));
    EXPECT_EQ(got[3], 0.0f);
    EXPECT_EQ(got[4], clamps ? got[4] : kInfinity);
    EXPECT_TRUE(std::isnan(got[5]));
    EXPECT_EQ(std::isnan(got[6]), c.gated);
    if (clamps) {
      EXPECT_NEAR(got[2], 3.0f * 7.0f, 1e-3f);
      EXPECT_NEAR(got[4], 2.0f * 7.0f, 1e-3f);
    }
  }
}

TEST_P(ActivationTest, IndependentOfTheBatch) {
  for (Case c : all_kinds(50)) {
    c.groups = 2;
    const int64_t columns = c.columns();
    const std::vector<Float16> x = Random(9).normals<Float16>(33 * columns);
    const std::vector<Float16> batch = run_activation(GetParam(), c, x);
    for (const int64_t t : {0, 7, 32}) {
      const std::vector<Float16> alone =
          run_activation(GetParam(), c, std::vector<Float16>(x.begin() + t * columns, x.begin() + (t + 1) * columns));
      EXPECT_EQ(std::memcmp(alone.data(), &batch[static_cast<size_t>(t * 100)], 100 * sizeof(Float16)), 0) << t;
    }
  }
}

TEST_P(ActivationTest, RefusesWhatTheContractForbids) {
  constexpr StatusCode kInvalid = StatusCode::invalid_argument, kUnsupported = StatusCode::unsupported;
  using P = ActivationParams;
  const std::vector<Refusal<P>> refusals = {
      {[](P& p) { p.dtype = kNoType; }, kUnsupported,
       "dtype is the unknown type 99: supported are float32, float16 and bfloat16"},
      {[](P& p) { p.kind = static_cast<Activation>(6); }, kUnsupported,
       "kind is 6: supported are silu, gelu_tanh, gelu, relu, relu2 and clamped_swiglu"},
      {[](P& p) { p.kind = Activation::clamped_swiglu, p.gated = false; }, kInvalid,
       "kind is clamped_swiglu, but gated is false: it needs gate and up"},
      {[](P& p) { p.kind = Activation::clamped_swiglu, p.limit = 0.0f; }, kInvalid,
       "limit is 0: it must be finite and greater than 0"},
      {[](P& p) { p.kind = Activation::clamped_swiglu, p.alpha = std::numeric_limits<float>::infinity(); }, kInvalid,
       "alpha is inf: it must be finite"},
      {[](P& p) { p.num_tokens = -1; }, kInvalid, "num_tokens is -1: it must lie in 0..2147483648"},
      {[](P& p) { p.groups = 0; }, kInvalid, "groups is 0: it must lie in 1..32"},
      {[](P& p) { p.width = int64_t{1} << 40; }, kInvalid, "width is 1099511627776: it must lie in 1..16777216"},
      {[](P& p) { p.x = nullptr; }, kInvalid, "x is null"},
      {[](P& p) { p.x_stride = -1; }, kInvalid, "x has the stride -1: strides must not be negative"},
      {[](P& p) { p.out = nullptr; }, kInvalid, "out is null"},
      {[](P& p) { p.out = const_cast<void*>(p.x); }, kInvalid, "out overlaps x"},
  };
  expect_refusals("activation", refusals, [&](const auto& change) {
    Arena arena(GetParam());
    P p;
    p.num_tokens = 2;
    p.width = 4;
    p.dtype = DType::f32;
    p.x = arena.input(std::vector<float>(16));
    p.x_stride = 8;
    p.out = arena.output<float>(8);
    change(p);
    return refused(arena.run([&](const Execution& execution) { return activation(p, execution); }), arena);
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, ActivationTest, testing::ValuesIn(all_backends()),
                         [](const auto& backend) { return backend_name(backend.param); });

}  // namespace
}  // namespace prologue::test
