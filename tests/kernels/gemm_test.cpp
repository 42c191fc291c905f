#include <prologue/kernels/gemm/gemm.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/oracle/gemm.h"
#include "tests/support/arena.h"
#include "tests/support/bits.h"
#include "tests/support/random.h"
#include "tests/support/refusals.h"
#include "tests/support/tolerance.h"
#include "tests/support/types.h"

namespace prologue::test {
namespace {

class GemmTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    PROLOGUE_REQUIRE_BACKEND(GetParam());
    auto context = GemmContext::create(backend_device(GetParam()));
    ASSERT_TRUE(context.ok()) << context.status().message();
    context_ = std::move(context).value();
  }
  std::unique_ptr<GemmContext> context_;
};

// Any order of adding K float32 terms is off by at most K * 2^-24 * scale; rounding errors of either sign walk rather than march,
// so that their sum grows with the square root of the longest chain: sqrt(K) steps, and never fewer than the usual 16.
double steps_for(int64_t k) { return std::max(kDefaultSteps, std::sqrt(static_cast<double>(k))); }

struct Case {
  int64_t m, n, k;
  bool bias = false;
  int64_t x_padding = 0;  // x_stride - k
  int64_t y_padding = 0;  // y_stride - n
  bool misaligned = false;
  bool batch_invariant = false;
};

template <class T>
struct Inputs {
  std::vector<T> x, weight, bias;
};

// Rows of x hold NaN between k and the stride: reading there shows.
template <class T>
Inputs<T> make_inputs(const Case& c, uint64_t seed) {
  Random random(seed);
  Inputs<T> inputs;
  const int64_t x_stride = c.k + c.x_padding;
  inputs.x = random.normals<T>(c.m * x_stride);
  for (int64_t m = 0; m < c.m; ++m) {
    for (int64_t i = c.k; i < x_stride; ++i) {
      inputs.x[static_cast<size_t>(m * x_stride + i)] = from_float<T>(std::numeric_limits<float>::quiet_NaN());
    }
  }
  inputs.weight = random.normals<T>(c.n * c.k, 0.1);
  if (c.bias) inputs.bias = random.normals<T>(c.n);
  return inputs;
}

// Runs one case; the result without the padding of its rows, which must still be poison.
template <class T, class Y>
std::vector<Y> run_case(Backend backend, GemmContext& context, const Case& c, const Inputs<T>& inputs) {
  Arena arena(backend);
  const int64_t y_stride = c.n + c.y_padding;
  GemmParams p;
  p.m = c.m;
  p.n = c.n;
  p.k = c.k;
  p.dtype = FloatFormat<T>::dtype;
  p.y_dtype = FloatFormat<Y>::dtype;
  const int64_t misalign = c.misaligned ? static_cast<int64_t>(sizeof(T)) : 0;
  p.x = arena.input(inputs.x, misalign);
  p.x_stride = c.k + c.x_padding;
  p.weight = arena.input(inputs.weight, misalign);
  p.bias = inputs.bias.empty() ? nullptr : arena.input(inputs.bias, misalign);
  Y* y = arena.output<Y>(c.m * y_stride, c.misaligned ? static_cast<int64_t>(sizeof(Y)) : 0);
  p.y = y;
  p.y_stride = y_stride;
  p.batch_invariant = c.batch_invariant;
  const Status status = arena.run([&](const Execution& execution) { return gemm(p, context, execution); });
  EXPECT_TRUE(status.ok()) << status.message();

  const std::vector<Y> padded = arena.read(y);
  std::vector<Y> result;
  for (int64_t m = 0; m < c.m; ++m) {
    const auto row = padded.begin() + m * y_stride;
    result.insert(result.end(), row, row + c.n);
    for (int64_t n = c.n; n < y_stride; ++n) {
      Y poison;
      std::memset(static_cast<void*>(&poison), kPoison, sizeof poison);
      EXPECT_EQ(std::memcmp(&*(row + n), &poison, sizeof poison), 0) << "padding of row " << m << " was overwritten";
    }
  }
  return result;
}

std::vector<Case> curated_cases() {
  std::vector<Case> cases;
  for (const int64_t m : {0, 1, 2, 3, 4, 7, 8, 9, 31, 33, 63, 64, 65, 257}) {  // all tile heights, few rows and many
    cases.push_back({m, 96, 64, false});
    cases.push_back({m, 37, 65, true, 3, 5});
    cases.push_back({m, 50, 17, true, 1, 0, true});
    cases.push_back({m, 96, 64, true, 0, 0, false, true});
    cases.push_back({m, 37, 801, false, 3, 5, false, true});
  }
  for (const int64_t m : {1, 5, 64, 66}) {  // extents of 1, lengths round the vector widths, several blocks of columns and of k
    for (const auto& [n, k] :
         {std::pair<int64_t, int64_t>{1, 1}, {1, 576}, {17, 1}, {3, 15}, {5, 31}, {2, 577}, {131, 96}, {33, 1536}, {34, 1801}}) {
      cases.push_back({m, n, k, m % 2 == 1, 0, 1});
    }
  }
  cases.push_back({1, 960, 576, true});
  cases.push_back({700, 33, 40, true, 7, 1});  // more rows than one block
  cases.push_back({3, 0, 64});
  cases.push_back({3, 40, 0, true});     // y = bias
  cases.push_back({100, 40, 0, false});  // y = 0
  cases.push_back({3, 40, 0, true, 0, 0, false, true});
  return cases;
}

template <class T, class Y>
void expect_matches_oracle(Backend backend, GemmContext& context) {
  uint64_t seed = 1;
  for (const Case& c : curated_cases()) {
    SCOPED_TRACE(testing::Message() << dtype_name(FloatFormat<T>::dtype) << " -> " << dtype_name(FloatFormat<Y>::dtype) << ", m "
                                    << c.m << ", n " << c.n << ", k " << c.k << ", bias " << c.bias << ", x padding "
                                    << c.x_padding << ", y padding " << c.y_padding << ", misaligned " << c.misaligned
                                    << ", batch-invariant " << c.batch_invariant);
    const Inputs<T> inputs = make_inputs<T>(c, seed++);
    const auto want = oracle::gemm(inputs.x, c.k + c.x_padding, inputs.weight, inputs.bias, c.m, c.n, c.k);
    const auto got = run_case<T, Y>(backend, context, c, inputs);
    expect_close(got, want, std::max<int64_t>(c.n, 1), "y", steps_for(c.k));
  }
}

TEST_P(GemmTest, Float32MatchesOracle) { expect_matches_oracle<float, float>(GetParam(), *context_); }
TEST_P(GemmTest, BFloat16MatchesOracle) { expect_matches_oracle<BFloat16, BFloat16>(GetParam(), *context_); }
TEST_P(GemmTest, BFloat16ToFloat32MatchesOracle) { expect_matches_oracle<BFloat16, float>(GetParam(), *context_); }
TEST_P(GemmTest, Float16MatchesOracle) { expect_matches_oracle<Float16, Float16>(GetParam(), *context_); }
TEST_P(GemmTest, Float16ToFloat32MatchesOracle) { expect_matches_oracle<Float16, float>(GetParam(), *context_); }

// One rounding at the store: the 16-bit result is the float32 result rounded, bias included.
template <class T>
void expect_one_rounding(Backend backend, GemmContext& context) {
  for (const int64_t m : {3, 80}) {
    const Case c{m, 45, 33, true};
    const Inputs<T> inputs = make_inputs<T>(c, 7);
    const auto wide = run_case<T, float>(backend, context, c, inputs);
    const auto narrow = run_case<T, T>(backend, context, c, inputs);
    if (backend_device(backend) == Device::cuda) continue;  // cuBLASLt may choose another algorithm for another output type
    std::vector<T> rounded;
    for (const float value : wide) rounded.push_back(from_float<T>(value));
    EXPECT_TRUE(same_bits(narrow, rounded)) << dtype_name(FloatFormat<T>::dtype) << ", m " << m;
  }
}

TEST_P(GemmTest, RoundsOnce) {
  expect_one_rounding<BFloat16>(GetParam(), *context_);
  expect_one_rounding<Float16>(GetParam(), *context_);
}

// Small integers: every sum is exact in float32, whatever the order, so nothing but a wrong index or a lost term can differ.
template <class T>
void expect_exact_integers(Backend backend, GemmContext& context) {
  for (const int64_t m : {1, 6, 13, 64, 130}) {
    const Case c{m, 67, 101, true, 2, 3};
    Random random(11);
    Inputs<T> inputs;
    const auto integers = [&](int64_t count) {
      std::vector<T> values;
      for (int64_t i = 0; i < count; ++i) values.push_back(from_float<T>(static_cast<float>(random.integer(-8, 8))));
      return values;
    };
    inputs.x = integers(c.m * (c.k + c.x_padding));
    inputs.weight = integers(c.n * c.k);
    inputs.bias = integers(c.n);
    const auto got = run_case<T, float>(backend, context, c, inputs);
    const auto want = oracle::gemm(inputs.x, c.k + c.x_padding, inputs.weight, inputs.bias, c.m, c.n, c.k);
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_EQ(static_cast<double>(got[i]), want[i].value)
          << dtype_name(FloatFormat<T>::dtype) << " m " << m << " element " << i;
  }
}

TEST_P(GemmTest, SmallIntegersAreExact) {
  expect_exact_integers<float>(GetParam(), *context_);
  expect_exact_integers<BFloat16>(GetParam(), *context_);
  expect_exact_integers<Float16>(GetParam(), *context_);
}

TEST_P(GemmTest, DenormalsSurvive) {
  for (const int64_t m : {2, 70}) {
    const Case c{m, 19, 40, false};
    Random random(3);
    Inputs<float> inputs;
    for (int64_t i = 0; i < c.m * c.k; ++i) inputs.x.push_back(std::ldexp(static_cast<float>(random.integer(-9, 9)), -149));
    for (int64_t i = 0; i < c.n * c.k; ++i) inputs.weight.push_back(static_cast<float>(random.integer(-9, 9)));
    const auto got = run_case<float, float>(GetParam(), *context_, c, inputs);
    const auto want = oracle::gemm(inputs.x, c.k, inputs.weight, inputs.bias, c.m, c.n, c.k);
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_EQ(static_cast<double>(got[i]), want[i].value) << "m " << m << " element " << i;

    Inputs<Float16> half;  // float16's subnormal numbers are exact in float32
    for (int64_t i = 0; i < c.m * c.k; ++i)
      half.x.push_back(from_float<Float16>(std::ldexp(static_cast<float>(random.integer(-9, 9)), -24)));
    for (int64_t i = 0; i < c.n * c.k; ++i) half.weight.push_back(from_float<Float16>(static_cast<float>(random.integer(-9, 9))));
    const auto got_half = run_case<Float16, float>(GetParam(), *context_, c, half);
    const auto want_half = oracle::gemm(half.x, c.k, half.weight, half.bias, c.m, c.n, c.k);
    for (size_t i = 0; i < got_half.size(); ++i)
      ASSERT_EQ(static_cast<double>(got_half[i]), want_half[i].value) << "m " << m << " element " << i;
  }
}

TEST_P(GemmTest, HugeValuesAndOverflow) {
  for (const int64_t m : {2, 70}) {
    const Case c{m, 19, 40, false};
    Random random(5);
    Inputs<float> huge{random.normals<float>(c.m * c.k, 1e17), random.normals<float>(c.n * c.k, 1e18), {}};
    expect_close(run_case<float, float>(GetParam(), *context_, c, huge),
                 oracle::gemm(huge.x, c.k, huge.weight, huge.bias, c.m, c.n, c.k), c.n, "float32", steps_for(c.k));
    Inputs<BFloat16> brain{random.normals<BFloat16>(c.m * c.k, 1e17), random.normals<BFloat16>(c.n * c.k, 1e18), {}};
    expect_close(run_case<BFloat16, BFloat16>(GetParam(), *context_, c, brain),
                 oracle::gemm(brain.x, c.k, brain.weight, brain.bias, c.m, c.n, c.k), c.n, "bfloat16", steps_for(c.k));

    // 40 * 90 * 90 does not fit float16, so it becomes infinity there and not in float32.
    Inputs<Float16> half{std::vector<Float16>(static_cast<size_t>(c.m * c.k), from_float<Float16>(90.0f)),
                         std::vector<Float16>(static_cast<size_t>(c.n * c.k), from_float<Float16>(90.0f)),
                         {}};
    for (const Float16 value : run_case<Float16, Float16>(GetParam(), *context_, c, half)) ASSERT_EQ(value.bits, 0x7c00);
    for (const float value : run_case<Float16, float>(GetParam(), *context_, c, half)) ASSERT_EQ(value, 324000.0f);
  }
}

// A NaN or an infinity in one row of x stays in that row of y; in one row of the weights, in that column.
TEST_P(GemmTest, NonFiniteValuesStayWhereTheyBelong) {
  for (const int64_t m : {3, 70}) {
    const Case c{m, 21, 33, false};
    Inputs<float> inputs = make_inputs<float>(c, 9);
    inputs.x[static_cast<size_t>(1 * c.k + 32)] = std::numeric_limits<float>::quiet_NaN();
    inputs.weight[static_cast<size_t>(20 * c.k + 5)] = std::numeric_limits<float>::infinity();
    const auto got = run_case<float, float>(GetParam(), *context_, c, inputs);
    for (int64_t row = 0; row < c.m; ++row) {
      for (int64_t column = 0; column < c.n; ++column) {
        const float value = got[static_cast<size_t>(row * c.n + column)];
        if (row == 1) {
          EXPECT_TRUE(std::isnan(value)) << row << ", " << column;
        } else if (column == 20) {
          EXPECT_TRUE(std::isinf(value)) << row << ", " << column;
        } else {
          EXPECT_TRUE(std::isfinite(value)) << row << ", " << column;
        }
      }
    }
  }
}

template <class T>
void expect_rows_permute(Backend backend, GemmContext& context) {
  for (const int64_t m : {4, 9, 33, 100}) {
    const Case c{m, 53, 144, true};
    const Inputs<T> inputs = make_inputs<T>(c, 21);
    std::vector<int64_t> order;
    for (int64_t i = 0; i < m; ++i) order.push_back(i);
    Random(22).shuffle(order);
    Inputs<T> permuted = inputs;
    for (int64_t i = 0; i < m; ++i) {
      std::copy_n(inputs.x.begin() + order[static_cast<size_t>(i)] * c.k, c.k, permuted.x.begin() + i * c.k);
    }
    const auto plain = run_case<T, T>(backend, context, c, inputs);
    const auto got = run_case<T, T>(backend, context, c, permuted);
    std::vector<T> want = plain;
    for (int64_t i = 0; i < m; ++i) std::copy_n(plain.begin() + order[static_cast<size_t>(i)] * c.n, c.n, want.begin() + i * c.n);
    EXPECT_TRUE(same_bits(got, want)) << dtype_name(FloatFormat<T>::dtype) << ", m " << m;
    EXPECT_TRUE(same_bits(plain, run_case<T, T>(backend, context, c, inputs))) << "two runs differ, m " << m;
  }
}

TEST_P(GemmTest, PermutingRowsPermutesTheResultAndTwoRunsAgreeBitwise) {
  expect_rows_permute<float>(GetParam(), *context_);
  expect_rows_permute<BFloat16>(GetParam(), *context_);
  expect_rows_permute<Float16>(GetParam(), *context_);
}

// Compares rows of products of every height with the same rows of the largest one. Each product starts at another row of x.
template <class T, class Y>
void expect_batch_invariance(Backend backend, GemmContext& context, Case c) {
  constexpr int64_t kRows = 512;
  SCOPED_TRACE(testing::Message() << dtype_name(FloatFormat<T>::dtype) << " -> " << dtype_name(FloatFormat<Y>::dtype) << ", n "
                                  << c.n << ", k " << c.k << ", bias " << c.bias << ", x padding " << c.x_padding
                                  << ", y padding " << c.y_padding << ", misaligned " << c.misaligned);
  c.batch_invariant = true;
  c.m = kRows;
  const Inputs<T> inputs = make_inputs<T>(c, 41);
  const std::vector<Y> all = run_case<T, Y>(backend, context, c, inputs);
  Random random(42);
  for (const int64_t m : {1, 2, 3, 5, 8, 16, 17, 64, 65, 128, 300, 512}) {
    const int64_t first = random.integer(0, kRows - m), x_stride = c.k + c.x_padding;
    c.m = m;
    Inputs<T> part = inputs;
    part.x.assign(inputs.x.begin() + first * x_stride, inputs.x.begin() + (first + m) * x_stride);
    const std::vector<Y> want(all.begin() + first * c.n, all.begin() + (first + m) * c.n);
    EXPECT_TRUE(same_bits(run_case<T, Y>(backend, context, c, part), want)) << "m " << m << " from row " << first;
  }
}

TEST_P(GemmTest, ARowHasTheSameBitsForEveryM) {
  const std::vector<Case> cases = {
      {0, 960, 576},
      {0, 576, 1536, true},
      {0, 130, 801, true, 3, 5},
      {0, 64, 4096, true},
      {0, 37, 65, false, 8, 3},
      {0, 50, 17, true, 1, 0, true},
      {0, 9, 1801},
      {0, 40, 8},
  };
  for (const Case& c : cases) {
    expect_batch_invariance<float, float>(GetParam(), *context_, c);
    expect_batch_invariance<BFloat16, BFloat16>(GetParam(), *context_, c);
    if (c.n > 500) continue;
    expect_batch_invariance<BFloat16, float>(GetParam(), *context_, c);
    expect_batch_invariance<Float16, Float16>(GetParam(), *context_, c);
    expect_batch_invariance<Float16, float>(GetParam(), *context_, c);
  }
}

// The sums underflow: not even the sign of a zero depends on M.
TEST_P(GemmTest, ZerosHaveTheSameSignForEveryM) {
  Case c{70, 24, 21, false};
  c.batch_invariant = true;
  const auto elements = [](int64_t count, float value) { return std::vector<float>(static_cast<size_t>(count), value); };
  const Inputs<float> inputs{elements(c.m * c.k, -1e-30f), elements(c.n * c.k, 1e-30f), {}};
  const std::vector<float> all = run_case<float, float>(GetParam(), *context_, c, inputs);
  c.m = 2;
  const Inputs<float> two{elements(c.m * c.k, -1e-30f), inputs.weight, {}};
  EXPECT_TRUE(
      same_bits(run_case<float, float>(GetParam(), *context_, c, two), std::vector<float>(all.begin(), all.begin() + 48)));
}

TEST_P(GemmTest, ThreadCountDoesNotChangeTheBits) {
  if (backend_device(GetParam()) != Device::cpu) GTEST_SKIP() << "threads are a matter of the CPU";
  for (const auto& [m, batch_invariant] :
       {std::pair{1, false}, {7, false}, {63, false}, {64, false}, {257, false}, {1, true}, {63, true}, {257, true}}) {
    const Case c{m, 131, 577, true};
    const Inputs<float> inputs = make_inputs<float>(c, 31);
    std::vector<std::vector<float>> results;
    for (const int32_t num_threads : {1, 2, 5, 64}) {
      std::vector<float> y(static_cast<size_t>(c.m * c.n), -1.0f);
      Execution execution;
      execution.num_threads = num_threads;
      const Status status = gemm({c.m, c.n, c.k, DType::f32, DType::f32, inputs.x.data(), c.k, inputs.weight.data(),
                                  inputs.bias.data(), y.data(), c.n, batch_invariant},
                                 *context_, execution);
      ASSERT_TRUE(status.ok()) << status.message();
      results.push_back(std::move(y));
    }
    for (const auto& result : results) EXPECT_TRUE(same_bits(result, results.front())) << "m " << m;
  }
}

// Lists every rule of the contract, with the sentence that tells it.
struct GemmCall : GemmParams {
  bool on_another_device = false;
};

TEST_P(GemmTest, RefusesWhatBreaksTheContract) {
  const int64_t m = 4, n = 6, k = 8;
  const auto at = [](const void* pointer, int64_t floats) {
    return static_cast<void*>(const_cast<float*>(static_cast<const float*>(pointer)) + floats);
  };
  const std::string apart = ": the output must not overlap any input";
  const char* const other_device = backend_device(GetParam()) == Device::cpu
                                       ? "the context was made for cpu, but the execution's device is cuda"
                                       : "the context was made for cuda, but the execution's device is cpu";
  const std::vector<Refusal<GemmCall>> refusals = {
      {"dtype", [](auto& p) { p.dtype = kNoType; }, "dtype is the unknown type 99: it must be float32, float16 or bfloat16"},
      {"y_dtype", [](auto& p) { p.y_dtype = DType::f16; }, "y_dtype is float16: it must be float32 or dtype, which is float32"},
      {"unknown y_dtype", [](auto& p) { p.y_dtype = kNoType; },
       "y_dtype is the unknown type 99: it must be float32 or dtype, which is float32"},
      {"m", [](auto& p) { p.m = -1; }, "m, n, k are -1, 6, 8: none may be negative"},
      {"n", [](auto& p) { p.n = -2; }, "m, n, k are 4, -2, 8: none may be negative"},
      {"k", [](auto& p) { p.k = -3; }, "m, n, k are 4, 6, -3: none may be negative"},
      {"x_stride", [](auto& p) { p.x_stride = 7; }, "x_stride is 7: it must be at least k, which is 8"},
      {"y_stride", [](auto& p) { p.y_stride = 5; }, "y_stride is 5: it must be at least n, which is 6"},
      {"huge stride", [](auto& p) { p.x_stride = int64_t{1} << 62; },
       "x is 4 x 8 with a row stride of 4611686018427387904: it must not reach further than 2^60 bytes"},
      {"stride past any memory", [](auto& p) { p.y_stride = int64_t{1} << 58; },
       "y is 4 x 6 with a row stride of 288230376151711744: it must not reach further than 2^60 bytes"},
      {"null x", [](auto& p) { p.x = nullptr; }, "x is null, but m, n, k are 4, 6, 8"},
      {"null weight", [](auto& p) { p.weight = nullptr; }, "weight is null, but m, n, k are 4, 6, 8"},
      {"null y", [](auto& p) { p.y = nullptr; }, "y is null, but m, n, k are 4, 6, 8"},
      {"misaligned x", [](auto& p) { p.x = static_cast<const char*>(p.x) + 2; }, "x is at @: float32 must be aligned to 4 bytes"},
      {"misaligned y", [](auto& p) { p.y = static_cast<char*>(p.y) + 1; }, "y is at @: float32 must be aligned to 4 bytes"},
      {"y over x", [&](auto& p) { p.y = at(p.x, m * k - 1); }, "y (96 bytes at @) overlaps x (128 bytes at @)" + apart},
      {"y over weight", [&](auto& p) { p.y = at(p.weight, 1 - m * n); },
       "y (96 bytes at @) overlaps weight (192 bytes at @)" + apart},
      {"y over bias", [&](auto& p) { p.y = const_cast<void*>(p.bias); },
       "y (96 bytes at @) overlaps bias (24 bytes at @)" + apart},
      {"device", [](auto& p) { p.on_another_device = true; }, other_device},
  };
  expect_refusals("gemm", refusals, [&](const auto& change) {
    Arena arena(GetParam());
    GemmCall p;
    p.dtype = p.y_dtype = DType::f32;
    p.m = m;
    p.n = n;
    p.k = k;
    p.x = arena.input(std::vector<float>(static_cast<size_t>(m * k), 1.0f));
    p.x_stride = k;
    p.weight = arena.input(std::vector<float>(static_cast<size_t>(n * k), 1.0f));
    p.bias = arena.input(std::vector<float>(static_cast<size_t>(n), 1.0f));
    p.y = arena.output<float>(m * n);
    p.y_stride = n;
    change(p);
    const auto run = [&](Execution execution) {
      if (p.on_another_device) execution.device = execution.device == Device::cpu ? Device::cuda : Device::cpu;
      return gemm(p, *context_, execution);
    };
    return refused(arena.run(run), arena);
  });
}

TEST_P(GemmTest, RefusesNoThreads) {
  if (backend_device(GetParam()) != Device::cpu) GTEST_SKIP() << "threads are a matter of the CPU";
  Execution execution;
  execution.num_threads = 0;
  const Status status = gemm({}, *context_, execution);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_EQ(status.message(), "gemm: num_threads is 0: it must be at least 1");
}

TEST_P(GemmTest, NothingToDoLooksAtNoPointer) {
  Arena arena(GetParam());
  for (const auto& [m, n] : {std::pair<int64_t, int64_t>{0, 5}, {5, 0}, {0, 0}}) {
    const Status status = arena.run([&, m = m, n = n](const Execution& execution) {
      return gemm({m, n, 3, DType::bf16, DType::f32, nullptr, 3, nullptr, nullptr, nullptr, n}, *context_, execution);
    });
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

TEST_P(GemmTest, AWorkspaceOfTheCaller) {
  auto made = GemmContext::create_without_workspace(backend_device(GetParam()));
  ASSERT_TRUE(made.ok()) << made.status().message();
  GemmContext& context = **made;
  if (backend_device(GetParam()) == Device::cuda) {
    GemmParams params;
    const Status status = validate(params, context, {Device::cuda, 1, nullptr});
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_EQ(status.message(), "gemm: the context has no workspace: call set_workspace first");
  }
  const auto workspace = Buffer::allocate(backend_device(GetParam()), kGemmWorkspaceBytes);
  ASSERT_TRUE(workspace.ok()) << workspace.status().message();
  context.set_workspace(workspace->data());
  const Case c{.m = 5, .n = 96, .k = 160};
  const Inputs<BFloat16> inputs = make_inputs<BFloat16>(c, 7);
  EXPECT_EQ((run_case<BFloat16, float>(GetParam(), context, c, inputs)),
            (run_case<BFloat16, float>(GetParam(), *context_, c, inputs)));
}

INSTANTIATE_TEST_SUITE_P(Backends, GemmTest, testing::ValuesIn(all_backends()),
                         [](const testing::TestParamInfo<Backend>& row) { return backend_name(row.param); });

TEST(GemmContextTest, CudaWithoutCudaIsRefused) {
  if (built_with_cuda()) GTEST_SKIP() << "this build has CUDA";
  const auto context = GemmContext::create(Device::cuda);
  ASSERT_FALSE(context.ok());
  EXPECT_EQ(context.status().code(), StatusCode::unsupported);
  EXPECT_EQ(context.status().message(), "gemm: device is cuda, but this library was built without CUDA");
}

TEST(GemmContextTest, AnUnknownDeviceIsRefused) {
  const auto context = GemmContext::create(static_cast<Device>(99));
  ASSERT_FALSE(context.ok());
  EXPECT_EQ(context.status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(context.status().message().find("gemm context: device is"), 0u) << context.status().message();
}

}  // namespace
}  // namespace prologue::test
