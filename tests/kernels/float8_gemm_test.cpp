// gemm() with quantize_x: float8 weights and float8 activations.
#include <prologue/kernels/gemm/backends.h>
#include <prologue/kernels/gemm/float8.h>
#include <prologue/kernels/gemm/gemm.h>
#include <prologue/kernels/gemm/quantized_cpu.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/oracle/float8_gemm.h"
#include "tests/oracle/quantize.h"
#include "tests/oracle/weight_blocks.h"
#include "tests/support/arena.h"
#include "tests/support/bits.h"
#include "tests/support/combinations.h"
#include "tests/support/random.h"
#include "tests/support/refusals.h"
#include "tests/support/tolerance.h"
#include "tests/support/types.h"
#include "tests/support/weight_blocks.h"

namespace prologue::test {
namespace {

constexpr WeightFormat kFormat = WeightFormat::f8_e4m3;
constexpr int64_t kBlock = 128, kBlockBytes = 132;
constexpr WeightScaling kScalings[] = {WeightScaling::rows, WeightScaling::squares, WeightScaling::blocks};

struct Segment {
  WeightScaling scaling;
  int64_t rows;
  std::vector<uint8_t> blocks;
};

// Blocks whose scales are equal where the scaling says so, and codes that are numbers.
std::vector<uint8_t> float8_blocks(WeightScaling scaling, int64_t rows, int64_t k, uint64_t seed) {
  std::vector<uint8_t> blocks = random_blocks(kFormat, rows, k, seed);
  const int64_t of_row = k / kBlock;
  const auto block = [&](int64_t row, int64_t b) { return blocks.data() + (row * of_row + b) * kBlockBytes; };
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t b = 0; b < of_row; ++b) {
      for (int64_t i = 4; i < kBlockBytes; ++i) {
        if ((block(row, b)[i] & 0x7f) == 0x7f) block(row, b)[i] ^= 1;
      }
      if (scaling == WeightScaling::rows) std::memcpy(block(row, b), block(row, 0), 4);
      if (scaling == WeightScaling::squares) std::memcpy(block(row, b), block(row / 128 * 128, b), 4);
    }
  }
  return blocks;
}

template <class T>
struct Problem {
  int64_t m = 0, k = 0, x_stride = 0, y_padding = 0;
  std::vector<Segment> segments;
  std::vector<T> x, bias;

  int64_t n() const {
    int64_t rows = 0;
    for (const Segment& segment : segments) rows += segment.rows;
    return rows;
  }
};

// Rows of x hold NaN between k and the stride: reading there shows. Its channels have very different magnitudes.
template <class T>
Problem<T> make_problem(int64_t m, int64_t k, const std::vector<std::pair<WeightScaling, int64_t>>& segments, bool bias,
                        int64_t padding, uint64_t seed) {
  Problem<T> problem;
  problem.m = m;
  problem.k = k;
  problem.x_stride = k + padding;
  problem.y_padding = padding;
  Random random(seed);
  problem.x = random.normals<T>(m * problem.x_stride);
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t i = 0; i < problem.x_stride; ++i) {
      T& value = problem.x[static_cast<size_t>(row * problem.x_stride + i)];
      const float factor = std::ldexp(1.0f, static_cast<int>((row + i / 32) % 12) - 6);
      value = from_float<T>(i < k ? to_float(value) * factor : std::numeric_limits<float>::quiet_NaN());
    }
  }
  for (const auto& [scaling, rows] : segments)
    problem.segments.push_back({scaling, rows, float8_blocks(scaling, rows, k, ++seed)});
  if (bias) problem.bias = random.normals<T>(problem.n());
  return problem;
}

template <class T>
std::vector<double> row_of(const Problem<T>& p, int64_t m) {
  std::vector<double> row;
  for (int64_t i = 0; i < p.k; ++i) row.push_back(static_cast<double>(to_float(p.x[static_cast<size_t>(m * p.x_stride + i)])));
  return row;
}

// Computes the contract's formula in float64.
template <class T>
std::vector<Reference> reference(const Problem<T>& p) {
  const int64_t num_columns = p.n();
  std::vector<Reference> y(static_cast<size_t>(p.m * num_columns));
  int64_t column = 0;
  for (const Segment& segment : p.segments) {
    std::vector<std::vector<double>> x;  // [k, m]
    x.resize(static_cast<size_t>(p.k));
    for (int64_t m = 0; m < p.m; ++m) {
      const auto row = oracle::quantized_to_e4m3(row_of(p, m), segment.scaling == WeightScaling::rows ? p.k : kBlock);
      for (size_t i = 0; i < row.numbers.size(); ++i) x[i].push_back(row.numbers[i] * row.scales[i]);
    }
    for (int64_t n = 0; n < segment.rows; ++n, ++column) {
      const auto of = [&](int64_t m) -> Reference& { return y[static_cast<size_t>(m * num_columns + column)]; };
      for (int64_t i = 0; i < p.k; ++i) {
        const double w = oracle::weight_value(kFormat, segment.blocks.data() + n * (p.k / kBlock) * kBlockBytes, i).value();
        for (int64_t m = 0; m < p.m; ++m) {
          const double term = x[static_cast<size_t>(i)][static_cast<size_t>(m)] * w;
          of(m).value += term;
          of(m).scale += std::fabs(term);
        }
      }
      for (int64_t m = 0; m < p.m && !p.bias.empty(); ++m) {
        const auto term = static_cast<double>(to_float(p.bias[static_cast<size_t>(column)]));
        of(m).value += term;
        of(m).scale += std::fabs(term);
      }
    }
  }
  return y;
}

template <class T, class Y>
std::vector<Y> run(Backend backend, GemmContext& context, const Problem<T>& problem, int32_t num_threads = 0) {
  Arena arena(backend);
  const int64_t n = problem.n(), y_stride = n + problem.y_padding;
  GemmParams p;
  p.m = problem.m;
  p.n = n;
  p.k = problem.k;
  p.dtype = FloatFormat<T>::dtype;
  p.y_dtype = FloatFormat<Y>::dtype;
  p.quantize_x = DType::fp8_e4m3;
  const bool aligned = problem.y_padding % 8 == 0;
  p.x = arena.input(problem.x, aligned ? 16 : sizeof(T));
  p.x_stride = problem.x_stride;
  p.bias = problem.bias.empty() ? nullptr : arena.input(problem.bias, aligned ? 16 : sizeof(T));
  Y* y = arena.output<Y>(problem.m * y_stride, aligned ? 16 : sizeof(Y));
  p.y = y;
  p.y_stride = y_stride;
  for (const Segment& segment : problem.segments) {
    const std::vector<uint8_t> packed = packed_blocks(kFormat, segment.rows, problem.k, segment.blocks);
    p.packed.segments[p.packed.num_segments++] = {arena.input(packed, 16), kFormat, segment.rows, segment.scaling};
  }
  const Status status = arena.run([&](const Execution& execution) {
    Execution with_threads = execution;
    if (num_threads > 0) with_threads.num_threads = num_threads;
    return gemm(p, context, with_threads);
  });
  EXPECT_TRUE(status.ok()) << status.message();
  const std::vector<Y> padded = arena.read(y);
  std::vector<Y> result;
  for (int64_t m = 0; m < problem.m; ++m) {
    result.insert(result.end(), padded.begin() + m * y_stride, padded.begin() + m * y_stride + n);
    for (int64_t i = n; i < y_stride; ++i) {
      EXPECT_EQ(std::memcmp(&padded[static_cast<size_t>(m * y_stride + i)], poisoned<Y>(1).data(), sizeof(Y)), 0)
          << "padding of row " << m << " was overwritten";
    }
  }
  return result;
}

bool on_a_gpu(Backend backend) {
#ifdef PROLOGUE_CUDA_EMULATED
  static_cast<void>(backend);
  return false;
#else
  return backend_device(backend) == Device::cuda;
#endif
}

// Two roundings for each block, one for each addition of it, and those of the scales. Tensor cores drop what is 13 bits below the largest of 32
// products and the sum so far, of each of them: on an H200 sums of 128 were off by up to 1.17 times 2^-13 of the sum of their magnitudes, for each
// 32; twice 2^-13 is allowed (docs/numerics.md).
double steps_for(Backend backend, int64_t k) {
  const double steps = std::max(kDefaultSteps, 4.0 * std::sqrt(static_cast<double>(k) / 32.0));
  return on_a_gpu(backend) ? steps + static_cast<double>(k) / 32.0 * 4096.0 : steps;
}

class Float8Gemm : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    PROLOGUE_REQUIRE_BACKEND(GetParam());
    context_ = std::move(GemmContext::create(backend_device(GetParam()))).value();
  }
  template <class T, class Y>
  void expect_matches(const Problem<T>& problem) {
    expect_close(run<T, Y>(GetParam(), *context_, problem), reference(problem), problem.n(), "y",
                 steps_for(GetParam(), problem.k), !on_a_gpu(GetParam()));
  }
  template <class T, class Y>
  void expect_matches_reference() {
    uint64_t seed = 1;
    for (const auto& [scaling, m, shape] :
         combinations(std::vector<WeightScaling>(std::begin(kScalings), std::end(kScalings)),
                      std::vector<int64_t>{0, 1, 3, 4, 5, 6, 8, 67, 132},
                      std::vector<std::pair<int64_t, int64_t>>{{16, 128}, {144, 256}, {400, 128}, {48, 640}, {37, 384}})) {
      const auto [n, k] = shape;
      for (const int64_t padding : {0, 3}) {  // 0: cuBLASLt takes it
        if (padding > 0 && m > 8) continue;
        SCOPED_TRACE(testing::Message() << weight_scaling_name(scaling) << ", m " << m << ", n " << n << ", k " << k
                                        << ", padding " << padding);
        expect_matches<T, Y>(make_problem<T>(m, k, {{scaling, n}}, m % 3 == 1, padding, seed++));
      }
    }
  }

  std::unique_ptr<GemmContext> context_;
};

INSTANTIATE_TEST_SUITE_P(Backends, Float8Gemm, testing::ValuesIn(all_backends()),
                         [](const testing::TestParamInfo<Backend>& row) { return backend_name(row.param); });

TEST_P(Float8Gemm, Float32MatchesTheFormula) { expect_matches_reference<float, float>(); }
TEST_P(Float8Gemm, BFloat16MatchesTheFormula) { expect_matches_reference<BFloat16, BFloat16>(); }
TEST_P(Float8Gemm, Float16ToFloat32MatchesTheFormula) { expect_matches_reference<Float16, float>(); }

// The sizes that CUDA computes in several pieces of tokens and of rows, at the ends of pieces.
TEST_P(Float8Gemm, SegmentsOfEveryScaling) {
  uint64_t seed = 300;
  using enum WeightScaling;
  for (const auto& segments : std::vector<std::vector<std::pair<WeightScaling, int64_t>>>{
           {{rows, 48}, {rows, 16}, {rows, 16}},
           {{squares, 272}, {squares, 40}},
           {{rows, 33}, {squares, 130}, {blocks, 16}, {rows, 5}},
           {{squares, 0}, {squares, 160}, {blocks, 0}},
           {{squares, 128}, {squares, 128}, {squares, 256}, {squares, 44}},
           {{blocks, 32}, {blocks, 48}, {blocks, 20}, {blocks, 16}}}) {
    for (const auto& [m, k] : {std::pair<int64_t, int64_t>{8, 512}, {30, 512}, {8, 128}, {5, 256}}) {
      SCOPED_TRACE(testing::Message() << "case " << seed << ", m " << m << ", k " << k);
      expect_matches<BFloat16, BFloat16>(make_problem<BFloat16>(m, k, segments, true, 8, seed++));
    }
  }
}

// A row of one token has the code of 448 or -448 at its largest element; zeros and numbers that are too small are zeros.
TEST_P(Float8Gemm, LargeAndSmallX) {
  for (const WeightScaling scaling : kScalings) {
    Problem<float> problem = make_problem<float>(8, 256, {{scaling, 16}}, false, 0, 17);
    const float factors[] = {1e30f, 1e10f, 1e-10f, 1e-30f, 1e-35f, 1e-37f, 1e-44f, 0.0f};
    for (int64_t m = 0; m < 8; ++m) {
      for (int64_t i = 0; i < 256; ++i) problem.x[static_cast<size_t>(m * problem.x_stride + i)] *= factors[m];
    }
    const auto want = reference(problem);
    const auto got = run<float, float>(GetParam(), *context_, problem);
    for (size_t i = 0; i < got.size(); ++i) {
      // Products of two scales may be below float32's normal numbers: off by 2^-150, times sums of 2e6 at most.
      const double tolerance = steps_for(GetParam(), 256) * std::ldexp(1.0, -24) * want[i].scale + 1.5e-39;
      EXPECT_NEAR(static_cast<double>(got[i]), want[i].value, tolerance) << weight_scaling_name(scaling) << ", row " << i / 16;
    }
  }
}

// A NaN or an infinity makes its row NaN, and no other.
TEST_P(Float8Gemm, NonFiniteValuesStayInTheirRow) {
  for (const WeightScaling scaling : kScalings) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      Problem<BFloat16> problem = make_problem<BFloat16>(8, 512, {{scaling, 32}}, true, 0, 19);
      problem.x[static_cast<size_t>(problem.x_stride + 300)] = from_float<BFloat16>(bad);
      problem.x[static_cast<size_t>(7 * problem.x_stride + 511)] = from_float<BFloat16>(bad);
      const auto got = run<BFloat16, BFloat16>(GetParam(), *context_, problem);
      for (int64_t i = 0; i < 8 * 32; ++i) {
        const bool is_bad = i / 32 == 1 || i / 32 == 7;
        EXPECT_EQ(std::isnan(to_float(got[static_cast<size_t>(i)])), is_bad) << weight_scaling_name(scaling) << ", " << i;
      }
    }
  }
}

// k = 0 has no products: y is the bias.
TEST_P(Float8Gemm, WithoutChannelsYIsTheBias) {
  Problem<float> problem = make_problem<float>(3, 0, {{WeightScaling::rows, 16}}, true, 0, 23);
  const auto got = run<float, float>(GetParam(), *context_, problem);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], problem.bias[i % 16]);
}

// ---- CPU: bits ----

TEST(Float8GemmCpu, HasTheSameBitsForEveryInstructionSetMAndNumberOfThreads) {
  std::vector<const cpu::QuantizedKernels*> all = {&cpu::kScalarKernels, cpu::avx2_kernels(), cpu::avx512_kernels()};
  for (const WeightScaling scaling : kScalings) {
    for (const int64_t k : {512, 16384}) {  // with the longer k, 60 rows do not fit into the scratch at once
      const int64_t m = 60, n = k == 512 ? 37 : 3;
      auto problem = make_problem<float>(m, k, {{scaling, n}}, true, 3, 11);
      const auto scalar = std::move(cpu::create_gemm_context(cpu::kScalarKernels)).value();
      const auto want = run<float, float>(Backend::cpu, *scalar, problem, 1);
      for (const cpu::QuantizedKernels* kernels : all) {
        if (kernels == nullptr) continue;
        const auto context = std::move(cpu::create_gemm_context(*kernels)).value();
        for (const int32_t threads : {1, 7}) {
          EXPECT_TRUE(same_bits(run<float, float>(Backend::cpu_threads, *context, problem, threads), want))
              << kernels->instructions;
        }
        auto part = problem;
        part.m = 3;
        const auto got = run<float, float>(Backend::cpu, *context, part);
        EXPECT_TRUE(same_bits(got, std::vector<float>(want.begin(), want.begin() + 3 * n))) << kernels->instructions;
      }
    }
  }
}

TEST(CheckFloat8Gemm, IsFineOnTheCpu) { EXPECT_TRUE(check_float8_gemm(Device::cpu).ok()); }

#ifdef PROLOGUE_HAS_CUDA
// ---- CUDA: what cuBLASLt gets ----

// Or every product would be that of the simple kernel, which no other test notices.
TEST(CheckFloat8Gemm, CublasLtHasTheProductsOnHopper_cuda) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
  const Status status = check_float8_gemm(Device::cuda);
  if (status.message().find("compute capability") != std::string::npos) GTEST_SKIP() << status.message();
  EXPECT_TRUE(status.ok()) << status.message();
}

uint8_t code_of(double number) {
  for (int code = 0; code < 256; ++code) {
    const double value = oracle::value_of_code(static_cast<uint8_t>(code), oracle::Quantized::e4m3);
    if (value == number && std::signbit(value) == std::signbit(number)) return static_cast<uint8_t>(code);
  }
  return 0x7f;
}

template <class T>
void expect_codes_of_x() {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
  uint64_t seed = 400;
  for (const auto& [whole_rows, m, k] : combinations(std::vector<bool>{false, true}, std::vector<int64_t>{1, 3, 4, 5, 8, 11},
                                                     std::vector<int64_t>{128, 640, 2176})) {
    for (const int64_t padding : {0, 3}) {
      SCOPED_TRACE(testing::Message() << "whole rows " << whole_rows << ", m " << m << ", k " << k << ", padding " << padding);
      Problem<T> problem = make_problem<T>(m, k, {}, false, padding, seed++);
      if (m == 5)
        problem.x[static_cast<size_t>(2 * problem.x_stride + 5)] = from_float<T>(std::numeric_limits<float>::infinity());
      for (int64_t i = 0; m == 8 && i < k; ++i) problem.x[static_cast<size_t>(problem.x_stride + i)] = from_float<T>(0.0f);
      const int64_t groups = whole_rows ? 1 : k / kBlock, group = k / groups;
      const bool has_last = m > 4 && m % 4 != 0;
      Arena arena(Backend::cuda);
      cuda::QuantizeXParams p;
      p.m = m;
      p.k = k;
      p.dtype = FloatFormat<T>::dtype;
      p.x = arena.input(problem.x, padding == 0 ? 16 : sizeof(T));
      p.x_stride = problem.x_stride;
      p.whole_rows = whole_rows;
      p.codes = arena.output<uint8_t>(m * k, 16);
      p.scales = arena.output<float>(groups * m, 16);
      p.last_scales = has_last ? arena.output<float>(groups * 4, 16) : nullptr;
      const Status status = arena.run([&](const Execution& execution) { return cuda::quantize_x(p, execution.stream); });
      ASSERT_TRUE(status.ok()) << status.message();
      const std::vector<uint8_t> codes = arena.read(p.codes);
      const std::vector<float> scales = arena.read(p.scales);
      const std::vector<float> last = has_last ? arena.read(p.last_scales) : std::vector<float>();
      const int64_t stride = has_last && !whole_rows ? m / 4 * 4 : m;
      const auto same = [](float a, double b) { return std::isnan(b) ? std::isnan(a) : static_cast<double>(a) == b; };
      for (int64_t row = 0; row < m; ++row) {
        const auto want = oracle::quantized_to_e4m3(row_of(problem, row), group);
        for (int64_t i = 0; i < k; ++i) {
          const double number = want.numbers[static_cast<size_t>(i)];
          const uint8_t got = codes[static_cast<size_t>(row * k + i)];
          // A number that becomes 0 keeps its sign, which the oracle does not say.
          ASSERT_EQ(number == 0.0 ? got & 0x7f : got, number == 0.0 ? 0 : code_of(number)) << "row " << row << ", channel " << i;
        }
        for (int64_t g = 0; g < groups; ++g) {
          const double scale = want.scales[static_cast<size_t>(g * group)];
          if (row < stride) {
            EXPECT_TRUE(same(scales[static_cast<size_t>(g * stride + row)], scale)) << row << ", " << g;
          }
          if (has_last && row >= m - 4) {
            EXPECT_TRUE(same(last[static_cast<size_t>(g * 4 + row - (m - 4))], scale)) << row << ", " << g;
          }
        }
      }
    }
  }
}

TEST(QuantizeX, HasTheCodesOfTheFormulaFloat32_cuda) { expect_codes_of_x<float>(); }
TEST(QuantizeX, HasTheCodesOfTheFormulaFloat16_cuda) { expect_codes_of_x<Float16>(); }
TEST(QuantizeX, HasTheCodesOfTheFormulaBFloat16_cuda) { expect_codes_of_x<BFloat16>(); }

TEST(UnpackFloat8, HasTheCodesAndScalesOfTheRows_cuda) {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
  constexpr int64_t kRows = 293;
  uint64_t seed = 500;
  for (const auto& [scaling, k] : combinations(std::vector<WeightScaling>(std::begin(kScalings), std::end(kScalings)),
                                               std::vector<int64_t>{128, 640, 1536})) {
    const Segment segment = {scaling, kRows, float8_blocks(scaling, kRows, k, ++seed)};
    const int64_t blocks = k / kBlock;
    for (const auto& [first, count] : std::vector<std::pair<int64_t, int64_t>>{{0, kRows}, {0, 16}, {128, 144}, {288, 5}}) {
      SCOPED_TRACE(testing::Message() << weight_scaling_name(scaling) << ", k " << k << ", rows " << first << " + " << count);
      Arena arena(Backend::cuda);
      const PackedRows rows = {arena.input(packed_blocks(kFormat, kRows, k, segment.blocks), 16), kFormat, kRows, scaling};
      uint8_t* const codes = arena.output<uint8_t>(count * k, 16);
      float* const scales = arena.output<float>(count * (blocks + 4), 16);
      const Status status = arena.run([&](const Execution& execution) {
        return cuda::unpack_float8(rows, scaling, k, first, count, codes, scales, count, execution.stream);
      });
      ASSERT_TRUE(status.ok()) << status.message();
      const std::vector<uint8_t> got = arena.read(codes);
      const std::vector<float> got_scales = arena.read(scales);
      for (int64_t row = 0; row < count; ++row) {
        for (int64_t b = 0; b < blocks; ++b) {
          const uint8_t* const block = segment.blocks.data() + ((first + row) * blocks + b) * kBlockBytes;
          ASSERT_EQ(std::memcmp(block + 4, got.data() + row * k + b * kBlock, kBlock), 0) << "row " << row << ", block " << b;
          float scale;
          std::memcpy(&scale, block, sizeof scale);
          const int64_t at = scaling == WeightScaling::rows      ? row
                             : scaling == WeightScaling::squares ? row / 128 * ((blocks + 3) / 4 * 4) + b
                                                                 : b * count + row;
          ASSERT_EQ(got_scales[static_cast<size_t>(at)], scale) << "row " << row << ", block " << b;
        }
      }
    }
  }
}
#endif

// ---- Refusals ----

class Float8GemmRefusals : public testing::TestWithParam<Backend> {};

TEST_P(Float8GemmRefusals, RefusesWhatBreaksTheContract) {
  PROLOGUE_REQUIRE_BACKEND(GetParam());
  const bool on_cuda = backend_device(GetParam()) == Device::cuda;
  auto context = std::move(GemmContext::create(backend_device(GetParam()))).value();
  std::vector<Refusal<GemmParams>> refusals = {
      {"another type", [](auto& p) { p.quantize_x = DType::int8; }, StatusCode::invalid_argument,
       "quantize_x is int8: it must be unset or fp8_e4m3"},
      {"dense weights",
       [](auto& p) {
         p.weight = p.packed.segments[0].data;
         p.packed.num_segments = 0;
       },
       StatusCode::invalid_argument, "quantize_x is fp8_e4m3: the weights must be packed, all in f8_e4m3, but they are dense"},
      {"another format", [](auto& p) { p.packed.segments[1].format = WeightFormat::i8; }, StatusCode::invalid_argument,
       "quantize_x is fp8_e4m3: all segments must be in f8_e4m3, but packed.segments[1].format is i8"},
      {"unknown scaling", [](auto& p) { p.packed.segments[1].scaling = static_cast<WeightScaling>(3); },
       StatusCode::invalid_argument, "packed.segments[1].scaling is unknown: it must be blocks, rows or squares"},
      {"negative scaling", [](auto& p) { p.packed.segments[0].scaling = static_cast<WeightScaling>(-1); },
       StatusCode::invalid_argument, "packed.segments[0].scaling is unknown: it must be blocks, rows or squares"},
      {"scaling of another format",
       [](auto& p) {
         p.packed.segments[0].format = WeightFormat::i8;
         p.packed.segments[0].scaling = WeightScaling::squares;
       },
       StatusCode::invalid_argument, "packed.segments[0].scaling is squares: with i8 it must be blocks"},
  };
  if (on_cuda) {
    refusals.push_back({"batch invariant", [](auto& p) { p.batch_invariant = true; }, StatusCode::unsupported,
                        "quantize_x is fp8_e4m3: with batch_invariant, on CUDA, it must be unset"});
  }
  expect_refusals("gemm", refusals, [&](const auto& change) {
    Arena arena(GetParam());
    GemmParams p;
    p.dtype = p.y_dtype = DType::f32;
    p.quantize_x = DType::fp8_e4m3;
    p.m = 3;
    p.n = 7;
    p.k = p.x_stride = 128;
    p.y_stride = 7;
    p.x = arena.input(std::vector<float>(3 * 128, 1.0f));
    p.y = arena.output<float>(3 * 7);
    p.packed.num_segments = 2;
    p.packed.segments[0] = {arena.input(std::vector<uint8_t>(16 * 132), 16), kFormat, 4};
    p.packed.segments[1] = {arena.input(std::vector<uint8_t>(16 * 132), 16), kFormat, 3};
    change(p);
    return refused(arena.run([&](const Execution& execution) { return gemm(p, *context, execution); }), arena);
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, Float8GemmRefusals, testing::ValuesIn(all_backends()),
                         [](const testing::TestParamInfo<Backend>& row) { return backend_name(row.param); });

}  // namespace
}  // namespace prologue::test
