// Weights in NVFP4, in Hugging Face directories of compressed-tensors and of ModelOpt and in GGUF files: what is read, what stays packed, and the
// sentence that each broken one gets.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <prologue/engine/checkpoint/checkpoint.h>
#include <prologue/engine/gguf/gguf_checkpoint.h>
#include <prologue/engine/model/weight_loader.h>

#include "tests/oracle/weight_blocks.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/random.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/tiny_directory.h"
#include "tests/support/weight_blocks.h"

namespace prologue {
namespace {

using test::GgufWriter;
using test::Random;
using test::SafetensorsWriter;
using test::TemporaryDirectory;
using Shape = std::vector<int64_t>;

const char* const kCompressed =
    R"({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "ignore": ["lm_head"], "kv_cache_scheme": null,
  "sparsity_config": {}, "transform_config": {}, "config_groups": {"group_0": {"format": "nvfp4-pack-quantized", "targets": ["Linear"],
    "input_activations": {"num_bits": 4, "type": "float", "dynamic": "local", "strategy": "tensor_group", "group_size": 16},
    "weights": {"num_bits": 4, "type": "float", "symmetric": true, "strategy": "tensor_group", "group_size": 16}}}})";
const char* const kModelOpt =
    R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": {"num_bits": 8}, "ignore": ["lm_head"],
  "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}}})";
const char* const kOldModelOpt = R"({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4",
  "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["lm_head"]}})";

std::string config_of(const std::string& quantization) {
  return R"({"model_type": "llama", "hidden_size": 256, "intermediate_size": 336, "vocab_size": 4, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "tie_word_embeddings": true)" +
         (quantization.empty() ? "" : ", \"quantization_config\": " + quantization) + "}";
}

enum class Kind { compressed, modelopt, old_modelopt };
constexpr Kind kKinds[] = {Kind::compressed, Kind::modelopt, Kind::old_modelopt};

// A weight [rows, cols]: codes, scales as bytes, the factor of all, and the values by OCP's text of float4_e2m1 and float8_e4m3fn.
struct Nvfp4 {
  int64_t rows = 0, cols = 0;
  std::vector<uint8_t> codes, scales;  // a byte each
  float factor = 0.0f;
  std::vector<float> values;
};

float e4m3(uint8_t code) {
  const int exponent = code / 8, mantissa = code % 8;
  return exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                       : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
}

Nvfp4 make(int64_t rows, int64_t cols, Random& random) {
  constexpr float kValues[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  Nvfp4 w{rows, cols, {}, {}, 0.0f, {}};
  w.factor = 1.0f / static_cast<float>(random.integer(3000, 9000));  // what compressed-tensors has is a whole number
  for (int64_t i = 0; i < rows * cols / 16; ++i) {
    const int64_t kind = random.integer(0, 20);
    w.scales.push_back(static_cast<uint8_t>(kind == 0 ? random.integer(0, 8) : kind == 1 ? 0x7e : random.integer(0x50, 0x68)));
    for (int j = 0; j < 16; ++j) {
      const auto code = static_cast<uint8_t>(random.integer(0, 15));
      w.codes.push_back(code);
      const float scale = e4m3(w.scales.back()) * w.factor;
      w.values.push_back(scale * (code <= 8 ? kValues[code % 8] : -kValues[code - 8]));  // -0 is 0
    }
  }
  return w;
}

// Returns the blocks of weight_format.h of a row or more.
std::vector<uint8_t> blocks_of(const Nvfp4& w, int64_t first_row, int64_t rows) {
  std::vector<uint8_t> blocks;
  for (int64_t block = first_row * w.cols / 256; block < (first_row + rows) * w.cols / 256; ++block) {
    uint8_t factor[4];
    std::memcpy(factor, &w.factor, sizeof factor);
    blocks.insert(blocks.end(), factor, factor + 4);
    blocks.insert(blocks.end(), w.scales.begin() + block * 16, w.scales.begin() + (block + 1) * 16);
    for (int64_t run = 0; run < 8; ++run) {
      const uint8_t* const codes = w.codes.data() + block * 256 + run * 32;
      for (int i = 0; i < 16; ++i) blocks.push_back(static_cast<uint8_t>(codes[i] | codes[i + 16] << 4));
    }
  }
  return blocks;
}

void add(SafetensorsWriter& writer, const std::string& module, const Nvfp4& w, Kind kind) {
  std::vector<uint8_t> pairs;
  for (size_t i = 0; i < w.codes.size(); i += 2) pairs.push_back(static_cast<uint8_t>(w.codes[i] | w.codes[i + 1] << 4));
  const bool compressed = kind == Kind::compressed;
  writer.add(module + (compressed ? ".weight_packed" : ".weight"), "U8", {w.rows, w.cols / 2}, pairs);
  writer.add(module + ".weight_scale", "F8_E4M3", {w.rows, w.cols / 16}, w.scales);
  if (compressed) {
    writer.add(module + ".weight_global_scale", "F32", {1}, std::vector<float>{std::round(1.0f / w.factor)});
    writer.add(module + ".input_global_scale", "F32", {1}, std::vector<float>{77.0f});  // is not applied
  } else {
    writer.add(module + ".weight_scale_2", "F32", {}, std::vector<float>{w.factor});
    writer.add(module + ".input_scale", "F32", {}, std::vector<float>{77.0f});
  }
}

// Returns blocks of 64 channels as GGUF has them.
std::vector<std::byte> ggml_blocks(const Nvfp4& w) {
  std::vector<std::byte> bytes;
  for (size_t block = 0; block < w.codes.size() / 64; ++block) {
    for (size_t i = 0; i < 4; ++i) bytes.push_back(static_cast<std::byte>(w.scales[block * 4 + i]));
    for (size_t i = 0; i < 4; ++i) {
      const uint8_t* const codes = w.codes.data() + block * 64 + i * 16;
      for (int j = 0; j < 8; ++j) bytes.push_back(static_cast<std::byte>(codes[j] | codes[j + 8] << 4));
    }
  }
  return bytes;
}

std::vector<std::byte> float_bytes(const std::vector<float>& values) {
  std::vector<std::byte> bytes;
  for (const float value : values) test::append_bytes(bytes, value);
  return bytes;
}

template <class T>
bool are_bytes(const void* data, const std::vector<T>& want) {
  return std::memcmp(data, want.data(), want.size() * sizeof(T)) == 0;
}

void expect_packed(const PackedRows& rows, const Nvfp4& w, int64_t first, int64_t count) {
  EXPECT_EQ(rows.format, WeightFormat::nvfp4);
  EXPECT_EQ(rows.rows, count);
  EXPECT_TRUE(are_bytes(rows.data, test::packed_blocks(WeightFormat::nvfp4, count, w.cols, blocks_of(w, first, count))));
}

void expect_any_range(const Checkpoint& checkpoint, const TensorInfo& tensor) {
  std::vector<std::byte> whole(static_cast<size_t>(tensor.size_bytes));
  ASSERT_TRUE(checkpoint.read(tensor, 0, tensor.size_bytes, whole.data()).ok());
  Random random(3);
  for (int i = 0; i < 200; ++i) {
    const int64_t begin = random.integer(0, tensor.size_bytes),
                  size = random.integer(0, std::min<int64_t>(400, tensor.size_bytes - begin));
    std::vector<std::byte> got(static_cast<size_t>(size) + 1, std::byte{0x5a});
    ASSERT_TRUE(checkpoint.read(tensor, begin, size, got.data()).ok());
    ASSERT_EQ(std::memcmp(got.data(), whole.data() + begin, static_cast<size_t>(size)), 0) << begin << ", " << size;
    ASSERT_EQ(got.back(), std::byte{0x5a});
  }
  for (const auto& [begin, size] :
       {std::pair<int64_t, int64_t>{-1, 4}, {0, tensor.size_bytes + 1}, {4, -1}, {tensor.size_bytes, 1}}) {
    EXPECT_EQ(checkpoint.read(tensor, begin, size, whole.data()).code(), StatusCode::invalid_argument);
  }
}

class Nvfp4Directory : public testing::Test {
 protected:
  void write(const SafetensorsWriter& writer, Kind kind) const {
    directory_.write("config.json", config_of(kind == Kind::compressed ? kCompressed : kind == Kind::modelopt ? kModelOpt : ""));
    directory_.write("hf_quant_config.json", kind == Kind::old_modelopt ? kOldModelOpt : "{}");
    directory_.write("model.safetensors", writer.bytes());
    directory_.write("tokenizer.json", std::string(test::kTinyTokenizer));
  }
  // Returns the message without the path.
  std::string refusal(StatusCode code) const {
    const auto opened = Checkpoint::open(directory_.path());
    EXPECT_FALSE(opened.ok());
    if (opened.ok()) return "";
    EXPECT_EQ(opened.status().code(), code) << opened.status().message();
    const std::string path = directory_.path() + ": ", &message = opened.status().message();
    return message.starts_with(path) ? message.substr(path.size()) : message;
  }
  std::string refused_config(const std::string& quantization, StatusCode code = StatusCode::unsupported) const {
    SafetensorsWriter writer;
    writer.add("norm.weight", "F32", {1}, std::vector<float>{1});
    directory_.write("config.json", config_of(quantization));
    directory_.write("model.safetensors", writer.bytes());
    return refusal(code);
  }
  const TemporaryDirectory directory_{testing::TempDir()};
};

TEST_F(Nvfp4Directory, StaysPackedOrHasItsValues) {
  for (const Kind kind : kKinds) {
    SCOPED_TRACE(static_cast<int>(kind));
    Random random(5);
    const Nvfp4 whole = make(150, 512, random), small = make(20, 512, random), narrow = make(9, 272, random);
    SafetensorsWriter writer;
    add(writer, "whole", whole, kind), add(writer, "small", small, kind), add(writer, "narrow", narrow, kind);
    write(writer, kind);
    const auto checkpoint = Checkpoint::open(directory_.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    EXPECT_EQ((*checkpoint)->tensor("whole.weight")->shape, (Shape{150, 512}));
    // Its weights, and 2.8 % more.
    EXPECT_EQ((*checkpoint)->tensor("whole.weight")->size_bytes, 150 * 2 * 148);
    EXPECT_LE(148.0, 1.05 * (128 + 16));
    WeightLoader packed(**checkpoint, DType::f32, Execution{Device::cpu, 2}, {}, true);
    const auto all = packed.load("whole.weight", 150, 512);
    const auto parts = packed.load_stacked({{"whole.weight", 20, 120}, {"small.weight", 20}}, 512);
    ASSERT_TRUE(all.ok()) << all.status().message();
    ASSERT_TRUE(parts.ok()) << parts.status().message();
    ASSERT_EQ(parts->packed.num_segments, 2);
    expect_packed(all->packed.segments[0], whole, 0, 150);
    expect_packed(parts->packed.segments[0], whole, 120, 20);
    expect_packed(parts->packed.segments[1], small, 0, 20);
    EXPECT_EQ(packed.types_text(), "nvfp4");

    WeightLoader converted(**checkpoint, DType::f32, Execution{Device::cpu, 2}, {}, false);
    const auto values = converted.load("whole.weight", 150, 512);
    ASSERT_TRUE(values.ok()) << values.status().message();
    EXPECT_TRUE(are_bytes(values->data, whole.values));
    const auto of_narrow = packed.load("narrow.weight", 9, 272);  // rows are not whole blocks
    ASSERT_TRUE(of_narrow.ok()) << of_narrow.status().message();
    EXPECT_EQ(of_narrow->packed.num_segments, 0);
    EXPECT_TRUE(are_bytes(of_narrow->data, narrow.values));
    EXPECT_TRUE((*checkpoint)->unused_tensors().empty());  // the scales count as used
    for (const TensorInfo& tensor : (*checkpoint)->tensors()) {
      if (tensor.name.ends_with(".weight")) expect_any_range(**checkpoint, tensor);
    }
  }
}

// A llama of one layer, quantised, or as float32 with the same values.
TEST_F(Nvfp4Directory, AModelHasTheLogitsOfItsValues) {
  const auto write_model = [&](Kind kind, bool quantized) {
    Random random(7);
    SafetensorsWriter writer;
    const auto floats = [&](const std::string& name, const Shape& shape) {
      int64_t count = 1;
      for (const int64_t dim : shape) count *= dim;
      writer.add(name, "F32", shape, random.normals<float>(count, 0.3));
    };
    floats("model.embed_tokens.weight", {4, 256});
    floats("model.norm.weight", {256});
    floats("model.layers.0.input_layernorm.weight", {256});
    floats("model.layers.0.post_attention_layernorm.weight", {256});
    for (const auto& [name, rows, cols] : {std::tuple("self_attn.q_proj", 256, 256),
                                           {"self_attn.k_proj", 128, 256},
                                           {"self_attn.v_proj", 128, 256},
                                           {"self_attn.o_proj", 256, 256},
                                           {"mlp.gate_proj", 336, 256},
                                           {"mlp.up_proj", 336, 256},
                                           {"mlp.down_proj", 256, 336}}) {
      const std::string module = std::string("model.layers.0.") + name;
      const Nvfp4 w = make(rows, cols, random);
      if (quantized) {
        add(writer, module, w, kind);
      } else {
        writer.add(module + ".weight", "F32", {rows, cols}, w.values);
      }
    }
    if (quantized) writer.add("model.layers.0.self_attn.k_proj.k_scale", "F32", {}, std::vector<float>{0.5f});
    write(writer, kind);
    if (!quantized) directory_.write("config.json", config_of("")), directory_.write("hf_quant_config.json", "{}");
  };
  write_model(Kind::compressed, false);
  std::string types;
  const std::vector<float> want = test::tiny_logits(directory_.path(), false, &types);
  ASSERT_FALSE(want.empty());
  float largest = 0.0f;
  for (const float logit : want) largest = std::max(largest, std::fabs(logit));
  for (const Kind kind : kKinds) {
    write_model(kind, true);
    EXPECT_EQ(test::tiny_logits(directory_.path(), false, &types), want);
    EXPECT_EQ(types, "float32");
    const std::vector<float> kept = test::tiny_logits(directory_.path(), true, &types);
    EXPECT_EQ(types, "nvfp4 and float32");
    ASSERT_EQ(kept.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(kept[i], want[i], largest * 0.05f) << i;  // x is quantised, too
  }
}

TEST_F(Nvfp4Directory, OtherConfigurationsAreNamed) {
  const auto group = [](const std::string& weights, const std::string& more = "") {
    return R"({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups": {"g": {)" + more +
           R"("weights": {)" + weights + "}}}}";
  };
  const std::string rule = ": with the format 'nvfp4-pack-quantized' 4 bits, 'float', 'tensor_group' and 16 are supported";
  EXPECT_EQ(refused_config(group(R"("num_bits": 8, "type": "float", "strategy": "tensor_group")")),
            "config_groups.g in quantization_config has weights of 8 bits and type 'float' with the strategy 'tensor_group' in "
            "groups of 16" +
                rule);
  EXPECT_EQ(
      refused_config(group(R"("num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": false)")),
      "config_groups.g in quantization_config has weights of 4 bits and type 'int' with the strategy 'group', not symmetric, "
      "in groups of 32" +
          rule);
  EXPECT_EQ(refused_config(group("", R"("format": "float-quantized", )")),
            "config_groups.g in quantization_config has the format 'float-quantized': with nvfp4-pack-quantized all groups must "
            "have it");
  for (const std::string algorithm : {"FP8", "NVFP4_AWQ", "MIXED_PRECISION", "W4A16_AWQ", ""}) {
    EXPECT_EQ(refused_config(R"({"quant_method": "modelopt", "quant_algo": ")" + algorithm + "\"}"),
              "quantization_config is modelopt with the quant_algo '" + algorithm + "': supported is 'NVFP4'");
  }
  EXPECT_EQ(refused_config(R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 32})"),
            "quantization_config is modelopt's NVFP4 in groups of 32: supported is 16");
  directory_.write("hf_quant_config.json", R"({"quantization": {"quant_algo": "FP8"}})");
  EXPECT_EQ(refused_config(""), "quantization_config is modelopt with the quant_algo 'FP8': supported is 'NVFP4'");
  directory_.write("hf_quant_config.json", R"({"quantization": [1]})");
  EXPECT_EQ(refused_config("", StatusCode::data_loss), "the configuration of modelopt is a list: an object is expected");
}

TEST_F(Nvfp4Directory, BrokenTensorsAreNamed) {
  const auto with = [&](Kind kind, const char* type, const Shape& shape, const Shape& scales, const char* scale_type,
                        const std::vector<float>& factors, bool has_scales = true) {
    SafetensorsWriter writer;
    int64_t bytes = 1, scale_bytes = 1;
    for (const int64_t dim : shape) bytes *= dim;
    for (const int64_t dim : scales) scale_bytes *= dim;
    const bool compressed = kind == Kind::compressed;
    writer.add(compressed ? "x.weight_packed" : "x.weight", type, shape, std::vector<uint8_t>(static_cast<size_t>(bytes)));
    if (has_scales) {
      writer.add("x.weight_scale", scale_type, scales, std::vector<uint8_t>(static_cast<size_t>(scale_bytes), 0x38));
    }
    if (!factors.empty()) {
      writer.add(compressed ? "x.weight_global_scale" : "x.weight_scale_2", "F32", {static_cast<int64_t>(factors.size())},
                 factors);
    }
    write(writer, kind);
  };
  constexpr StatusCode kDamaged = StatusCode::data_loss;
  with(Kind::compressed, "U8", {3, 16}, {3, 2}, "F8_E4M3", {2}, false);
  EXPECT_EQ(refusal(kDamaged), "tensor x.weight_packed is in NVFP4, but x.weight_scale is missing");
  with(Kind::compressed, "U8", {3, 16}, {3, 2}, "F8_E4M3", {});
  EXPECT_EQ(refusal(kDamaged), "tensor x.weight_packed is in NVFP4, but x.weight_global_scale is missing");
  with(Kind::modelopt, "U8", {3, 16}, {3, 2}, "F8_E4M3", {});
  EXPECT_EQ(refusal(kDamaged), "tensor x.weight is in NVFP4, but x.weight_scale_2 is missing");
  with(Kind::modelopt, "U8", {3, 16}, {3, 2}, "F8_E4M3", {1, 2});
  EXPECT_EQ(refusal(kDamaged), "tensor x.weight_scale_2 has shape [2]: one scale is expected");
  with(Kind::compressed, "U8", {3, 16}, {3, 2}, "F8_E4M3", {0});
  EXPECT_EQ(refusal(kDamaged), "tensor x.weight_global_scale is 0: a scale must be finite, and its reciprocal, too");
  with(Kind::compressed, "U8", {3, 16}, {3, 2}, "F8_E4M3", {std::numeric_limits<float>::infinity()});
  EXPECT_EQ(refusal(kDamaged), "tensor x.weight_global_scale is inf: a scale must be finite, and its reciprocal, too");
  with(Kind::modelopt, "U8", {3, 16}, {3, 2}, "F8_E4M3", {std::numeric_limits<float>::infinity()});
  EXPECT_EQ(refusal(kDamaged), "tensor x.weight_scale_2 is inf: a scale must be finite");
  with(Kind::modelopt, "U8", {3, 16}, {3, 1}, "F8_E4M3", {1});
  EXPECT_EQ(refusal(kDamaged), "tensor x.weight_scale has shape [3, 1]: scales of x.weight are [3, 2]");
  with(Kind::modelopt, "U8", {3, 12}, {3, 2}, "F8_E4M3", {1});
  EXPECT_EQ(refusal(kDamaged), "tensor x.weight has shape [3, 12]: rows of NVFP4 are groups of 16 channels, which are 8 bytes");
  with(Kind::modelopt, "U8", {3, 16}, {3, 2}, "U8", {1});
  EXPECT_EQ(refusal(StatusCode::unsupported), "tensor x.weight_scale has type U8: of weights in NVFP4 it must be F8_E4M3");
  with(Kind::compressed, "I8", {3, 16}, {3, 2}, "F8_E4M3", {1});
  EXPECT_EQ(refusal(StatusCode::unsupported), "tensor x.weight_packed has type I8: of weights in NVFP4 it must be U8");
  with(Kind::modelopt, "U8", {2, 3, 16}, {2, 3, 2}, "F8_E4M3", {1});
  EXPECT_EQ(refusal(StatusCode::unsupported),
            "tensor x.weight is quantised and has shape [2, 3, 16]: two dimensions of at least 1 are supported");
  SafetensorsWriter both;
  both.add("x.weight", "F32", {1}, std::vector<float>{1});
  Random random(1);
  add(both, "x", make(2, 32, random), Kind::compressed);
  write(both, Kind::compressed);
  EXPECT_EQ(refusal(kDamaged), "there are both x.weight and x.weight_packed, which is the same weight");
}

// It is found when the weight is read.
TEST_F(Nvfp4Directory, AScaleThatIsNanIsNamed) {
  for (const int64_t cols : {256, 64}) {
    Random random(1);
    Nvfp4 w = make(3, cols, random);
    w.scales[static_cast<size_t>(cols / 16 + 3)] = 0xff;
    SafetensorsWriter writer;
    add(writer, "x", w, Kind::modelopt);
    write(writer, Kind::modelopt);
    const auto checkpoint = Checkpoint::open(directory_.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    WeightLoader loader(**checkpoint, DType::f32, Execution{Device::cpu, 1}, {}, true);
    const Status status = loader.load("x.weight", 3, cols).status();
    EXPECT_EQ(status.code(), StatusCode::data_loss);
    EXPECT_EQ(status.message(),
              str_cat(directory_.path(), ": tensor x.weight_scale: scale ", cols / 16 + 3, " is 255, which is NaN"));
  }
}

// ---- GGUF ----

GgufCheckpoint open_gguf(const GgufWriter& writer) {
  return GgufCheckpoint(GgufFile::from_bytes(writer.bytes(), "m.gguf").value());
}

void add(GgufWriter& writer, const std::string& name, const Nvfp4& w) {
  writer.add_tensor(name, {static_cast<uint64_t>(w.cols), static_cast<uint64_t>(w.rows)}, test::gguf::kNVFP4, ggml_blocks(w));
}

TEST(Nvfp4Gguf, StaysPackedOrHasItsValues) {
  Random random(9);
  const Nvfp4 whole = make(150, 512, random), narrow = make(9, 320, random);
  Nvfp4 alone = make(16, 256, random);
  alone.factor = 1.0f;  // has no scale beside it
  GgufWriter writer;
  add(writer, "a.weight", whole), add(writer, "b.weight", narrow), add(writer, "c.weight", alone);
  writer.add_tensor("a.scale", {1}, test::gguf::kF32, float_bytes({whole.factor}));
  writer.add_tensor("a.input_scale", {1}, test::gguf::kF32, float_bytes({77.0f}));  // is not applied
  writer.add_tensor("b.scale", {1}, test::gguf::kF32, float_bytes({narrow.factor}));
  const GgufCheckpoint checkpoint = open_gguf(writer);
  EXPECT_EQ(checkpoint.tensor("a.weight")->size_bytes, 150 * 2 * 148);
  EXPECT_EQ(checkpoint.tensor("a.weight")->type_name, "NVFP4");
  WeightLoader packed(checkpoint, DType::f32, Execution{Device::cpu, 2}, {}, true);
  const auto a = packed.load("a.weight", 150, 512), c = packed.load("c.weight", 16, 256);
  ASSERT_TRUE(a.ok() && c.ok()) << a.status().message() << c.status().message();
  expect_packed(a->packed.segments[0], whole, 0, 150);
  expect_packed(c->packed.segments[0], alone, 0, 16);
  const auto b = packed.load("b.weight", 9, 320);
  ASSERT_TRUE(b.ok()) << b.status().message();
  EXPECT_TRUE(are_bytes(b->data, narrow.values));
  WeightLoader converted(checkpoint, DType::f32, Execution{Device::cpu, 2}, {}, false);
  const auto values = converted.load("a.weight", 150, 512);
  ASSERT_TRUE(values.ok()) << values.status().message();
  EXPECT_TRUE(are_bytes(values->data, whole.values));
  EXPECT_TRUE(checkpoint.unused_tensors().empty());
  for (const char* name : {"a.weight", "b.weight"}) expect_any_range(checkpoint, *checkpoint.tensor(name));
}

// Each expert has its scale, or all have one.
TEST(Nvfp4Gguf, ExpertsHaveScales) {
  for (const bool one : {false, true}) {
    for (const int64_t cols : {256, 64}) {
      Random random(11);
      std::vector<Nvfp4> experts;
      std::vector<std::byte> bytes;
      std::vector<float> scales, values;
      for (int e = 0; e < 3; ++e) {
        experts.push_back(make(32, cols, random));
        const std::vector<std::byte> blocks = ggml_blocks(experts.back());
        bytes.insert(bytes.end(), blocks.begin(), blocks.end());
        scales.push_back(experts.back().factor);
      }
      if (one) scales.resize(1);
      GgufWriter writer;
      writer.add_tensor("x_exps.weight", {static_cast<uint64_t>(cols), 32, 3}, test::gguf::kNVFP4, bytes);
      writer.add_tensor("x_exps.scale", {scales.size()}, test::gguf::kF32, float_bytes(scales));
      const GgufCheckpoint checkpoint = open_gguf(writer);
      for (int e = 0; e < 3; ++e) {
        Nvfp4& w = experts[static_cast<size_t>(e)];
        w.factor = scales[one ? 0 : static_cast<size_t>(e)];
      }
      WeightLoader loader(checkpoint, DType::f32, Execution{Device::cpu, 1}, {}, true);
      WeightOptions options;
      options.experts = 3;
      const auto weight = loader.load("x_exps.weight", 32, cols, options);
      ASSERT_TRUE(weight.ok()) << weight.status().message();
      for (int64_t e = 0; e < 3; ++e) {
        const Nvfp4& w = experts[static_cast<size_t>(e)];
        if (cols == 256) {
          const auto* const data = static_cast<const uint8_t*>(weight->packed.segments[0].data) +
                                   e * packed_weight_bytes(WeightFormat::nvfp4, 32, cols);
          expect_packed({data, WeightFormat::nvfp4, 32}, w, 0, 32);
        } else if (!one) {
          EXPECT_TRUE(are_bytes(static_cast<const float*>(weight->data) + e * 32 * cols, w.values)) << e;
        }
      }
    }
  }
}

TEST(Nvfp4Gguf, BrokenScalesAreNamed) {
  const TemporaryDirectory directory{testing::TempDir()};
  const std::string path = directory.path() + "/m.gguf";
  const auto refused = [&](uint32_t type, std::vector<uint64_t> dims, const std::vector<std::byte>& bytes, uint64_t experts = 0) {
    Random random(1);
    const Nvfp4 w = make(experts > 0 ? 16 * static_cast<int64_t>(experts) : 16, 256, random);
    GgufWriter writer;
    writer.add("general.architecture", "llama");
    writer.add_tensor("x.weight", experts > 0 ? std::vector<uint64_t>{256, 16, experts} : std::vector<uint64_t>{256, 16},
                      test::gguf::kNVFP4, ggml_blocks(w));
    writer.add_tensor("x.scale", std::move(dims), type, bytes);
    EXPECT_TRUE(writer.write(path));
    const auto opened = Checkpoint::open(path);
    EXPECT_FALSE(opened.ok());
    return opened.ok() ? std::string() : opened.status().message().substr(path.size() + 2);
  };
  EXPECT_EQ(refused(test::gguf::kF16, {1}, std::vector<std::byte>(2)),
            "tensor x.scale has type F16: scales of tensors in NVFP4 must be F32");
  EXPECT_EQ(refused(test::gguf::kF32, {2}, float_bytes({1, 2})),
            "tensor x.scale has shape [2]: for x.weight [16, 256] one scale is expected");
  EXPECT_EQ(refused(test::gguf::kF32, {2}, float_bytes({1, 2}), 3),
            "tensor x.scale has shape [2]: for x.weight [3, 16, 256] one scale or 3 are expected");
  EXPECT_EQ(refused(test::gguf::kF32, {3}, float_bytes({1, 2, std::numeric_limits<float>::infinity()}), 3),
            "element 2 of tensor x.scale is inf: a scale must be finite");
  for (const auto& [scale, message] : {std::pair<uint8_t, const char*>{0x7f, "scale 5 is 127, which is NaN"},
                                       {0xff, "scale 5 is 255, which is NaN"},
                                       {0x81, "scale 5 is 129: scales of NVFP4 have no sign in a GGUF file"}}) {
    Random random(1);
    Nvfp4 w = make(16, 256, random);
    w.scales[5] = scale;
    GgufWriter writer;
    add(writer, "x.weight", w);
    const GgufCheckpoint checkpoint = open_gguf(writer);
    std::vector<std::byte> bytes(148);
    const Status status = checkpoint.read(*checkpoint.tensor("x.weight"), 0, 148, bytes.data());
    EXPECT_EQ(status.code(), StatusCode::data_loss);
    EXPECT_EQ(status.message(), str_cat("m.gguf: tensor x.weight: ", message));
  }
}

}  // namespace
}  // namespace prologue
