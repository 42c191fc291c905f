// Hugging Face directories whose weights have codes of 4 bits in groups (gptq, awq, compressed-tensors): each method's files are written from its
// description, and read as the values that the description gives.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <prologue/engine/checkpoint/checkpoint.h>
#include <prologue/engine/engine.h>
#include <prologue/engine/huggingface/safetensors.h>
#include <prologue/engine/model/weight_loader.h>

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

enum class Method { gptq, gptq_v2, awq, compressed };
enum class Order { none, ascending, shuffled, unset };
enum class Scales { exact, small, fine };  // float16 holds them, or they are too small for it, or have too many bits

struct Kind {
  std::string name;
  Method method;
  int64_t group;  // -1: a row
  const char* scale_dtype = "F16";
  Order order = Order::none;
  Scales scales = Scales::exact;
  bool zeros = true;

  int64_t group_of(int64_t cols) const { return group < 0 ? cols : group; }
  // The block in which a row of `cols` channels stays packed; 0: it does not.
  int64_t block(int64_t cols) const {
    if (order == Order::shuffled || scales != Scales::exact) return 0;
    for (const int64_t size : {128, 64, 32}) {
      if (cols % size == 0 && group_of(cols) % size == 0) return size;
    }
    return 0;
  }
  std::string config() const {
    const std::string size = std::to_string(group);
    if (method == Method::gptq) {
      return R"({"quant_method": "gptq", "bits": 4, "group_size": )" + size + R"(, "sym": true, "desc_act": )" +
             (order == Order::shuffled ? "true" : "false") + "}";
    }
    if (method == Method::gptq_v2) {
      return R"({"quant_method": "gptq", "checkpoint_format": "gptq_v2", "bits": 4, "group_size": )" + size + "}";
    }
    if (method == Method::awq) {
      return R"({"quant_method": "awq", "version": "gemm", "zero_point": true, "bits": 4, "group_size": )" + size +
             R"(, "modules_to_not_convert": null})";
    }
    return R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"], "config_groups": {"group_0":
      {"targets": ["Linear"], "input_activations": null, "weights": {"num_bits": 4, "type": "int", "symmetric": )" +
           std::string(zeros ? "false" : "true") + R"(, "strategy": ")" + (group < 0 ? "channel" : "group") +
           R"(", "group_size": )" + (group < 0 ? "null" : size) + "}}}}";
  }
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = {
      {"gptq_32", Method::gptq, 32},
      {"gptq_64", Method::gptq, 64, "BF16"},
      {"gptq_128", Method::gptq, 128},
      {"gptq_256", Method::gptq, 256, "F32"},
      {"gptq_row", Method::gptq, -1},
      {"gptq_48", Method::gptq, 48},
      {"gptq_v2_128", Method::gptq_v2, 128},
      {"gptq_ascending", Method::gptq, 64, "F16", Order::ascending},
      {"gptq_shuffled", Method::gptq, 64, "F16", Order::shuffled},
      {"gptq_fine", Method::gptq, 128, "F32", Order::none, Scales::fine},
      {"awq_32", Method::awq, 32},
      {"awq_64", Method::awq, 64},
      {"awq_128", Method::awq, 128},
      {"awq_row", Method::awq, -1},
      {"awq_small", Method::awq, 128, "BF16", Order::none, Scales::small},
      {"compressed_32", Method::compressed, 32, "BF16", Order::none, Scales::exact, false},
      {"compressed_64", Method::compressed, 64, "F16"},
      {"compressed_128", Method::compressed, 128, "BF16", Order::none, Scales::exact, false},
      {"compressed_128_zeros", Method::compressed, 128, "BF16"},
      {"compressed_row", Method::compressed, -1, "BF16", Order::none, Scales::exact, false},
      {"compressed_row_zeros", Method::compressed, -1, "F32"},
      {"compressed_small", Method::compressed, 128, "BF16", Order::none, Scales::small, false},
      {"compressed_shuffled", Method::compressed, 64, "BF16", Order::shuffled},
      {"compressed_unset", Method::compressed, 64, "BF16", Order::unset, Scales::exact, false},
  };
  return all;
}

// A quantised weight [rows, cols], and what each of its values is.
struct Quantized {
  int64_t rows = 0, cols = 0, groups = 0;
  std::vector<int> codes;         // [rows, cols], 0 to 15
  std::vector<int> zeros;         // [rows, groups]; a code equal to it is 0
  std::vector<float> scales;      // [rows, groups]
  std::vector<int32_t> group_of;  // of each channel
  std::vector<float> values;      // [rows, cols]
};

Quantized make(const Kind& kind, int64_t rows, int64_t cols, Random& random) {
  Quantized q;
  q.rows = rows, q.cols = cols;
  const int64_t group = kind.group_of(cols);
  q.groups = (cols + group - 1) / group;
  for (int64_t i = 0; i < rows * cols; ++i) q.codes.push_back(static_cast<int>(random.integer(0, 15)));
  const int64_t lowest = kind.method == Method::gptq ? 1 : 0;  // what its files can say
  for (int64_t i = 0; i < rows * q.groups; ++i) {
    q.zeros.push_back(kind.zeros ? static_cast<int>(random.integer(lowest, lowest + 15)) : 8);
    const double steps = static_cast<double>(random.integer(8, 15)) * (random.integer(0, 9) == 0 ? -1.0 : 1.0);
    q.scales.push_back(static_cast<float>(std::ldexp(steps, kind.scales == Scales::small ? -40 : -10)) /
                       (kind.scales == Scales::fine ? 3.0f : 1.0f));
  }
  for (int64_t c = 0; c < cols; ++c) q.group_of.push_back(static_cast<int32_t>(c / group));
  if (kind.order == Order::shuffled) {
    for (int64_t c = cols - 1; c > 0; --c) {
      std::swap(q.group_of[static_cast<size_t>(c)], q.group_of[static_cast<size_t>(random.integer(0, c))]);
    }
  }
  for (int64_t i = 0; i < rows * cols; ++i) {
    const auto at = static_cast<size_t>(i / cols * q.groups + q.group_of[static_cast<size_t>(i % cols)]);
    q.values.push_back(q.scales[at] * static_cast<float>(q.codes[static_cast<size_t>(i)] - q.zeros[at]));
  }
  return q;
}

// Words of eight numbers of four bits.
class Words {
 public:
  explicit Words(int64_t count) : words_(static_cast<size_t>(count)) {}
  void set(int64_t word, int64_t at, int value) {
    ASSERT_TRUE(value >= 0 && value < 16);
    words_[static_cast<size_t>(word)] |= static_cast<uint32_t>(value) << (4 * at);
  }
  const std::vector<uint32_t>& get() const { return words_; }

 private:
  std::vector<uint32_t> words_;
};

template <class T>
std::vector<T> transposed(const std::vector<T>& values, int64_t rows, int64_t cols) {
  std::vector<T> result;
  for (int64_t c = 0; c < cols; ++c) {
    for (int64_t r = 0; r < rows; ++r) result.push_back(values[static_cast<size_t>(r * cols + c)]);
  }
  return result;
}

void add_scales(SafetensorsWriter& writer, const std::string& name, const std::string& dtype, const Shape& shape,
                const std::vector<float>& scales) {
  const auto in_16_bits = [&](auto type) {
    std::vector<decltype(type)> values;
    for (const float value : scales) values.push_back(from_float<decltype(type)>(value));
    writer.add(name, dtype, shape, values);
  };
  if (dtype == "F32") writer.add(name, dtype, shape, scales);
  if (dtype == "F16") in_16_bits(Float16{});
  if (dtype == "BF16") in_16_bits(BFloat16{});
}

// Adds the tensors of x.weight, where `module` is x.
void add(SafetensorsWriter& writer, const std::string& module, const Kind& kind, const Quantized& q) {
  const int64_t n = q.rows, k = q.cols, g = q.groups;
  const auto code = [&](int64_t row, int64_t col) { return q.codes[static_cast<size_t>(row * k + col)]; };
  const auto zero = [&](int64_t row, int64_t group) { return q.zeros[static_cast<size_t>(row * g + group)]; };
  if (kind.method == Method::compressed) {
    const int64_t words = (k + 7) / 8, zero_words = (n + 7) / 8;
    Words codes(n * words), zeros(zero_words * g);
    for (int64_t row = 0; row < n; ++row) {
      for (int64_t col = 0; col < k; ++col) codes.set(row * words + col / 8, col % 8, code(row, col));
      for (int64_t group = 0; group < g; ++group) zeros.set(row / 8 * g + group, row % 8, zero(row, group));
    }
    writer.add(module + ".weight_packed", "I32", {n, words}, codes.get());
    add_scales(writer, module + ".weight_scale", kind.scale_dtype, {n, g}, q.scales);
    writer.add(module + ".weight_shape", "I64", {2}, std::vector<int64_t>{n, k});
    if (kind.zeros) writer.add(module + ".weight_zero_point", "I32", {zero_words, g}, zeros.get());
    if (kind.order == Order::shuffled) writer.add(module + ".weight_g_idx", "I32", {k}, q.group_of);
    if (kind.order == Order::unset) writer.add(module + ".weight_g_idx", "I32", {k}, std::vector<int32_t>(q.group_of.size(), -1));
    return;
  }
  const bool is_awq = kind.method == Method::awq;
  constexpr int64_t kValueOfNibble[] = {0, 2, 4, 6, 1, 3, 5, 7};  // of AWQ, in the order of the nibbles
  Words codes(n * k / 8), zeros(g * n / 8);
  for (int64_t row = 0; row < n; ++row) {
    const int64_t nibble = is_awq ? std::find(kValueOfNibble, kValueOfNibble + 8, row % 8) - kValueOfNibble : row % 8;
    for (int64_t col = 0; col < k; ++col) {
      if (is_awq) {
        codes.set(col * (n / 8) + row / 8, nibble, code(row, col));
      } else {
        codes.set(col / 8 * n + row, col % 8, code(row, col));
      }
    }
    for (int64_t group = 0; group < g; ++group) {
      zeros.set(group * (n / 8) + row / 8, nibble, zero(row, group) - (kind.method == Method::gptq ? 1 : 0));
    }
  }
  writer.add(module + ".qweight", "I32", is_awq ? Shape{k, n / 8} : Shape{k / 8, n}, codes.get());
  writer.add(module + ".qzeros", "I32", {g, n / 8}, zeros.get());
  add_scales(writer, module + ".scales", kind.scale_dtype, {g, n}, transposed(q.scales, n, g));
  if (kind.order != Order::none) writer.add(module + ".g_idx", "I32", {k}, q.group_of);
}

GgmlType type_of_block(int64_t block) {
  return block == 128 ? GgmlType::i4_128 : block == 64 ? GgmlType::i4_64 : block == 32 ? GgmlType::i4_32 : GgmlType::f32;
}
WeightFormat format_of_block(int64_t block) {
  return block == 128 ? WeightFormat::i4_128 : block == 64 ? WeightFormat::i4_64 : WeightFormat::i4_32;
}

class PackedInt4Checkpoint : public testing::TestWithParam<Kind> {
 protected:
  const Kind& kind() const { return GetParam(); }
  std::unique_ptr<Checkpoint> open(const SafetensorsWriter& writer) const {
    directory_.write("config.json", config_of(kind().config()));
    directory_.write("model.safetensors", writer.bytes());
    auto opened = Checkpoint::open(directory_.path());
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    return opened.ok() ? std::move(opened).value() : nullptr;
  }
  // Reads a tensor's bytes and compares what they stand for with the values of `q`.
  void expect_values(const Checkpoint& checkpoint, const std::string& name, const Quantized& q) const {
    const TensorInfo* const tensor = checkpoint.tensor(name);
    ASSERT_NE(tensor, nullptr);
    const int64_t block = kind().block(q.cols);
    EXPECT_EQ(tensor->shape, (Shape{q.rows, q.cols}));
    ASSERT_EQ(tensor->type, type_of_block(block));
    const int64_t row_bytes = block == 0 ? q.cols * 4 : q.cols / block * (3 + block / 2);
    ASSERT_EQ(tensor->size_bytes, q.rows * row_bytes);
    std::vector<uint8_t> bytes(static_cast<size_t>(tensor->size_bytes));
    ASSERT_TRUE(checkpoint.read(*tensor, 0, tensor->size_bytes, bytes.data()).ok());
    for (int64_t i = 0; i < q.rows * q.cols; ++i) {
      const float want = q.values[static_cast<size_t>(i)];
      float got = 0.0f;
      if (block == 0) {
        std::memcpy(&got, &bytes[static_cast<size_t>(4 * i)], 4);
      } else {
        const auto value =
            test::oracle::weight_value(format_of_block(block), &bytes[static_cast<size_t>(i / q.cols * row_bytes)], i % q.cols);
        ASSERT_EQ(value.code, q.codes[static_cast<size_t>(i)]) << i;
        got = static_cast<float>(value.value());
      }
      ASSERT_EQ(got, want) << "row " << i / q.cols << ", channel " << i % q.cols;
    }
  }

  Random random_{5};
  const TemporaryDirectory directory_{testing::TempDir()};
};

INSTANTIATE_TEST_SUITE_P(Kinds, PackedInt4Checkpoint, testing::ValuesIn(kinds()), [](const auto& row) { return row.param.name; });

TEST_P(PackedInt4Checkpoint, WeightsAreTheirValues) {
  // Rows that are no whole blocks; rows of no whole words with compressed-tensors.
  const int64_t odd = kind().method == Method::compressed ? 5 : 0, few = kind().method == Method::compressed ? 3 : 0;
  const std::vector<Quantized> all = {make(kind(), 136 + odd, 256, random_), make(kind(), 8, 96, random_),
                                      make(kind(), 24 + odd, 320, random_), make(kind(), 16, 200 + few, random_)};
  SafetensorsWriter writer;
  for (size_t i = 0; i < all.size(); ++i) add(writer, "m" + std::to_string(i), kind(), all[i]);
  writer.add("norm.weight", "F32", {2}, std::vector<float>{1, 2});
  writer.add("m0.bias", "F16", {136 + odd}, std::vector<uint16_t>(static_cast<size_t>(136 + odd), 0x8000));  // -0
  writer.add("m1.bias", "F16", {8}, std::vector<uint16_t>{0, 0, 0, 0, 0, 0, 0, 0x3c00});
  const auto checkpoint = open(writer);
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_FALSE(checkpoint->has_tensor("m0.qweight") || checkpoint->has_tensor("m0.weight_packed"));
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    expect_values(*checkpoint, "m" + std::to_string(i) + ".weight", all[i]);
  }
  EXPECT_EQ(checkpoint->unused_tensors(), (std::vector<std::string>{"m1.bias", "norm.weight"}));
}

TEST_P(PackedInt4Checkpoint, LoadersKeepThemPackedOrConvertThem) {
  const Quantized q = make(kind(), 40, 256, random_);
  SafetensorsWriter writer;
  add(writer, "w", kind(), q);
  const auto checkpoint = open(writer);
  ASSERT_NE(checkpoint, nullptr);
  const int64_t block = kind().block(256);
  for (const bool kept : {false, true}) {
    WeightLoader loader(*checkpoint, DType::f32, Execution{Device::cpu, 2}, {}, kept);
    loader.expect("w.weight", {40, 256});
    EXPECT_TRUE(loader.check_expected().ok()) << loader.check_expected().message();
    const auto weight = loader.load("w.weight", 40, 256);
    ASSERT_TRUE(weight.ok()) << weight.status().message();
    if (!kept || block == 0) {
      ASSERT_EQ(weight->packed.num_segments, 0);
      for (size_t i = 0; i < q.values.size(); ++i) ASSERT_EQ(static_cast<const float*>(weight->data)[i], q.values[i]) << i;
      continue;
    }
    const WeightFormat format = format_of_block(block);
    ASSERT_EQ(weight->packed.num_segments, 1);
    EXPECT_EQ(weight->packed.segments[0].format, format);
    EXPECT_EQ(loader.types_text(), weight_format_name(format));
    std::vector<uint8_t> blocks;
    for (int64_t i = 0; i < 40 * 256; i += block) {
      const auto at = static_cast<size_t>(i / 256 * q.groups + q.group_of[static_cast<size_t>(i % 256)]);
      blocks.resize(blocks.size() + 3);
      test::set_half(&blocks[blocks.size() - 3], q.scales[at]);
      blocks.back() = static_cast<uint8_t>(q.zeros[at]);
      for (int64_t run = i; run < i + block; run += 32) {
        for (int64_t j = run; j < run + 16; ++j) {
          blocks.push_back(static_cast<uint8_t>(q.codes[static_cast<size_t>(j)] + 16 * q.codes[static_cast<size_t>(j + 16)]));
        }
      }
    }
    const auto want = test::packed_blocks(format, 40, 256, blocks);
    EXPECT_EQ(std::memcmp(weight->packed.segments[0].data, want.data(), want.size()), 0);
  }
}

TEST_P(PackedInt4Checkpoint, AnyRangeOfBytesIsRead) {
  const Quantized q = make(kind(), 88, 256, random_);
  SafetensorsWriter writer;
  add(writer, "w", kind(), q);
  const auto checkpoint = open(writer);
  ASSERT_NE(checkpoint, nullptr);
  const TensorInfo& tensor = *checkpoint->tensor("w.weight");
  std::vector<std::byte> whole(static_cast<size_t>(tensor.size_bytes));
  ASSERT_TRUE(checkpoint->read(tensor, 0, tensor.size_bytes, whole.data()).ok());
  for (int i = 0; i < 200; ++i) {
    const int64_t begin = random_.integer(0, tensor.size_bytes),
                  size = random_.integer(0, std::min<int64_t>(i % 10 == 0 ? 100000 : 300, tensor.size_bytes - begin));
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

// More values than are read at once.
TEST(PackedInt4Large, WeightsAreReadInPieces) {
  for (const Kind& kind :
       {Kind{"gptq", Method::gptq, 128}, Kind{"awq", Method::awq, 128}, Kind{"compressed", Method::compressed, 128}}) {
    SCOPED_TRACE(kind.name);
    Random random(9);
    const int64_t rows = 35008;
    const Quantized q = make(kind, rows, 128, random);
    SafetensorsWriter writer;
    add(writer, "w", kind, q);
    const TemporaryDirectory directory{testing::TempDir()};
    directory.write("config.json", config_of(kind.config()));
    directory.write("model.safetensors", writer.bytes());
    const auto checkpoint = Checkpoint::open(directory.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    const TensorInfo& tensor = *(*checkpoint)->tensor("w.weight");
    std::vector<uint8_t> bytes(static_cast<size_t>(rows * 67));
    ASSERT_EQ(tensor.size_bytes, rows * 67);
    ASSERT_TRUE((*checkpoint)->read(tensor, 0, tensor.size_bytes, bytes.data()).ok());
    for (int64_t i = 0; i < rows * 128; ++i) {
      const auto value = test::oracle::weight_value(WeightFormat::i4_128, &bytes[static_cast<size_t>(i / 128 * 67)], i % 128);
      ASSERT_EQ(static_cast<float>(value.value()), q.values[static_cast<size_t>(i)]) << i;
    }
  }
}

// ---- A model ----

class PackedInt4Model : public PackedInt4Checkpoint {
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
      const std::string full = "model.layers.0." + name;
      if (quantized) {
        add(writer, full, kind(), q);
        writer.add(full + ".bias", "F16", {rows}, std::vector<uint16_t>(static_cast<size_t>(rows)));
      } else {
        writer.add(full + ".weight", "F32", {rows, cols}, q.values);
      }
    };
    vectors("model.embed_tokens.weight", {4, 128});
    vectors("model.norm.weight", {128});
    vectors("model.layers.0.input_layernorm.weight", {128});
    vectors("model.layers.0.post_attention_layernorm.weight", {128});
    matrix("self_attn.q_proj", 128, 128);
    matrix("self_attn.k_proj", 64, 128);
    matrix("self_attn.v_proj", 64, 128);
    matrix("self_attn.o_proj", 128, 128);
    matrix("mlp.gate_proj", 200, 128);
    matrix("mlp.up_proj", 200, 128);
    matrix("mlp.down_proj", 128, 200);
    directory_.write("config.json", config_of(quantized ? kind().config() : ""));
    directory_.write("model.safetensors", writer.bytes());
    directory_.write("tokenizer.json", std::string(test::kTinyTokenizer));
  }
  std::vector<float> logits(bool keep, std::string* types = nullptr) { return test::tiny_logits(directory_.path(), keep, types); }
};

INSTANTIATE_TEST_SUITE_P(Kinds, PackedInt4Model, testing::ValuesIn(kinds()), [](const auto& row) { return row.param.name; });

TEST_P(PackedInt4Model, HasTheLogitsOfItsValues) {
  write(false);
  const std::vector<float> want = logits(false);
  ASSERT_FALSE(want.empty());
  write(true);
  std::string types;
  EXPECT_EQ(logits(false, &types), want);
  EXPECT_EQ(types, "float32");
  const std::vector<float> kept = logits(true, &types);
  const int64_t block = kind().block(128);
  EXPECT_EQ(types, block == 0 ? "float32" : std::string(weight_format_name(format_of_block(block))) + " and float32");
  ASSERT_EQ(kept.size(), want.size());
  float largest = 0.0f;
  for (const float logit : want) largest = std::max(largest, std::fabs(logit));
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(kept[i], want[i], largest * (block == 0 ? 0.0f : 0.05f)) << i;
  const auto token = [](const std::vector<float>& rows, size_t row) {
    const auto first = rows.begin() + static_cast<std::ptrdiff_t>(4 * row);
    return std::max_element(first, first + 4) - first;
  };
  for (size_t row = 0; 4 * row < want.size(); ++row) EXPECT_EQ(token(kept, row), token(want, row)) << row;
}

// ---- Refusals ----

class PackedInt4Refusals : public testing::Test {
 protected:
  struct Replaced {
    std::string name, dtype;
    Shape shape;
    std::vector<uint8_t> bytes;
  };
  // Returns the message without the path. `suffix` is of the tensor of a good weight "m" [16, 64] that is another one; no dtype: missing.
  std::string refused(const Kind& kind, const std::string& suffix, const std::string& dtype, const Shape& shape,
                      const std::vector<uint8_t>& bytes, StatusCode code = StatusCode::data_loss) {
    Random random(11);
    const Quantized q = make(kind, 16, 64, random);
    SafetensorsWriter good, writer;
    add(good, "m", kind, q);
    directory_.write("config.json", config_of(kind.config()));
    directory_.write("model.safetensors", good.bytes());
    const auto file = SafetensorsFile::open(directory_.file("model.safetensors"));
    EXPECT_TRUE(file.ok());
    bool replaced = false;
    for (const SafetensorsTensor& tensor : file->tensors()) {
      if (tensor.name == "m." + suffix) {
        replaced = true;
        if (!dtype.empty()) writer.add(tensor.name, dtype, shape, bytes);
        continue;
      }
      std::vector<uint8_t> data(static_cast<size_t>(tensor.size_bytes));
      EXPECT_TRUE(file->read(tensor, 0, tensor.size_bytes, data.data()).ok());
      writer.add(tensor.name, tensor.dtype, tensor.shape, data);
    }
    if (!replaced) writer.add("m." + suffix, dtype, shape, bytes);
    directory_.write("model.safetensors", writer.bytes());
    return refusal(code);
  }
  std::string refusal(StatusCode code) const {
    const auto opened = Checkpoint::open(directory_.path());
    EXPECT_FALSE(opened.ok());
    if (opened.ok()) return "";
    EXPECT_EQ(opened.status().code(), code) << opened.status().message();
    EXPECT_EQ(opened.status().message().find(directory_.path() + ": "), 0u) << opened.status().message();
    return opened.status().message().substr(directory_.path().size() + 2);
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

TEST_F(PackedInt4Refusals, ConfigurationsAreNamed) {
  const std::string in_config = "quantization_config in config.json is ";
  for (const char* bits : {"2", "3", "8"}) {
    EXPECT_EQ(refused_config(R"({"quant_method": "gptq", "group_size": 128, "bits": )" + std::string(bits) + "}"),
              in_config + "gptq of " + bits + " bits: supported are 4");
    EXPECT_EQ(refused_config(R"({"quant_method": "awq", "group_size": 128, "bits": )" + std::string(bits) + "}"),
              in_config + "awq of " + bits + " bits: supported are 4");
  }
  EXPECT_EQ(refused_config(R"({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"})"),
            in_config + "gptq with the checkpoint_format 'marlin': supported are 'gptq' and 'gptq_v2'");
  EXPECT_EQ(refused_config(R"({"quant_method": "gptq", "bits": 4, "is_marlin_format": true})"),
            "quantization_config in config.json has is_marlin_format, which is not supported");
  for (const std::string version : {"gemv", "gemv_fast", "marlin", "exllama"}) {
    EXPECT_EQ(refused_config(R"({"quant_method": "awq", "bits": 4, "version": ")" + version + "\"}"),
              in_config + "awq of the version '" + version + "': supported is 'gemm'");
  }
  EXPECT_EQ(refused_config(R"({"quant_method": "awq", "bits": 4, "backend": "llm-awq"})"),
            in_config + "awq of the backend 'llm-awq': supported is 'autoawq'");
  for (const std::string size : {"0", "-2"}) {
    EXPECT_EQ(refused_config(R"({"quant_method": "gptq", "bits": 4, "group_size": )" + size + "}", StatusCode::data_loss),
              "group_size in quantization_config is " + size + ": it must be -1 or at least 1");
  }
  EXPECT_EQ(refused_config(R"({"quant_method": "gptq", "bits": "4"})", StatusCode::data_loss),
            "'bits' in quantization_config is a string: an integer is expected");
  EXPECT_EQ(refused_config(R"({"quant_method": "gptq", "bits": 4, "desc_act": 1})", StatusCode::data_loss),
            "'desc_act' in quantization_config is an integer: a boolean is expected");
  const auto packed = [](const std::string& weights) {
    return R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"g": {"weights": {)" +
           weights + "}}}}";
  };
  EXPECT_EQ(
      refused_config(packed(R"("num_bits": 8, "type": "int", "strategy": "channel")")),
      "config_groups.g in quantization_config has weights of 8 bits and type 'int': with the format 'pack-quantized' 4 bits and "
      "'int' are supported");
  EXPECT_EQ(refused_config(packed(R"("num_bits": 4, "type": "float", "strategy": "channel")")),
            "config_groups.g in quantization_config has weights of 4 bits and type 'float': with the format 'pack-quantized' 4 "
            "bits and "
            "'int' are supported");
  EXPECT_EQ(refused_config(packed(R"("num_bits": 4, "type": "int", "strategy": "tensor")")),
            "config_groups.g in quantization_config has weights with the strategy 'tensor': supported are 'group' and 'channel'");
  EXPECT_EQ(refused_config(packed(R"("num_bits": 4, "type": "int", "strategy": "group")"), StatusCode::data_loss),
            "config_groups.g in quantization_config has weights with the strategy 'group', but no group_size");
}

// The weight is [16, 64], in groups of 32.
// A tensor without a name is none of those that a method does not have.
TEST_F(PackedInt4Refusals, ATensorWithoutANameIsNoPart) {
  Random random(11);
  for (const auto& [method, dtype, values] :
       {std::tuple(Method::gptq, "I64", std::vector<int64_t>{16, 63}), {Method::awq, "I64", std::vector<int64_t>{16, 63}}}) {
    const Kind kind{"kind", method, 32};
    const Quantized q = make(kind, 16, 64, random);
    SafetensorsWriter writer;
    add(writer, "m", kind, q);
    writer.add("", dtype, {2}, values);
    directory_.write("config.json", config_of(kind.config()));
    directory_.write("model.safetensors", writer.bytes());
    const auto opened = Checkpoint::open(directory_.path());
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    EXPECT_EQ((*opened)->tensor("m.weight")->shape, (Shape{16, 64}));
  }
}

// Sizes of groups that the shapes of a weight do not tell apart.
TEST_F(PackedInt4Refusals, GroupsOfAnOpenSizeAreNamed) {
  const auto group = [](const char* name, int size, bool symmetric) {
    return str_cat("\"", name, R"(": {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": )", size,
                   R"(, "symmetric": )", symmetric ? "true" : "false", "}}");
  };
  const auto config = [](const std::string& groups) {
    return R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {)" + groups + "}}";
  };
  SafetensorsWriter writer;
  writer.add("m.weight_packed", "I32", {8, 8}, std::vector<uint32_t>(64));
  writer.add("m.weight_scale", "F16", {8, 2}, std::vector<uint16_t>(16, 0x2000));
  const auto refused_groups = [&](const std::string& groups) {
    directory_.write("config.json", config_of(config(groups)));
    directory_.write("model.safetensors", writer.bytes());
    const auto opened = Checkpoint::open(directory_.path());
    return opened.ok() ? std::string() : opened.status().message();
  };
  EXPECT_EQ(refused_groups(group("a", 32, true) + ", " + group("b", 128, true)), "");
  EXPECT_NE(
      refused_groups(group("a", 32, true) + ", " + group("b", 40, true))
          .find("the groups of m.weight_packed [8, 8] may have 32 or 40 channels: quantization_config must not leave that open"),
      std::string::npos);
  EXPECT_NE(refused_groups(group("a", 32, true) + ", " + group("b", 128, false)).find("all groups must be alike"),
            std::string::npos);
  EXPECT_NE(refused_groups("").find("quantization_config has no config_groups with weights"), std::string::npos);
}

TEST_F(PackedInt4Refusals, BrokenTensorsAreNamed) {
  const Kind gptq{"gptq", Method::gptq, 32, "F16", Order::ascending}, awq{"awq", Method::awq, 32};
  const Kind desc_act{"gptq", Method::gptq, 32, "F16", Order::shuffled};
  const Kind packed{"compressed", Method::compressed, 32, "BF16", Order::shuffled};
  const auto zeros = [](size_t count) { return std::vector<uint8_t>(count); };
  const std::string codes = "tensor m.qweight has codes of 4 bits, but its ";
  EXPECT_EQ(refused(gptq, "scales", "", {}, {}), codes + "scales are missing");
  EXPECT_EQ(refused(gptq, "qzeros", "", {}, {}), codes + "zero points are missing");
  EXPECT_EQ(refused(awq, "qzeros", "", {}, {}), codes + "zero points are missing");
  EXPECT_EQ(refused(desc_act, "g_idx", "", {}, {}), codes + "groups (g_idx), which desc_act needs, are missing");
  EXPECT_EQ(refused(packed, "weight_zero_point", "", {}, {}),
            "tensor m.weight_packed has codes of 4 bits, but its zero points are missing");

  EXPECT_EQ(refused(gptq, "qweight", "I32", {2, 4, 16}, zeros(512), StatusCode::unsupported),
            "tensor m.qweight is quantised and has shape [2, 4, 16]: two dimensions of at least 1 are supported");
  EXPECT_EQ(refused(gptq, "qweight", "U8", {8, 16}, zeros(128), StatusCode::unsupported),
            "tensor m.qweight has type U8: it must be I32");
  EXPECT_EQ(refused(gptq, "qweight", "I32", {8, 15}, zeros(480)),
            "tensor m.qweight has shape [8, 15]: the second dimension must be a multiple of 8");
  EXPECT_EQ(refused(gptq, "qweight", "I32", {16, 16}, zeros(1024)),
            "tensor m.scales has shape [2, 16]: for m.qweight [16, 16] [4, 16] is expected");
  EXPECT_EQ(refused(awq, "qweight", "I32", {64, 3}, zeros(768)),
            "tensor m.scales has shape [2, 16]: for m.qweight [64, 3] [2, 24] is expected");
  EXPECT_EQ(refused(gptq, "scales", "F16", {16, 2}, zeros(64)),
            "tensor m.scales has shape [16, 2]: for m.qweight [8, 16] [2, 16] is expected");
  EXPECT_EQ(refused(gptq, "scales", "I16", {2, 16}, zeros(64), StatusCode::unsupported),
            "tensor m.scales has type I16: scales of weights must be F32, F16 or BF16");
  EXPECT_EQ(refused(gptq, "qzeros", "I32", {2, 1}, zeros(8)),
            "tensor m.qzeros has shape [2, 1]: for m.qweight [8, 16] [2, 2] is expected");
  EXPECT_EQ(refused(gptq, "qzeros", "F32", {2, 2}, zeros(16), StatusCode::unsupported),
            "tensor m.qzeros has type F32: it must be I32");
  EXPECT_EQ(refused(gptq, "g_idx", "I32", {63}, zeros(252)),
            "tensor m.g_idx has shape [63]: for m.qweight [8, 16] [64] is expected");
  for (const int32_t group : {-1, 2, std::numeric_limits<int32_t>::min()}) {
    std::vector<int32_t> groups(64);
    groups[33] = group;
    std::vector<uint8_t> bytes(256);
    std::memcpy(bytes.data(), groups.data(), 256);
    const std::string value = std::to_string(group);
    EXPECT_EQ(refused(gptq, "g_idx", "I32", {64}, bytes), "element 33 of tensor m.g_idx is " + value + ": it must be 0 to 1");
    EXPECT_EQ(refused(packed, "weight_g_idx", "I32", {64}, bytes),
              "element 33 of tensor m.weight_g_idx is " + value + ": it must be 0 to 1");
  }
  EXPECT_EQ(refused(packed, "weight_scale", "BF16", {16, 1}, zeros(32)),
            "tensor m.weight_scale has shape [16, 1]: for m.weight_packed [16, 8] [16, 2] is expected");
  EXPECT_EQ(refused(packed, "weight_zero_point", "I32", {16, 2}, zeros(128)),
            "tensor m.weight_zero_point has shape [16, 2]: for m.weight_packed [16, 8] [2, 2] is expected");
  const auto shape = [](int64_t rows, int64_t cols) {
    std::vector<uint8_t> bytes(16);
    std::memcpy(bytes.data(), &rows, 8), std::memcpy(bytes.data() + 8, &cols, 8);
    return bytes;
  };
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{17, 64}, {16, 56}, {16, 65}, {16, -1}}) {
    EXPECT_EQ(refused(packed, "weight_shape", "I64", {2}, shape(rows, cols)),
              "tensor m.weight_shape is [" + std::to_string(rows) + ", " + std::to_string(cols) +
                  "]: for m.weight_packed [16, 8] it must be 16 and 57 to 64");
  }
  EXPECT_EQ(refused(packed, "weight_shape", "I64", {1}, zeros(8)), "tensor m.weight_shape has shape [1]: [2] is expected");
  EXPECT_EQ(refused(packed, "weight_shape", "I32", {2}, zeros(8), StatusCode::unsupported),
            "tensor m.weight_shape has type I32: it must be I64");

  std::vector<uint8_t> infinite = zeros(64);
  infinite[2 * (16 + 5) + 1] = 0x7c;
  EXPECT_EQ(refused(gptq, "scales", "F16", {2, 16}, infinite),
            "element [1, 5] of tensor m.scales is inf: a scale must be finite");
  std::vector<uint8_t> nan = zeros(64);
  nan[2 * (5 * 2 + 1)] = 0xc0, nan[2 * (5 * 2 + 1) + 1] = 0x7f;
  EXPECT_EQ(refused(packed, "weight_scale", "BF16", {16, 2}, nan),
            "element [5, 1] of tensor m.weight_scale is nan: a scale must be finite");
  EXPECT_EQ(refused(gptq, "weight", "F32", {16, 64}, zeros(4096)),
            "there are both m.weight and m.qweight, which is the same weight");
}

// ---- Mutations: a changed file is read, or refused with a sentence ----

TEST(PackedInt4Mutation, EveryDirectoryIsReadOrRefusedWithASentence) {
  const TemporaryDirectory directory{testing::TempDir()};
  int read = 0, refused = 0;
  for (const Kind& kind : {Kind{"gptq", Method::gptq, 32, "F16", Order::shuffled}, Kind{"awq", Method::awq, 32},
                           Kind{"compressed", Method::compressed, 32, "BF16", Order::shuffled}}) {
    Random random(3);
    SafetensorsWriter writer;
    add(writer, "m", kind, make(kind, 16, 64, random));
    const std::string header = writer.header();
    for (int i = 0; i < 1500; ++i) {
      std::string config = config_of(kind.config()), changed = header;
      std::vector<std::byte> data = writer.data();
      std::string& text = i % 3 == 0 ? config : changed;
      for (int64_t n = random.integer(1, 3); n > 0; --n) {
        if (i % 3 == 1) {  // of the values
          data[static_cast<size_t>(random.integer(0, static_cast<int64_t>(data.size()) - 1))] =
              static_cast<std::byte>(random.bits());
          continue;
        }
        size_t at = static_cast<size_t>(random.integer(0, static_cast<int64_t>(text.size()) - 1));
        if (random.integer(0, 3) > 0) at = std::min(text.find_first_of("0123456789", at), text.size() - 1);
        text[at] = "0123456789[]{},\"-.x"[random.integer(0, 18)];
      }
      directory.write("config.json", config);
      directory.write("model.safetensors", test::safetensors_file(changed, data));
      const auto opened = Checkpoint::open(directory.path());
      if (!opened.ok()) {
        ++refused;
        ASSERT_FALSE(opened.status().message().empty());
        continue;
      }
      ++read;
      for (const TensorInfo& tensor : (*opened)->tensors()) {
        ASSERT_LE(tensor.size_bytes, 4 * 16 * 64 * 8);
        std::vector<std::byte> bytes(static_cast<size_t>(tensor.size_bytes));
        const Status status = (*opened)->read(tensor, 0, tensor.size_bytes, bytes.data());
        ASSERT_TRUE(status.ok() || !status.message().empty());
      }
    }
  }
  EXPECT_GT(read, 100);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace prologue
