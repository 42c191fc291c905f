// Hugging Face directories whose weights have 8 bits, with scales that are tensors beside them: what is read, what stays packed, and the
// sentence that each unsupported or broken one gets.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <prologue/engine/checkpoint/checkpoint.h>
#include <prologue/engine/engine.h>
#include <prologue/engine/model/weight_loader.h>
#include <prologue/kernels/gemm/backends.h>

#include "tests/oracle/weight_blocks.h"
#include "tests/support/random.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/tiny_directory.h"
#include "tests/support/weight_blocks.h"

namespace prologue {
namespace {

using test::Random;
using test::SafetensorsWriter;
using test::TemporaryDirectory;
using Shape = std::vector<int64_t>;

std::string config_of(const std::string& quantization) {
  return R"({"model_type": "llama", "hidden_size": 128, "intermediate_size": 200, "vocab_size": 4, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "tie_word_embeddings": true)" +
         (quantization.empty() ? "" : ", \"quantization_config\": " + quantization) + "}";
}

std::string compressed(const std::string& format, const std::string& type, const std::string& strategy,
                       const std::string& more = "") {
  return R"({"quant_method": "compressed-tensors", "format": ")" + format +
         R"(", "ignore": ["lm_head"], "kv_cache_scheme": null, "sparsity_config": {}, "config_groups": {"group_0": {"targets": ["Linear"],
    "input_activations": {"num_bits": 8, "dynamic": true}, "weights": {"num_bits": 8, "symmetric": true, "type": ")" +
         type + R"(", "strategy": ")" + strategy + "\"" + more + "}}}}";
}

const char* const kBlockFp8 =
    R"({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
  "modules_to_not_convert": ["lm_head"]})";

enum class Scales { tensor, row, block };

struct Kind {
  std::string name, config;
  bool is_float;
  const char* suffix;
  Scales scales;
  const char* scale_dtype;
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = {
      {"fp8_blocks", kBlockFp8, true, "_scale_inv", Scales::block, "F32"},
      {"fp8_blocks_bf16", kBlockFp8, true, "_scale_inv", Scales::block, "BF16"},
      {"fp8_tensor", R"({"quant_method": "fp8", "activation_scheme": "static"})", true, "_scale", Scales::tensor, "F32"},
      {"fbgemm", R"({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0})", true, "_scale", Scales::row, "F32"},
      {"compressed_tensor", compressed("float-quantized", "float", "tensor"), true, "_scale", Scales::tensor, "BF16"},
      {"compressed_row", compressed("float-quantized", "float", "channel"), true, "_scale", Scales::row, "BF16"},
      {"compressed_block", compressed("float-quantized", "float", "block", R"(, "block_structure": [128, 128])"), true, "_scale",
       Scales::block, "F16"},
      {"naive_float", compressed("naive-quantized", "float", "tensor"), true, "_scale", Scales::tensor, "F32"},
      {"int_row", compressed("int-quantized", "int", "channel"), false, "_scale", Scales::row, "BF16"},
      {"int_tensor", compressed("naive-quantized", "int", "tensor"), false, "_scale", Scales::tensor, "F32"},
  };
  return all;
}

// A quantised weight [rows, cols], and what each of its values is.
struct Quantized {
  int64_t rows = 0, cols = 0;
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  Shape scale_shape;
  std::vector<float> scale_of;  // of each element
  std::vector<float> values;    // scale * code in float32
};

double code_value(bool is_float, uint8_t code) {
  uint8_t block[132] = {0, 0, 0x80, 0x3f, code};  // 1.0f
  return test::oracle::weight_value(is_float ? WeightFormat::f8_e4m3 : WeightFormat::i8, block, 0).value();
}

Quantized make(const Kind& kind, int64_t rows, int64_t cols, Random& random) {
  Quantized q{rows, cols, {}, {}, {}, {}, {}};
  const int64_t blocks = (cols + 127) / 128;
  q.scale_shape = kind.scales == Scales::tensor ? (rows % 2 == 0 ? Shape{} : Shape{1})
                  : kind.scales == Scales::row  ? (rows % 2 == 0 ? Shape{rows, 1} : Shape{rows})
                                                : Shape{(rows + 127) / 128, blocks};
  int64_t count = 1;
  for (const int64_t dim : q.scale_shape) count *= dim;
  // Numbers that every type of scales holds.
  for (int64_t i = 0; i < count; ++i)
    q.scales.push_back(static_cast<float>(random.integer(8, 15)) * (kind.is_float ? 1e-3f : 2e-3f));
  for (float& scale : q.scales) scale = to_float(from_float<Float16>(to_float(from_float<BFloat16>(scale))));
  for (int64_t i = 0; i < rows * cols; ++i) {
    auto code = static_cast<uint8_t>(random.bits());
    if (kind.is_float && (code & 0x7f) == 0x7f) code = 0x7e;                            // the largest number
    if (kind.is_float) code = static_cast<uint8_t>((code & 0x8f) | (code & 0x70) / 2);  // most are below 8
    q.codes.push_back(code);
    const int64_t row = i / cols, col = i % cols;
    const int64_t at = kind.scales == Scales::tensor ? 0 : kind.scales == Scales::row ? row : row / 128 * blocks + col / 128;
    q.scale_of.push_back(q.scales[static_cast<size_t>(at)]);
    q.values.push_back(q.scale_of.back() * static_cast<float>(code_value(kind.is_float, code)));
  }
  return q;
}

void add(SafetensorsWriter& writer, const std::string& name, const Kind& kind, const Quantized& q) {
  writer.add(name, kind.is_float ? "F8_E4M3" : "I8", {q.rows, q.cols}, q.codes);
  const std::string scale = name + kind.suffix, dtype = kind.scale_dtype;
  const auto in_16_bits = [&](auto type) {
    std::vector<decltype(type)> values;
    for (const float value : q.scales) values.push_back(from_float<decltype(type)>(value));
    writer.add(scale, dtype, q.scale_shape, values);
  };
  if (dtype == "F32") writer.add(scale, dtype, q.scale_shape, q.scales);
  if (dtype == "F16") in_16_bits(Float16{});
  if (dtype == "BF16") in_16_bits(BFloat16{});
}

// Returns the blocks of weight_format.h, scale | 128 codes, of rows [first, first + count).
std::vector<uint8_t> blocks_of(const Quantized& q, int64_t first, int64_t count) {
  std::vector<uint8_t> blocks;
  for (int64_t i = first * q.cols; i < (first + count) * q.cols; i += 128) {
    uint8_t scale[4];
    std::memcpy(scale, &q.scale_of[static_cast<size_t>(i)], 4);
    blocks.insert(blocks.end(), scale, scale + 4);
    blocks.insert(blocks.end(), q.codes.begin() + i, q.codes.begin() + i + 128);
  }
  return blocks;
}

class QuantizedCheckpoint : public testing::TestWithParam<Kind> {
 protected:
  const Kind& kind() const { return GetParam(); }
  WeightFormat format() const { return kind().is_float ? WeightFormat::f8_e4m3 : WeightFormat::i8; }
  std::unique_ptr<Checkpoint> open(const SafetensorsWriter& writer) const {
    directory_.write("config.json", config_of(kind().config));
    directory_.write("model.safetensors", writer.bytes());
    auto opened = Checkpoint::open(directory_.path());
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    return opened.ok() ? std::move(opened).value() : nullptr;
  }

  Random random_{5};
  const TemporaryDirectory directory_{testing::TempDir()};
};

INSTANTIATE_TEST_SUITE_P(Kinds, QuantizedCheckpoint, testing::ValuesIn(kinds()), [](const auto& row) { return row.param.name; });

// Rows that are whole blocks stay packed, others become the type of the activations; converted, each value is rounded once.
TEST_P(QuantizedCheckpoint, WeightsStayPackedOrBecomeValues) {
  const Quantized whole = make(kind(), 150, 256, random_), other = make(kind(), 33, 200, random_),
                  small = make(kind(), 20, 256, random_);
  SafetensorsWriter writer;
  add(writer, "whole.weight", kind(), whole);
  add(writer, "other.weight", kind(), other);
  add(writer, "small.weight", kind(), small);
  writer.add("norm.weight", "F32", {2}, std::vector<float>{1, 2});
  const auto checkpoint = open(writer);
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(checkpoint->unused_tensors().size(), 7u);
  for (const bool kept : {false, true}) {
    WeightLoader loader(*checkpoint, DType::f32, Execution{Device::cpu, 2}, {}, kept);
    loader.expect("whole.weight", {150, 256});
    loader.expect("other.weight", {33, 200});
    EXPECT_TRUE(loader.check_expected().ok()) << loader.check_expected().message();
    // All of one tensor, then a part of it whose rows have scales of two blocks, with another tensor.
    const auto all = loader.load("whole.weight", 150, 256);
    const auto parts = loader.load_stacked({{"whole.weight", 20, 120}, {"small.weight", 20, 0}}, 256);
    const auto dense = loader.load("other.weight", 33, 200);
    ASSERT_TRUE(all.ok() && parts.ok() && dense.ok())
        << all.status().message() << parts.status().message() << dense.status().message();
    EXPECT_EQ(dense->packed.num_segments, 0);
    EXPECT_EQ(std::memcmp(dense->data, other.values.data(), other.values.size() * 4), 0);
    if (kept) {
      EXPECT_EQ(loader.types_text(), std::string(weight_format_name(format())) + " and float32");
      EXPECT_EQ(loader.weight_bytes(), (160 + 32 + 32) * 2 * 132 + 33 * 200 * 4);
      const auto expect_packed = [&](const PackedRows& rows, const Quantized& q, int64_t first, int64_t count) {
        const bool in_squares = first % 128 == 0;
        EXPECT_EQ(rows.scaling, !kind().is_float                 ? WeightScaling::blocks
                                : kind().scales != Scales::block ? WeightScaling::rows
                                : in_squares                     ? WeightScaling::squares
                                                                 : WeightScaling::blocks);
        EXPECT_EQ(rows.format, format());
        ASSERT_EQ(rows.rows, count);
        const auto want = test::packed_blocks(format(), count, q.cols, blocks_of(q, first, count));
        EXPECT_EQ(std::memcmp(rows.data, want.data(), want.size()), 0);
      };
      ASSERT_EQ(all->packed.num_segments, 1);
      ASSERT_EQ(parts->packed.num_segments, 2);
      expect_packed(all->packed.segments[0], whole, 0, 150);
      expect_packed(parts->packed.segments[0], whole, 120, 20);
      expect_packed(parts->packed.segments[1], small, 0, 20);
    } else {
      EXPECT_EQ(loader.types_text(), "float32");
      EXPECT_EQ(std::memcmp(all->data, whole.values.data(), whole.values.size() * 4), 0);
      EXPECT_EQ(std::memcmp(parts->data, &whole.values[120 * 256], 20 * 256 * 4), 0);
      EXPECT_EQ(std::memcmp(static_cast<const float*>(parts->data) + 20 * 256, small.values.data(), 20 * 256 * 4), 0);
    }
  }
  EXPECT_EQ(checkpoint->unused_tensors(), std::vector<std::string>{"norm.weight"}) << "scales are used with their weights";

  WeightLoader in_16_bits(*checkpoint, DType::bf16, Execution{Device::cpu, 1}, {}, false);
  const auto rounded = in_16_bits.load("whole.weight", 150, 256);
  ASSERT_TRUE(rounded.ok());
  for (size_t i = 0; i < whole.values.size(); ++i) {
    ASSERT_EQ(static_cast<const BFloat16*>(rounded->data)[i].bits, from_float<BFloat16>(whole.values[i]).bits) << i;
  }
}

TEST_P(QuantizedCheckpoint, AnyRangeOfBytesIsRead) {
  SafetensorsWriter writer;
  add(writer, "w.weight", kind(), make(kind(), 130, 256, random_));
  add(writer, "v.weight", kind(), make(kind(), 30, 75, random_));
  const auto checkpoint = open(writer);
  ASSERT_NE(checkpoint, nullptr);
  for (const char* name : {"w.weight", "v.weight"}) {
    const TensorInfo& tensor = *checkpoint->tensor(name);
    EXPECT_EQ(tensor.size_bytes, name[0] == 'w' ? 130 * 2 * 132 : 30 * 75 * 4);
    std::vector<std::byte> whole(static_cast<size_t>(tensor.size_bytes));
    ASSERT_TRUE(checkpoint->read(tensor, 0, tensor.size_bytes, whole.data()).ok());
    for (int i = 0; i < 300; ++i) {
      const int64_t begin = random_.integer(0, tensor.size_bytes),
                    size = random_.integer(0, std::min<int64_t>(300, tensor.size_bytes - begin));
      std::vector<std::byte> got(static_cast<size_t>(size) + 1, std::byte{0x5a});
      ASSERT_TRUE(checkpoint->read(tensor, begin, size, got.data()).ok());
      ASSERT_EQ(std::memcmp(got.data(), whole.data() + begin, static_cast<size_t>(size)), 0) << begin << ", " << size;
      ASSERT_EQ(got.back(), std::byte{0x5a});
    }
    for (const auto& [begin, size] :
         {std::pair<int64_t, int64_t>{-1, 4}, {0, tensor.size_bytes + 1}, {4, -1}, {tensor.size_bytes, 1}}) {
      EXPECT_EQ(checkpoint->read(tensor, begin, size, whole.data()).code(), StatusCode::invalid_argument);
    }
  }
}

// ---- A model ----

class QuantizedModel : public QuantizedCheckpoint {
 protected:
  // Writes a llama of one layer, quantised, or as float32 with the same values.
  void write(bool quantized) {
    Random random(7);
    SafetensorsWriter writer;
    const auto vectors = [&](const std::string& name, const Shape& shape) {
      int64_t count = 1;
      for (const int64_t dim : shape) count *= dim;
      writer.add(name, "F32", shape, random.normals<float>(count, 0.3));
    };
    const auto matrix = [&](const std::string& name, int64_t rows, int64_t cols) {
      const Quantized q = make(kind(), rows, cols, random);
      const std::string full = "model.layers.0." + name + ".weight";
      if (quantized) {
        add(writer, full, kind(), q);
        writer.add("model.layers.0." + name + ".input_scale", "F32", {}, std::vector<float>{0.5f});  // is not applied
        writer.add("model.layers.0." + name + ".input_zero_point", "I8", {1}, std::vector<uint8_t>{3});
      } else {
        writer.add(full, "F32", {rows, cols}, q.values);
      }
    };
    vectors("model.embed_tokens.weight", {4, 128});
    vectors("model.norm.weight", {128});
    vectors("model.layers.0.input_layernorm.weight", {128});
    vectors("model.layers.0.post_attention_layernorm.weight", {128});
    if (quantized) writer.add("model.layers.0.self_attn.k_scale", "BF16", {1}, std::vector<uint16_t>{0x3f80});
    matrix("self_attn.q_proj", 128, 128);
    matrix("self_attn.k_proj", 64, 128);
    matrix("self_attn.v_proj", 64, 128);
    matrix("self_attn.o_proj", 128, 128);
    matrix("mlp.gate_proj", 200, 128);
    matrix("mlp.up_proj", 200, 128);
    matrix("mlp.down_proj", 128, 200);
    directory_.write("config.json", config_of(quantized ? kind().config : ""));
    directory_.write("model.safetensors", writer.bytes());
    directory_.write("tokenizer.json", std::string(test::kTinyTokenizer));
  }
  std::vector<float> logits(std::optional<bool> keep, std::string* types = nullptr) {
    return test::tiny_logits(directory_.path(), keep, types);
  }
};

INSTANTIATE_TEST_SUITE_P(Kinds, QuantizedModel, testing::ValuesIn(kinds()), [](const auto& row) { return row.param.name; });

TEST_P(QuantizedModel, HasTheLogitsOfItsValues) {
  write(false);
  const std::vector<float> want = logits(false);
  ASSERT_FALSE(want.empty());
  write(true);
  std::string types;
  EXPECT_EQ(logits(false, &types), want);
  EXPECT_EQ(types, "float32");
  const std::vector<float> kept = logits(true, &types);
  EXPECT_EQ(types, std::string(weight_format_name(format())) + " and float32");
  ASSERT_EQ(kept.size(), want.size());
  float largest = 0.0f;
  for (const float logit : want) largest = std::max(largest, std::fabs(logit));
  // With codes of 8 bits x is as it is; with int8 it is quantised, too.
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(kept[i], want[i], largest * (kind().is_float ? 1e-5f : 0.05f)) << i;
}

// ---- Activations ----

TEST(QuantizedActivations, AreWhatTheConfigurationSays) {
  const auto with_inputs = [](const std::string& weights, const std::string& inputs) {
    return R"({"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": {"weights": {)" +
           weights + R"(}, "input_activations": )" + inputs + "}}}";
  };
  const std::string channel = R"("num_bits": 8, "type": "float", "strategy": "channel")",
                    block = R"("num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128])",
                    int_channel = R"("num_bits": 8, "type": "int", "strategy": "channel")";
  const std::string token = R"({"num_bits": 8, "type": "float", "dynamic": true, "strategy": "token"})",
                    group = R"({"num_bits": 8, "type": "float", "dynamic": true, "strategy": "group", "group_size": 128})";
  const std::string mixed =
      R"({"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"a": {"weights": {)" + channel +
      R"(}, "input_activations": null}, "b": {"weights": {)" + channel + R"(}, "input_activations": )" + token + "}}}";
  const std::vector<std::pair<std::string, bool>> cases = {
      {"", false},
      {kBlockFp8, true},
      {R"({"quant_method": "fp8"})", true},
      {R"({"quant_method": "fp8", "activation_scheme": "dynamic"})", true},
      {R"({"quant_method": "fp8", "activation_scheme": "static"})", false},
      {R"({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0})", true},
      {compressed("float-quantized", "float", "channel"), false},  // no strategy
      {with_inputs(channel, token), true},
      {with_inputs(channel, "null"), false},
      {with_inputs(channel, R"({"num_bits": 8, "type": "float", "dynamic": false, "strategy": "tensor"})"), false},
      {with_inputs(channel, R"({"num_bits": 8, "type": "float", "dynamic": true, "strategy": "tensor"})"), false},
      {with_inputs(channel, R"({"num_bits": 4, "type": "float", "dynamic": true, "strategy": "token"})"), false},
      {with_inputs(channel, R"({"num_bits": 8, "type": "int", "dynamic": true, "strategy": "token"})"), false},
      {with_inputs(channel, group), false},
      {with_inputs(block, group), true},
      {with_inputs(block, token), false},
      {with_inputs(block, R"({"num_bits": 8, "type": "float", "dynamic": true, "strategy": "group", "group_size": 64})"), false},
      {with_inputs(int_channel, R"({"num_bits": 8, "type": "int", "dynamic": true, "strategy": "token"})"), false},
      {mixed, false},
  };
  for (const auto& [config, quantized] : cases) {
    const TemporaryDirectory directory(testing::TempDir());
    SafetensorsWriter writer;
    writer.add("norm.weight", "F32", {1}, std::vector<float>{1});
    directory.write("config.json", config_of(config));
    directory.write("model.safetensors", writer.bytes());
    const auto checkpoint = Checkpoint::open(directory.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    EXPECT_EQ((*checkpoint)->quantizes_activations(), quantized) << config;
  }
}

class Float8Activations : public QuantizedModel {
 protected:
  Result<std::unique_ptr<Engine>> load(Device device, ActivationQuantization activations,
                                       const std::function<void(EngineOptions&)>& change = {}) {
    EngineOptions options;
    options.model_path = directory_.path();
    options.device = device;
    options.num_threads = 1;
    options.context_length = 32;
    options.max_seqs = 1;
    if (device == Device::cpu) options.dtype = DType::f32;
    options.keep_quantized = true;
    options.activations = activations;
    if (change) change(options);
    return Engine::load(options);
  }
  static int64_t quantized_products(const Engine& engine) {
    int64_t count = 0;
    for (const Node& node : engine.graph().nodes) {
      const auto* const product = std::get_if<GemmParams>(&node.parameters);
      if (product != nullptr && product->quantize_x == DType::fp8_e4m3) ++count;
    }
    return count;
  }
  static std::vector<float> logits_of(Engine& engine) {
    std::vector<float> all;
    ScoreOptions score;
    score.on_logits = [&](size_t, std::span<const float> row) { all.insert(all.end(), row.begin(), row.end()); };
    EXPECT_TRUE(engine.score(std::vector<int32_t>{0, 1}, std::vector<int32_t>{2, 1, 0}, score).ok());
    return all;
  }
};

INSTANTIATE_TEST_SUITE_P(Kinds, Float8Activations, testing::ValuesIn(kinds()), [](const auto& row) { return row.param.name; });

// QKV, the output, gate and up: down has rows that are no whole blocks, and lm_head is not quantised.
TEST_P(Float8Activations, OfProductsWithFloat8WeightsOnTheCpuIfAsked) {
  write(true);
  const auto as_it_is = load(Device::cpu, ActivationQuantization::automatic);
  ASSERT_TRUE(as_it_is.ok()) << as_it_is.status().message();
  EXPECT_FALSE((*as_it_is)->quantizes_activations());
  EXPECT_EQ(quantized_products(**as_it_is), 0);
  const auto quantized = load(Device::cpu, ActivationQuantization::fp8);
  if (!kind().is_float) {
    ASSERT_FALSE(quantized.ok());
    EXPECT_EQ(quantized.status().code(), StatusCode::invalid_argument);
    EXPECT_NE(quantized.status().message().find(
                  "activations are fp8: the weights that stay quantised must be f8_e4m3, all of them, but the "
                  "weights are held as i8 and float32"),
              std::string::npos)
        << quantized.status().message();
    return;
  }
  ASSERT_TRUE(quantized.ok()) << quantized.status().message();
  EXPECT_TRUE((*quantized)->quantizes_activations());
  EXPECT_EQ(quantized_products(**quantized), 3);
  const std::vector<float> want = logits_of(**as_it_is), got = logits_of(**quantized);
  ASSERT_EQ(got.size(), want.size());
  EXPECT_NE(got, want);
  float largest = 0.0f;
  for (const float logit : want) largest = std::max(largest, std::fabs(logit));
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 0.1f * largest) << i;
}

TEST_P(Float8Activations, NeedWeightsThatStayQuantised) {
  write(true);
  const auto engine = load(Device::cpu, ActivationQuantization::fp8, [](EngineOptions& o) { o.keep_quantized = false; });
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.status().code(), StatusCode::invalid_argument);
  EXPECT_NE(engine.status().message().find("the weights are held as float32, since keep_quantized is off"), std::string::npos)
      << engine.status().message();
}

// In float32 every step on CUDA makes separate products, which quantise x as those of the CPU do; a rounding before that may choose the next code.
TEST_P(Float8Activations, HaveTheLogitsOfTheCpu_cuda) {
  if (!check_gpu().ok()) GTEST_SKIP() << check_gpu().message();
  if (!kind().is_float || !check_float8_gemm(Device::cuda).ok()) GTEST_SKIP() << "no products of float8";
  write(true);
  std::vector<std::vector<float>> logits;
  for (const Device device : {Device::cpu, Device::cuda}) {
    const auto engine = load(device, ActivationQuantization::fp8, [](EngineOptions& o) { o.dtype = DType::f32; });
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    logits.push_back(logits_of(**engine));
  }
  float largest = 0.0f;
  for (const float logit : logits[0]) largest = std::max(largest, std::fabs(logit));
  ASSERT_EQ(logits[0].size(), logits[1].size());
  for (size_t i = 0; i < logits[0].size(); ++i) EXPECT_NEAR(logits[1][i], logits[0][i], 0.02f * largest) << i;
}

// On CUDA they are what the files say, where the GPU has the products; --activations decides otherwise.
TEST_P(Float8Activations, AreWhatTheFilesSay_cuda) {
  if (!check_gpu().ok()) GTEST_SKIP() << check_gpu().message();
  write(true);
  const auto checkpoint = Checkpoint::open(directory_.path());
  ASSERT_TRUE(checkpoint.ok());
  const bool supported = check_float8_gemm(Device::cuda).ok();
  const auto automatic = load(Device::cuda, ActivationQuantization::automatic);
  ASSERT_TRUE(automatic.ok()) << automatic.status().message();
  EXPECT_EQ((*automatic)->quantizes_activations(), supported && (*checkpoint)->quantizes_activations());
  const auto off = load(Device::cuda, ActivationQuantization::as_dtype);
  ASSERT_TRUE(off.ok()) << off.status().message();
  EXPECT_EQ(quantized_products(**off), 0);
  const auto on = load(Device::cuda, ActivationQuantization::fp8);
  EXPECT_EQ(on.ok(), supported && kind().is_float);
  EXPECT_EQ(on.ok() ? quantized_products(**on) : 3, 3);
  const auto invariant = load(Device::cuda, ActivationQuantization::fp8, [](EngineOptions& o) { o.batch_invariant = true; });
  EXPECT_FALSE(invariant.ok());
}

// ---- Refusals ----

class QuantizedRefusals : public testing::Test {
 protected:
  // Returns the message without the path.
  std::string refusal(StatusCode code) const {
    const auto opened = Checkpoint::open(directory_.path());
    EXPECT_FALSE(opened.ok());
    if (opened.ok()) return "";
    EXPECT_EQ(opened.status().code(), code) << opened.status().message();
    EXPECT_EQ(opened.status().message().find(directory_.path() + ": "), 0u) << opened.status().message();
    return opened.status().message().substr(directory_.path().size() + 2);
  }
  void write(const std::string& quantization, const SafetensorsWriter& writer) const {
    directory_.write("config.json", config_of(quantization));
    directory_.write("model.safetensors", writer.bytes());
  }
  std::string refused_config(const std::string& quantization, StatusCode code = StatusCode::unsupported) const {
    SafetensorsWriter writer;
    writer.add("norm.weight", "F32", {1}, std::vector<float>{1});
    write(quantization, writer);
    return refusal(code);
  }
  const TemporaryDirectory directory_{testing::TempDir()};
};

TEST_F(QuantizedRefusals, OtherMethodsAreNamed) {
  const std::string supported =
      "supported are fp8 (e4m3), fbgemm_fp8, mxfp4, compressed-tensors of 8 bits (float-quantized, int-quantized, "
      "naive-quantized) "
      "and of 4 (pack-quantized, nvfp4-pack-quantized), gptq and awq of 4 bits, and modelopt's NVFP4";
  for (const std::string method : {"bitsandbytes", "hqq", "quark", ""}) {
    EXPECT_EQ(refused_config(R"({"bits": 4, "quant_method": ")" + method + "\"}"),
              "quantization_config in config.json has the quant_method '" + method + "': " + supported);
  }
  EXPECT_EQ(refused_config(R"({"load_in_8bit": true})"),
            "quantization_config in config.json has the quant_method '': " + supported);
  EXPECT_EQ(refused_config(R"({"quant_method": "fp8", "fmt": "e5m2"})"),
            "quantization_config in config.json has the fmt 'e5m2': " + supported);
  EXPECT_EQ(refused_config(R"({"quant_method": "fp8", "weight_block_size": [1, 128]})"),
            "weight_block_size in quantization_config is not [128, 128]: no other blocks are supported");
  EXPECT_EQ(refused_config(compressed("marlin-24", "int", "group")),
            "quantization_config is compressed-tensors with the format 'marlin-24': " + supported);
  EXPECT_EQ(refused_config(compressed("int-quantized", "int", "group")),
            "config_groups.group_0 in quantization_config has weights with the strategy 'group': supported are 'tensor', "
            "'channel' and 'block'");
  EXPECT_EQ(refused_config(compressed("float-quantized", "float", "block", R"(, "block_structure": [64, 128])")),
            "block_structure in quantization_config is not [128, 128]: no other blocks are supported");
  EXPECT_EQ(refused_config(compressed("naive-quantized", "uint", "tensor")),
            "config_groups.group_0 in quantization_config has weights of 8 bits and type 'uint': supported are 8 bits, 'float' "
            "or 'int'");
  EXPECT_EQ(
      refused_config(R"({"quant_method": "compressed-tensors", "format": "naive-quantized", "config_groups": {"g": {"weights":
              {"num_bits": 4, "type": "int", "strategy": "channel"}}}})"),
      "config_groups.g in quantization_config has weights of 4 bits and type 'int': supported are 8 bits, 'float' or 'int'");
  EXPECT_EQ(refused_config(R"({"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {"g": {"weights":
              {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": false}}}})"),
            "config_groups.g in quantization_config has weights that are not symmetric: zero points are not supported");
  EXPECT_EQ(refused_config(R"({"quant_method": "compressed-tensors", "format": "float-quantized", "sparsity_config":
              {"format": "sparse-24-bitmask"}, "config_groups": {}})"),
            "quantization_config has sparsity_config, which is not supported");
}

TEST_F(QuantizedRefusals, AConfigurationThatIsNoneIsRefused) {
  constexpr StatusCode kDamaged = StatusCode::data_loss;
  EXPECT_EQ(refused_config("[1]", kDamaged), "quantization_config in config.json is a list: an object is expected");
  EXPECT_EQ(refused_config(R"({"quant_method": 3})", kDamaged),
            "'quant_method' in quantization_config is an integer: a string is expected");
  EXPECT_EQ(refused_config(R"({"quant_method": "compressed-tensors", "format": "int-quantized"})", kDamaged),
            "quantization_config has no config_groups that is an object");
  for (const char* none : {"null", "{}"}) {  // these are no quantisation
    SafetensorsWriter writer;
    writer.add("w.weight", "F32", {1}, std::vector<float>{1});
    write(none, writer);
    EXPECT_TRUE(Checkpoint::open(directory_.path()).ok());
  }
}

TEST_F(QuantizedRefusals, BrokenTensorsAreNamed) {
  const std::vector<uint8_t> codes(200 * 256, 0x38);
  const auto with_scales = [&](const std::string& name, const std::string& dtype, const Shape& shape, size_t bytes) {
    SafetensorsWriter writer;
    writer.add("m.weight", "F8_E4M3", {200, 256}, codes);
    writer.add(name, dtype, shape, std::vector<uint8_t>(bytes));
    write(kBlockFp8, writer);
  };
  with_scales("m.scale", "F32", {1}, 4);
  EXPECT_EQ(
      refusal(StatusCode::data_loss),
      "tensor m.weight has type F8_E4M3, but its scales are missing: neither m.weight_scale_inv nor m.weight_scale is there");
  for (const Shape& shape : {Shape{2, 1}, Shape{1, 2}, Shape{2}, Shape{256}, Shape{200, 2}, Shape{1, 1, 1}}) {
    int64_t count = 1;
    std::string text;
    for (const int64_t dim : shape) count *= dim, text += (text.empty() ? "" : ", ") + std::to_string(dim);
    with_scales("m.weight_scale_inv", "F32", shape, static_cast<size_t>(4 * count));
    EXPECT_EQ(refusal(StatusCode::data_loss), "tensor m.weight_scale_inv has shape [" + text +
                                                  "]: for m.weight [200, 256] one scale, [200, 1] or [2, 2] is expected");
  }
  with_scales("m.weight_scale_inv", "F8_E8M0", {2, 2}, 4);
  EXPECT_EQ(refusal(StatusCode::unsupported),
            "tensor m.weight_scale_inv has type F8_E8M0: scales of weights must be F32, F16 or BF16");

  SafetensorsWriter experts;
  experts.add("m.weight", "F8_E4M3", {2, 100, 256}, codes);
  experts.add("m.weight_scale", "F32", {}, std::vector<float>{1});
  write(kBlockFp8, experts);
  EXPECT_EQ(refusal(StatusCode::unsupported),
            "tensor m.weight is quantised and has shape [2, 100, 256]: two dimensions of at least 1 are supported");

  SafetensorsWriter infinite;
  infinite.add("m.weight", "F8_E4M3", {200, 256}, codes);
  infinite.add("m.weight_scale", "F32", {2, 2}, std::vector<float>{1, 2, std::numeric_limits<float>::infinity(), 4});
  write(kBlockFp8, infinite);
  EXPECT_EQ(refusal(StatusCode::data_loss), "element 2 of tensor m.weight_scale is inf: a scale must be finite");
}

// NaN is found when the weight is read.
TEST_F(QuantizedRefusals, ACodeThatIsNanIsNamed) {
  for (const int64_t cols : {256, 100}) {
    for (const uint8_t nan : {0x7f, 0xff}) {
      std::vector<uint8_t> codes(static_cast<size_t>(200 * cols), 0x7e);
      codes[static_cast<size_t>(131 * cols + 97)] = nan;
      SafetensorsWriter writer;
      writer.add("m.weight", "F8_E4M3", {200, cols}, codes);
      writer.add("m.weight_scale", "F32", {}, std::vector<float>{1});
      write(kBlockFp8, writer);
      const auto checkpoint = Checkpoint::open(directory_.path());
      ASSERT_TRUE(checkpoint.ok());
      for (const bool kept : {false, true}) {
        WeightLoader loader(**checkpoint, DType::f32, Execution{Device::cpu, 1}, {}, kept);
        const Status status = loader.load("m.weight", 200, cols).status();
        EXPECT_EQ(status.code(), StatusCode::data_loss);
        EXPECT_EQ(status.message(), directory_.path() + ": element [131, 97] of tensor m.weight is NaN: weights must be numbers");
      }
    }
  }
}

// Without quantization_config the codes are of a type that cannot be read, and tensors of other names than *.weight are never joined.
TEST_F(QuantizedRefusals, OnlyWhatTheConfigurationSaysIsQuantised) {
  SafetensorsWriter writer;
  writer.add("m.weight", "F8_E4M3", {2, 128}, std::vector<uint8_t>(256, 0x38));
  writer.add("m.weight_scale", "F32", {}, std::vector<float>{1});
  writer.add("n.weight", "I8", {2, 128}, std::vector<uint8_t>(256, 1));
  writer.add("buffer", "F8_E4M3", {2}, std::vector<uint8_t>(2, 0x38));
  for (const char* config : {"", kBlockFp8}) {
    write(config, writer);
    const auto checkpoint = Checkpoint::open(directory_.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    EXPECT_EQ((*checkpoint)->tensor("m.weight")->type, *config == '\0' ? kUnreadableType : GgmlType::f8_e4m3);
    EXPECT_EQ((*checkpoint)->tensor("n.weight")->type, kUnreadableType);
    EXPECT_EQ((*checkpoint)->tensor("buffer")->type, kUnreadableType);
  }
}

// ---- Mutations: a changed file is read, or refused with a sentence ----

TEST(QuantizedMutation, EveryDirectoryIsReadOrRefusedWithASentence) {
  const TemporaryDirectory directory{testing::TempDir()};
  SafetensorsWriter writer;
  writer.add("f.weight", "F8_E4M3", {130, 128}, std::vector<uint8_t>(130 * 128, 0x38));
  writer.add("f.weight_scale_inv", "F32", {2, 1}, std::vector<float>{1, 2});
  writer.add("i.weight", "I8", {2, 5}, std::vector<uint8_t>(10, 0x7f));
  writer.add("i.weight_scale", "BF16", {2}, std::vector<uint16_t>{0x3f80, 0x4000});
  const std::string header = writer.header();
  Random random(3);
  int read = 0, refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string config =
        config_of(i % 2 == 0 ? kBlockFp8 : compressed("naive-quantized", i % 4 == 1 ? "int" : "float", "channel"));
    std::string changed = header;
    std::string& text = i % 3 == 0 ? config : changed;
    for (int64_t n = random.integer(1, 3); n > 0; --n) {
      // Mostly digits, which say how large something is.
      size_t at = static_cast<size_t>(random.integer(0, static_cast<int64_t>(text.size()) - 1));
      if (random.integer(0, 3) > 0) at = std::min(text.find_first_of("0123456789", at), text.size() - 1);
      text[at] = "0123456789[]{},\"-.x"[random.integer(0, 18)];
    }
    directory.write("config.json", config);
    directory.write("model.safetensors", test::safetensors_file(changed, writer.data()));
    const auto opened = Checkpoint::open(directory.path());
    if (!opened.ok()) {
      ++refused;
      ASSERT_FALSE(opened.status().message().empty());
      continue;
    }
    ++read;
    for (const TensorInfo& tensor : (*opened)->tensors()) {
      ASSERT_LE(tensor.size_bytes, 4 * 130 * 132);
      std::vector<std::byte> bytes(static_cast<size_t>(tensor.size_bytes));
      const Status status = (*opened)->read(tensor, 0, tensor.size_bytes, bytes.data());
      ASSERT_TRUE(status.ok() || !status.message().empty());
    }
  }
  EXPECT_GT(read, 100);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace prologue
