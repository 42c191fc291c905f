#include "benchmarks/engine/random_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>

#include <prologue/engine/engine.h>
#include <prologue/engine/gguf/dequantize.h>
#include <prologue/engine/gguf/gguf.h>
#include <prologue/engine/gguf/tokenizer_data.h>
#include <prologue/engine/model/load_model.h>
#include <prologue/engine/tokenizer/tokenizer.h>

#include "tests/oracle/weight_blocks.h"

namespace prologue::bench {
namespace {

ModelShape small() { return {"small", 2, 64, 96, 4, 2, 16, 300, 512, 10000.0f, false, "smollm"}; }

class RandomModel : public testing::Test {
 protected:
  std::string write(const ModelShape& shape, uint64_t seed, int32_t num_threads, std::string_view format = "bfloat16") {
    const Status status = write_random_model(shape, seed, path_, num_threads, format);
    EXPECT_TRUE(status.ok()) << status.message();
    std::ostringstream bytes;
    bytes << std::ifstream(path_, std::ios::binary).rdbuf();
    return bytes.str();
  }
  void remove() const { std::filesystem::remove_all(path_); }
  ~RandomModel() override { remove(); }

  const std::string path_ = testing::TempDir() + testing::UnitTest::GetInstance()->current_test_info()->name() + ".gguf";
};

TEST_F(RandomModel, IsLoadedWithNothingLeftOver) {
  for (const bool tied : {false, true}) {
    ModelShape shape = small();
    shape.tied_output = tied;
    write(shape, 1, 2);
    const auto file = Checkpoint::open(path_);
    ASSERT_TRUE(file.ok()) << file.status().message();
    const auto model = load_model(**file, DType::bf16, {}, {});
    ASSERT_TRUE(model.ok()) << model.status().message();
    EXPECT_EQ(model->config.num_layers, 2);
    EXPECT_EQ(model->config.head_dim, 16);
    EXPECT_EQ(model->config.vocab_size, 300);
    EXPECT_EQ((*file)->has_tensor("output.weight"), !tied);
  }
}

TEST_F(RandomModel, WeightsAreNormalAndScaled) {
  ModelShape shape = small();
  shape.vocab_size = 4096;
  write(shape, 1, 1);
  const auto file = GgufFile::open(path_);
  ASSERT_TRUE(file.ok()) << file.status().message();
  const auto tensor = file->tensor("token_embd.weight", {64, 4096});
  ASSERT_TRUE(tensor.ok()) << tensor.status().message();
  std::vector<uint16_t> bits(64 * 4096);
  ASSERT_TRUE(file->read(**tensor, 0, (*tensor)->size_bytes, bits.data()).ok());
  double sum = 0.0, squares = 0.0, fourths = 0.0;
  for (const uint16_t each : bits) {
    const double value = to_float(BFloat16{each}) * std::sqrt(64.0);
    sum += value;
    squares += value * value;
    fourths += value * value * value * value;
  }
  const auto count = static_cast<double>(bits.size());
  EXPECT_NEAR(sum / count, 0.0, 4.0 / std::sqrt(count));
  EXPECT_NEAR(squares / count, 1.0, 0.02);
  EXPECT_NEAR(fourths / count, 3.0, 0.2);  // of a uniform distribution: 1.8
}

// In a block format, every matrix has the mean and the deviation of the others, over blocks and over the places of a block.
TEST_F(RandomModel, BlocksHaveTheDeviationOfBFloat16) {
  ModelShape shape = small();
  shape.hidden_size = 256;
  shape.ffn_size = 128;
  shape.vocab_size = 4000;
  for (const WeightFormat format :
       {WeightFormat::q8_0, WeightFormat::q4_0, WeightFormat::q4_1, WeightFormat::q5_0, WeightFormat::q5_1, WeightFormat::q4_k,
        WeightFormat::q5_k, WeightFormat::q6_k, WeightFormat::q2_k, WeightFormat::q3_k, WeightFormat::iq4_nl,
        WeightFormat::iq4_xs, WeightFormat::mxfp4, WeightFormat::nvfp4}) {
    SCOPED_TRACE(weight_format_name(format));
    write(shape, 1, 2, weight_format_name(format));
    const auto file = Checkpoint::open(path_);
    ASSERT_TRUE(file.ok()) << file.status().message();
    const TensorInfo* const tensor = (*file)->tensor("output.weight");
    ASSERT_NE(tensor, nullptr);
    ASSERT_EQ(tensor->shape, (std::vector<int64_t>{4000, 256}));
    std::string name(tensor->type_name);
    std::transform(name.begin(), name.end(), name.begin(), [](char c) { return static_cast<char>(std::tolower(c)); });
    EXPECT_EQ(name, weight_format_name(format));
    std::vector<uint8_t> bytes(static_cast<size_t>(tensor->size_bytes));  // NVFP4 with the tensor's scale in each block
    ASSERT_TRUE((*file)->read(*tensor, 0, tensor->size_bytes, bytes.data()).ok());
    const int64_t row_bytes = 256 / weight_block_elements(format) * weight_block_bytes(format);
    std::vector<double> sums(256), squares(256);  // by column
    for (int64_t row = 0; row < 4000; ++row) {
      for (int64_t column = 0; column < 256; ++column) {
        const double value = test::oracle::weight_value(format, bytes.data() + row * row_bytes, column).value() * 16.0;
        ASSERT_LT(std::fabs(value), 6.0);
        sums[static_cast<size_t>(column)] += value;
        squares[static_cast<size_t>(column)] += value * value;
      }
    }
    // A square has a deviation of at most 2, and weights of a block share their scale.
    EXPECT_NEAR(std::accumulate(squares.begin(), squares.end(), 0.0) / (256 * 4000.0), 1.0, 0.02);
    EXPECT_NEAR(std::accumulate(sums.begin(), sums.end(), 0.0) / (256 * 4000.0), 0.0, 0.005);
    for (size_t column = 0; column < 256; ++column) {
      EXPECT_NEAR(sums[column] / 4000.0, 0.0, 0.09) << column;
      EXPECT_NEAR(squares[column] / 4000.0, 1.0, 0.17) << column;
    }
  }
}

// llama.cpp's mixture, by hand for 16 layers.
TEST_F(RandomModel, TheMixtureHasTheFormatsOfLlamaCpp) {
  ModelShape shape = small();
  shape.num_layers = 16;
  shape.hidden_size = 256;
  shape.ffn_size = 512;
  const std::vector<int64_t> finer = {0, 1, 4, 7, 10, 13, 14, 15};
  for (const bool tied : {false, true}) {
    shape.tied_output = tied;
    write(shape, 1, 2, "q4_k_m");
    const auto file = Checkpoint::open(path_);
    ASSERT_TRUE(file.ok()) << file.status().message();
    for (const TensorInfo& tensor : (*file)->tensors()) {
      if (tensor.shape.size() == 1) continue;
      bool is_finer = tensor.name == (tied ? "token_embd.weight" : "output.weight");
      for (const int64_t layer : finer) {
        for (const char* of : {"attn_v", "ffn_down"})
          is_finer = is_finer || tensor.name == str_cat("blk.", layer, ".", of, ".weight");
      }
      // Q has 64 columns of output here: attn_output's rows are no whole blocks of 256.
      const bool is_narrow = tensor.name.ends_with("attn_output.weight");
      EXPECT_EQ(std::string(tensor.type_name), is_narrow ? "Q5_0" : is_finer ? "Q6_K" : "Q4_K") << tensor.name;
    }
  }
}

// Every format is loaded and generates, with weights as the file has them; so does the mixture in a shape of narrow rows.
TEST_F(RandomModel, EveryFormatGenerates) {
  const auto generate = [&](const ModelShape& shape, const std::string& format) {
    SCOPED_TRACE(format);
    remove();
    write(shape, 1, 2, format);
    EngineOptions options;
    options.model_path = path_;
    options.device = Device::cpu;
    options.num_threads = 2;
    const auto engine = Engine::load(options);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    if (!engine.ok()) return std::string();
    Request request;
    request.prompt = {30, 40, 50, 60};
    request.max_tokens = 8;
    request.ignore_eos = true;
    const auto completions = (*engine)->generate({&request, 1});
    EXPECT_TRUE(completions.ok()) << completions.status().message();
    if (completions.ok()) {
      EXPECT_TRUE(completions->front().status.ok()) << completions->front().status.message();
      EXPECT_EQ(completions->front().tokens.size(), 8u);
    }
    const auto score = (*engine)->score(request.prompt, std::vector<int32_t>{7, 8, 9});
    EXPECT_TRUE(score.ok()) << score.status().message();
    // Logits of a random model are about normal: no token is certain or impossible.
    if (score.ok()) {
      EXPECT_LT(score->perplexity, 50.0 * static_cast<double>(shape.vocab_size));
    }
    return (*engine)->weight_types();
  };
  ModelShape wide = small();
  wide.hidden_size = 256;
  wide.ffn_size = 512;
  wide.num_q_heads = 16;
  for (const std::string& format : model_formats()) {
    const bool huggingface =
        format.starts_with("f8_e4m3") || format == "i8" || format.starts_with("i4_") || format == "nvfp4_modelopt";
    const std::string held = format == "f8_e4m3_rows" ? "f8_e4m3" : format == "nvfp4_modelopt" ? "nvfp4" : format;
    const std::string want = format == "bfloat16" ? "float32"
                             : format == "q4_k_m" ? "q4_k and q6_k"
                             : huggingface        ? held + " and float32"  // the embedding
                                                  : format;
    EXPECT_EQ(generate(wide, format), want);
  }
  ModelShape mixture = wide;
  mixture.num_experts = 3, mixture.experts_per_token = 2;
  for (const auto& [format, want] : {std::pair("bfloat16", "float32"),
                                     {"mxfp4", "mxfp4 and float32"},
                                     {"nvfp4", "nvfp4 and float32"},
                                     {"q4_k_m", "q4_k, q6_k and float32"}}) {
    EXPECT_EQ(generate(mixture, format), want);  // the router is not quantised
  }
  const auto tiny =
      std::find_if(model_shapes().begin(), model_shapes().end(), [](const ModelShape& shape) { return shape.name == "tiny"; });
  ASSERT_NE(tiny, model_shapes().end());
  EXPECT_EQ(generate(*tiny, "q4_k_m"), "q8_0 and q5_0");
}

// The values are those of the checkpoint: (code - zero point) * scale.
TEST_F(RandomModel, MatricesOf4BitsHaveTheDeviationOfBFloat16) {
  ModelShape shape = small();
  shape.hidden_size = 256;
  shape.ffn_size = 1504;  // the last group of 64 or 128 has fewer channels
  for (const std::string format : {"i4_32", "i4_64", "i4_128", "nvfp4_modelopt"}) {
    SCOPED_TRACE(format);
    remove();
    write(shape, 1, 2, format);
    const auto directory = Checkpoint::open(path_);
    ASSERT_TRUE(directory.ok()) << directory.status().message();
    for (const auto& [name, rows, columns] :
         {std::tuple("model.layers.1.mlp.gate_proj.weight", 1504, 256), {"model.layers.0.mlp.down_proj.weight", 256, 1504}}) {
      const TensorInfo* const tensor = (*directory)->tensor(name);
      ASSERT_NE(tensor, nullptr);
      EXPECT_EQ(tensor->type, format == "nvfp4_modelopt"             ? columns == 1504 ? GgmlType::f32 : GgmlType::nvfp4_blocks
                              : columns == 1504 || format == "i4_32" ? GgmlType::i4_32
                              : format == "i4_64"                    ? GgmlType::i4_64
                                                                     : GgmlType::i4_128);
      std::vector<std::byte> bytes(static_cast<size_t>(tensor->size_bytes));
      std::vector<float> values(static_cast<size_t>(1504 * 256));
      ASSERT_TRUE((*directory)->read(*tensor, 0, tensor->size_bytes, bytes.data()).ok());
      ASSERT_TRUE(dequantize_rows(tensor->type, bytes.data(), rows, columns, DType::f32, values.data(), 1).ok());
      double sum = 0.0, squares = 0.0;
      for (const float each : values) {
        const double value = static_cast<double>(each) * std::sqrt(static_cast<double>(columns));
        sum += value, squares += value * value;
      }
      EXPECT_NEAR(sum / (1504.0 * 256.0), 0.0, 0.01);
      EXPECT_NEAR(squares / (1504.0 * 256.0), 1.0, 0.05);
    }
  }
}

// The values are those of the checkpoint: code * scale.
TEST_F(RandomModel, MatricesOf8BitsHaveTheDeviationOfBFloat16) {
  ModelShape shape = small();
  shape.hidden_size = 256;
  shape.ffn_size = 1500;  // the last block of scales has fewer rows, and the rows of the last projection are not whole blocks
  for (const std::string format : {"f8_e4m3", "f8_e4m3_rows", "i8"}) {
    SCOPED_TRACE(format);
    remove();
    write(shape, 1, 2, format);
    const auto directory = Checkpoint::open(path_);
    ASSERT_TRUE(directory.ok()) << directory.status().message();
    EXPECT_EQ((*directory)->tensor("model.embed_tokens.weight")->type, GgmlType::bf16);
    EXPECT_EQ((*directory)->quantizes_activations(), format != "i8");
    EXPECT_EQ((*directory)->tensor("model.layers.1.mlp.gate_proj.weight")->scaling, format == "f8_e4m3" ? WeightScaling::squares
                                                                                    : format == "f8_e4m3_rows"
                                                                                        ? WeightScaling::rows
                                                                                        : WeightScaling::blocks);
    for (const auto& [name, rows, columns] :
         {std::tuple("model.layers.1.mlp.gate_proj.weight", 1500, 256), {"model.layers.0.mlp.down_proj.weight", 256, 1500}}) {
      const TensorInfo* const tensor = (*directory)->tensor(name);
      ASSERT_NE(tensor, nullptr);
      EXPECT_EQ(tensor->type, columns == 1500 ? GgmlType::f32 : format == "i8" ? GgmlType::i8 : GgmlType::f8_e4m3);
      std::vector<std::byte> bytes(static_cast<size_t>(tensor->size_bytes));
      std::vector<float> values(static_cast<size_t>(1500 * 256));
      ASSERT_TRUE((*directory)->read(*tensor, 0, tensor->size_bytes, bytes.data()).ok());
      ASSERT_TRUE(dequantize_rows(tensor->type, bytes.data(), rows, columns, DType::f32, values.data(), 1).ok());
      double sum = 0.0, squares = 0.0;
      for (const float each : values) {
        const double value = static_cast<double>(each) * std::sqrt(static_cast<double>(columns));
        sum += value, squares += value * value;
      }
      EXPECT_NEAR(sum / (1500.0 * 256.0), 0.0, 0.01);
      EXPECT_NEAR(squares / (1500.0 * 256.0), 1.0, format == "f8_e4m3" ? 0.35 : 0.1);  // few blocks have a scale of their own
    }
  }
}

TEST_F(RandomModel, TheSameSeedGivesTheSameBytesWithAnyThreads) {
  ModelShape shape = small();
  shape.vocab_size = 70000;  // more than one piece
  const std::string one = write(shape, 1, 1), three = write(shape, 1, 3), other = write(shape, 2, 1);
  EXPECT_EQ(one, three);
  EXPECT_EQ(one.size(), other.size());
  EXPECT_NE(one, other);
  const std::string first_row = one.substr(one.size() - 70000 * 64 * 2, 128);  // of output.weight, the last tensor
  EXPECT_EQ(one.find(first_row), one.size() - 70000 * 64 * 2);
  EXPECT_EQ(one.rfind(first_row), one.find(first_row)) << "pieces repeat each other";

  shape.hidden_size = 256;
  const std::string blocks = write(shape, 1, 1, "q4_k_m");
  EXPECT_EQ(blocks, write(shape, 1, 3, "q4_k_m"));
  EXPECT_NE(blocks, write(shape, 2, 1, "q4_k_m"));
  const std::string first_block = blocks.substr(blocks.size() - 70000 * 210, 210);
  EXPECT_EQ(blocks.find(first_block), blocks.size() - 70000 * 210);
  EXPECT_EQ(blocks.rfind(first_block), blocks.find(first_block)) << "pieces repeat each other";
}

TEST_F(RandomModel, TheTokenizerEncodesEveryByte) {
  write(small(), 1, 1);
  auto data = read_tokenizer_data(path_);
  ASSERT_TRUE(data.ok()) << data.status().message();
  const auto tokenizer = Tokenizer::create(std::move(*data));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ(tokenizer->vocab_size(), 300);
  std::string text = "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80";
  for (char c = 0; c >= 0 && c < 0x7f; ++c) text += c;
  for (int c = 0x80; c <= 0xbf; ++c) text += std::string("\xc3") + static_cast<char>(c);
  const auto ids = tokenizer->encode(text, false, false);
  ASSERT_TRUE(ids.ok()) << ids.status().message();
  EXPECT_EQ(ids->size(), text.size());
  EXPECT_EQ(tokenizer->decode(*ids), text);
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{259, 260}), " aaaa baaa");
}

TEST_F(RandomModel, WhatCannotBeWrittenIsAnError) {
  ModelShape shape = small();
  EXPECT_EQ(write_random_model(shape, 1, "/no/such/folder/model.gguf", 1).message(),
            "/no/such/folder/model.gguf: this file cannot be written: No such file or directory");
  EXPECT_EQ(write_random_model(shape, 1, "/dev/full", 2).message(),
            "/dev/full: this file cannot be written: No space left on device");
  EXPECT_EQ(
      write_random_model(shape, 1, path_, 1, "q1_0").message(),
      "the format of the weights is q1_0: it must be bfloat16, a block format of GGUF, q4_k_m, f8_e4m3, f8_e4m3_rows, i8, i4_32, "
      "i4_64, i4_128 or nvfp4_modelopt");
  ModelShape mixture = shape;
  mixture.name = "mixture", mixture.num_experts = 4, mixture.experts_per_token = 2;
  EXPECT_EQ(write_random_model(mixture, 1, path_, 1, "i8").message(),
            "mixture has experts: as i8 only models without experts are written");
  EXPECT_EQ(
      write_random_model(shape, 1, "/dev/null/model", 1, "i8").message().find("/dev/null/model: this directory cannot be made: "),
      0u);
  shape.hidden_size = 68;
  EXPECT_EQ(write_random_model(shape, 1, path_, 1, "i4_32").message(),
            "a matrix has 68 rows or columns: i4_32 needs multiples of 8");
  shape.hidden_size = 80;
  EXPECT_EQ(write_random_model(shape, 1, path_, 1, "q4_k").message(),
            "token_embd.weight has rows of 80 weights: blocks of q5_0 have 32");
  shape.vocab_size = 258;
  EXPECT_EQ(write_random_model(shape, 1, path_, 1).message(),
            "the vocabulary has 258 tokens: it must have at least 259, the bytes and three markers");
}

TEST(ModelShapes, HaveTheirModelsParameters) {
  const auto parameters = [](const ModelShape& s) {
    const int64_t attention = s.hidden_size * (2 * s.num_q_heads + 2 * s.num_kv_heads) * s.head_dim;
    const int64_t layer = attention + 3 * s.hidden_size * s.ffn_size + 2 * s.hidden_size;
    return s.vocab_size * s.hidden_size * (s.tied_output ? 1 : 2) + s.num_layers * layer + s.hidden_size;
  };
  ASSERT_GE(model_shapes().size(), 3u);  // as their model cards state them
  EXPECT_EQ(parameters(model_shapes()[0]), 134515008);
  EXPECT_EQ(parameters(model_shapes()[1]), 1235814400);
  EXPECT_EQ(parameters(model_shapes()[2]), 8030261248);
}

}  // namespace
}  // namespace prologue::bench
