#include <prologue/kernels/token_ops/rms_norm.h>

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

class RmsNormTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

template <class T>
struct Inputs {
  std::vector<T> x, residual, weight;  // no residual: empty
  float eps = 1e-5f;
};

template <class T>
Inputs<T> make_inputs(int64_t num_tokens, int64_t width, bool residual, uint64_t seed, double deviation = 1.0) {
  Random random(seed);
  return {random.normals<T>(num_tokens * width, deviation),
          residual ? random.normals<T>(num_tokens * width, deviation) : std::vector<T>(), random.normals<T>(width)};
}

template <class T>
struct Outputs {
  std::vector<T> out, residual;
};

template <class T>
Outputs<T> run_norm(Backend backend, const Inputs<T>& in, bool in_place = false, int64_t misalign = 0) {
  Arena arena(backend);
  RmsNormParams p;
  p.width = static_cast<int64_t>(in.weight.size());
  p.num_tokens = static_cast<int64_t>(in.x.size()) / p.width;
  p.dtype = FloatFormat<T>::dtype;
  p.eps = in.eps;
  p.weight = arena.input(in.weight, misalign);
  T* residual = in.residual.empty() ? nullptr : arena.inout(in.residual, misalign);
  p.residual = residual;
  T* out = in_place ? arena.inout(in.x, misalign) : arena.output<T>(static_cast<int64_t>(in.x.size()), misalign);
  p.out = out;
  p.x = in_place ? out : arena.input(in.x, misalign);
  const Status status = arena.run([&](const Execution& execution) { return rms_norm(p, execution); });
  EXPECT_TRUE(status.ok()) << status.message();
  return {arena.read(out), residual == nullptr ? std::vector<T>() : arena.read(residual)};
}

// One float32 sum, rounded once.
template <class T>
std::vector<T> residual_sum(const Inputs<T>& in) {
  std::vector<T> sum = in.x;
  for (size_t i = 0; i < in.residual.size(); ++i) sum[i] = from_float<T>(to_float(in.x[i]) + to_float(in.residual[i]));
  return sum;
}

template <class T>
void check_curated_cases(Backend backend) {
  uint64_t seed = 1;
  for (const int64_t num_tokens : {0, 1, 2, 31, 32, 33, 257}) {
    for (const int64_t width : {1, 2, 15, 64, 100, 576}) {
      for (const bool residual : {false, true}) {
        SCOPED_TRACE(testing::Message() << "T = " << num_tokens << ", width " << width << (residual ? ", residual" : ""));
        const Inputs<T> in = make_inputs<T>(num_tokens, width, residual && num_tokens > 0, ++seed);
        const bool in_place = seed % 3 == 0;
        const Outputs<T> got = run_norm(backend, in, in_place, seed % 5 == 0 ? static_cast<int64_t>(sizeof(T)) : 0);
        const std::vector<T> sum = residual_sum(in);
        if (!in.residual.empty()) {
          EXPECT_TRUE(same_bits(got.residual, sum));
        }
        expect_close(got.out, oracle::rms_norm(sum, in.weight, static_cast<double>(in.eps)), width, "out");
      }
    }
  }
  for (const int64_t width : {513, 1536, 4096, 8192, 10007}) {
    SCOPED_TRACE(testing::Message() << "width " << width);
    const Inputs<T> in = make_inputs<T>(3, width, true, ++seed);
    expect_close(run_norm(backend, in).out, oracle::rms_norm(residual_sum(in), in.weight, static_cast<double>(in.eps)), width,
                 "out");
  }
}

TEST_P(RmsNormTest, MatchesOracleFloat32) { check_curated_cases<float>(GetParam()); }
TEST_P(RmsNormTest, MatchesOracleBFloat16) { check_curated_cases<BFloat16>(GetParam()); }
TEST_P(RmsNormTest, MatchesOracleFloat16) { check_curated_cases<Float16>(GetParam()); }

TEST_P(RmsNormTest, ScalesOfInput) {
  for (const double deviation : {1e-20, 1e-6, 1e-3, 1e3, 1e12}) {  // eps alone, eps and the mean, the mean alone
    for (const float eps : {0.0f, 1e-6f, 1e-2f}) {
      SCOPED_TRACE(testing::Message() << "deviation " << deviation << ", eps " << eps);
      if (eps == 0.0f && deviation < 1e-15) continue;  // the squares leave float32
      Inputs<float> in = make_inputs<float>(2, 576, false, 77, deviation);
      in.eps = eps;
      expect_close(run_norm(GetParam(), in).out, oracle::rms_norm(in.x, in.weight, static_cast<double>(eps)), 576, "out");
    }
  }
}

TEST_P(RmsNormTest, ZerosStayZeros) {
  Inputs<BFloat16> in = make_inputs<BFloat16>(2, 64, false, 5);
  std::fill(in.x.begin(), in.x.end(), BFloat16{});
  for (const BFloat16 value : run_norm(GetParam(), in).out) EXPECT_EQ(to_float(value), 0.0f);
}

TEST_P(RmsNormTest, NanStaysInItsRow) {
  Inputs<float> in = make_inputs<float>(3, 100, false, 6);
  in.x[150] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> got = run_norm(GetParam(), in).out;
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(std::isnan(got[i]), i >= 100 && i < 200) << i;
}

// A row's bits depend on neither its place nor its company.
TEST_P(RmsNormTest, IndependentOfTheBatch) {
  const Inputs<BFloat16> in = make_inputs<BFloat16>(257, 576, true, 8);
  const Outputs<BFloat16> batch = run_norm(GetParam(), in);
  for (const int64_t t : {0, 1, 100, 256}) {
    const auto row = [&](const std::vector<BFloat16>& values) {
      return std::vector<BFloat16>(values.begin() + t * 576, values.begin() + (t + 1) * 576);
    };
    const Outputs<BFloat16> alone = run_norm(GetParam(), Inputs<BFloat16>{row(in.x), row(in.residual), in.weight, in.eps});
    EXPECT_TRUE(same_bits(alone.out, row(batch.out))) << t;
    EXPECT_TRUE(same_bits(alone.residual, row(batch.residual))) << t;
  }
}

struct Refusal {
  std::function<void(RmsNormParams&)> breakage;
  StatusCode code;
  std::string message;
};

TEST_P(RmsNormTest, RefusesWhatTheContractForbids) {
  constexpr StatusCode kInvalid = StatusCode::invalid_argument;
  using P = RmsNormParams;
  const auto after = [](const void* pointer, int64_t elements) {
    return const_cast<float*>(static_cast<const float*>(pointer)) + elements;
  };
  const std::vector<Refusal> refusals = {
      {[](P& p) { p.dtype = kNoType; }, StatusCode::unsupported,
       "dtype is the unknown type 99: supported are float32, float16 and bfloat16"},
      {[](P& p) { p.num_tokens = -2; }, kInvalid, "num_tokens is -2: it must lie in 0..2147483648"},
      {[](P& p) { p.width = 0; }, kInvalid, "width is 0: it must lie in 1..16777216"},
      {[](P& p) { p.eps = -1.0f; }, kInvalid, "eps is -1: it must be finite and not negative"},
      {[](P& p) { p.eps = std::numeric_limits<float>::quiet_NaN(); }, kInvalid, "eps is nan: it must be finite and not negative"},
      {[](P& p) { p.eps = std::numeric_limits<float>::infinity(); }, kInvalid, "eps is inf: it must be finite and not negative"},
      {[](P& p) { p.x = nullptr; }, kInvalid, "x is null"},
      {[](P& p) { p.weight = nullptr; }, kInvalid, "weight is null"},
      {[](P& p) { p.out = nullptr; }, kInvalid, "out is null"},
      {[&](P& p) { p.out = after(p.x, 4); }, kInvalid, "out overlaps x"},
      {[&](P& p) { p.out = after(p.weight, 0); }, kInvalid, "out overlaps weight"},
      {[&](P& p) { p.residual = after(p.x, 0); }, kInvalid, "residual overlaps x"},
      {[](P& p) { p.residual = p.out; }, kInvalid, "residual overlaps out"},
      {[&](P& p) { p.residual = after(p.weight, 0); }, kInvalid, "residual overlaps weight"},
  };
  for (const Refusal& refusal : refusals) {
    Arena arena(GetParam());
    P p{2,
        4,
        DType::f32,
        arena.input(std::vector<float>(8)),
        arena.inout(std::vector<float>(8)),
        arena.input(std::vector<float>(4)),
        1e-5f,
        arena.output<float>(8)};
    refusal.breakage(p);
    const Status status = arena.run([&](const Execution& execution) { return rms_norm(p, execution); });
    EXPECT_EQ(status.code(), refusal.code) << refusal.message;
    EXPECT_EQ(status.message(), "rms_norm: " + refusal.message);
    EXPECT_TRUE(arena.untouched()) << refusal.message;
  }
}

TEST(RmsNormCpuTest, CudaWithoutCuda) {
  if (built_with_cuda()) GTEST_SKIP() << "built with CUDA";
  Arena arena(Backend::cpu);
  const RmsNormParams p{1,          4,
                        DType::f32, arena.input(std::vector<float>(4)),
                        nullptr,    arena.input(std::vector<float>(4)),
                        1e-5f,      arena.output<float>(4)};
  const Status status = arena.run([&](Execution execution) {
    execution.device = Device::cuda;
    return rms_norm(p, execution);
  });
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_EQ(status.message(), "rms_norm: device is cuda, but this library was built without CUDA");
  EXPECT_TRUE(arena.untouched());
}

INSTANTIATE_TEST_SUITE_P(Backends, RmsNormTest, testing::ValuesIn(all_backends()),
                         [](const auto& backend) { return backend_name(backend.param); });

}  // namespace
}  // namespace prologue::test
