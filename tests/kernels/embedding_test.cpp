#include <prologue/kernels/token_ops/embedding.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/oracle/weight_blocks.h"
#include "tests/support/arena.h"
#include "tests/support/random.h"
#include "tests/support/refusals.h"
#include "tests/support/tolerance.h"
#include "tests/support/types.h"
#include "tests/support/weight_blocks.h"

namespace prologue::test {
namespace {

class EmbeddingTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};

// Rows are copied bitwise, NaN and negative zero included; rows of bad indices are zeros.
template <class T, class Index>
void check_copies(Backend backend) {
  Random random(1);
  for (const int64_t num_tokens : {0, 1, 2, 31, 33, 257}) {
    for (const int64_t width : {1, 7, 64, 576}) {
      for (const int64_t misalign : {int64_t{0}, static_cast<int64_t>(sizeof(T))}) {
        SCOPED_TRACE(testing::Message() << "T = " << num_tokens << ", width " << width << ", misaligned by " << misalign);
        constexpr int64_t kRows = 50;
        std::vector<T> table = random.normals<T>(kRows * width);
        table[0] = from_float<T>(std::numeric_limits<float>::quiet_NaN());
        table[static_cast<size_t>(width)] = from_float<T>(-0.0f);
        std::vector<Index> indices(static_cast<size_t>(num_tokens));
        for (size_t i = 0; i < indices.size(); ++i) {
          indices[i] = static_cast<Index>(i == 0 ? 0 : i == 1 ? 1 : i == 2 ? kRows - 1 : random.integer(0, kRows - 1));
        }
        Arena arena(backend);
        T* out = arena.output<T>(num_tokens * width, misalign);
        FaultRecord* faults = arena.inout(std::vector<FaultRecord>(1));
        const EmbeddingParams p{
            num_tokens, kRows, width, FloatFormat<T>::dtype, arena.input(table, misalign), index_view(arena.input(indices)),
            1.0f,       out,   faults};
        const Status status = arena.run([&](const Execution& execution) { return embedding(p, execution); });
        ASSERT_TRUE(status.ok()) << status.message();
        const std::vector<T> got = arena.read(out);
        for (int64_t t = 0; t < num_tokens; ++t) {
          const T* row = &table[static_cast<size_t>(indices[static_cast<size_t>(t)]) * static_cast<size_t>(width)];
          ASSERT_EQ(std::memcmp(&got[static_cast<size_t>(t * width)], row, static_cast<size_t>(width) * sizeof(T)), 0) << t;
        }
        EXPECT_EQ(arena.read(faults)[0].count, 0u);
      }
    }
  }
}

TEST_P(EmbeddingTest, CopiesRowsFloat32) { check_copies<float, int32_t>(GetParam()); }
TEST_P(EmbeddingTest, CopiesRowsBFloat16) { check_copies<BFloat16, int64_t>(GetParam()); }
TEST_P(EmbeddingTest, CopiesRowsFloat16) { check_copies<Float16, int32_t>(GetParam()); }

// The result is one product, rounded to float32 and then to the type: bit for bit.
template <class T>
void check_scales(Backend backend) {
  Random random(2);
  constexpr int64_t kRows = 20, kWidth = 77, kTokens = 300;
  const float scale = 24.083189f;
  const std::vector<T> table = random.normals<T>(kRows * kWidth);
  std::vector<int32_t> indices;
  for (int64_t t = 0; t < kTokens; ++t) indices.push_back(static_cast<int32_t>(random.integer(0, kRows - 1)));
  Arena arena(backend);
  T* out = arena.output<T>(kTokens * kWidth);
  const EmbeddingParams p{kTokens, kRows, kWidth, FloatFormat<T>::dtype, arena.input(table), index_view(arena.input(indices)),
                          scale,   out,   nullptr};
  const Status status = arena.run([&](const Execution& execution) { return embedding(p, execution); });
  ASSERT_TRUE(status.ok()) << status.message();
  const std::vector<T> got = arena.read(out);
  for (int64_t i = 0; i < kTokens * kWidth; ++i) {
    const size_t source = static_cast<size_t>(indices[static_cast<size_t>(i / kWidth)] * kWidth + i % kWidth);
    const T want = from_float<T>(to_float(table[source]) * scale);
    ASSERT_EQ(std::memcmp(&got[static_cast<size_t>(i)], &want, sizeof(T)), 0) << i / kWidth << ", " << i % kWidth;
  }
}

TEST_P(EmbeddingTest, ScalesFloat32) { check_scales<float>(GetParam()); }
TEST_P(EmbeddingTest, ScalesBFloat16) { check_scales<BFloat16>(GetParam()); }
TEST_P(EmbeddingTest, ScalesFloat16) { check_scales<Float16>(GetParam()); }

TEST_P(EmbeddingTest, BadIndicesAreZerosAndRecorded) {
  constexpr int64_t kRows = 5, kWidth = 33;
  const std::vector<float> table = Random(3).normals<float>(kRows * kWidth);
  const std::vector<int64_t> indices = {0, 4, 5, -1, 2, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(),
                                        1};
  for (const float scale : {1.0f, 2.0f}) {
    for (const bool record : {true, false}) {
      Arena arena(GetParam());
      float* out = arena.output<float>(8 * kWidth);
      FaultRecord* faults = arena.inout(std::vector<FaultRecord>(1));
      uint8_t* token_faults = arena.inout(std::vector<uint8_t>(8, 77));
      const EmbeddingParams p{8,
                              kRows,
                              kWidth,
                              DType::f32,
                              arena.input(table),
                              index_view(arena.input(indices)),
                              scale,
                              out,
                              record ? faults : nullptr,
                              record ? token_faults : nullptr};
      const Status status = arena.run([&](const Execution& execution) { return embedding(p, execution); });
      ASSERT_TRUE(status.ok()) << status.message();
      const std::vector<float> got = arena.read(out);
      for (size_t i = 0; i < got.size(); ++i) {
        const int64_t index = indices[i / kWidth];
        const float want = index < 0 || index >= kRows ? 0.0f : scale * table[static_cast<size_t>(index) * kWidth + i % kWidth];
        ASSERT_EQ(got[i], want) << i / kWidth << ", " << i % kWidth;
      }
      const Fault fault = decode_fault(arena.read(faults)[0]);
      EXPECT_EQ(fault.code, record ? FaultCode::token_id_out_of_range : FaultCode::none);
      EXPECT_EQ(fault.token, record ? 2 : -1);
      EXPECT_EQ(fault.count, record ? 4u : 0u);
      const uint8_t bad = record ? static_cast<uint8_t>(FaultCode::token_id_out_of_range) : 77;
      EXPECT_EQ(arena.read(token_faults), (std::vector<uint8_t>{77, 77, bad, bad, 77, bad, bad, 77}));
    }
  }
}

// The rows are those of a packed table: each value is made in float32 as the format defines it, then scaled, then rounded to the type.
template <class T>
void check_packed_tables(Backend backend) {
  constexpr int64_t kRows = 37, kWidth = 512;
  const std::vector<int64_t> indices = {0, 36, 15, -1, 16, 36, 37, 1};
  for (const WeightFormat format : kWeightFormats) {
    const std::vector<uint8_t> blocks = random_blocks(format, kRows, kWidth, 5);
    std::vector<uint8_t> packed(static_cast<size_t>(packed_weight_bytes(format, kRows, kWidth)));
    ASSERT_TRUE(pack_weight({format, kRows, kWidth, blocks.data(), packed.data()}, {}).ok());
    const int64_t row_bytes = kWidth / weight_block_elements(format) * weight_block_bytes(format);
    for (const float scale : {1.0f, 24.083189f}) {
      SCOPED_TRACE(testing::Message() << weight_format_name(format) << ", scale " << scale);
      Arena arena(backend);
      T* out = arena.output<T>(static_cast<int64_t>(indices.size()) * kWidth);
      FaultRecord* faults = arena.inout(std::vector<FaultRecord>(1));
      const EmbeddingParams p{static_cast<int64_t>(indices.size()),
                              kRows,
                              kWidth,
                              FloatFormat<T>::dtype,
                              arena.input(packed, backend_device(backend) == Device::cuda ? 16 : 1),
                              index_view(arena.input(indices)),
                              scale,
                              out,
                              faults,
                              nullptr,
                              format};
      const Status status = arena.run([&](const Execution& execution) { return embedding(p, execution); });
      ASSERT_TRUE(status.ok()) << status.message();
      const std::vector<T> got = arena.read(out);
      for (size_t i = 0; i < got.size(); ++i) {
        const int64_t index = indices[i / kWidth];
        float want = 0.0f;
        if (index >= 0 && index < kRows) {
          const auto value = oracle::weight_value(format, blocks.data() + index * row_bytes, static_cast<int64_t>(i % kWidth));
          const float product = static_cast<float>(value.scale) * static_cast<float>(value.code);
          want = (product - static_cast<float>(value.minimum)) * scale;
        }
        ASSERT_EQ(to_float(got[i]), to_float(from_float<T>(want))) << i / kWidth << ", " << i % kWidth;
      }
      EXPECT_EQ(decode_fault(arena.read(faults)[0]).count, 2u);
    }
  }
}

TEST_P(EmbeddingTest, ReadsPackedTablesFloat32) { check_packed_tables<float>(GetParam()); }
TEST_P(EmbeddingTest, ReadsPackedTablesBFloat16) { check_packed_tables<BFloat16>(GetParam()); }

TEST_P(EmbeddingTest, RefusesWhatTheContractForbids) {
  constexpr StatusCode kInvalid = StatusCode::invalid_argument;
  using P = EmbeddingParams;
  const std::vector<Refusal<P>> refusals = {
      {[](P& p) { p.dtype = kNoType; }, StatusCode::unsupported,
       "dtype is the unknown type 99: supported are float32, float16 and bfloat16"},
      {[](P& p) { p.num_tokens = -1; }, kInvalid, "num_tokens is -1: it must lie in 0..2147483648"},
      {[](P& p) { p.num_rows = 0; }, kInvalid, "num_rows is 0: it must lie in 1..2147483648"},
      {[](P& p) { p.width = 0; }, kInvalid, "width is 0: it must lie in 1..16777216"},
      {[](P& p) { p.indices.type = kNoType; }, kInvalid, "indices.type is the unknown type 99: it must be int32 or int64"},
      {[](P& p) { p.scale = std::numeric_limits<float>::infinity(); }, kInvalid, "scale is inf: it must be finite"},
      {[](P& p) { p.table = nullptr; }, kInvalid, "table is null"},
      {[](P& p) { p.indices.data = nullptr; }, kInvalid, "indices is null"},
      {[](P& p) { p.out = nullptr; }, kInvalid, "out is null"},
      {[](P& p) { p.out = const_cast<void*>(p.table); }, kInvalid, "out overlaps table"},
      {[](P& p) { p.out = const_cast<void*>(p.indices.data); }, kInvalid, "out overlaps indices"},
      {[](P& p) { p.faults = static_cast<FaultRecord*>(const_cast<void*>(p.table)); }, kInvalid, "faults overlaps table"},
      {[](P& p) { p.faults = static_cast<FaultRecord*>(const_cast<void*>(p.indices.data)); }, kInvalid,
       "faults overlaps indices"},
      {[](P& p) { p.faults = static_cast<FaultRecord*>(p.out); }, kInvalid, "out overlaps faults"},
      {[](P& p) { p.token_faults = static_cast<uint8_t*>(p.out); }, kInvalid, "out overlaps token_faults"},
      {[](P& p) { p.table_format = static_cast<WeightFormat>(99); }, kInvalid,
       "table_format is unknown: it must be dense or a block format"},
  };
  expect_refusals("embedding", refusals, [&](const auto& change) {
    Arena arena(GetParam());
    P p{2,
        3,
        4,
        DType::f32,
        arena.input(std::vector<float>(12)),
        index_view(arena.input(std::vector<int32_t>{1, 2})),
        1.0f,
        arena.output<float>(8),
        nullptr};
    change(p);
    return refused(arena.run([&](const Execution& execution) { return embedding(p, execution); }), arena);
  });
}

TEST(EmbeddingCpuTest, APackedTableHasWholeBlocks) {
  Arena arena(Backend::cpu);
  const EmbeddingParams p{1,
                          1,
                          48,
                          DType::f32,
                          arena.input(std::vector<uint8_t>(16 * 18)),
                          index_view(arena.input(std::vector<int32_t>{0})),
                          1.0f,
                          arena.output<float>(48),
                          nullptr,
                          nullptr,
                          WeightFormat::q4_0};
  const Status status = arena.run([&](const Execution& execution) { return embedding(p, execution); });
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_EQ(status.message(), "embedding: width is 48: q4_0 needs a multiple of 32");
  EXPECT_TRUE(arena.untouched());
}

TEST(EmbeddingCpuTest, CudaWithoutCuda) {
  if (built_with_cuda()) GTEST_SKIP() << "built with CUDA";
  Arena arena(Backend::cpu);
  const EmbeddingParams p{1,
                          1,
                          4,
                          DType::f32,
                          arena.input(std::vector<float>(4)),
                          index_view(arena.input(std::vector<int32_t>{0})),
                          1.0f,
                          arena.output<float>(4),
                          nullptr};
  const Status status = arena.run([&](Execution execution) {
    execution.device = Device::cuda;
    return embedding(p, execution);
  });
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_EQ(status.message(), "embedding: device is cuda, but this library was built without CUDA");
  EXPECT_TRUE(arena.untouched());
}

INSTANTIATE_TEST_SUITE_P(Backends, EmbeddingTest, testing::ValuesIn(all_backends()),
                         [](const auto& backend) { return backend_name(backend.param); });

}  // namespace
}  // namespace prologue::test
