// Tests what WeightLoader makes of a checkpoint's tensors: parts, steps, transposed tensors, experts, sums, in every compute type, against
// loops over the values; quantised matrices that stay so; and what it says before and while it loads.
#include <prologue/engine/gguf/dequantize.h>
#include <prologue/engine/gguf/gguf_checkpoint.h>
#include <prologue/engine/huggingface/model_directory.h>
#include <prologue/engine/model/weight_loader.h>
#include <prologue/kernels/base/gpu.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "tests/support/gguf_writer.h"
#include "tests/support/random.h"
#include "tests/support/safetensors_writer.h"

namespace prologue {
namespace {

using Part = WeightLoader::Part;
using Options = WeightLoader::Options;

constexpr int64_t kExperts = 3, kRows = 6, kCols = 5;

// Makes a directory with tensors of every shape, and their values as float32.
class WeightLoaderTest : public testing::TestWithParam<DType> {
 protected:
  template <class T>
  void add(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape) {
    int64_t count = 1;
    for (const int64_t dim : shape) count *= dim;
    std::vector<T> values(static_cast<size_t>(count));
    for (T& value : values) value = from_float<T>(static_cast<float>(random_.uniform() - 0.5));
    writer_.add(name, dtype, shape, values);
    std::vector<float>& expected = values_[name];
    for (const T value : values) expected.push_back(to_float(value));
  }

  void open() {
    add<float>("f32", "F32", {kRows, kCols});
    add<Float16>("f16", "F16", {kRows, kCols});
    add<BFloat16>("bf16", "BF16", {kRows, kCols});
    add<BFloat16>("more", "BF16", {4, kCols});
    add<float>("vector", "F32", {8});
    add<BFloat16>("vector16", "BF16", {1, 8});
    add<BFloat16>("experts", "BF16", {kExperts, kRows, kCols});
    add<Float16>("experts16", "F16", {kExperts, 2, kCols});
    add<BFloat16>("experts_turned", "BF16", {kExperts, kCols, kRows});
    add<float>("expert_bias", "F32", {kExperts, kRows});
    add<float>("large_transposed", "F32", {130, 257});
    writer_.add("buffer", "I64", {2}, std::vector<int64_t>{1, 2});
    directory_.write("config.json", std::string("{}"));
    directory_.write("model.safetensors", writer_.bytes());
    checkpoint_ = Checkpoint::open(directory_.path()).value();
    loader_ = std::make_unique<WeightLoader>(*checkpoint_, GetParam(), Execution{Device::cpu, 2}, [this](double done) {
      EXPECT_GE(done, progress_);
      progress_ = done;
    });
  }

  void open_with_large() {
    add<BFloat16>("large", "BF16", {700, 3001});  // more than is converted at once
    open();
  }

  using Element = std::function<float(int64_t row, int64_t col)>;
  // The weight is [rows, cols], and each element is that of `want`, rounded once.
  void expect(const Result<Weight>& weight, int64_t rows, int64_t cols, const Element& want) {
    ASSERT_TRUE(weight.ok()) << weight.status().message();
    ASSERT_EQ(weight->rows, rows);
    ASSERT_EQ(weight->cols, cols);
    ASSERT_EQ(weight->dtype, GetParam());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(weight->data) % 256, 0u);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const int64_t i = r * cols + c;
        const float value = want(r, c);
        const bool same = GetParam() == DType::f32 ? static_cast<const float*>(weight->data)[i] == value
                          : GetParam() == DType::f16
                              ? static_cast<const Float16*>(weight->data)[i].bits == from_float<Float16>(value).bits
                              : static_cast<const BFloat16*>(weight->data)[i].bits == from_float<BFloat16>(value).bits;
        ASSERT_TRUE(same) << "row " << r << ", column " << c << ": want " << value;
      }
    }
  }
  void expect_refused(const Result<Weight>& weight, const std::string& message, StatusCode code = StatusCode::data_loss) {
    ASSERT_FALSE(weight.ok()) << "want: " << message;
    EXPECT_EQ(weight.status().message(), directory_.path() + ": " + message);
    EXPECT_EQ(weight.status().code(), code);
  }
  float at(const std::string& name, int64_t index) const { return values_.at(name)[static_cast<size_t>(index)]; }

  test::Random random_{5};
  test::SafetensorsWriter writer_;
  std::map<std::string, std::vector<float>> values_;
  const test::TemporaryDirectory directory_{testing::TempDir()};
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<WeightLoader> loader_;
  double progress_ = 0.0;
};

INSTANTIATE_TEST_SUITE_P(Types, WeightLoaderTest, testing::Values(DType::f32, DType::f16, DType::bf16),
                         [](const auto& type) { return dtype_name(type.param); });

TEST_P(WeightLoaderTest, WholeTensors) {
  open_with_large();
  const float* const large = values_["large"].data();
  for (const char* name : {"f32", "f16", "bf16"}) {
    expect(loader_->load(name, kRows, kCols), kRows, kCols, [&](int64_t r, int64_t c) { return at(name, r * kCols + c); });
  }
  expect(loader_->load("large", 700, 3001), 700, 3001, [&](int64_t r, int64_t c) { return large[r * 3001 + c]; });
  for (const char* name : {"vector", "vector16"}) {
    expect(loader_->load(name, 1, 8), 1, 8, [&](int64_t, int64_t c) { return at(name, c); });
  }
  expect(loader_->load("vector", 1, 8, {.add = 1.0f}), 1, 8, [&](int64_t, int64_t c) { return at("vector", c) + 1.0f; });
  EXPECT_EQ(loader_->load_values("vector16", 8).value(), values_["vector16"]);
  EXPECT_GT(progress_, 0.9);
  EXPECT_LT(progress_, 1.0);
}

TEST_P(WeightLoaderTest, PartsOneAfterAnother) {
  open_with_large();
  const float* const large = values_["large"].data();
  const auto f32 = [&](int64_t r, int64_t c) { return at("f32", r * kCols + c); };
  const auto more = [&](int64_t r, int64_t c) { return at("more", r * kCols + c); };
  expect(loader_->load_stacked({{"f32", 6}, {"more", 4}}, kCols), 10, kCols,
         [&](int64_t r, int64_t c) { return r < 6 ? f32(r, c) : more(r - 6, c); });
  expect(loader_->load_stacked({{"more", 2, 1}, {"f32", 1, 5}, {"more", 1}}, kCols), 4, kCols, [&](int64_t r, int64_t c) {
    return r < 2 ? more(r + 1, c) : r == 2 ? f32(5, c) : more(0, c);
  });
  expect(loader_->load_stacked({{"f32", 3, 0}, {"f32", 3, 1}}, kCols, {.row_step = 2}), 6, kCols,
         [&](int64_t r, int64_t c) { return r < 3 ? f32(2 * r, c) : f32(2 * (r - 3) + 1, c); });
  expect(loader_->load_stacked({{"large", 350, 1}}, 3001, {.row_step = 2}), 350, 3001,
         [&](int64_t r, int64_t c) { return large[(2 * r + 1) * 3001 + c]; });
  expect(loader_->load_joined({{"vector", 3, 5}, {"vector16", 8}}), 1, 11,
         [&](int64_t, int64_t c) { return c < 3 ? at("vector", c + 5) : at("vector16", c - 3); });
  expect(loader_->load_joined({{"vector16", 4, 1}}, {.add = -2.5f, .row_step = 2}), 1, 4,
         [&](int64_t, int64_t c) { return at("vector16", 2 * c + 1) - 2.5f; });
}

TEST_P(WeightLoaderTest, Transposed) {
  open();
  expect(loader_->load("f16", kCols, kRows, {.transposed = true}), kCols, kRows,
         [&](int64_t r, int64_t c) { return at("f16", c * kCols + r); });
  expect(loader_->load("large_transposed", 257, 130, {.transposed = true}), 257, 130,
         [&](int64_t r, int64_t c) { return at("large_transposed", c * 257 + r); });
  expect(loader_->load_stacked({{"bf16", 2, 3}, {"bf16", 1, 0}}, kRows, {.transposed = true}), 3, kRows,
         [&](int64_t r, int64_t c) { return at("bf16", c * kCols + (r < 2 ? r + 3 : 0)); });
}

TEST_P(WeightLoaderTest, Experts) {
  open();
  const auto expert = [&](const char* name, int64_t e, int64_t r, int64_t c) { return at(name, (e * kRows + r) * kCols + c); };
  expect(loader_->load("experts", kRows, kCols, {.experts = kExperts}), kExperts * kRows, kCols,
         [&](int64_t r, int64_t c) { return at("experts", r * kCols + c); });
  // Loads gate and up of each expert, from two tensors or from one in which their rows alternate.
  expect(loader_->load_stacked({{"experts", 6}, {"experts16", 2}}, kCols, {.experts = kExperts}), kExperts * 8, kCols,
         [&](int64_t r, int64_t c) {
           const int64_t e = r / 8, row = r % 8;
           return row < 6 ? expert("experts", e, row, c) : at("experts16", (e * 2 + row - 6) * kCols + c);
         });
  expect(loader_->load_stacked({{"experts", 3, 0}, {"experts", 3, 1}}, kCols, {.row_step = 2, .experts = kExperts}),
         kExperts * kRows, kCols, [&](int64_t r, int64_t c) {
           const int64_t e = r / kRows, row = r % kRows;
           return expert("experts", e, row < 3 ? 2 * row : 2 * (row - 3) + 1, c);
         });
  expect(loader_->load_stacked({{"experts_turned", 3, 0}, {"experts_turned", 3, 1}}, kCols,
                               {.transposed = true, .row_step = 2, .experts = kExperts}),
         kExperts * kRows, kCols, [&](int64_t r, int64_t c) {
           const int64_t e = r / kRows, row = r % kRows, file_row = row < 3 ? 2 * row : 2 * (row - 3) + 1;
           return at("experts_turned", (e * kCols + c) * kRows + file_row);
         });
  expect(loader_->load("experts_turned", kRows, kCols, {.transposed = true, .experts = kExperts}), kExperts * kRows, kCols,
         [&](int64_t r, int64_t c) { return at("experts_turned", (r / kRows * kCols + c) * kRows + r % kRows); });
  expect(loader_->load_joined({{"expert_bias", 3, 0}, {"expert_bias", 3, 1}}, {.row_step = 2, .experts = kExperts}), kExperts,
         kRows, [&](int64_t e, int64_t c) { return at("expert_bias", e * kRows + (c < 3 ? 2 * c : 2 * (c - 3) + 1)); });
}

TEST_P(WeightLoaderTest, RefusesWhatTheTensorsDoNotHave) {
  open();
  expect_refused(loader_->load("x", 2, 2), "the tensor x is missing", StatusCode::not_found);
  expect_refused(loader_->load("f32", kCols, kRows), "tensor f32 has shape [6, 5]: [5, 6] is expected");
  expect_refused(loader_->load("f32", kCols, kCols, {.transposed = true}), "tensor f32 has shape [6, 5]: [5, 5] is expected");
  expect_refused(loader_->load("vector", 1, 7), "tensor vector has shape [8]: [7] is expected");
  expect_refused(loader_->load("experts", 18, kCols), "tensor experts has shape [3, 6, 5]: [18, 5] is expected");
  expect_refused(loader_->load("experts", 6, kCols, {.experts = 2}), "tensor experts has shape [3, 6, 5]: [2, 6, 5] is expected");
  for (const Part& part : {Part{"f32", 7, 0}, Part{"f32", 1, 6}, Part{"f32", 2, 5}, Part{"f32", INT64_MAX, 1}}) {
    expect_refused(loader_->load_stacked({part}, kCols), str_cat("tensor f32 has shape [6, 5]: ", part.rows, " rows from ",
                                                                 part.first_row, " in steps of 1, of 5 elements is expected"));
  }
  expect_refused(loader_->load_stacked({{"f32", 4, 0}}, kCols, {.row_step = 2}),
                 "tensor f32 has shape [6, 5]: 4 rows from 0 in steps of 2, of 5 elements is expected");
  expect_refused(loader_->load_stacked({{"f32", 6}}, 6),
                 "tensor f32 has shape [6, 5]: 6 rows from 0 in steps of 1, of 6 elements is expected");
  expect_refused(loader_->load_joined({{"f32", 5}}),
                 "tensor f32 has shape [6, 5]: 5 rows from 0 in steps of 1, of 1 elements is expected");
  expect_refused(loader_->load_stacked({{"experts", 6}}, kCols, {.experts = 4}),
                 "tensor experts has shape [3, 6, 5]: 4 experts of 6 rows from 0 in steps of 1, of 5 elements is expected");
  expect_refused(loader_->load_joined({{"buffer", 2}}), "tensor buffer has type I64: supported are " + supported_ggml_types(),
                 StatusCode::unsupported);
  for (const auto& [part, step, experts] : {std::tuple<Part, int64_t, int64_t>{{"f32", 0, 0}, 1, 0},
                                            {{"f32", 1, -1}, 1, 0},
                                            {{"f32", 1, 0}, 0, 0},
                                            {{"f32", 1, 0}, 1, -1}}) {
    EXPECT_EQ(loader_->load_stacked({part}, kCols, {.row_step = step, .experts = experts}).status().code(),
              StatusCode::invalid_argument);
  }
  EXPECT_EQ(loader_->load_values("vector", 9).status().code(), StatusCode::data_loss);
}

TEST_P(WeightLoaderTest, ChecksAllTensorsAtOnce) {
  open();
  EXPECT_TRUE(loader_->has("f32"));
  EXPECT_FALSE(loader_->has("x"));
  loader_->expect("f32", {kRows, kCols});
  loader_->expect("vector16", {8});
  loader_->expect("vector", {1, 8});
  loader_->expect("experts", {kExperts, kRows, kCols});
  EXPECT_TRUE(loader_->check_expected().ok()) << loader_->check_expected().message();
  EXPECT_EQ(checkpoint_->unused_tensors().size(), checkpoint_->tensors().size()) << "nothing was loaded";

  const std::string where = directory_.path() + ": ";
  loader_->expect("buffer", {2});
  EXPECT_EQ(loader_->check_expected().message(),
            where + "tensors have a type that is not supported: 'buffer I64': supported are " + supported_ggml_types());
  EXPECT_EQ(loader_->check_expected().code(), StatusCode::unsupported);
  loader_->expect("f16", {kCols, kRows});
  EXPECT_EQ(loader_->check_expected().code(), StatusCode::data_loss);
  loader_->expect("x", {1});
  loader_->expect("y", {1});
  EXPECT_EQ(
      loader_->check_expected().message(),
      where +
          "tensors are missing: 'x' and 'y'; tensors have another shape: 'f16 [6, 5] instead of [5, 6]'; tensors have a type "
          "that is not supported: 'buffer I64': supported are " +
          supported_ggml_types());
  EXPECT_EQ(loader_->check_expected().code(), StatusCode::not_found);
}

// Quantised rows are whole blocks; a vector may be one.
TEST(WeightLoaderGguf, QuantisedTensors) {
  test::GgufWriter writer;
  test::Random random(8);
  std::vector<std::byte> blocks(4 * 2 * 34);  // 4 rows of 2 blocks
  for (std::byte& byte : blocks) byte = static_cast<std::byte>(random.bits());
  for (size_t block = 0; block < 8; ++block) blocks[block * 34 + 1] = std::byte{0x2c};  // scales that are finite
  writer.add_tensor("m", {64, 4}, test::gguf::kQ8_0, blocks);
  writer.add_tensor("v", {64}, test::gguf::kQ8_0, {blocks.begin(), blocks.begin() + 68});
  std::vector<float> values(256);
  ASSERT_TRUE(dequantize_rows(GgmlType::q8_0, blocks.data(), 4, 64, DType::f32, values.data(), 1).ok());
  const GgufCheckpoint checkpoint(GgufFile::from_bytes(writer.bytes(), "m.gguf").value());
  WeightLoader loader(checkpoint, DType::f32, {Device::cpu, 1}, {});

  const auto expect = [&](const Result<Weight>& weight, const std::vector<int64_t>& rows) {
    ASSERT_TRUE(weight.ok()) << weight.status().message();
    ASSERT_EQ(weight->rows * weight->cols, static_cast<int64_t>(rows.size()) * 64);
    for (size_t i = 0; i < rows.size() * 64; ++i) {
      EXPECT_EQ(static_cast<const float*>(weight->data)[i], values[static_cast<size_t>(rows[i / 64]) * 64 + i % 64]) << i;
    }
  };
  expect(loader.load("m", 4, 64), {0, 1, 2, 3});
  expect(loader.load_stacked({{"m", 1, 3}, {"m", 2, 1}}, 64), {3, 1, 2});
  expect(loader.load_stacked({{"m", 2, 0}, {"m", 2, 1}}, 64, {.row_step = 2}), {0, 2, 1, 3});
  expect(loader.load("v", 1, 64), {0});
  const std::string divided = "m.gguf: of tensor v of type Q8_0 rows or columns are needed that are parts of blocks";
  EXPECT_EQ(loader.load_joined({{"v", 32, 16}}).status().message(), divided);
  EXPECT_EQ(loader.load_joined({{"v", 16, 0}}).status().message(), divided);
  EXPECT_EQ(loader.load_joined({{"v", 32, 0}}, {.row_step = 2}).status().message(), divided);
  EXPECT_EQ(loader.load("m", 64, 4, {.transposed = true}).status().code(), StatusCode::unsupported);
}

// ---- Quantised matrices that stay so ----

struct Block {
  WeightFormat format;
  uint32_t type;                                  // in the file
  std::vector<std::pair<size_t, size_t>> fields;  // bytes, and bytes of a piece: as weight_format.h describes the packed layout
};
const Block kBlocks[] = {{WeightFormat::q8_0, test::gguf::kQ8_0, {{2, 2}, {32, 4}}},
                         {WeightFormat::q4_0, test::gguf::kQ4_0, {{2, 2}, {16, 4}}},
                         {WeightFormat::q4_1, test::gguf::kQ4_1, {{2, 2}, {2, 2}, {16, 4}}},
                         {WeightFormat::q5_0, test::gguf::kQ5_0, {{2, 2}, {4, 4}, {16, 4}}},
                         {WeightFormat::q5_1, test::gguf::kQ5_1, {{2, 2}, {2, 2}, {4, 4}, {16, 4}}},
                         {WeightFormat::q4_k, test::gguf::kQ4_K, {{2, 2}, {2, 2}, {12, 1}, {128, 4}}},
                         {WeightFormat::q5_k, test::gguf::kQ5_K, {{2, 2}, {2, 2}, {12, 1}, {32, 4}, {128, 4}}},
                         {WeightFormat::q6_k, test::gguf::kQ6_K, {{128, 4}, {64, 4}, {16, 1}, {2, 2}}},
                         {WeightFormat::q2_k, test::gguf::kQ2_K, {{16, 1}, {64, 4}, {2, 2}, {2, 2}}},
                         {WeightFormat::q3_k, test::gguf::kQ3_K, {{32, 4}, {64, 4}, {12, 1}, {2, 2}}},
                         {WeightFormat::iq4_nl, test::gguf::kIQ4_NL, {{2, 2}, {16, 4}}},
                         {WeightFormat::iq4_xs, test::gguf::kIQ4_XS, {{2, 2}, {6, 1}, {128, 4}}},
                         {WeightFormat::mxfp4, test::gguf::kMXFP4, {{1, 1}, {16, 4}}}};

// Packs rows one byte at a time.
std::vector<std::byte> packed_rows(const Block& block, const std::vector<std::byte>& rows, size_t num_rows,
                                   size_t blocks_of_row) {
  size_t block_bytes = 0;
  for (const auto& [bytes, piece] : block.fields) block_bytes += bytes;
  std::vector<std::byte> packed((num_rows + 15) / 16 * 16 * blocks_of_row * block_bytes);
  for (size_t row = 0; row < num_rows; ++row) {
    for (size_t b = 0; b < blocks_of_row; ++b) {
      const std::byte* source = rows.data() + (row * blocks_of_row + b) * block_bytes;
      size_t target = (row / 16 * blocks_of_row + b) * 16 * block_bytes;
      for (const auto& [bytes, piece] : block.fields) {
        for (size_t i = 0; i < bytes; ++i) packed[target + i / piece * 16 * piece + row % 16 * piece + i % piece] = *source++;
        target += 16 * bytes;
      }
    }
  }
  return packed;
}

class PackedWeights : public testing::TestWithParam<Device> {
 protected:
  void SetUp() override {
    if (GetParam() != Device::cuda) return;
    if (const Status gpu = check_gpu(); !gpu.ok()) GTEST_SKIP() << gpu.message();
    stream_ = Stream::create().value();
    execution_ = {Device::cuda, 2, stream_.get()};
  }

  // Adds a tensor of `cols` columns with random bytes.
  void add(const std::string& name, const Block& block, uint64_t rows, uint64_t cols, uint64_t experts = 0) {
    const uint64_t count = std::max<uint64_t>(1, experts) * rows * cols;
    std::vector<std::byte>& bytes = bytes_[name];
    bytes.resize(count / static_cast<uint64_t>(weight_block_elements(block.format)) *
                 static_cast<uint64_t>(weight_block_bytes(block.format)));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random_.bits());
    if (block.format == WeightFormat::q8_0 || block.format == WeightFormat::q4_0) {
      const auto step = static_cast<size_t>(weight_block_bytes(block.format));
      for (size_t at = 1; at < bytes.size(); at += step) bytes[at] = std::byte{0x2c};  // finite scales: some are converted
    }
    writer_.add_tensor(name, experts > 0 ? std::vector<uint64_t>{cols, rows, experts} : std::vector<uint64_t>{cols, rows},
                       block.type, bytes);
  }
  WeightLoader& open(bool keep_quantized = true, DType dtype = DType::bf16) {
    if (!checkpoint_) checkpoint_.emplace(GgufFile::from_bytes(writer_.bytes(), "m.gguf").value());
    loader_.emplace(*checkpoint_, dtype, execution_, std::function<void(double)>(), keep_quantized);
    return *loader_;
  }
  std::vector<std::byte> on_host(const void* data, size_t num_bytes) {
    std::vector<std::byte> bytes(num_bytes);
    EXPECT_TRUE(copy_to_host(bytes.data(), data, static_cast<int64_t>(num_bytes), execution_).ok());
    return bytes;
  }
  static const Block& block_of(WeightFormat format) {
    return *std::find_if(std::begin(kBlocks), std::end(kBlocks), [&](const Block& block) { return block.format == format; });
  }

  Stream stream_;
  Execution execution_{Device::cpu, 2};
  test::Random random_{11};
  test::GgufWriter writer_;
  std::map<std::string, std::vector<std::byte>> bytes_;
  std::optional<GgufCheckpoint> checkpoint_;
  std::optional<WeightLoader> loader_;
};

INSTANTIATE_TEST_SUITE_P(Devices, PackedWeights, testing::Values(Device::cpu, Device::cuda),
                         [](const auto& device) { return device_name(device.param); });

TEST_P(PackedWeights, HaveTheLayoutOfEveryFormat) {
  for (const Block& block : kBlocks) {
    add(str_cat("m.", weight_format_name(block.format)), block, 35, 512);  // the last group has 3 rows
    add(str_cat("n.", weight_format_name(block.format)), block, 16, 512);
  }
  WeightLoader& loader = open();
  std::vector<WeightFormat> formats;
  int64_t num_bytes = 0;
  for (const Block& block : kBlocks) {
    const std::string name = weight_format_name(block.format);
    const auto weight = loader.load_stacked({{"m." + name, 35}, {"n." + name, 16}}, 512);
    ASSERT_TRUE(weight.ok()) << weight.status().message();
    EXPECT_EQ(weight->rows, 51);
    EXPECT_EQ(weight->cols, 512);
    EXPECT_EQ(weight->dtype, DType::bf16);
    ASSERT_EQ(weight->packed.num_segments, 2);
    for (size_t s = 0; s < 2; ++s) {
      const PackedRows& segment = weight->packed.segments[s];
      EXPECT_EQ(segment.format, block.format);
      EXPECT_EQ(segment.rows, s == 0 ? 35 : 16);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(segment.data) % 256, 0u);
      const std::vector<std::byte> want =
          packed_rows(block, bytes_[(s == 0 ? "m." : "n.") + name], static_cast<size_t>(segment.rows),
                      static_cast<size_t>(512 / weight_block_elements(block.format)));
      EXPECT_TRUE(on_host(segment.data, want.size()) == want) << name << ", segment " << s;
      num_bytes += static_cast<int64_t>(want.size());
    }
    formats.push_back(block.format);
    EXPECT_EQ(loader.formats(), formats);
  }
  EXPECT_EQ(loader.weight_bytes(), num_bytes);
  EXPECT_EQ(loader.types_text(), "q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k, q6_k, q2_k, q3_k, iq4_nl, iq4_xs and mxfp4");
}

// A matrix that is packed in several pieces, of which the last has a part of a group.
TEST_P(PackedWeights, ArePackedInPieces) {
  const Block& block = block_of(WeightFormat::q4_1);
  add("m", block, 5003, 1024);
  const auto weight = open().load("m", 5003, 1024);
  ASSERT_TRUE(weight.ok()) << weight.status().message();
  const std::vector<std::byte> want = packed_rows(block, bytes_["m"], 5003, 32);
  EXPECT_TRUE(on_host(weight->packed.segments[0].data, want.size()) == want);
  EXPECT_EQ(loader_->weight_bytes(), 5008 * 32 * 20);
}

// Of experts each part is a segment, with its rows of all experts: from one tensor, from one for each expert, and every second row.
TEST_P(PackedWeights, OfExperts) {
  const Block &four = block_of(WeightFormat::q4_0), &six = block_of(WeightFormat::q6_k);
  add("gate", four, 16, 512, 3);
  add("up", six, 32, 512, 3);
  add("both", four, 32, 512, 3);
  for (int e = 0; e < 3; ++e) add(str_cat("e", e, ".w1"), six, 48, 512);
  const auto expect_segment = [&](const Weight& weight, int32_t s, const Block& block, const std::vector<std::byte>& rows) {
    const PackedRows& segment = weight.packed.segments[s];
    EXPECT_EQ(segment.format, block.format);
    const auto of_row = static_cast<size_t>(512 / weight_block_elements(block.format));
    const std::vector<std::byte> want = packed_rows(block, rows, static_cast<size_t>(segment.rows), of_row);
    EXPECT_EQ(want.size() / 16, rows.size() / 16);
    EXPECT_TRUE(on_host(segment.data, want.size()) == want) << "segment " << s;
  };
  WeightLoader& loader = open();
  const auto stacked = loader.load_stacked({{"gate", 16}, {"up", 32}}, 512, {.experts = 3});
  ASSERT_TRUE(stacked.ok()) << stacked.status().message();
  ASSERT_EQ(stacked->packed.num_segments, 2);
  EXPECT_EQ(stacked->rows, 3 * 48);
  expect_segment(*stacked, 0, four, bytes_["gate"]);
  expect_segment(*stacked, 1, six, bytes_["up"]);

  const auto apart = loader.load_stacked({{"e{e}.w1", 48}}, 512, {.experts = 3});
  ASSERT_TRUE(apart.ok()) << apart.status().message();
  std::vector<std::byte> joined;
  for (int e = 0; e < 3; ++e) {
    const std::vector<std::byte>& of = bytes_[str_cat("e", e, ".w1")];
    joined.insert(joined.end(), of.begin(), of.end());
  }
  ASSERT_EQ(apart->packed.num_segments, 1);
  expect_segment(*apart, 0, six, joined);

  const auto halves = loader.load_stacked({{"both", 16, 0}, {"both", 16, 1}}, 512, {.row_step = 2, .experts = 3});
  ASSERT_TRUE(halves.ok()) << halves.status().message();
  ASSERT_EQ(halves->packed.num_segments, 2);
  const size_t row_bytes = 512 / 32 * 18;
  for (size_t s = 0; s < 2; ++s) {
    std::vector<std::byte> rows;
    for (size_t row = s; row < 3 * 32; row += 2) {
      const auto begin = bytes_["both"].begin() + static_cast<std::ptrdiff_t>(row * row_bytes);
      rows.insert(rows.end(), begin, begin + static_cast<std::ptrdiff_t>(row_bytes));
    }
    expect_segment(*halves, static_cast<int32_t>(s), four, rows);
  }
}

// Columns that are whole blocks stay packed, others are converted. (Every format, and experts: shard_test.)
TEST_P(PackedWeights, OfColumns) {
  const Block& block = block_of(WeightFormat::q4_0);
  add("m", block, 35, 512);
  const std::vector<std::byte>& bytes = bytes_["m"];
  WeightLoader& loader = open();
  const auto half = loader.load("m", 35, 256, {.first_col = 256, .tensor_cols = 512});
  ASSERT_TRUE(half.ok()) << half.status().message();
  ASSERT_EQ(half->packed.num_segments, 1);
  std::vector<std::byte> rows;
  for (size_t row = 0; row < 35; ++row) {  // a row is 16 blocks of 18 bytes
    const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>((row * 16 + 8) * 18);
    rows.insert(rows.end(), begin, begin + 8 * 18);
  }
  const std::vector<std::byte> want = packed_rows(block, rows, 35, 8);
  EXPECT_TRUE(on_host(half->packed.segments[0].data, want.size()) == want);
  EXPECT_EQ(loader.weight_bytes(), 48 * 8 * 18);

  std::vector<BFloat16> values(35 * 512);
  ASSERT_TRUE(dequantize_rows(GgmlType::q4_0, bytes.data(), 35, 512, DType::bf16, values.data(), 1).ok());
  const auto inside = loader.load("m", 35, 50, {.first_col = 100, .tensor_cols = 512});
  ASSERT_TRUE(inside.ok()) << inside.status().message();
  EXPECT_EQ(inside->packed.num_segments, 0);
  const std::vector<std::byte> got = on_host(inside->data, 35 * 50 * 2);
  for (size_t row = 0; row < 35; ++row) {
    EXPECT_EQ(std::memcmp(got.data() + row * 100, &values[row * 512 + 100], 100), 0) << "row " << row;
  }
}

TEST_P(PackedWeights, TheOthersAreConverted) {
  const Block& block = block_of(WeightFormat::q8_0);
  add("m", block, 32, 64);
  add("experts", block, 6, 64, 2);
  add("mixed0", block, 16, 64);
  add("mixed1", block_of(WeightFormat::q4_0), 16, 64);
  writer_.add_tensor("dense", {64, 4}, test::gguf::kF32, std::vector<std::byte>(4 * 64 * 4));
  writer_.add_tensor("norm", {64}, test::gguf::kF32, std::vector<std::byte>(64 * 4));
  writer_.add_tensor("narrow", {16, 4}, test::gguf::kF32, std::vector<std::byte>(4 * 16 * 4));
  const auto expect_dense = [&](WeightLoader& loader, const Result<Weight>& weight, int64_t rows, int64_t cols) {
    ASSERT_TRUE(weight.ok()) << weight.status().message();
    EXPECT_EQ(weight->packed.num_segments, 0);
    EXPECT_EQ(weight->rows, rows);
    EXPECT_EQ(weight->cols, cols);
    EXPECT_TRUE(loader.formats().empty());
    EXPECT_EQ(loader.weight_bytes(), rows * cols * 2);
    EXPECT_EQ(loader.types_text(), "bfloat16");
  };
  const auto check = [&](int64_t rows, int64_t cols, const auto& load) {
    WeightLoader& loader = open();
    expect_dense(loader, load(loader), rows, cols);
    loader.set_measuring(true);
    expect_dense(loader, load(loader), rows, cols);
  };
  check(12, 64, [](WeightLoader& of) { return of.load("experts", 6, 64, {.experts = 2}); });  // no whole groups
  check(32, 64, [](WeightLoader& of) { return of.load_stacked({{"mixed{e}", 16}}, 64, {.experts = 2}); });
  check(32, 64, [](WeightLoader& of) { return of.load("m", 32, 64, {.convert = true}); });
  check(36, 64, [](WeightLoader& of) { return of.load_stacked({{"m", 32}, {"dense", 4}}, 64); });
  check(5, 64, [](WeightLoader& of) {
    return of.load_stacked({{"m", 1}, {"m", 1, 2}, {"m", 1, 4}, {"m", 1, 6}, {"m", 1, 8}}, 64);
  });
  check(4, 16, [](WeightLoader& of) { return of.load("narrow", 4, 16); });
  check(1, 64, [](WeightLoader& of) { return of.load("norm", 1, 64); });
  WeightLoader& converting = open(false);
  expect_dense(converting, converting.load("m", 32, 64), 32, 64);
}

TEST_P(PackedWeights, AreMeasuredBeforeTheyAreLoaded) {
  const Block& block = block_of(WeightFormat::q4_k);
  add("m", block, 35, 256);
  add("experts", block, 6, 256, 2);
  writer_.add_tensor("norm", {256}, test::gguf::kF32, std::vector<std::byte>(256 * 4));
  WeightLoader& loader = open();
  const auto load_all = [&] {
    EXPECT_TRUE(loader.load("norm", 1, 256).ok());
    EXPECT_TRUE(loader.load("m", 35, 256).ok());
    EXPECT_EQ(loader.types_text(), "q4_k");
    EXPECT_TRUE(loader.load("experts", 6, 256, {.experts = 2}).ok());
    EXPECT_EQ(loader.weight_bytes(), 256 * 2 + 48 * 144 + 12 * 256 * 2);
    EXPECT_EQ(loader.types_text(), "q4_k and bfloat16");
    EXPECT_EQ(loader.formats(), std::vector<WeightFormat>{WeightFormat::q4_k});
  };
  loader.set_measuring(true);
  load_all();
  EXPECT_TRUE(loader.check_memory(loader.weight_bytes()).ok());
  const Status status = loader.check_memory(loader.weight_bytes() - 1);
  EXPECT_EQ(status.code(), StatusCode::resource_exhausted);
  EXPECT_EQ(status.message(), str_cat("m.gguf: its weights need 0 MB as q4_k and bfloat16, but only 0 MB of ",
                                      GetParam() == Device::cpu ? "memory" : "GPU memory", " are available"));
  EXPECT_TRUE(loader.take_weights().empty()) << "measuring allocates";
  loader.set_measuring(false);
  EXPECT_EQ(loader.weight_bytes(), 0);
  EXPECT_TRUE(loader.formats().empty());
  load_all();
  EXPECT_FALSE(loader.take_weights().empty());
}

// A large weight has memory of its own, and small ones between large ones share a block.
TEST_P(PackedWeights, WasteLittleMemory) {
  const Block& block = block_of(WeightFormat::q8_0);
  add("m", block, 16384, 4352);  // 76 MB
  const auto wasted_bytes = [&](const std::vector<int64_t>& rows_of_weights) {
    WeightLoader& loader = open();
    for (const int64_t rows : rows_of_weights) {
      const auto weight = loader.load_stacked({{"m", rows}}, 4352);
      EXPECT_TRUE(weight.ok()) << weight.status().message();
    }
    int64_t allocated = 0;
    for (const Buffer& buffer : loader.take_weights()) allocated += buffer.size_bytes();
    return allocated - loader.weight_bytes();
  };
  EXPECT_EQ(wasted_bytes({4096, 4096}), 0);                              // 19 MB each
  EXPECT_LT(wasted_bytes({16384, 16, 16384, 16}), (int64_t{64} << 20));  // one block
}

}  // namespace
}  // namespace prologue
