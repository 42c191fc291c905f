// gemm() with packed weights, on every instruction set; and pack_weight().
#include <prologue/kernels/gemm/backends.h>
#include <prologue/kernels/gemm/gemm.h>
#include <prologue/kernels/gemm/quantized_cpu.h>
#include <prologue/kernels/gemm/unpack.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

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

struct Segment {
  WeightFormat format;
  int64_t rows;
  std::vector<uint8_t> blocks;
};

std::vector<uint8_t> packed(const Segment& segment, int64_t k) {
  std::vector<uint8_t> bytes = poisoned<uint8_t>(packed_weight_bytes(segment.format, segment.rows, k));
  const Status status = pack_weight({segment.format, segment.rows, k, segment.blocks.data(), bytes.data()}, {});
  EXPECT_TRUE(status.ok()) << status.message();
  return bytes;
}

template <class T>
struct Problem {
  int64_t m = 0, k = 0;
  std::vector<Segment> segments;
  std::vector<T> x, bias;
  int64_t x_stride = 0;

  int64_t n() const {
    int64_t rows = 0;
    for (const Segment& segment : segments) rows += segment.rows;
    return rows;
  }
};

// Rows of x hold NaN between k and the stride: reading there shows.
template <class T>
Problem<T> make_problem(int64_t m, int64_t k, const std::vector<std::pair<WeightFormat, int64_t>>& segments, bool bias,
                        uint64_t seed) {
  Problem<T> problem;
  problem.m = m;
  problem.k = k;
  problem.x_stride = k + 3;
  Random random(seed);
  problem.x = random.normals<T>(m * problem.x_stride);
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t i = k; i < problem.x_stride; ++i) {
      problem.x[static_cast<size_t>(row * problem.x_stride + i)] = from_float<T>(std::numeric_limits<float>::quiet_NaN());
    }
  }
  for (const auto& [format, rows] : segments) problem.segments.push_back({format, rows, random_blocks(format, rows, k, ++seed)});
  if (bias) problem.bias = random.normals<T>(problem.n());
  return problem;
}

// Holds a row of x as the contract quantises it for a format.
struct QuantizedRow {
  std::vector<double> codes;
  std::vector<double> scales;  // one for each code
};

template <class T>
QuantizedRow quantized(const T* x, int64_t k, WeightFormat format) {
  QuantizedRow row;
  if (format == WeightFormat::f8_e4m3) {  // x as it is
    for (int64_t i = 0; i < k; ++i) row.codes.push_back(static_cast<double>(to_float(x[i])));
    row.scales.assign(static_cast<size_t>(k), 1.0);
    return row;
  }
  const int64_t block = weight_block_elements(format) == 256 ? 256 : 32;
  for (int64_t first = 0; first < k; first += block) {
    float largest = 0.0f;
    bool finite = true;
    for (int64_t i = first; i < first + block; ++i) {
      const float value = to_float(x[i]);
      finite = finite && std::isfinite(value);
      largest = std::max(largest, std::fabs(value));
    }
    for (int64_t i = first; i < first + block; ++i) {
      const bool zero = largest < std::ldexp(1.0f, -100);
      row.codes.push_back(!finite || zero ? 0.0 : static_cast<double>(std::nearbyint(to_float(x[i]) * (127.0f / largest))));
      row.scales.push_back(!finite ? std::nan("") : zero ? 0.0 : static_cast<double>(largest / 127.0f));
    }
  }
  return row;
}

// Computes the contract's formula in float64.
template <class T>
std::vector<Reference> reference(const Problem<T>& p) {
  const int64_t num_columns = p.n();
  std::vector<Reference> y(static_cast<size_t>(p.m * num_columns));
  int64_t column = 0;
  for (const Segment& segment : p.segments) {
    const int64_t elements = weight_block_elements(segment.format),
                  row_bytes = p.k / elements * weight_block_bytes(segment.format);
    std::vector<QuantizedRow> x;
    for (int64_t m = 0; m < p.m; ++m) x.push_back(quantized(p.x.data() + m * p.x_stride, p.k, segment.format));
    for (int64_t n = 0; n < segment.rows; ++n, ++column) {
      for (int64_t i = 0; i < p.k; ++i) {
        const auto w = oracle::weight_value(segment.format, segment.blocks.data() + n * row_bytes, i);
        const double product = w.scale * w.code;
        for (int64_t m = 0; m < p.m; ++m) {
          const QuantizedRow& row = x[static_cast<size_t>(m)];
          const double x_value = row.scales[static_cast<size_t>(i)] * row.codes[static_cast<size_t>(i)];
          Reference& sum = y[static_cast<size_t>(m * num_columns + column)];
          sum.value += x_value * (product - w.minimum);
          sum.scale += std::fabs(x_value * product) + std::fabs(x_value * w.minimum);
        }
      }
      if (p.bias.empty()) continue;
      const double term = static_cast<double>(to_float(p.bias[static_cast<size_t>(column)]));
      for (int64_t m = 0; m < p.m; ++m) {
        Reference& sum = y[static_cast<size_t>(m * num_columns + column)];
        sum.value += term;
        sum.scale += std::fabs(term);
      }
    }
  }
  return y;
}

template <class T, class Y>
std::vector<Y> run(Backend backend, GemmContext& context, const Problem<T>& problem, int32_t num_threads = 0) {
  Arena arena(backend);
  const int64_t n = problem.n(), y_stride = n + 2;
  GemmParams p;
  p.m = problem.m;
  p.n = n;
  p.k = problem.k;
  p.dtype = FloatFormat<T>::dtype;
  p.y_dtype = FloatFormat<Y>::dtype;
  p.x = arena.input(problem.x, sizeof(T));
  p.x_stride = problem.x_stride;
  p.bias = problem.bias.empty() ? nullptr : arena.input(problem.bias, sizeof(T));
  Y* y = arena.output<Y>(problem.m * y_stride, sizeof(Y));
  p.y = y;
  p.y_stride = y_stride;
  for (const Segment& segment : problem.segments) {
    p.packed.segments[p.packed.num_segments++] = {arena.input(packed(segment, problem.k), p.packed.num_segments), segment.format,
                                                  segment.rows};
  }
  const Status status = arena.run([&](const Execution& execution) {
    Execution changed = execution;
    if (num_threads > 0) changed.num_threads = num_threads;
    return gemm(p, context, changed);
  });
  EXPECT_TRUE(status.ok()) << status.message();
  const std::vector<Y> rows = arena.read(y);
  std::vector<Y> result;
  for (int64_t m = 0; m < problem.m; ++m) {
    result.insert(result.end(), rows.begin() + m * y_stride, rows.begin() + m * y_stride + n);
    for (int64_t i = n; i < y_stride; ++i) {
      EXPECT_EQ(std::memcmp(&rows[static_cast<size_t>(m * y_stride + i)], poisoned<Y>(1).data(), sizeof(Y)), 0)
          << "padding of row " << m << " was overwritten";
    }
  }
  return result;
}

const cpu::QuantizedKernels* kernels_named(const std::string& name) {
  if (name == "avx2") return cpu::avx2_kernels();
  if (name == "avx512_vnni") return cpu::avx512_kernels();
  return &cpu::kScalarKernels;
}

// The CPU's backends, each with every instruction set.
class QuantizedGemmTest : public testing::TestWithParam<std::tuple<Backend, std::string>> {
 protected:
  void SetUp() override {
    const cpu::QuantizedKernels* kernels = kernels_named(std::get<1>(GetParam()));
    if (kernels == nullptr) GTEST_SKIP() << "this processor has no " << std::get<1>(GetParam());
    EXPECT_EQ(kernels->instructions, std::get<1>(GetParam()));
    context_ = std::move(cpu::create_gemm_context(*kernels)).value();
    scalar_ = std::move(cpu::create_gemm_context(cpu::kScalarKernels)).value();
  }
  Backend backend() const { return std::get<0>(GetParam()); }

  std::unique_ptr<GemmContext> context_, scalar_;
};

INSTANTIATE_TEST_SUITE_P(Backends, QuantizedGemmTest,
                         testing::Combine(testing::Values(Backend::cpu, Backend::cpu_threads),
                                          testing::Values("scalar", "avx2", "avx512_vnni")),
                         [](const auto& row) {
                           return str_cat(backend_name(std::get<0>(row.param)), "_", std::get<1>(row.param));
                         });

// Two roundings for each block, one for each addition of it, and those of the scales.
double steps_for(int64_t k) { return std::max(kDefaultSteps, 4.0 * std::sqrt(static_cast<double>(k) / 32.0)); }

template <class T, class Y>
void expect_matches_reference(Backend backend, GemmContext& context) {
  uint64_t seed = 1;
  for (const auto& [format, m, shape] :
       combinations(std::vector<WeightFormat>(std::begin(kWeightFormats), std::end(kWeightFormats)),
                    std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33, 200},
                    std::vector<std::pair<int64_t, int64_t>>{{37, 3}, {16, 1}, {1, 2}})) {
    const int64_t n = shape.first, block = weight_block_elements(format), k = shape.second * block;
    SCOPED_TRACE(testing::Message() << weight_format_name(format) << ", m " << m << ", n " << n << ", k " << k);
    const auto problem = make_problem<T>(m, k, {{format, n}}, m % 2 == 1, seed++);
    expect_close(run<T, Y>(backend, context, problem), reference(problem), n, "y", steps_for(k));
  }
}

TEST_P(QuantizedGemmTest, Float32MatchesTheFormula) { expect_matches_reference<float, float>(backend(), *context_); }
TEST_P(QuantizedGemmTest, BFloat16MatchesTheFormula) { expect_matches_reference<BFloat16, BFloat16>(backend(), *context_); }
TEST_P(QuantizedGemmTest, Float16ToFloat32MatchesTheFormula) { expect_matches_reference<Float16, float>(backend(), *context_); }

TEST_P(QuantizedGemmTest, SegmentsOfSeveralFormats) {
  uint64_t seed = 100;
  for (const int64_t m : {1, 3, 40}) {
    for (const auto& segments : std::vector<std::vector<std::pair<WeightFormat, int64_t>>>{
             {{WeightFormat::q4_k, 33}, {WeightFormat::q6_k, 7}},
             {{WeightFormat::q4_k, 5}, {WeightFormat::q8_0, 20}, {WeightFormat::q5_1, 16}, {WeightFormat::q6_k, 3}},
             {{WeightFormat::q4_1, 17}, {WeightFormat::q4_1, 0}, {WeightFormat::q4_1, 18}},
             {{WeightFormat::f8_e4m3, 17}, {WeightFormat::i8, 16}, {WeightFormat::q5_k, 3}, {WeightFormat::f8_e4m3, 5}},
             {{WeightFormat::q2_k, 17}, {WeightFormat::mxfp4, 16}, {WeightFormat::q3_k, 3}, {WeightFormat::iq4_nl, 5}},
             {{WeightFormat::iq4_xs, 9}, {WeightFormat::q6_k, 16}, {WeightFormat::mxfp4, 2}},
             {{WeightFormat::nvfp4, 9}, {WeightFormat::q8_0, 16}, {WeightFormat::nvfp4, 18}},
             {{WeightFormat::i4_128, 17}, {WeightFormat::q6_k, 3}, {WeightFormat::i4_32, 16}, {WeightFormat::i4_64, 7}}}) {
      const auto problem = make_problem<float>(m, 512, segments, true, seed++);
      expect_close(run<float, float>(backend(), *context_, problem), reference(problem), problem.n(), "y", steps_for(512));
    }
  }
}

// Quantising x has this cost: each value is off by half a step of its block at most. (f8_e4m3 takes x as it is.)
TEST_P(QuantizedGemmTest, IsCloseToTheProductWithXAsItIs) {
  for (const WeightFormat format : kWeightFormats) {
    const auto problem = make_problem<float>(3, 512, {{format, 20}}, false, 7);
    const auto got = run<float, float>(backend(), *context_, problem);
    const int64_t block = weight_block_elements(format), row_bytes = 512 / block * weight_block_bytes(format);
    for (int64_t m = 0; m < 3; ++m) {
      const float* x = problem.x.data() + m * problem.x_stride;
      const QuantizedRow q = quantized(x, 512, format);
      const double half_step = format == WeightFormat::f8_e4m3 ? 0.0 : 0.5001;
      for (int64_t n = 0; n < 20; ++n) {
        double sum = 0.0, allowed = 0.0;
        for (int64_t i = 0; i < 512; ++i) {
          const double w = oracle::weight_value(format, problem.segments[0].blocks.data() + n * row_bytes, i).value();
          sum += w * static_cast<double>(x[i]);
          allowed += std::fabs(w) * (half_step * q.scales[static_cast<size_t>(i)] + 1e-5 * std::fabs(static_cast<double>(x[i])));
        }
        EXPECT_NEAR(static_cast<double>(got[static_cast<size_t>(m * 20 + n)]), sum, allowed) << weight_format_name(format);
      }
    }
  }
}

// A row of y has the same bits on every instruction set, for every m, in every chunk of rows and for every number of threads.
TEST_P(QuantizedGemmTest, HasTheBitsOfTheScalarCodeForEveryMAndNumberOfThreads) {
  for (const WeightFormat format : kWeightFormats) {
    for (const int64_t k : {512, 16384}) {  // with the longer k, 170 rows do not fit into the scratch at once
      const int64_t all_m = k == 512 ? 40 : 170, n = k == 512 ? 37 : 3;
      auto problem = make_problem<float>(all_m, k, {{format, n}}, true, 11);
      const auto all = run<float, float>(Backend::cpu, *scalar_, problem, 1);
      for (const int32_t threads : {1, 2, 7}) {
        if (k > 512 && threads != 2) continue;
        EXPECT_TRUE(same_bits(run<float, float>(backend(), *context_, problem, threads), all));
      }
      const std::vector<float> x = problem.x;
      for (const int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 15}) {  // every height of a tile
        const int64_t first = all_m - m - 1;
        problem.m = m;
        problem.x.assign(x.begin() + first * problem.x_stride, x.begin() + (first + m) * problem.x_stride);
        const std::vector<float> want(all.begin() + first * n, all.begin() + (first + m) * n);
        EXPECT_TRUE(same_bits(run<float, float>(backend(), *context_, problem), want))
            << weight_format_name(format) << ", m " << m;
      }
    }
  }
}

// Codes and scales of parts at their ends, in every combination with the ends of the codes of x: sums of 16 and 32 bits at their largest.
TEST_P(QuantizedGemmTest, ExtremeCodes) {
  for (const WeightFormat format : kWeightFormats) {
    for (const int byte : {0x00, 0xff, 0x7f, 0x80, 0x0f, 0xf0, 0x3f}) {
      Problem<float> problem = make_problem<float>(4, 512, {{format, 17}}, false, 13);
      std::vector<uint8_t>& blocks = problem.segments[0].blocks;
      std::fill(blocks.begin(), blocks.end(), static_cast<uint8_t>(byte));
      for (size_t at = 0; at < blocks.size(); at += static_cast<size_t>(weight_block_bytes(format))) {
        set_scale(format, &blocks[at], 0.25f);
        if (minimum_at(format) >= 0) set_half(&blocks[at] + minimum_at(format), -0.5f);
      }
      for (int64_t i = 0; i < 512; ++i) {
        problem.x[static_cast<size_t>(i)] = 1.0f;
        problem.x[static_cast<size_t>(problem.x_stride + i)] = -1.0f;
        problem.x[static_cast<size_t>(2 * problem.x_stride + i)] = i % 2 == 0 ? 1.0f : -1.0f;
        problem.x[static_cast<size_t>(3 * problem.x_stride + i)] = 0.0f;
      }
      SCOPED_TRACE(testing::Message() << weight_format_name(format) << ", bytes " << byte);
      const auto got = run<float, float>(backend(), *context_, problem);
      expect_close(got, reference(problem), 17, "y", steps_for(512));
      for (size_t i = 3 * 17; i < got.size(); ++i) EXPECT_EQ(got[i], 0.0f);
    }
  }
}

TEST_P(QuantizedGemmTest, LargeAndSmallX) {
  for (const WeightFormat format : kWeightFormats) {
    Problem<float> problem = make_problem<float>(6, 256, {{format, 16}}, false, 17);
    // 2^-100 is 7.9e-31. A sum of products with codes up to 480 must not reach 3.4e38.
    const float largest = format == WeightFormat::f8_e4m3 ? 1e33f : 1e35f;
    const float factors[] = {largest, 1e-25f, 1e-29f, 1e-31f, 1e-38f, 1e-44f};
    for (int64_t m = 0; m < 6; ++m) {
      for (int64_t i = 0; i < 256; ++i) problem.x[static_cast<size_t>(m * problem.x_stride + i)] *= factors[m];
    }
    const auto want = reference(problem);
    const auto got = run<float, float>(backend(), *context_, problem);
    for (size_t i = 0; i < got.size(); ++i) {
      const double tolerance = steps_for(256) * std::ldexp(1.0, -24) * want[i].scale + 1e-40;
      EXPECT_NEAR(static_cast<double>(got[i]), want[i].value, tolerance) << weight_format_name(format) << ", row " << i / 16;
    }
  }
}

// A NaN or an infinity in one row of x makes that row NaN (f8_e4m3: not finite); in the scale of one row of weights, that column not finite.
TEST_P(QuantizedGemmTest, NonFiniteValuesStayWhereTheyBelong) {
  for (const WeightFormat format : kWeightFormats) {
    if (format == WeightFormat::mxfp4) continue;  // its scales are finite
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      for (const bool in_minimum : {false, true}) {
        if (in_minimum && minimum_at(format) < 0) continue;
        Problem<float> problem = make_problem<float>(5, 512, {{format, 21}}, false, 19);
        problem.x[static_cast<size_t>(problem.x_stride + 300)] = bad;
        problem.x[static_cast<size_t>(3 * problem.x_stride + 511)] = -bad;
        const int64_t block = weight_block_elements(format), row_bytes = 512 / block * weight_block_bytes(format);
        uint8_t* const first_block = &problem.segments[0].blocks[static_cast<size_t>(20 * row_bytes)];
        if (in_minimum) {
          set_half(first_block + minimum_at(format), bad);
        } else {
          set_scale(format, first_block, bad);
        }
        const auto got = run<float, float>(backend(), *context_, problem);
        for (int64_t m = 0; m < 5; ++m) {
          for (int64_t n = 0; n < 21; ++n) {
            const float value = got[static_cast<size_t>(m * 21 + n)];
            if (m == 1 || m == 3) {
              EXPECT_TRUE(format == WeightFormat::f8_e4m3 ? !std::isfinite(value) : std::isnan(value))
                  << weight_format_name(format) << " " << m << ", " << n;
            } else {
              EXPECT_EQ(std::isfinite(value), n != 20) << weight_format_name(format) << " " << m << ", " << n;
            }
          }
        }
      }
    }
  }
}

// The longest rows, with x in every form at once: the scratch has room for one of them.
TEST_P(QuantizedGemmTest, TheLongestRows) {
  constexpr int64_t kLongest = int64_t{1} << 20;
  const auto problem = make_problem<BFloat16>(
      2, kLongest, {{WeightFormat::f8_e4m3, 1}, {WeightFormat::q8_0, 1}, {WeightFormat::q6_k, 1}, {WeightFormat::i8, 1}}, true,
      37);
  expect_close(run<BFloat16, float>(backend(), *context_, problem), reference(problem), problem.n(), "y", steps_for(kLongest));
}

// Every code of f8_e4m3 and of i8 with every instruction set, alone: x is 1 at one channel, and the scale a power of two.
TEST_P(QuantizedGemmTest, EveryCodeOfABlockOf128IsItsValue) {
  for (const WeightFormat format : {WeightFormat::f8_e4m3, WeightFormat::i8}) {
    Problem<float> problem = make_problem<float>(8, 128, {{format, 256}}, false, 31);
    for (size_t code = 0; code < 256; ++code) {
      uint8_t* const block = &problem.segments[0].blocks[132 * code];
      std::memset(block + 4, static_cast<int>(code), 128);
      set_scale(format, block, 0.25f);
    }
    for (int64_t i = 0; i < 8 * problem.x_stride; ++i) problem.x[static_cast<size_t>(i)] = 0.0f;
    for (int64_t m = 0; m < 8; ++m) problem.x[static_cast<size_t>(m * problem.x_stride + 17 * m)] = 127.0f;
    const auto got = run<float, float>(backend(), *context_, problem);
    for (int64_t code = 0; code < 256; ++code) {
      const double value = oracle::weight_value(format, &problem.segments[0].blocks[static_cast<size_t>(132 * code)], 0).value();
      for (int64_t m = 0; m < 8; ++m) {
        ASSERT_EQ(static_cast<double>(got[static_cast<size_t>(m * 256 + code)]), 127.0 * value)
            << weight_format_name(format) << code;
      }
    }
  }
}

// The same for the formats of 32 values whose codes are numbers of a table, and for every scale of MXFP4: 2^-127 to 2^128, of which no value but
// those of the last ones is infinite.
TEST_P(QuantizedGemmTest, EveryCodeOfATableIsItsValue) {
  for (const WeightFormat format : {WeightFormat::iq4_nl, WeightFormat::mxfp4}) {
    const int64_t bytes = weight_block_bytes(format), codes_at = bytes - 16;
    Problem<float> problem = make_problem<float>(8, 32, {{format, 256}}, false, 41);
    for (int64_t i = 0; i < 8 * problem.x_stride; ++i) problem.x[static_cast<size_t>(i)] = 0.0f;
    for (int64_t m = 0; m < 8; ++m) problem.x[static_cast<size_t>(m * problem.x_stride + 4 * m + m % 4)] = 127.0f;
    for (int exponent = 0; exponent < 256; ++exponent) {
      if (format != WeightFormat::mxfp4 && exponent != 0) continue;
      for (int64_t code = 0; code < 256; ++code) {
        uint8_t* const block = &problem.segments[0].blocks[static_cast<size_t>(bytes * code)];
        std::memset(block + codes_at, static_cast<int>(code), 16);
        set_scale(format, block, 0.25f);
        if (format == WeightFormat::mxfp4) block[0] = static_cast<uint8_t>(exponent);
      }
      const auto got = run<float, float>(backend(), *context_, problem);
      for (int64_t code = 0; code < 256; ++code) {
        for (int64_t m = 0; m < 8; ++m) {
          const uint8_t* const block = &problem.segments[0].blocks[static_cast<size_t>(bytes * code)];
          const float want = static_cast<float>(127.0 * oracle::weight_value(format, block, 4 * m + m % 4).value());
          ASSERT_EQ(got[static_cast<size_t>(m * 256 + code)], want)
              << weight_format_name(format) << ", code " << code << ", exponent " << exponent;
        }
      }
    }
  }
}

// Every scale of the parts of these formats, beside every neighbour in its bytes.
TEST_P(QuantizedGemmTest, EveryScaleOfAPart) {
  for (const WeightFormat format : {WeightFormat::q2_k, WeightFormat::q3_k, WeightFormat::iq4_xs}) {
    const int64_t scales = format == WeightFormat::q2_k ? 0 : format == WeightFormat::q3_k ? 96 : 2;
    const int64_t scale_bytes = format == WeightFormat::q2_k ? 16 : format == WeightFormat::q3_k ? 12 : 6;
    Problem<float> problem = make_problem<float>(2, 256, {{format, 4 * 256}}, false, 43);
    for (int64_t row = 0; row < 4 * 256; ++row) {  // one byte has any bits, the others random ones
      uint8_t* const block = &problem.segments[0].blocks[static_cast<size_t>(row * weight_block_bytes(format))];
      for (int64_t i = row / 256; i < scale_bytes; i += 4) block[scales + i] = static_cast<uint8_t>(row + 37 * i);
    }
    const auto got = run<float, float>(backend(), *context_, problem);
    expect_close(got, reference(problem), problem.n(), "y", steps_for(256));
  }
}

// Every code of NVFP4 with every scale, alone, at each position of a block, and scales of the tensor that differ from row to row.
TEST_P(QuantizedGemmTest, EveryCodeAndScaleOfNvfp4IsItsValue) {
  constexpr int64_t kRows = 256;
  Problem<float> problem = make_problem<float>(256, 256, {{WeightFormat::nvfp4, kRows}}, false, 35);
  for (int64_t row = 0; row < kRows; ++row) {
    uint8_t* const block = &problem.segments[0].blocks[static_cast<size_t>(row * 148)];
    set_scale(WeightFormat::nvfp4, block, row % 2 == 0 ? 0.25f : -2.0f);
    for (int64_t i = 0; i < 16; ++i) block[4 + i] = static_cast<uint8_t>(row + 37 * i);
    // Code (row + channel) % 16, so that the neighbours of a code are others.
    for (int64_t i = 0; i < 128; ++i) {
      const int64_t channel = i / 16 * 32 + i % 16;
      block[20 + i] = static_cast<uint8_t>((row + channel) % 16 | (row + channel + 16) % 16 << 4);
    }
  }
  for (float& value : problem.x) value = 0.0f;
  for (int64_t m = 0; m < 256; ++m) problem.x[static_cast<size_t>(m * problem.x_stride + m)] = 127.0f;
  const auto got = run<float, float>(backend(), *context_, problem);
  for (int64_t m = 0; m < 256; ++m) {
    for (int64_t row = 0; row < kRows; ++row) {
      const auto value =
          oracle::weight_value(WeightFormat::nvfp4, &problem.segments[0].blocks[static_cast<size_t>(row * 148)], m);
      ASSERT_EQ(static_cast<double>(got[static_cast<size_t>(m * kRows + row)]), 127.0 * value.value())
          << "row " << row << ", channel " << m;
    }
  }
}

// Every code with every zero point, alone, at each position of a block.
TEST_P(QuantizedGemmTest, EveryCodeAndZeroPointOfFourBitsIsItsValue) {
  for (const WeightFormat format : {WeightFormat::i4_32, WeightFormat::i4_64, WeightFormat::i4_128}) {
    const int64_t block = weight_block_elements(format), bytes = weight_block_bytes(format), rows = 16 * 17;
    Problem<float> problem = make_problem<float>(block, block, {{format, rows}}, false, 33);
    for (int64_t row = 0; row < rows; ++row) {
      uint8_t* const of_row = &problem.segments[0].blocks[static_cast<size_t>(row * bytes)];
      set_scale(format, of_row, 0.25f);
      of_row[2] = static_cast<uint8_t>(row / 16);
      // Code (row + channel) % 16, so that the neighbours of a code are others.
      for (int64_t i = 0; i < block / 2; ++i) {
        const int64_t channel = i / 16 * 32 + i % 16;
        of_row[3 + i] = static_cast<uint8_t>((row + channel) % 16 | (row + channel + 16) % 16 << 4);
      }
    }
    for (float& value : problem.x) value = 0.0f;
    for (int64_t m = 0; m < block; ++m) problem.x[static_cast<size_t>(m * problem.x_stride + m)] = 127.0f;
    const auto got = run<float, float>(backend(), *context_, problem);
    for (int64_t m = 0; m < block; ++m) {
      for (int64_t row = 0; row < rows; ++row) {
        ASSERT_EQ(got[static_cast<size_t>(m * rows + row)], 127.0f * 0.25f * static_cast<float>((row + m) % 16 - row / 16))
            << weight_format_name(format) << ", row " << row << ", channel " << m;
      }
    }
  }
}

// ---- Packed weights made dense, on CUDA ----

TEST(UnpackRows, PiecesAreEvenAndOfWholeTiles) {
  EXPECT_EQ(cuda::rows_of_pieces(14336, 2048), 2048);  // 8B: gate; up is another segment
  EXPECT_EQ(cuda::rows_of_pieces(4096, 585), 512);     // 8B: down
  EXPECT_EQ(cuda::rows_of_pieces(8192, 2730), 2048);   // four pieces: not three of 2560 and one of 512
  EXPECT_EQ(cuda::rows_of_pieces(1000, 2048), 2048);
  EXPECT_EQ(cuda::rows_of_pieces(2100, 2048), 1280);
  EXPECT_EQ(cuda::rows_of_pieces(1000, 100), 96);
  EXPECT_EQ(cuda::rows_of_pieces(1000, 7), 7);
  for (int64_t most = 1; most < 1200; ++most) {
    for (const int64_t rows : {1, 15, 37, 256, 700, 5000}) {
      const int64_t piece = cuda::rows_of_pieces(rows, most);
      ASSERT_GE(piece, 1) << rows << ", " << most;
      ASSERT_LE(piece, most) << rows << ", " << most;
    }
  }
}

#ifdef PROLOGUE_HAS_CUDA
// Each value is made in float32 as the format defines it, then rounded to the type: bit for bit. Some rows begin and end within groups of 16, and
// the last warp of a row has all, some or one of its slices.
template <class T>
void expect_dense_rows() {
  PROLOGUE_REQUIRE_BACKEND(Backend::cuda);
  constexpr int64_t kRows = 37;
  uint64_t seed = 200;
  for (const WeightFormat format : kWeightFormats) {
    const int64_t block = weight_block_elements(format);
    for (const int64_t k : block == 32    ? std::vector<int64_t>{32, 96, 160, 576, 1152}
                           : block == 64  ? std::vector<int64_t>{64, 192, 576, 1152}
                           : block == 128 ? std::vector<int64_t>{128, 384, 1152}
                                          : std::vector<int64_t>{256, 768, 1280}) {
      Segment segment = {format, kRows, random_blocks(format, kRows, k, ++seed)};
      const int64_t row_bytes = k / block * weight_block_bytes(format);
      for (size_t i = 0; format == WeightFormat::nvfp4 && i < segment.blocks.size(); ++i) {  // any scales
        if (i % 148 >= 4 && i % 148 < 20) segment.blocks[i] = static_cast<uint8_t>(37 * i + seed);
      }
      for (const auto& [first, count] :
           std::vector<std::pair<int64_t, int64_t>>{{0, 37}, {16, 16}, {5, 2}, {15, 2}, {3, 29}, {36, 1}}) {
        SCOPED_TRACE(testing::Message() << weight_format_name(format) << ", k " << k << ", rows " << first << " + " << count);
        Arena arena(Backend::cuda);
        const PackedRows rows = {arena.input(packed(segment, k), 16), format, kRows};
        T* const out = arena.output<T>(count * k, 16);
        const Status status = arena.run([&](const Execution& execution) {
          return cuda::unpack_rows(rows, k, first, count, FloatFormat<T>::dtype, out, execution.stream);
        });
        ASSERT_TRUE(status.ok()) << status.message();
        const std::vector<T> got = arena.read(out);
        for (int64_t i = 0; i < count * k; ++i) {
          const auto value = oracle::weight_value(format, segment.blocks.data() + (first + i / k) * row_bytes, i % k);
          const float product = static_cast<float>(value.scale) * static_cast<float>(value.code);
          const T want = from_float<T>(product - static_cast<float>(value.minimum));  // -0 stays -0 where there is none
          ASSERT_EQ(std::memcmp(&got[static_cast<size_t>(i)], &want, sizeof(T)), 0) << "row " << i / k << ", channel " << i % k;
        }
      }
    }
  }
}

TEST(UnpackRows, HaveTheBitsOfTheFormatsFloat32_cuda) { expect_dense_rows<float>(); }
TEST(UnpackRows, HaveTheBitsOfTheFormatsFloat16_cuda) { expect_dense_rows<Float16>(); }
TEST(UnpackRows, HaveTheBitsOfTheFormatsBFloat16_cuda) { expect_dense_rows<BFloat16>(); }
#endif

// ---- Refusals ----

class QuantizedGemmRefusals : public testing::TestWithParam<Backend> {};

TEST_P(QuantizedGemmRefusals, WantsAlignedRowsOnCuda) {
  PROLOGUE_REQUIRE_BACKEND(GetParam());
  if (backend_device(GetParam()) == Device::cpu) GTEST_SKIP() << "any alignment";
  auto context = std::move(GemmContext::create(Device::cuda)).value();
  Arena arena(GetParam());
  GemmParams p;
  p.dtype = p.y_dtype = DType::f32;
  p.m = 1, p.n = 16, p.k = p.x_stride = 32, p.y_stride = 16;
  p.x = arena.input(std::vector<float>(32, 1.0f));
  p.y = arena.output<float>(16);
  p.packed.num_segments = 1;
  const uint8_t* const rows = arena.input(std::vector<uint8_t>(16 + 16 * 18), 16);
  p.packed.segments[0] = {rows + 2, WeightFormat::q4_0, 16};
  const Status status = arena.run([&](const Execution& execution) { return gemm(p, *context, execution); });
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("on CUDA they must be aligned to 16 bytes"), std::string::npos) << status.message();
}

TEST_P(QuantizedGemmRefusals, RefusesWhatBreaksTheContract) {
  PROLOGUE_REQUIRE_BACKEND(GetParam());
  auto context = std::move(GemmContext::create(backend_device(GetParam()))).value();
  const std::vector<Refusal<GemmParams>> refusals = {
      {"negative count", [](auto& p) { p.packed.num_segments = -1; }, StatusCode::invalid_argument,
       "packed.num_segments is -1: it must be 0 to 4"},
      {"too many", [](auto& p) { p.packed.num_segments = 5; }, StatusCode::invalid_argument,
       "packed.num_segments is 5: it must be 0 to 4"},
      {"weight, too", [](auto& p) { p.weight = p.x; }, StatusCode::invalid_argument,
       "packed.num_segments is 2: the weights are the segments, and weight must be null"},
      {"dense", [](auto& p) { p.packed.segments[1].format = WeightFormat::dense; }, StatusCode::invalid_argument,
       "packed.segments[1].format is dense: it must be one of the block formats"},
      {"unknown format", [](auto& p) { p.packed.segments[0].format = static_cast<WeightFormat>(99); },
       StatusCode::invalid_argument, "packed.segments[0].format is unknown: it must be one of the block formats"},
      {"k", [](auto& p) { p.packed.segments[1].format = WeightFormat::q4_k; }, StatusCode::invalid_argument,
       "k is 64: q4_k needs a multiple of 256"},
      {"k of 128", [](auto& p) { p.packed.segments[1].format = WeightFormat::i8; }, StatusCode::invalid_argument,
       "k is 64: i8 needs a multiple of 128"},
      {"k of groups", [](auto& p) { p.packed.segments[1].format = WeightFormat::i4_128; }, StatusCode::invalid_argument,
       "k is 64: i4_128 needs a multiple of 128"},
      {"large k", [](auto& p) { p.x_stride = p.k = (int64_t{1} << 20) + 32; }, StatusCode::unsupported,
       "k is 1048608: with packed weights it must be at most 1048576"},
      {"rows", [](auto& p) { p.packed.segments[0].rows = -1; }, StatusCode::invalid_argument,
       "packed.segments[0].rows is -1: it must be 0 to 2147483648"},
      {"n", [](auto& p) { p.packed.segments[0].rows = 5; }, StatusCode::invalid_argument, "the segments have 8 rows: n is 7"},
      {"null", [](auto& p) { p.packed.segments[1].data = nullptr; }, StatusCode::invalid_argument,
       "packed.segments[1].data is null"},
      {"y over weights", [](auto& p) { p.y = const_cast<void*>(p.packed.segments[1].data); }, StatusCode::invalid_argument,
       "y (84 bytes at @) overlaps a segment (1088 bytes at @): the output must not overlap any input"},
  };
  expect_refusals("gemm", refusals, [&](const auto& change) {
    Arena arena(GetParam());
    GemmParams p;
    p.dtype = p.y_dtype = DType::f32;
    p.m = 3;
    p.n = 7;
    p.k = p.x_stride = 64;
    p.y_stride = 7;
    p.x = arena.input(std::vector<float>(3 * 64, 1.0f));
    p.y = arena.output<float>(3 * 7);
    p.packed.num_segments = 2;
    p.packed.segments[0] = {arena.input(std::vector<uint8_t>(16 * 2 * 18), 16), WeightFormat::q4_0, 4};
    p.packed.segments[1] = {arena.input(std::vector<uint8_t>(16 * 2 * 34), 16), WeightFormat::q8_0, 3};
    change(p);
    return refused(arena.run([&](const Execution& execution) { return gemm(p, *context, execution); }), arena);
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, QuantizedGemmRefusals, testing::ValuesIn(all_backends()),
                         [](const testing::TestParamInfo<Backend>& row) { return backend_name(row.param); });

TEST(PackWeight, KeepsTheBytesOfTheFile) {
  for (const WeightFormat format : kWeightFormats) {
    const int64_t cols = 512;
    for (const int64_t rows : {1, 15, 16, 17, 48}) {
      const Segment segment{format, rows, random_blocks(format, rows, cols, 23)};
      std::vector<uint8_t> got = packed(segment, cols), want = segment.blocks;
      EXPECT_EQ(static_cast<int64_t>(got.size()),
                (rows + 15) / 16 * 16 * (cols / weight_block_elements(format)) * weight_block_bytes(format));
      want.resize(got.size());  // rows of zeros
      std::sort(got.begin(), got.end());
      std::sort(want.begin(), want.end());
      EXPECT_EQ(got, want) << weight_format_name(format) << ", " << rows << " rows";
    }
  }
}

TEST(PackWeight, PiecesOfRowsAndThreadsGiveTheSame) {
  const int64_t cols = 256, rows = 50;
  for (const WeightFormat format : kWeightFormats) {
    const Segment segment{format, rows, random_blocks(format, rows, cols, 29)};
    const std::vector<uint8_t> whole = packed(segment, cols);
    std::vector<uint8_t> pieces(whole.size());
    const int64_t row_bytes = cols / weight_block_elements(format) * weight_block_bytes(format);
    Execution execution;
    execution.num_threads = 3;
    for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 32}, {32, 18}}) {
      ASSERT_TRUE(pack_weight({format, count, cols, segment.blocks.data() + first * row_bytes, pieces.data() + first * row_bytes},
                              execution)
                      .ok());
    }
    EXPECT_EQ(pieces, whole) << weight_format_name(format);
  }
}

TEST(PackWeight, RefusesWhatBreaksTheContract) {
  std::vector<uint8_t> blocks(2 * 18), bytes(16 * 18);
  const PackWeightParams good{WeightFormat::q4_0, 2, 32, blocks.data(), bytes.data()};
  const auto refused = [](const PackWeightParams& p, const std::string& message, Execution execution = {}) {
    const Status status = pack_weight(p, execution);
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.message().find(message), std::string::npos) << status.message();
  };
  EXPECT_TRUE(pack_weight(good, {}).ok());
  PackWeightParams p = good;
  p.format = WeightFormat::dense;
  refused(p, "pack_weight: format is dense: it must be one of the block formats");
  p = good;
  p.rows = -1;
  refused(p, "pack_weight: rows is -1");
  p = good;
  p.cols = 33;
  refused(p, "pack_weight: cols is 33: q4_0 needs a multiple of 32");
  p = good;
  p.blocks = nullptr;
  refused(p, "blocks");
  p = good;
  p.packed = blocks.data();
  refused(p, "overlap");
  Execution execution;
  execution.device = Device::cuda;
  refused(good, "pack_weight: device is cuda: weights are packed on the CPU only", execution);
}

}  // namespace
}  // namespace prologue::test
