// Dequantisation must give, bit for bit, what the format's Python package gives, for every type, output type and number of threads.
#include <prologue/engine/gguf/dequantize.h>

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/random.h"
#include "tests/support/refusals.h"
#include "tests/support/source_path.h"
#include "tests/support/types.h"

namespace prologue {
namespace {

constexpr GgmlType kQuantisedTypes[] = {GgmlType::q8_0,   GgmlType::q4_0,   GgmlType::q4_1,  GgmlType::q5_0, GgmlType::q5_1,
                                        GgmlType::q4_k,   GgmlType::q5_k,   GgmlType::q6_k,  GgmlType::q2_k, GgmlType::q3_k,
                                        GgmlType::iq4_nl, GgmlType::iq4_xs, GgmlType::mxfp4, GgmlType::nvfp4};

struct Golden {
  int64_t num_blocks = 0;
  std::vector<char> blocks;
  std::vector<float> values;
};

Golden read_golden(GgmlType type) {
  const GgmlTypeInfo& info = *ggml_type_info(type);
  std::ifstream file(test::source_path("tests/golden/dequantize/" + std::string(info.name) + ".bin"), std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  Golden golden;
  uint32_t num_blocks = 0;
  if (bytes.size() < sizeof num_blocks) return golden;
  std::memcpy(&num_blocks, bytes.data(), sizeof num_blocks);
  const size_t blocks_size = num_blocks * static_cast<size_t>(info.block_bytes);
  const size_t num_values = num_blocks * static_cast<size_t>(info.block_elements);
  if (bytes.size() != sizeof num_blocks + blocks_size + num_values * sizeof(float)) return golden;
  golden.num_blocks = num_blocks;
  golden.blocks.assign(bytes.begin() + 4, bytes.begin() + 4 + static_cast<std::ptrdiff_t>(blocks_size));
  golden.values.resize(num_values);
  std::memcpy(golden.values.data(), bytes.data() + 4 + blocks_size, num_values * sizeof(float));
  return golden;
}

template <class T>
DType dtype_of() {
  if constexpr (std::is_same_v<T, float>) return DType::f32;
  if constexpr (std::is_same_v<T, Float16>) return DType::f16;
  return DType::bf16;
}

template <class T>
::testing::AssertionResult same_bits(const std::vector<T>& got, const std::vector<T>& want) {
  if (got.size() != want.size()) return ::testing::AssertionFailure() << got.size() << " values, want " << want.size();
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &want[i], sizeof(T)) != 0) {
      return ::testing::AssertionFailure() << "value " << i << ": got " << to_float(got[i]) << ", want " << to_float(want[i]);
    }
  }
  return ::testing::AssertionSuccess();
}

template <class T>
std::vector<T> rounded(const std::vector<float>& values) {
  std::vector<T> result;
  for (const float value : values) result.push_back(from_float<T>(value));
  return result;
}

class Quantised : public ::testing::TestWithParam<GgmlType> {
 protected:
  template <class T>
  void expect_golden(int num_threads) {
    const GgmlTypeInfo& info = *ggml_type_info(GetParam());
    const Golden golden = read_golden(GetParam());
    ASSERT_GT(golden.num_blocks, 0) << "no golden values for " << info.name;
    std::vector<T> got(golden.values.size());
    ASSERT_TRUE(dequantize_rows(GetParam(), golden.blocks.data(), golden.num_blocks, info.block_elements, dtype_of<T>(),
                                got.data(), num_threads)
                    .ok());
    EXPECT_TRUE(same_bits(got, rounded<T>(golden.values)));
  }
};

TEST_P(Quantised, Float32IsGolden) { expect_golden<float>(1); }
TEST_P(Quantised, Float16IsGoldenRoundedOnce) { expect_golden<Float16>(1); }
TEST_P(Quantised, Bfloat16IsGoldenRoundedOnce) { expect_golden<BFloat16>(1); }

TEST_P(Quantised, RowsThreadsAndAlignmentChangeNothing) {
  const GgmlTypeInfo& info = *ggml_type_info(GetParam());
  const Golden golden = read_golden(GetParam());
  ASSERT_GT(golden.num_blocks, 0);
  // Enough copies of the golden blocks for several pieces of work, at an odd address, as one row.
  const int64_t copies = 200'000 / static_cast<int64_t>(golden.values.size()) + 1;
  std::vector<char> source(1);
  std::vector<float> want;
  for (int64_t copy = 0; copy < copies; ++copy) {
    source.insert(source.end(), golden.blocks.begin(), golden.blocks.end());
    want.insert(want.end(), golden.values.begin(), golden.values.end());
  }
  for (const int num_threads : {1, 2, 5}) {
    std::vector<float> got(want.size());
    ASSERT_TRUE(dequantize_rows(GetParam(), source.data() + 1, 1, copies * golden.num_blocks * info.block_elements, DType::f32,
                                got.data(), num_threads)
                    .ok());
    EXPECT_TRUE(same_bits(got, want)) << num_threads << " threads";
  }
}

TEST_P(Quantised, WritesNothingBeyondItsRows) {
  const GgmlTypeInfo& info = *ggml_type_info(GetParam());
  const Golden golden = read_golden(GetParam());
  ASSERT_GT(golden.num_blocks, 2);
  std::vector<float> got(static_cast<size_t>(3 * info.block_elements), -7.0f);
  ASSERT_TRUE(
      dequantize_rows(GetParam(), golden.blocks.data(), 1, info.block_elements, DType::f32, got.data() + info.block_elements, 1)
          .ok());
  for (int64_t i = 0; i < info.block_elements; ++i) {
    EXPECT_EQ(got[static_cast<size_t>(i)], -7.0f);
    EXPECT_EQ(got[static_cast<size_t>(2 * info.block_elements + i)], -7.0f);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Quantised, ::testing::ValuesIn(kQuantisedTypes),
                         [](const auto& row) { return ggml_type_name(row.param); });

// The exponents of MXFP4 at their ends. The last one, which OCP's text has for NaN, is 2^128.
TEST(Mxfp4, ExponentsAtTheirEnds) {
  for (const auto& [exponent, half, one_and_a_half] : {std::tuple{0, 0x1p-128f, 0x1.8p-127f},
                                                       {1, 0x1p-127f, 0x1.8p-126f},
                                                       {2, 0x1p-126f, 0x1.8p-125f},
                                                       {254, 0x1p126f, 0x1.8p127f},
                                                       {255, 0x1p127f, std::numeric_limits<float>::infinity()}}) {
    std::vector<uint8_t> block(17, 0x31);  // the first 16 values are 0.5, the last ones 1.5
    block[0] = static_cast<uint8_t>(exponent), block[16] = 0x9b;
    std::vector<float> want(32, half);
    std::fill(want.begin() + 16, want.end(), one_and_a_half);
    want[15] = -one_and_a_half, want[31] = -half;
    std::vector<float> got(32);
    ASSERT_TRUE(dequantize_rows(GgmlType::mxfp4, block.data(), 1, 32, DType::f32, got.data(), 1).ok());
    EXPECT_TRUE(same_bits(got, want)) << exponent;
  }
}

// ---- Types that are not quantised ----

template <class In, class Out>
void expect_converted(GgmlType type) {
  test::Random random(7);
  std::vector<float> values = random.normals<float>(70'001);
  for (const float extreme :
       {0.0f, -0.0f, 1e-40f, 0x1p-149f, 65504.0f, 65520.0f, -1e38f, 3.4028235e38f, 0x1p-24f, 0x1p-25f, 0x1.8p-25f}) {
    values.push_back(extreme);
  }
  const std::vector<In> source = rounded<In>(values);
  std::vector<Out> want;
  for (const In value : source) want.push_back(from_float<Out>(to_float(value)));
  for (const int num_threads : {1, 3}) {
    std::vector<Out> got(source.size());
    ASSERT_TRUE(
        dequantize_rows(type, source.data(), 1, static_cast<int64_t>(source.size()), dtype_of<Out>(), got.data(), num_threads)
            .ok());
    EXPECT_TRUE(same_bits(got, want)) << ggml_type_name(type) << " to " << dtype_name(dtype_of<Out>());
  }
}

TEST(Plain, EveryTypeToEveryType) {
  expect_converted<float, float>(GgmlType::f32);
  expect_converted<float, Float16>(GgmlType::f32);
  expect_converted<float, BFloat16>(GgmlType::f32);
  expect_converted<Float16, float>(GgmlType::f16);
  expect_converted<Float16, Float16>(GgmlType::f16);
  expect_converted<Float16, BFloat16>(GgmlType::f16);
  expect_converted<BFloat16, float>(GgmlType::bf16);
  expect_converted<BFloat16, Float16>(GgmlType::bf16);
  expect_converted<BFloat16, BFloat16>(GgmlType::bf16);
}

TEST(Plain, NoRowsIsFine) {
  EXPECT_TRUE(dequantize_rows(GgmlType::q4_k, nullptr, 0, 256, DType::f32, nullptr, 1).ok());
  EXPECT_TRUE(dequantize_rows(GgmlType::f32, nullptr, 3, 0, DType::f32, nullptr, 1).ok());
}

// ---- What is refused ----

struct Conversion {
  GgmlType type = GgmlType::q4_0;
  bool source = true;
  int64_t num_rows = 1;
  int64_t row_elements = 32;
  DType out_type = DType::f32;
  bool out = true;
  int num_threads = 1;
};

TEST(Refuses, EachBadArgumentByItsValueAndRule) {
  using C = Conversion;
  const std::vector<test::Refusal<C>> refusals = {
      {[](C& c) { c.type = static_cast<GgmlType>(17); }, StatusCode::unsupported,
       "type is IQ2_XS: supported are F32, F16, BF16, F64, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, Q2_K, Q3_K, IQ4_NL, "
       "IQ4_XS, MXFP4, NVFP4"},
      {[](C& c) { c.type = static_cast<GgmlType>(4711); }, StatusCode::unsupported,
       "type is unknown type 4711: supported are F32, F16, BF16, F64, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, Q2_K, "
       "Q3_K, IQ4_NL, IQ4_XS, MXFP4, NVFP4"},
      {[](C& c) { c.num_rows = -1; }, "num_rows is -1: must not be negative"},
      {[](C& c) { c.row_elements = 33; }, "row_elements is 33: Q4_0 needs a multiple of 32"},
      {[](C& c) { c.type = GgmlType::q6_k, c.row_elements = 128; }, "row_elements is 128: Q6_K needs a multiple of 256"},
      {[](C& c) { c.row_elements = -32; }, "row_elements is -32: Q4_0 needs a multiple of 32"},
      {[](C& c) { c.out_type = test::kNoType; }, "out_type is unknown: it must be float32, float16 or bfloat16"},
      {[](C& c) { c.num_threads = 0; }, "num_threads is 0: must be at least 1"},
      {[](C& c) { c.num_rows = int64_t{1} << 60; }, "1152921504606846976 rows of 32 elements overflow 64 bits"},
      {[](C& c) { c.source = false; }, "src is null"},
      {[](C& c) { c.out = false; }, "out is null"},
  };
  test::expect_refusals("dequantize_rows", refusals, [](const auto& change) {
    Conversion c;
    change(c);
    const std::vector<char> source(1024);
    const std::vector<float> before(32, -7.0f);
    std::vector<float> out = before;
    const Status status = dequantize_rows(c.type, c.source ? source.data() : nullptr, c.num_rows, c.row_elements, c.out_type,
                                          c.out ? out.data() : nullptr, c.num_threads);
    return test::Refused<>{status.code(), status.message(), out == before};
  });
}

TEST(TypeTable, NamesEveryTypeThatTheFormatHas) {
  EXPECT_EQ(ggml_type_name(GgmlType::f32), "F32");
  EXPECT_EQ(ggml_type_name(GgmlType::q6_k), "Q6_K");
  EXPECT_EQ(ggml_type_name(GgmlType::bf16), "BF16");
  EXPECT_EQ(ggml_type_name(static_cast<GgmlType>(16)), "IQ2_XXS");
  EXPECT_EQ(ggml_type_name(static_cast<GgmlType>(28)), "F64");
  EXPECT_EQ(ggml_type_name(static_cast<GgmlType>(39)), "MXFP4");
  EXPECT_EQ(ggml_type_name(static_cast<GgmlType>(40)), "NVFP4");
  EXPECT_EQ(ggml_type_name(static_cast<GgmlType>(41)), "Q1_0");
  for (uint32_t number = 0; number < 64; ++number) {
    const auto* info = ggml_type_info(static_cast<GgmlType>(number));
    if (info == nullptr) continue;
    EXPECT_EQ(ggml_type_name(info->type), info->name);
  }
}

}  // namespace
}  // namespace prologue
