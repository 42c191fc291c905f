// Hugging Face directories of GPT-OSS whose experts are in MXFP4: what is read, what stays packed, and the sentence that each broken one gets.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <prologue/engine/checkpoint/checkpoint.h>
#include <prologue/engine/engine.h>

#include "tests/support/random.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/tiny_directory.h"

namespace prologue {
namespace {

using test::Random;
using test::SafetensorsWriter;
using test::TemporaryDirectory;

constexpr int64_t kExperts = 3, kHidden = 64, kWidth = 64;  // equal: a matrix that is transposed has the same shape

// Weights [experts, rows, cols] as the file has them, and their values by the text of OCP's formats.
struct Mxfp4 {
  std::vector<uint8_t> blocks, scales;
  std::vector<float> values;
};

Mxfp4 make(int64_t rows, int64_t cols, Random& random) {
  constexpr float kValues[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  Mxfp4 weight;
  for (int64_t block = 0; block < kExperts * rows * cols / 32; ++block) {
    const int exponent = static_cast<int>(random.integer(-5, -2));
    weight.scales.push_back(static_cast<uint8_t>(exponent + 127));
    for (int i = 0; i < 16; ++i) {
      const auto pair = static_cast<uint8_t>(random.bits());
      weight.blocks.push_back(pair);
      for (const int code : {pair & 15, pair >> 4}) {  // the low bits are the first of two neighbours
        weight.values.push_back(std::ldexp(code < 8 ? kValues[code] : -kValues[code - 8], exponent));
      }
    }
  }
  return weight;
}

class PackedMxfp4Test : public testing::Test {
 protected:
  // Writes a GPT-OSS of one layer, with its experts in MXFP4, or as float32 with the same values, transposed. `change` is called last.
  template <class Change>
  void write(bool quantized, const Change& change, bool dense_down = false) {
    Random random(7);
    SafetensorsWriter writer;
    const std::string layer = "model.layers.0.";
    const auto floats = [&](const std::string& name, const std::vector<int64_t>& shape) {
      int64_t count = 1;
      for (const int64_t dim : shape) count *= dim;
      writer.add(name, "F32", shape, random.normals<float>(count, 0.3));
    };
    const auto experts = [&](const std::string& name, int64_t rows, int64_t cols) {
      const Mxfp4 weight = make(rows, cols, random);
      floats(layer + "mlp.experts." + name + "_bias", {kExperts, rows});
      if (quantized && !(dense_down && name == "down_proj")) {
        writer.add(layer + "mlp.experts." + name + "_blocks", "U8", {kExperts, rows, cols / 32, 16}, weight.blocks);
        writer.add(layer + "mlp.experts." + name + "_scales", "U8", {kExperts, rows, cols / 32}, weight.scales);
        return;
      }
      std::vector<float> transposed;
      for (int64_t e = 0; e < kExperts; ++e) {
        for (int64_t col = 0; col < cols; ++col) {
          for (int64_t row = 0; row < rows; ++row)
            transposed.push_back(weight.values[static_cast<size_t>((e * rows + row) * cols + col)]);
        }
      }
      writer.add(layer + "mlp.experts." + name, "F32", {kExperts, cols, rows}, transposed);
    };
    floats("model.embed_tokens.weight", {4, kHidden});
    floats("lm_head.weight", {4, kHidden});
    floats("model.norm.weight", {kHidden});
    floats(layer + "input_layernorm.weight", {kHidden});
    floats(layer + "post_attention_layernorm.weight", {kHidden});
    for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
      const int64_t rows = name[0] == 'k' || name[0] == 'v' ? 32 : 64;
      floats(layer + "self_attn." + name + ".weight", {rows, 64});
      floats(layer + "self_attn." + name + ".bias", {rows});
    }
    floats(layer + "self_attn.sinks", {4});
    floats(layer + "mlp.router.weight", {kExperts, kHidden});
    floats(layer + "mlp.router.bias", {kExperts});
    experts("gate_up_proj", 2 * kWidth, kHidden);
    experts("down_proj", kHidden, kWidth);
    change(writer);
    const std::string quantization =
        quantized ? R"(, "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})" : "";
    directory_.write("config.json", R"({"model_type": "gpt_oss", "hidden_size": 64, "intermediate_size": 64, "vocab_size": 4,
      "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64,
      "attention_bias": true, "num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": 16,
      "layer_types": ["full_attention"], "tie_word_embeddings": false, "rope_theta": 150000.0)" +
                                        quantization + "}");
    directory_.write("model.safetensors", writer.bytes());
    directory_.write("tokenizer.json", std::string(test::kTinyTokenizer));
  }
  void write(bool quantized) {
    write(quantized, [](SafetensorsWriter&) {});
  }
  std::vector<float> logits(bool keep, std::string* types) { return test::tiny_logits(directory_.path(), keep, types); }
  // Returns the message without the path.
  std::string refusal(StatusCode code) const {
    const auto opened = Checkpoint::open(directory_.path());
    EXPECT_FALSE(opened.ok());
    if (opened.ok()) return "";
    EXPECT_EQ(opened.status().code(), code);
    const std::string path = directory_.path() + ": ", &message = opened.status().message();
    return message.starts_with(path) ? message.substr(path.size()) : message;
  }
  const TemporaryDirectory directory_{testing::TempDir()};
};

TEST_F(PackedMxfp4Test, AModelHasTheLogitsOfItsValues) {
  std::string types;
  write(false);
  const std::vector<float> want = logits(false, &types);
  ASSERT_FALSE(want.empty());
  write(true);
  EXPECT_EQ(logits(false, &types), want);
  EXPECT_EQ(types, "float32");
  const std::vector<float> kept = logits(true, &types);
  EXPECT_EQ(types, "mxfp4 and float32");
  ASSERT_EQ(kept.size(), want.size());
  float largest = 0.0f;
  for (const float logit : want) largest = std::max(largest, std::fabs(logit));
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(kept[i], want[i], largest * 0.05f) << i;  // x is quantised, too

  // One of the two matrices may have 16 or 32 bits.
  write(
      true, [](SafetensorsWriter&) {}, true);
  EXPECT_EQ(logits(false, &types), want);
}

TEST_F(PackedMxfp4Test, AnyRangeOfBytesIsRead) {
  write(true);
  const auto checkpoint = Checkpoint::open(directory_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  const TensorInfo* const tensor = (*checkpoint)->tensor("model.layers.0.mlp.experts.down_proj");
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->shape, (std::vector<int64_t>{kExperts, kHidden, kWidth}));
  EXPECT_EQ(tensor->size_bytes, kExperts * kHidden * kWidth / 32 * 17);
  std::vector<std::byte> whole(static_cast<size_t>(tensor->size_bytes));
  ASSERT_TRUE((*checkpoint)->read(*tensor, 0, tensor->size_bytes, whole.data()).ok());
  Random random(3);
  for (int i = 0; i < 200; ++i) {
    const int64_t begin = random.integer(0, tensor->size_bytes),
                  size = random.integer(0, std::min<int64_t>(100, tensor->size_bytes - begin));
    std::vector<std::byte> got(static_cast<size_t>(size) + 1, std::byte{0x5a});
    ASSERT_TRUE((*checkpoint)->read(*tensor, begin, size, got.data()).ok());
    ASSERT_EQ(std::memcmp(got.data(), whole.data() + begin, static_cast<size_t>(size)), 0) << begin << ", " << size;
    ASSERT_EQ(got.back(), std::byte{0x5a});
  }
  for (const auto& [begin, size] : {std::pair<int64_t, int64_t>{-1, 4}, {0, tensor->size_bytes + 1}, {4, -1}}) {
    EXPECT_EQ((*checkpoint)->read(*tensor, begin, size, whole.data()).code(), StatusCode::invalid_argument);
  }
  std::vector<std::string> unused = (*checkpoint)->unused_tensors();
  for (const std::string& name : unused) EXPECT_FALSE(name.find("_blocks") != name.npos) << name;
}

TEST_F(PackedMxfp4Test, BrokenTensorsAreNamed) {
  const auto with = [&](const std::string& suffix, const char* dtype, const std::vector<int64_t>& shape, size_t bytes) {
    write(true, [&](SafetensorsWriter& writer) { writer.add("x" + suffix, dtype, shape, std::vector<uint8_t>(bytes)); });
  };
  with("_blocks", "U8", {2, 3, 1, 16}, 96);
  EXPECT_EQ(refusal(StatusCode::data_loss), "tensor x_blocks has no scales: x_scales is missing");
  const auto with_scales = [&](const std::vector<int64_t>& shape, const std::vector<int64_t>& scales, const char* dtype) {
    int64_t bytes = 1, scale_bytes = 1;
    for (const int64_t dim : shape) bytes *= dim;
    for (const int64_t dim : scales) scale_bytes *= dim;
    write(true, [&](SafetensorsWriter& writer) {
      writer.add("x_blocks", dtype, shape, std::vector<uint8_t>(static_cast<size_t>(bytes)));
      writer.add("x_scales", "U8", scales, std::vector<uint8_t>(static_cast<size_t>(scale_bytes), 127));
    });
  };
  with_scales({2, 3, 1, 16}, {2, 3, 2}, "U8");
  EXPECT_EQ(refusal(StatusCode::data_loss), "tensor x_scales has shape [2, 3, 2]: scales of x_blocks are [2, 3, 1]");
  with_scales({2, 3, 1, 8}, {2, 3, 1}, "U8");
  EXPECT_EQ(
      refusal(StatusCode::data_loss),
      "tensor x_blocks has shape [2, 3, 1, 8]: blocks of MXFP4 are [experts, rows, blocks of a row, 16], and none is empty");
  with_scales({0, 1, int64_t{1} << 58, 16}, {0, 1, int64_t{1} << 58}, "U8");
  EXPECT_EQ(refusal(StatusCode::data_loss),
            "tensor x_blocks has shape [0, 1, 288230376151711744, 16]: blocks of MXFP4 are [experts, "
            "rows, blocks of a row, 16], and none is empty");
  with_scales({2, 3, 1, 16}, {2, 3, 1}, "I8");
  EXPECT_EQ(refusal(StatusCode::unsupported), "tensor x_blocks has type I8: of weights in MXFP4 it must be U8");
  write(true, [&](SafetensorsWriter& writer) {
    writer.add("x", "F32", {1}, std::vector<float>{1});
    writer.add("x_blocks", "U8", {1, 1, 1, 16}, std::vector<uint8_t>(16));
    writer.add("x_scales", "U8", {1, 1, 1}, std::vector<uint8_t>(1));
  });
  EXPECT_EQ(refusal(StatusCode::data_loss), "there are both x and x_blocks, which is the same weight");
}

// It is found when the weight is read.
TEST_F(PackedMxfp4Test, AScaleThatIsNanIsNamed) {
  write(true, [](SafetensorsWriter& writer) {
    writer.add("x_blocks", "U8", {1, 2, 1, 16}, std::vector<uint8_t>(32));
    writer.add("x_scales", "U8", {1, 2, 1}, std::vector<uint8_t>{254, 255});
  });
  const auto checkpoint = Checkpoint::open(directory_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  std::vector<std::byte> bytes(34);
  const TensorInfo& tensor = *(*checkpoint)->tensor("x");
  EXPECT_TRUE((*checkpoint)->read(tensor, 0, 17, bytes.data()).ok());
  const Status status = (*checkpoint)->read(tensor, 0, 34, bytes.data());
  EXPECT_EQ(status.code(), StatusCode::data_loss);
  EXPECT_NE(status.message().find("tensor x_scales: scale 1 is 255, which is NaN"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace prologue
