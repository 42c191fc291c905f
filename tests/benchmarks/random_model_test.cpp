#include "benchmarks/engine/random_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <sstream>

#include <prologue/engine/gguf/gguf.h>
#include <prologue/engine/gguf/tokenizer_data.h>
#include <prologue/engine/model/load_model.h>
#include <prologue/engine/tokenizer/tokenizer.h>

namespace prologue::bench {
namespace {

ModelShape small() { return {"small", 2, 64, 96, 4, 2, 16, 300, 512, 10000.0f, false, "smollm"}; }

class RandomModel : public testing::Test {
 protected:
  std::string write(const ModelShape& shape, uint64_t seed, int32_t num_threads) {
    const Status status = write_random_model(shape, seed, path_, num_threads);
    EXPECT_TRUE(status.ok()) << status.message();
    std::ostringstream bytes;
    bytes << std::ifstream(path_, std::ios::binary).rdbuf();
    return bytes.str();
  }
  ~RandomModel() override { std::remove(path_.c_str()); }

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
