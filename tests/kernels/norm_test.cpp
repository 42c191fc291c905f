#include <prologue/kernels/token_ops/norm.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tests/oracle/token_ops.h"
#include "tests/support/arena.h"
#include "tests/support/bits.h"
#include "tests/support/random.h"
#include "tests/support/refusals.h"
#include "tests/support/tolerance.h"
#include "tests/support/types.h"

namespace prologue::test {
namespace {

class NormTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};

// The weights differ in what is given, and in its type.
enum class Weights { of_type, float32, none, of_type_with_bias, float32_with_bias, only_bias };
constexpr Weights kWeights[] = {Weights::of_type,           Weights::float32,           Weights::none,
                                Weights::of_type_with_bias, Weights::float32_with_bias, Weights::only_bias};

template <class T>
struct Inputs {
  std::vector<T> x, residual;       // no residual: empty
  std::vector<float> weight, bias;  // of each channel; where there are none: 1 and 0
  float eps = 1e-5f;
  NormKind kind = NormKind::rms;
  Weights weights = Weights::of_type;

  bool has_weight() const { return weights != Weights::none && weights != Weights::only_bias; }
  bool has_bias() const { return weights >= Weights::of_type_with_bias; }
  bool float_weights() const { return weights == Weights::float32 || weights == Weights::float32_with_bias; }
};

template <class T>
std::vector<T> rounded(const std::vector<float>& values) {
  std::vector<T> result;
  for (const float value : values) result.push_back(from_float<T>(value));
  return result;
}

template <class T>
Inputs<T> make_inputs(int64_t num_tokens, int64_t width, bool residual, uint64_t seed, double deviation = 1.0,
                      NormKind kind = NormKind::rms, Weights weights = Weights::of_type) {
  Random random(seed);
  Inputs<T> in;
  in.x = random.normals<T>(num_tokens * width, deviation);
  if (residual) in.residual = random.normals<T>(num_tokens * width, deviation);
  in.kind = kind;
  in.weights = weights;
  const auto values = [&](bool given, float otherwise) {
    if (!given) return std::vector<float>(static_cast<size_t>(width), otherwise);
    std::vector<float> of_type;
    for (const T value : random.normals<T>(width)) of_type.push_back(to_float(value));
    return in.float_weights() ? random.normals<float>(width) : of_type;
  };
  in.weight = values(in.has_weight(), 1.0f);
  in.bias = values(in.has_bias(), 0.0f);
  return in;
}

template <class T>
std::vector<Reference> reference(const std::vector<T>& r, const Inputs<T>& in) {
  return oracle::norm(r, in.kind == NormKind::layer, in.weight, in.bias, static_cast<double>(in.eps));
}

template <class T>
struct Outputs {
  std::vector<T> out, residual;
};

template <class T>
Outputs<T> run_norm(Backend backend, const Inputs<T>& in, bool in_place = false, int64_t misalign = 0) {
  Arena arena(backend);
  NormParams p;
  p.width = static_cast<int64_t>(in.weight.size());
  p.num_tokens = static_cast<int64_t>(in.x.size()) / p.width;
  p.dtype = FloatFormat<T>::dtype;
  p.eps = in.eps;
  p.kind = in.kind;
  const auto place = [&](bool given, const std::vector<float>& values) -> const void* {
    if (!given) return nullptr;
    return in.float_weights() ? static_cast<const void*>(arena.input(values, misalign == 0 ? 0 : 4))
                              : arena.input(rounded<T>(values), misalign);
  };
  p.weight = place(in.has_weight(), in.weight);
  p.bias = place(in.has_bias(), in.bias);
  if (in.float_weights()) p.weight_type = DType::f32;
  T* residual = in.residual.empty() ? nullptr : arena.inout(in.residual, misalign);
  p.residual = residual;
  T* out = in_place ? arena.inout(in.x, misalign) : arena.output<T>(static_cast<int64_t>(in.x.size()), misalign);
  p.out = out;
  p.x = in_place ? out : arena.input(in.x, misalign);
  const Status status = arena.run([&](const Execution& execution) { return norm(p, execution); });
  EXPECT_TRUE(status.ok()) << status.message();
  return {arena.read(out), residual == nullptr ? std::vector<T>() : arena.read(residual)};
}

// The result is one float32 sum, rounded once.
template <class T>
std::vector<T> residual_sum(const Inputs<T>& in) {
  std::vector<T> sum = in.x;
  for (size_t i = 0; i < in.residual.size(); ++i) sum[i] = from_float<T>(to_float(in.x[i]) + to_float(in.residual[i]));
  return sum;
}

template <class T>
void check(Backend backend, const Inputs<T>& in, bool in_place = false, int64_t misalign = 0) {
  const Outputs<T> got = run_norm(backend, in, in_place, misalign);
  const std::vector<T> sum = residual_sum(in);
  if (!in.residual.empty()) {
    EXPECT_TRUE(same_bits(got.residual, sum));
  }
  const double steps = std::max(kDefaultSteps, std::sqrt(static_cast<double>(in.weight.size())) / 4.0);  // a sum of squares: a random walk
  expect_close(got.out, reference(sum, in), static_cast<int64_t>(in.weight.size()), "out", steps);
}

template <class T>
void check_curated_cases(Backend backend) {
  uint64_t seed = 1;
  const auto next = [&](int64_t num_tokens, int64_t width, bool residual) {
    const Weights weights = kWeights[++seed % std::size(kWeights)];
    for (const NormKind kind : {NormKind::rms, NormKind::layer}) {
      SCOPED_TRACE(testing::Message() << "T = " << num_tokens << ", width " << width << (residual ? ", residual" : "")
                                      << ", kind " << static_cast<int>(kind) << ", weights " << static_cast<int>(weights));
      check(backend, make_inputs<T>(num_tokens, width, residual, seed, 1.0, kind, weights), seed % 5 == 0,
            seed % 7 == 0 ? static_cast<int64_t>(sizeof(T)) : 0);
    }
  };
  for (const int64_t num_tokens : {0, 1, 2, 31, 32, 33, 257}) {
    for (const int64_t width : {1, 2, 15, 64, 100, 576}) {
      for (const bool residual : {false, true}) next(num_tokens, width, residual && num_tokens > 0);
    }
  }
  for (const int64_t width : {513, 1536, 4096, 8192, 10007, 16400}) {
    for (size_t i = 0; i < std::size(kWeights); ++i) next(2, width, i % 2 == 0);
  }
}

TEST_P(NormTest, MatchesOracleFloat32) { check_curated_cases<float>(GetParam()); }
TEST_P(NormTest, MatchesOracleBFloat16) { check_curated_cases<BFloat16>(GetParam()); }
TEST_P(NormTest, MatchesOracleFloat16) { check_curated_cases<Float16>(GetParam()); }

TEST_P(NormTest, ScalesOfInput) {
  for (const NormKind kind : {NormKind::rms, NormKind::layer}) {
    for (const double deviation : {1e-20, 1e-6, 1e-3, 1e3, 1e12}) {  // eps alone, eps and the mean, the mean alone
      for (const float eps : {0.0f, 1e-6f, 1e-2f}) {
        SCOPED_TRACE(testing::Message() << "deviation " << deviation << ", eps " << eps);
        if (eps == 0.0f && deviation < 1e-15) continue;  // the squares leave float32
        Inputs<float> in = make_inputs<float>(2, 576, false, 77, deviation, kind);
        in.eps = eps;
        check(GetParam(), in);
      }
    }
  }
}

// A layer norm takes the mean off before it squares: the squares of rows that are far from 0 would cancel.
TEST_P(NormTest, LayerNormOfRowsFarFromZero) {
  Inputs<float> in = make_inputs<float>(3, 1000, false, 78, 1.0, NormKind::layer, Weights::of_type_with_bias);
  for (float& x : in.x) x += 1000.0f;
  check(GetParam(), in);
}

TEST_P(NormTest, ZerosStayZeros) {
  Inputs<BFloat16> in = make_inputs<BFloat16>(2, 64, false, 5);
  std::fill(in.x.begin(), in.x.end(), BFloat16{});
  for (const BFloat16 value : run_norm(GetParam(), in).out) EXPECT_EQ(to_float(value), 0.0f);
}

TEST_P(NormTest, NanStaysInItsRow) {
  for (const NormKind kind : {NormKind::rms, NormKind::layer}) {
    Inputs<float> in = make_inputs<float>(3, 100, false, 6, 1.0, kind);
    in.x[150] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> got = run_norm(GetParam(), in).out;
    for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(std::isnan(got[i]), i >= 100 && i < 200) << i;
  }
}

// A row's bits depend on neither its place nor its company.
TEST_P(NormTest, IndependentOfTheBatch) {
  for (const NormKind kind : {NormKind::rms, NormKind::layer}) {
    const Inputs<BFloat16> in = make_inputs<BFloat16>(257, 576, true, 8, 1.0, kind);
    const Outputs<BFloat16> batch = run_norm(GetParam(), in);
    for (const int64_t t : {0, 1, 100, 256}) {
      const auto row = [&](const std::vector<BFloat16>& values) {
        return std::vector<BFloat16>(values.begin() + t * 576, values.begin() + (t + 1) * 576);
      };
      Inputs<BFloat16> one = in;
      one.x = row(in.x), one.residual = row(in.residual);
      const Outputs<BFloat16> alone = run_norm(GetParam(), one);
      EXPECT_TRUE(same_bits(alone.out, row(batch.out))) << t;
      EXPECT_TRUE(same_bits(alone.residual, row(batch.residual))) << t;
    }
  }
}

TEST_P(NormTest, RefusesWhatTheContractForbids) {
  constexpr StatusCode kInvalid = StatusCode::invalid_argument;
  using P = NormParams;
  const auto after = [](const void* pointer, int64_t elements) {
    return const_cast<float*>(static_cast<const float*>(pointer)) + elements;
  };
  const std::vector<Refusal<P>> refusals = {
      {[](P& p) { p.dtype = kNoType; }, StatusCode::unsupported,
       "dtype is the unknown type 99: supported are float32, float16 and bfloat16"},
      {[](P& p) { p.num_tokens = -2; }, kInvalid, "num_tokens is -2: it must lie in 0..2147483648"},
      {[](P& p) { p.width = 0; }, kInvalid, "width is 0: it must lie in 1..16777216"},
      {[](P& p) { p.eps = -1.0f; }, kInvalid, "eps is -1: it must be finite and not negative"},
      {[](P& p) { p.eps = std::numeric_limits<float>::quiet_NaN(); }, kInvalid, "eps is nan: it must be finite and not negative"},
      {[](P& p) { p.eps = std::numeric_limits<float>::infinity(); }, kInvalid, "eps is inf: it must be finite and not negative"},
      {[](P& p) { p.x = nullptr; }, kInvalid, "x is null"},
      {[](P& p) { p.kind = static_cast<NormKind>(2); }, StatusCode::unsupported, "kind is 2: supported are rms and layer"},
      {[](P& p) { p.weight_type = DType::f16; }, StatusCode::unsupported,
       "weight_type is float16: it must be dtype, float32, or float32"},
      {[](P& p) { p.weight_type = kNoType; }, StatusCode::unsupported,
       "weight_type is the unknown type 99: it must be dtype, float32, or float32"},
      {[](P& p) { p.out = nullptr; }, kInvalid, "out is null"},
      {[&](P& p) { p.out = after(p.x, 4); }, kInvalid, "out overlaps x"},
      {[&](P& p) { p.out = after(p.weight, 0); }, kInvalid, "out overlaps weight"},
      {[&](P& p) { p.out = after(p.bias, 0); }, kInvalid, "out overlaps bias"},
      {[&](P& p) { p.residual = after(p.x, 0); }, kInvalid, "residual overlaps x"},
      {[](P& p) { p.residual = p.out; }, kInvalid, "out overlaps residual"},
      {[&](P& p) { p.residual = after(p.bias, 0); }, kInvalid, "residual overlaps bias"},
      {[&](P& p) { p.residual = after(p.weight, 0); }, kInvalid, "residual overlaps weight"},
  };
  expect_refusals("norm", refusals, [&](const auto& change) {
    Arena arena(GetParam());
    P p;
    p.num_tokens = 2;
    p.width = 4;
    p.dtype = DType::f32;
    p.x = arena.input(std::vector<float>(8));
    p.residual = arena.inout(std::vector<float>(8));
    p.weight = arena.input(std::vector<float>(4));
    p.bias = arena.input(std::vector<float>(4));
    p.out = arena.output<float>(8);
    change(p);
    return refused(arena.run([&](const Execution& execution) { return norm(p, execution); }), arena);
  });
}

TEST(NormCpuTest, CudaWithoutCuda) {
  if (built_with_cuda()) GTEST_SKIP() << "built with CUDA";
  Arena arena(Backend::cpu);
  NormParams p;
  p.num_tokens = 1;
  p.width = 4;
  p.dtype = DType::f32;
  p.x = arena.input(std::vector<float>(4));
  p.out = arena.output<float>(4);
  const Status status = arena.run([&](Execution execution) {
    execution.device = Device::cuda;
    return norm(p, execution);
  });
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_EQ(status.message(), "norm: device is cuda, but this library was built without CUDA");
  EXPECT_TRUE(arena.untouched());
}

INSTANTIATE_TEST_SUITE_P(Backends, NormTest, testing::ValuesIn(all_backends()),
                         [](const auto& backend) { return backend_name(backend.param); });

}  // namespace
}  // namespace prologue::test
