#include <prologue/kernels/token_ops/gated_activation.h>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/oracle/token_ops.h"
#include "tests/support/arena.h"
#include "tests/support/random.h"
#include "tests/support/tolerance.h"
#include "tests/support/types.h"

namespace prologue::test {
namespace {

constexpr Activation kActivations[] = {Activation::silu, Activation::gelu_tanh};

class GatedActivationTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};

template <class T>
std::vector<T> run_activation(Backend backend, Activation activation, const std::vector<T>& gate_up, int64_t width,
                              int64_t misalign = 0) {
  Arena arena(backend);
  const int64_t num_tokens = static_cast<int64_t>(gate_up.size()) / (2 * width);
  T* out = arena.output<T>(num_tokens * width, misalign);
  const GatedActivationParams p{num_tokens, width, FloatFormat<T>::dtype, activation, arena.input(gate_up, misalign), out};
  const Status status = arena.run([&](const Execution& execution) { return gated_activation(p, execution); });
  EXPECT_TRUE(status.ok()) << status.message();
  return arena.read(out);
}

// silu is a product and a quotient: its scale is its size. gelu's last sum is 1 + tanh: half of x on either side. What is below
// 1e-36 (silu of less than -80) may become 0, because exp(-x) leaves float32: 16 * 2^-24 * 1e-29.
template <class T>
std::vector<Reference> reference(Activation activation, const std::vector<T>& gate_up, int64_t width) {
  std::vector<Reference> out;
  for (size_t i = 0; i < gate_up.size() / 2; ++i) {
    const size_t gate = i / static_cast<size_t>(width) * 2 * static_cast<size_t>(width) + i % static_cast<size_t>(width);
    const double x = static_cast<double>(to_float(gate_up[gate]));
    const double up = static_cast<double>(to_float(gate_up[gate + static_cast<size_t>(width)]));
    if (activation == Activation::silu) {
      const double value = oracle::silu(x) * up;
      out.push_back({value, std::fabs(value) + 1e-29 * std::fabs(up)});
    } else {
      out.push_back({oracle::gelu_tanh(x) * up, std::fabs(x * up)});
    }
  }
  return out;
}

template <class T>
void check_curated_cases(Backend backend) {
  uint64_t seed = 1;
  for (const Activation activation : kActivations) {
    for (const int64_t num_tokens : {0, 1, 2, 31, 32, 33, 257}) {
      for (const int64_t width : {1, 7, 64, 513, 1536}) {
        SCOPED_TRACE(testing::Message() << "activation " << static_cast<int>(activation) << ", T = " << num_tokens << ", width "
                                        << width);
        const std::vector<T> gate_up = Random(++seed).normals<T>(num_tokens * 2 * width, 3.0);
        const int64_t misalign = seed % 4 == 0 ? static_cast<int64_t>(sizeof(T)) : 0;
        expect_close(run_activation(backend, activation, gate_up, width, misalign), reference(activation, gate_up, width), width,
                     "out");
      }
    }
  }
}

TEST_P(GatedActivationTest, MatchesOracleFloat32) { check_curated_cases<float>(GetParam()); }
TEST_P(GatedActivationTest, MatchesOracleBFloat16) { check_curated_cases<BFloat16>(GetParam()); }
TEST_P(GatedActivationTest, MatchesOracleFloat16) { check_curated_cases<Float16>(GetParam()); }

// The oracle's gelu is the formula of the contract.
TEST(GatedActivationOracleTest, GeluIsItsDefinition) {
  for (double x = -8.0; x <= 8.0; x += 0.125) {
    const double definition = 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
    EXPECT_NEAR(oracle::gelu_tanh(x), definition, 4e-15) << x;
  }
}

// Every gate from -120 to 120 in steps of 1/16: through the range where exp over- and underflows.
TEST_P(GatedActivationTest, WholeRangeOfGates) {
  for (const Activation activation : kActivations) {
    std::vector<float> gate_up;
    for (int i = -120 * 16; i <= 120 * 16; ++i) gate_up.push_back(static_cast<float>(i) / 16.0f);
    const int64_t width = static_cast<int64_t>(gate_up.size());
    gate_up.resize(2 * gate_up.size(), 1.5f);
    expect_close(run_activation(GetParam(), activation, gate_up, width), reference(activation, gate_up, width), width, "out");
  }
}

TEST_P(GatedActivationTest, ExtremeValues) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  for (const Activation activation : kActivations) {
    SCOPED_TRACE(static_cast<int>(activation));
    //                                gates                                             ups
    const std::vector<float> gate_up = {0.0f, -0.0f, 1e30f, -1e30f, kInfinity, kNan, 1.0f,
                                        1.0f, 1.0f,  2.0f,  1.0f,   1.0f,      1.0f, kNan};
    const std::vector<float> got = run_activation(GetParam(), activation, gate_up, 7);
    EXPECT_EQ(got[0], 0.0f);
    EXPECT_EQ(got[1], 0.0f);
    EXPECT_EQ(got[2], 2e30f);
    EXPECT_EQ(got[3], 0.0f);
    EXPECT_EQ(got[4], kInfinity);
    EXPECT_TRUE(std::isnan(got[5]));
    EXPECT_TRUE(std::isnan(got[6]));
  }
}

TEST_P(GatedActivationTest, IndependentOfTheBatch) {
  for (const Activation activation : kActivations) {
    const std::vector<Float16> gate_up = Random(9).normals<Float16>(33 * 2 * 100);
    const std::vector<Float16> batch = run_activation(GetParam(), activation, gate_up, 100);
    for (const int64_t t : {0, 7, 32}) {
      const std::vector<Float16> alone = run_activation(
          GetParam(), activation, std::vector<Float16>(gate_up.begin() + t * 200, gate_up.begin() + (t + 1) * 200), 100);
      EXPECT_EQ(std::memcmp(alone.data(), &batch[static_cast<size_t>(t * 100)], 100 * sizeof(Float16)), 0) << t;
    }
  }
}

struct Refusal {
  std::function<void(GatedActivationParams&)> breakage;
  StatusCode code;
  std::string message;
};

TEST_P(GatedActivationTest, RefusesWhatTheContractForbids) {
  constexpr StatusCode kInvalid = StatusCode::invalid_argument, kUnsupported = StatusCode::unsupported;
  using P = GatedActivationParams;
  const std::vector<Refusal> refusals = {
      {[](P& p) { p.dtype = kNoType; }, kUnsupported,
       "dtype is the unknown type 99: supported are float32, float16 and bfloat16"},
      {[](P& p) { p.activation = static_cast<Activation>(2); }, kUnsupported,
       "activation is 2: supported are silu and gelu_tanh"},
      {[](P& p) { p.num_tokens = -1; }, kInvalid, "num_tokens is -1: it must lie in 0..2147483648"},
      {[](P& p) { p.width = int64_t{1} << 40; }, kInvalid, "width is 1099511627776: it must lie in 1..16777216"},
      {[](P& p) { p.gate_up = nullptr; }, kInvalid, "gate_up is null"},
      {[](P& p) { p.out = nullptr; }, kInvalid, "out is null"},
      {[](P& p) { p.out = const_cast<void*>(p.gate_up); }, kInvalid, "out overlaps gate_up"},
  };
  for (const Refusal& refusal : refusals) {
    Arena arena(GetParam());
    P p{2, 4, DType::f32, Activation::silu, arena.input(std::vector<float>(16)), arena.output<float>(8)};
    refusal.breakage(p);
    const Status status = arena.run([&](const Execution& execution) { return gated_activation(p, execution); });
    EXPECT_EQ(status.code(), refusal.code) << refusal.message;
    EXPECT_EQ(status.message(), "gated_activation: " + refusal.message);
    EXPECT_TRUE(arena.untouched()) << refusal.message;
  }
}

TEST(GatedActivationCpuTest, CudaWithoutCuda) {
  if (built_with_cuda()) GTEST_SKIP() << "built with CUDA";
  Arena arena(Backend::cpu);
  const GatedActivationParams p{1, 4, DType::f32, Activation::silu, arena.input(std::vector<float>(8)), arena.output<float>(4)};
  const Status status = arena.run([&](Execution execution) {
    execution.device = Device::cuda;
    return gated_activation(p, execution);
  });
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_EQ(status.message(), "gated_activation: device is cuda, but this library was built without CUDA");
  EXPECT_TRUE(arena.untouched());
}

INSTANTIATE_TEST_SUITE_P(Backends, GatedActivationTest, testing::ValuesIn(all_backends()),
                         [](const auto& backend) { return backend_name(backend.param); });

}  // namespace
}  // namespace prologue::test
