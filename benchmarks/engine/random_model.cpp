#include "benchmarks/engine/random_model.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <string_view>
#include <thread>
#include <type_traits>
#include <vector>

#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/weight_format.h>

namespace prologue::bench {

namespace {

// ---- Metadata ----

constexpr uint32_t kUint32 = 4, kInt32 = 5, kFloat32 = 6, kBool = 7, kString = 8, kArray = 9;  // of values
constexpr int64_t kAlignment = 32;

template <class T>
requires std::is_arithmetic_v<T>
void append(std::string& bytes, T number) { bytes.append(reinterpret_cast<const char*>(&number), sizeof number); }
void append(std::string& bytes, std::string_view text) {
  append(bytes, static_cast<uint64_t>(text.size()));
  bytes.append(text);
}

class Metadata {
 public:
  void add(std::string_view key, uint32_t value) { number(key, kUint32, value); }
  void add(std::string_view key, float value) { number(key, kFloat32, value); }
  void add(std::string_view key, bool value) { number(key, kBool, static_cast<uint8_t>(value)); }
  void add(std::string_view key, std::string_view text) {
    start(key, kString);
    append(bytes_, text);
  }
  void add(std::string_view key, const char* text) { add(key, std::string_view(text)); }
  void add(std::string_view key, const std::vector<std::string>& texts) {
    start_array(key, kString, texts.size());
    for (const std::string& text : texts) append(bytes_, text);
  }
  void add(std::string_view key, const std::vector<int32_t>& numbers) {
    start_array(key, kInt32, numbers.size());
    for (const int32_t value : numbers) append(bytes_, value);
  }

  uint64_t size() const { return size_; }
  const std::string& bytes() const { return bytes_; }

 private:
  template <class T>
  void number(std::string_view key, uint32_t type, T value) {
    start(key, type);
    append(bytes_, value);
  }
  void start(std::string_view key, uint32_t type) {
    append(bytes_, key);
    append(bytes_, type);
    ++size_;
  }
  void start_array(std::string_view key, uint32_t type, size_t count) {
    start(key, kArray);
    append(bytes_, type);
    append(bytes_, static_cast<uint64_t>(count));
  }

  uint64_t size_ = 0;
  std::string bytes_;
};

std::string utf8(uint32_t code_point) {  // below 0x800
  if (code_point < 0x80) return {static_cast<char>(code_point)};
  return {static_cast<char>(0xc0 | (code_point >> 6)), static_cast<char>(0x80 | (code_point & 0x3f))};
}

// Byte-level BPE writes a byte as one character (GPT-2's alphabet): itself if it is printable, else U+0100 and the following ones.
std::array<std::string, 256> byte_alphabet() {
  std::array<std::string, 256> alphabet;
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool is_printable = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
    alphabet[byte] = utf8(is_printable ? byte : next++);
  }
  return alphabet;
}

constexpr const char* kChatTemplate =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

constexpr size_t kNumControlTokens = 3;  // they are the first

std::vector<std::string> make_tokens(const ModelShape& shape) {
  std::vector<std::string> tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  const std::array<std::string, 256> alphabet = byte_alphabet();
  tokens.insert(tokens.end(), alphabet.begin(), alphabet.end());
  for (int64_t i = 0; static_cast<int64_t>(tokens.size()) < shape.vocab_size; ++i) {  // a blank and four letters
    std::string letters;
    for (int64_t rest = i; letters.size() < 4; rest /= 26) letters += static_cast<char>('a' + rest % 26);
    tokens.push_back(alphabet[' '] + letters);
  }
  return tokens;
}

void add_tokenizer(Metadata& metadata, const ModelShape& shape) {
  constexpr int32_t kNormal = 1, kControl = 3;
  const std::vector<std::string> tokens = make_tokens(shape);
  std::vector<int32_t> types(kNumControlTokens, kControl);
  types.resize(tokens.size(), kNormal);
  metadata.add("tokenizer.ggml.model", "gpt2");
  metadata.add("tokenizer.ggml.pre", shape.pre_tokenizer);
  metadata.add("tokenizer.ggml.tokens", tokens);
  metadata.add("tokenizer.ggml.token_type", types);
  metadata.add("tokenizer.ggml.merges", std::vector<std::string>());
  metadata.add("tokenizer.ggml.bos_token_id", uint32_t{1});
  metadata.add("tokenizer.ggml.eos_token_id", uint32_t{2});
  metadata.add("tokenizer.ggml.add_bos_token", false);
  metadata.add("tokenizer.chat_template", kChatTemplate);
}

Metadata make_metadata(const ModelShape& shape) {
  Metadata metadata;
  const auto size = [&](std::string_view key, int64_t value) { metadata.add(key, static_cast<uint32_t>(value)); };
  metadata.add("general.architecture", "llama");
  metadata.add("general.name", str_cat("random weights, ", shape.name));
  size("general.quantization_version", 2);
  size("llama.block_count", shape.num_layers);
  size("llama.context_length", shape.context_length);
  size("llama.embedding_length", shape.hidden_size);
  size("llama.feed_forward_length", shape.ffn_size);
  size("llama.attention.head_count", shape.num_q_heads);
  size("llama.attention.head_count_kv", shape.num_kv_heads);
  size("llama.attention.key_length", shape.head_dim);
  size("llama.attention.value_length", shape.head_dim);
  size("llama.rope.dimension_count", shape.head_dim);
  size("llama.vocab_size", shape.vocab_size);
  if (shape.num_experts > 0) {
    size("llama.expert_count", shape.num_experts);
    size("llama.expert_used_count", shape.experts_per_token);
  }
  metadata.add("llama.rope.freq_base", shape.rope_theta);
  metadata.add("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  add_tokenizer(metadata, shape);
  return metadata;
}

// ---- Tensors ----

// The formats of weights by their names in --format.
constexpr std::string_view kBFloat16Name = "bfloat16", kMixtureName = "q4_k_m", kModelOptName = "nvfp4_modelopt";
constexpr WeightFormat kBlockFormats[] = {WeightFormat::q8_0,  WeightFormat::q4_0, WeightFormat::q4_1,   WeightFormat::q5_0,
                                          WeightFormat::q5_1,  WeightFormat::q4_k, WeightFormat::q5_k,   WeightFormat::q6_k,
                                          WeightFormat::q2_k,  WeightFormat::q3_k, WeightFormat::iq4_nl, WeightFormat::iq4_xs,
                                          WeightFormat::mxfp4, WeightFormat::nvfp4};

// Those of the file: NVFP4 has the tensor's scale beside it.
int64_t block_elements_of(WeightFormat format) { return format == WeightFormat::nvfp4 ? 64 : weight_block_elements(format); }
int64_t block_bytes_of(WeightFormat format) { return format == WeightFormat::nvfp4 ? 4 + 32 : weight_block_bytes(format); }

// The scales of 16 weights in NVFP4 are 128 to 240, as those of files are, whose largest one is 448: so large is the tensor's scale then.
float nvfp4_scale(double deviation) {
  constexpr double kSquareOfCodes = 2.0 * (0.25 + 1 + 2.25 + 4 + 9 + 16 + 36) / 16;
  constexpr double kSquareOfScales = 256.0 * 1100.0 / 8;  // 16 times 8 to 15
  return static_cast<float>(deviation / std::sqrt(kSquareOfCodes * kSquareOfScales));
}

struct Tensor {
  std::string name;
  int64_t columns = 0;
  int64_t rows = 1;                           // of a vector: 1; of all experts
  int64_t experts = 0;                        // above 0: the tensor has three dimensions
  int64_t offset = 0;                         // from the first tensor's first byte
  WeightFormat format = WeightFormat::dense;  // then a matrix is bfloat16, and a vector float32
  float value = 1.0f;                         // of all elements of a vector

  bool is_vector() const { return rows == 1; }
  uint32_t type() const {  // its number in the file
    switch (format) {
      case WeightFormat::dense: return is_vector() ? 0 : 30;
      case WeightFormat::q8_0: return 8;
      case WeightFormat::q4_0: return 2;
      case WeightFormat::q4_1: return 3;
      case WeightFormat::q5_0: return 6;
      case WeightFormat::q5_1: return 7;
      case WeightFormat::q4_k: return 12;
      case WeightFormat::q5_k: return 13;
      case WeightFormat::q6_k: return 14;
      case WeightFormat::q2_k: return 10;
      case WeightFormat::q3_k: return 11;
      case WeightFormat::iq4_nl: return 20;
      case WeightFormat::iq4_xs: return 23;
      case WeightFormat::mxfp4: return 39;
      case WeightFormat::nvfp4: return 40;
      default: break;
    }
    return 0;
  }
  // Returns the bytes of so many elements, which are whole blocks.
  int64_t bytes_of(int64_t elements) const {
    if (format == WeightFormat::dense) return elements * (is_vector() ? 4 : 2);
    return elements / block_elements_of(format) * block_bytes_of(format);
  }
};

// Chooses a format for each matrix. llama.cpp's mixture Q4_K_M has Q6_K for the output, which is the embedding if there is no other, and
// for V and the last projection of half of the layers: the first and the last eighth, and every third between them.
class FormatChoice {
 public:
  FormatChoice(const ModelShape& shape, std::string_view name) : shape_(shape), is_mixture_(name == kMixtureName) {
    for (const WeightFormat format : kBlockFormats) {
      if (name == weight_format_name(format)) all_ = format;
    }
  }
  // `layer` is -1 outside the layers.
  WeightFormat of(std::string_view name, int64_t layer, int64_t columns) const {
    if (name.ends_with("ffn_gate_inp.weight")) return WeightFormat::dense;
    const bool is_output = name == "output.weight" || (shape_.tied_output && name == "token_embd.weight");
    const bool is_finer =
        is_output || (has_more_bits(layer) && (name.ends_with("attn_v.weight") || name.find("ffn_down") != name.npos));
    const WeightFormat format = !is_mixture_ ? all_ : is_finer ? WeightFormat::q6_k : WeightFormat::q4_k;
    if (columns % block_elements_of(format) == 0) return format;
    switch (format) {  // as llama.cpp does it
      case WeightFormat::q4_k: return WeightFormat::q5_0;
      case WeightFormat::q5_k: return WeightFormat::q5_1;
      case WeightFormat::q6_k: return WeightFormat::q8_0;
      case WeightFormat::q2_k:
      case WeightFormat::q3_k:
      case WeightFormat::iq4_xs: return WeightFormat::iq4_nl;
      default: return format;
    }
  }

 private:
  bool has_more_bits(int64_t layer) const {
    const int64_t n = shape_.num_layers;
    return layer >= 0 && (layer < n / 8 || layer >= 7 * n / 8 || (layer - n / 8) % 3 == 2);
  }

  const ModelShape& shape_;
  bool is_mixture_;
  WeightFormat all_ = WeightFormat::dense;
};

std::vector<Tensor> make_tensors(const ModelShape& shape, std::string_view format) {
  std::vector<Tensor> tensors;
  const FormatChoice choice(shape, format);
  int64_t offset = 0, current_layer = -1;
  const auto add = [&](std::string name, int64_t columns, int64_t rows = 1, int64_t experts = 0) {
    const WeightFormat of_tensor = rows == 1 ? WeightFormat::dense : choice.of(name, current_layer, columns);
    rows *= std::max<int64_t>(1, experts);
    const auto push = [&](std::string tensor, int64_t width, int64_t height, int64_t of_experts, WeightFormat in, float value) {
      tensors.push_back({std::move(tensor), width, height, of_experts, offset, in, value});
      offset = round_up(offset + tensors.back().bytes_of(width * height), kAlignment);
    };
    push(name, columns, rows, experts, of_tensor, 1.0f);
    if (of_tensor != WeightFormat::nvfp4) return;
    name.replace(name.rfind('.'), std::string::npos, ".scale");
    push(std::move(name), std::max<int64_t>(1, experts), 1, 0, WeightFormat::dense,
         nvfp4_scale(1.0 / std::sqrt(static_cast<double>(columns))));
  };
  const int64_t hidden = shape.hidden_size, q = shape.num_q_heads * shape.head_dim, kv = shape.num_kv_heads * shape.head_dim;
  add("token_embd.weight", hidden, shape.vocab_size);
  for (int64_t layer = 0; layer < shape.num_layers; ++layer) {
    const std::string block = str_cat("blk.", layer, ".");
    current_layer = layer;
    add(block + "attn_norm.weight", hidden);
    add(block + "attn_q.weight", hidden, q);
    add(block + "attn_k.weight", hidden, kv);
    add(block + "attn_v.weight", hidden, kv);
    add(block + "attn_output.weight", q, hidden);
    add(block + "ffn_norm.weight", hidden);
    const char* const of_experts = shape.num_experts > 0 ? "_exps.weight" : ".weight";
    if (shape.num_experts > 0) add(block + "ffn_gate_inp.weight", hidden, shape.num_experts);
    add(block + "ffn_gate" + of_experts, hidden, shape.ffn_size, shape.num_experts);
    add(block + "ffn_up" + of_experts, hidden, shape.ffn_size, shape.num_experts);
    add(block + "ffn_down" + of_experts, shape.ffn_size, hidden, shape.num_experts);
  }
  current_layer = -1;
  add("output_norm.weight", hidden);
  if (!shape.tied_output) add("output.weight", hidden, shape.vocab_size);
  return tensors;
}

std::string make_header(const ModelShape& shape, const std::vector<Tensor>& tensors) {
  const Metadata metadata = make_metadata(shape);
  std::string bytes = "GGUF";
  append(bytes, uint32_t{3});
  append(bytes, static_cast<uint64_t>(tensors.size()));
  append(bytes, metadata.size());
  bytes += metadata.bytes();
  for (const Tensor& tensor : tensors) {
    append(bytes, tensor.name);
    append(bytes, uint32_t{tensor.is_vector() ? 1u : tensor.experts == 0 ? 2u : 3u});
    append(bytes, static_cast<uint64_t>(tensor.columns));
    if (!tensor.is_vector()) append(bytes, static_cast<uint64_t>(tensor.rows / std::max<int64_t>(1, tensor.experts)));
    if (tensor.experts > 0) append(bytes, static_cast<uint64_t>(tensor.experts));
    append(bytes, tensor.type());
    append(bytes, static_cast<uint64_t>(tensor.offset));
  }
  bytes.resize(static_cast<size_t>(round_up(static_cast<int64_t>(bytes.size()), kAlignment)));
  return bytes;
}

// This is SplitMix64's output function.
uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// Holds numbers of a normal distribution, of which 16 random bits choose one: a weight costs a look-up.
class Normals {
 public:
  Normals() : values_(size_t{1} << 16) {
    for (size_t i = 0; i < values_.size(); ++i) {  // Box-Muller over evenly spread points
      const double x = (static_cast<double>(i) + 0.5) / static_cast<double>(values_.size());
      const double angle = 0.6180339887498949 * static_cast<double>(i);
      values_[i] = std::sqrt(-2.0 * std::log(x)) * std::cos(6.283185307179586 * angle);
    }
  }
  std::vector<BFloat16> scaled(double deviation) const {
    std::vector<BFloat16> scaled;
    for (const double value : values_) scaled.push_back(to_bfloat16(static_cast<float>(deviation * value)));
    return scaled;
  }
  const std::vector<double>& values() const { return values_; }

 private:
  std::vector<double> values_;
};

// Makes blocks whose codes are random bits, so uniformly distributed, and whose weights have a standard deviation: their scales differ by up to
// 2.8, and the mean of their squares is right. No block has a mean that is not zero in expectation: the weights of a row would add up to one
// direction that every layer makes longer.
class Blocks {
 public:
  Blocks(WeightFormat format, double deviation)
      : format_(format),
        bytes_(static_cast<size_t>(block_bytes_of(format))),
        words_(static_cast<uint64_t>(divide_up<int64_t>(block_bytes_of(format), 8)) + 1) {
    // The mean square of codes: they are around zero, but for the one below it that has no counterpart; with a minimum they are centred.
    constexpr double kPartScale = (3.0 * 95 * 95 + 32 * 32 - 1) / 12;  // the mean square of 32 to 63
    constexpr double kSignedPartScale = (10416.0 - 1240.0) / 16;       // of 16 to 31
    constexpr double kNibbleScale = 1100.0 / 8;                        // of 8 to 15
    const auto around_zero = [](double levels) { return (levels * levels + 2) / 12; };
    const auto centred = [](double levels) { return (levels * levels - 1) / 12; };
    double square = 1.0, minimum = 0.0;
    switch (format) {
      case WeightFormat::dense: break;
      case WeightFormat::q8_0: square = 2.0 * (127 * 128 * 255 / 6) / 256; break;  // -128 becomes 0
      case WeightFormat::q4_0: square = around_zero(16); break;
      case WeightFormat::q5_0: square = around_zero(32); break;
      case WeightFormat::q4_1: square = centred(16), minimum = -7.5; break;
      case WeightFormat::q5_1: square = centred(32), minimum = -15.5; break;
      case WeightFormat::q4_k: square = centred(16) * kPartScale, minimum = 7.5; break;
      case WeightFormat::q5_k: square = centred(32) * kPartScale, minimum = 15.5; break;
      case WeightFormat::q6_k: square = around_zero(64) * kPartScale; break;
      case WeightFormat::q2_k: square = centred(4) * kNibbleScale, minimum = 1.5; break;
      case WeightFormat::q3_k: square = around_zero(8) * kSignedPartScale; break;
      case WeightFormat::iq4_nl: square = kIq4Square; break;
      case WeightFormat::iq4_xs: square = kIq4Square * kSignedPartScale; break;
      case WeightFormat::mxfp4: {  // powers of two: the one below the scale, and some of the one above
        const double scale = deviation / std::sqrt(2.0 * (0.25 + 1 + 2.25 + 4 + 9 + 16 + 36) / 16);
        const int exponent = static_cast<int>(std::floor(std::log2(scale)));
        const double ratio = scale / std::ldexp(1.0, exponent);
        exponent_ = static_cast<unsigned char>(exponent + 127);
        next_exponents_ = static_cast<uint64_t>((ratio * ratio - 1) / 3 * 65536);
        break;
      }
      default: break;
    }
    has_minimum_ = minimum != 0.0;
    for (size_t i = 0; i < scales_.size(); ++i) {
      const double factor = (static_cast<double>(i % 16) + 8.5) / std::sqrt(16.0 * 16.0 + centred(16));
      const bool negative = i >= 16 && !has_minimum_;
      scales_[i] = to_float16(static_cast<float>(deviation / std::sqrt(square) * (negative ? -factor : factor)));
      minimums_[i] = to_float16(static_cast<float>(minimum) * to_float(scales_[i]));
    }
  }

  // Makes block `index` of a tensor.
  void make(uint64_t stream, uint64_t index, unsigned char* block) const {
    const auto word = [&](uint64_t i) { return mix(stream + 0x9e3779b97f4a7c15ull * (index * words_ + i + 1)); };
    for (size_t at = 0; at < bytes_; at += 8) {
      const uint64_t random = word(at / 8);
      std::memcpy(block + at, &random, std::min<size_t>(8, bytes_ - at));
    }
    const uint64_t choice = word(words_ - 1);
    const size_t which = choice & 31;
    switch (format_) {
      case WeightFormat::q8_0:
        for (size_t i = 2; i < 34; ++i) block[i] = block[i] == 0x80 ? 0 : block[i];
        break;
      case WeightFormat::q4_k:
      case WeightFormat::q5_k: make_part_scales(choice >> 5, block + 4); break;
      case WeightFormat::q6_k:  // signed bytes: 32 to 63 of either sign
        for (size_t i = 192; i < 208; ++i) {
          const int magnitude = 32 + (block[i] & 31);
          block[i] = static_cast<unsigned char>((block[i] & 32) != 0 ? -magnitude : magnitude);
        }
        break;
      case WeightFormat::q2_k:  // 8 to 15, and the same numbers for the minimums
        for (size_t i = 0; i < 16; ++i) block[i] = static_cast<unsigned char>((8 | (block[i] & 7)) * 17);
        break;
      case WeightFormat::q3_k: make_signed_part_scales(block + 96); break;
      case WeightFormat::iq4_xs:
        for (size_t part = 0; part < 8; ++part) {
          const unsigned scale = signed_part_scale(choice >> (5 + 5 * part));
          const size_t upper = 2 + part / 4, lower = 4 + part / 2;
          if (part % 4 == 0) block[upper] = 0;
          if (part % 2 == 0) block[lower] = 0;
          block[upper] = static_cast<unsigned char>(block[upper] | scale >> 4 << (part % 4 * 2));
          block[lower] = static_cast<unsigned char>(block[lower] | (scale & 15) << (part % 2 * 4));
        }
        break;
      case WeightFormat::mxfp4:
        block[0] = static_cast<unsigned char>(exponent_ + ((choice & 0xffff) < next_exponents_ ? 1 : 0));
        return;
      case WeightFormat::nvfp4:  // 128 to 240
        for (size_t i = 0; i < 4; ++i) block[i] = static_cast<unsigned char>(0x70 | (block[i] & 7));
        return;
      default: break;
    }
    std::memcpy(block + scale_at(), &scales_[which], 2);
    if (has_minimum_) std::memcpy(block + (format_ == WeightFormat::q2_k ? 82 : 2), &minimums_[which], 2);
  }

 private:
  // Packs the scales of 8 parts, 32 to 63, and the same numbers for their minimums: 6 bits each.
  static void make_part_scales(uint64_t random, unsigned char* out) {
    unsigned part[8];
    for (size_t i = 0; i < 8; ++i) part[i] = 32 + (random >> (5 * i) & 31);
    for (size_t i = 0; i < 4; ++i) {
      out[i] = out[i + 4] = static_cast<unsigned char>(part[i] | part[i + 4] >> 4 << 6);
      out[i + 8] = static_cast<unsigned char>((part[i + 4] & 15) | (part[i + 4] & 15) << 4);
    }
  }

  // Returns 16 to 31 of either sign, plus 32, from five random bits.
  static unsigned signed_part_scale(uint64_t random) {
    const unsigned magnitude = 16 + (random & 15);
    return (random & 16) != 0 ? 32 - magnitude : 32 + magnitude;
  }
  // Packs the scales of 16 parts, 6 bits each, from the random bytes that are there.
  static void make_signed_part_scales(unsigned char* out) {
    uint64_t random = 0;
    std::memcpy(&random, out, sizeof random);
    std::memset(out, 0, 12);
    for (size_t i = 0; i < 16; ++i) {
      const unsigned scale = signed_part_scale(mix(random + i));
      out[i % 8] = static_cast<unsigned char>(out[i % 8] | (scale & 15) << (i / 8 * 4));
      out[8 + i % 4] = static_cast<unsigned char>(out[8 + i % 4] | scale >> 4 << (i / 4 * 2));
    }
  }
  size_t scale_at() const {
    switch (format_) {
      case WeightFormat::q6_k: return 208;
      case WeightFormat::q2_k: return 80;
      case WeightFormat::q3_k: return 108;
      default: return 0;
    }
  }

  // The mean square of -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89 and 113.
  static constexpr double kIq4Square = 72768.0 / 16;

  WeightFormat format_;
  size_t bytes_;
  uint64_t words_;  // random words of a block: its bytes, and the choice of its scales
  bool has_minimum_ = false;
  unsigned char exponent_ = 0;   // of MXFP4
  uint64_t next_exponents_ = 0;  // how many of 65536 blocks have the next one
  std::array<Float16, 32> scales_, minimums_;
};

// One thread makes and writes a piece of a tensor, whole blocks.
constexpr int64_t kPieceElements = int64_t{1} << 22;
struct Piece {
  size_t tensor = 0;
  int64_t begin = 0;  // elements
  int64_t count = 0;
};

std::vector<char> make_piece(const Tensor& tensor, const Piece& piece, uint64_t seed, const Normals& normals) {
  if (tensor.is_vector()) {
    const std::vector<float> values(static_cast<size_t>(piece.count), tensor.value);
    const char* bytes = reinterpret_cast<const char*>(values.data());
    return {bytes, bytes + values.size() * sizeof(float)};
  }
  const double deviation = 1.0 / std::sqrt(static_cast<double>(tensor.columns));
  std::vector<char> bytes(static_cast<size_t>(tensor.bytes_of(piece.count)));
  const uint64_t stream = mix(seed + 0x9e3779b97f4a7c15ull * (piece.tensor + 1));
  if (tensor.format != WeightFormat::dense) {
    const Blocks blocks(tensor.format, deviation);
    const int64_t elements = block_elements_of(tensor.format), block_bytes = block_bytes_of(tensor.format);
    for (int64_t i = 0; i < piece.count / elements; ++i) {
      blocks.make(stream, static_cast<uint64_t>(piece.begin / elements + i),
                  reinterpret_cast<unsigned char*>(bytes.data()) + i * block_bytes);
    }
    return bytes;
  }
  const std::vector<BFloat16> weights = normals.scaled(deviation);
  uint64_t random = 0;
  for (int64_t i = 0; i < piece.count; ++i) {  // pieces begin at multiples of 4
    if (i % 4 == 0) random = mix(stream + 0x9e3779b97f4a7c15ull * static_cast<uint64_t>((piece.begin + i) / 4 + 1));
    std::memcpy(bytes.data() + i * 2, &weights[random & 0xffff], sizeof(BFloat16));
    random >>= 16;
  }
  return bytes;
}

class File {
 public:
  explicit File(const std::string& path)
      : path_(path), descriptor_(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  Status check() const { return descriptor_ >= 0 ? Status() : error(); }
  Status write(const char* bytes, size_t count, int64_t offset) const {
    while (count > 0) {
      const ssize_t written = pwrite(descriptor_, bytes, count, offset);
      if (written < 0 && errno != EINTR) return error();
      if (written <= 0) continue;
      bytes += written;
      count -= static_cast<size_t>(written);
      offset += written;
    }
    return {};
  }

 private:
  Status error() const { return data_loss(path_, ": this file cannot be written: ", std::strerror(errno)); }

  const std::string& path_;
  int descriptor_;
};

// Bytes, and where they are in the file.
struct Written {
  int64_t offset = 0;
  std::vector<char> bytes;
};

// Writes what make(i) returns, for all i < count.
template <class Make>
Status write_pieces(const File& file, size_t count, int32_t num_threads, const Make& make) {
  std::atomic<size_t> next = 0;
  std::mutex failing;
  Status failed;
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) {
      const Written written = make(i);
      const Status status = file.write(written.bytes.data(), written.bytes.size(), written.offset);
      if (status.ok()) continue;
      const std::lock_guard lock(failing);
      failed = status;
      next = count;
    }
  };
  std::vector<std::thread> threads;
  for (int32_t i = 1; i < num_threads; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  return failed;
}

// ---- Directories of Hugging Face: the matrices of the layers have 8 or 4 bits, and scales beside them ----

// half_scales to groups are of gptq: words of eight codes or zero points, and the group of each channel. Those that follow are of NVFP4: bytes of two
// codes, scales of 16 weights, and that of the tensor.
enum class Contents {
  ones,
  weights,
  codes,
  scales,
  half_scales,
  words_of_codes,
  words_of_zeros,
  groups,
  pairs_of_codes,
  small_scales,
  tensor_scale
};

struct StoredTensor {
  std::string name;
  Contents contents = Contents::ones;
  int64_t rows = 1;  // of a vector: 1
  int64_t columns = 0;
  double deviation = 0.0;  // of the weights; of `groups`: the channels of one
  int64_t offset = 0;      // from the first tensor's first byte

  int64_t element_bytes() const {
    switch (contents) {
      case Contents::codes:
      case Contents::pairs_of_codes:
      case Contents::small_scales: return 1;
      case Contents::ones:
      case Contents::weights:
      case Contents::half_scales: return 2;
      case Contents::scales:
      case Contents::words_of_codes:
      case Contents::words_of_zeros:
      case Contents::groups:
      case Contents::tensor_scale: return 4;
    }
    return 0;
  }
  int64_t num_elements() const { return rows * columns; }
};

constexpr WeightFormat kDirectoryFormats[] = {WeightFormat::f8_e4m3, WeightFormat::i8, WeightFormat::i4_32, WeightFormat::i4_64,
                                              WeightFormat::i4_128};

constexpr std::string_view kFloat8RowsName = "f8_e4m3_rows";  // compressed-tensors: a scale for each row

// Returns dense for the other formats.
WeightFormat format_of_directory(std::string_view name) {
  if (name == kFloat8RowsName) return WeightFormat::f8_e4m3;
  if (name == kModelOptName) return WeightFormat::nvfp4;
  for (const WeightFormat format : kDirectoryFormats) {
    if (name == weight_format_name(format)) return format;
  }
  return WeightFormat::dense;
}

bool is_int4(WeightFormat format) {
  return format == WeightFormat::i4_32 || format == WeightFormat::i4_64 || format == WeightFormat::i4_128;
}

std::vector<StoredTensor> make_stored_tensors(const ModelShape& shape, WeightFormat format, bool scales_of_rows) {
  std::vector<StoredTensor> tensors;
  int64_t offset = 0;
  const auto add = [&](std::string name, Contents contents, int64_t rows, int64_t columns, double deviation) {
    tensors.push_back({std::move(name), contents, rows, columns, deviation, offset});
    offset += tensors.back().num_elements() * tensors.back().element_bytes();
  };
  const auto vector = [&](const std::string& name) { add(name, Contents::ones, 1, shape.hidden_size, 0.0); };
  const auto matrix = [&](const std::string& name, int64_t rows, int64_t columns, bool quantised) {
    const double deviation = 1.0 / std::sqrt(static_cast<double>(columns));
    if (quantised && is_int4(format)) {
      const std::string module = name.substr(0, name.rfind('.'));
      const int64_t groups = divide_up(columns, weight_block_elements(format));
      add(module + ".g_idx", Contents::groups, 1, columns, static_cast<double>(weight_block_elements(format)));
      add(module + ".qweight", Contents::words_of_codes, columns / 8, rows, 0.0);
      add(module + ".qzeros", Contents::words_of_zeros, groups, rows / 8, 0.0);
      add(module + ".scales", Contents::half_scales, groups, rows, deviation);
      return;
    }
    if (quantised && format == WeightFormat::nvfp4) {
      add(name, Contents::pairs_of_codes, rows, columns / 2, 0.0);
      add(name + "_scale", Contents::small_scales, rows, columns / 16, 0.0);
      add(name + "_scale_2", Contents::tensor_scale, 1, 1, deviation);
      return;
    }
    add(name, quantised ? Contents::codes : Contents::weights, rows, columns, deviation);
    if (!quantised) return;
    if (format == WeightFormat::f8_e4m3 && !scales_of_rows) {
      add(name + "_scale_inv", Contents::scales, divide_up<int64_t>(rows, 128), divide_up<int64_t>(columns, 128), deviation);
    } else {
      add(name + "_scale", Contents::scales, rows, 1, deviation);
    }
  };
  const int64_t hidden = shape.hidden_size, q = shape.num_q_heads * shape.head_dim, kv = shape.num_kv_heads * shape.head_dim;
  matrix("model.embed_tokens.weight", shape.vocab_size, hidden, false);
  for (int64_t layer = 0; layer < shape.num_layers; ++layer) {
    const std::string of = str_cat("model.layers.", layer, ".");
    vector(of + "input_layernorm.weight");
    matrix(of + "self_attn.q_proj.weight", q, hidden, true);
    matrix(of + "self_attn.k_proj.weight", kv, hidden, true);
    matrix(of + "self_attn.v_proj.weight", kv, hidden, true);
    matrix(of + "self_attn.o_proj.weight", hidden, q, true);
    vector(of + "post_attention_layernorm.weight");
    matrix(of + "mlp.gate_proj.weight", shape.ffn_size, hidden, true);
    matrix(of + "mlp.up_proj.weight", shape.ffn_size, hidden, true);
    matrix(of + "mlp.down_proj.weight", hidden, shape.ffn_size, true);
  }
  vector("model.norm.weight");
  if (!shape.tied_output) matrix("lm_head.weight", shape.vocab_size, hidden, false);
  return tensors;
}

const char* type_of(Contents contents, WeightFormat format) {
  switch (contents) {
    case Contents::ones:
    case Contents::weights: return "BF16";
    case Contents::codes: return format == WeightFormat::f8_e4m3 ? "F8_E4M3" : "I8";
    case Contents::scales:
    case Contents::tensor_scale: return "F32";
    case Contents::half_scales: return "F16";
    case Contents::pairs_of_codes: return "U8";
    case Contents::small_scales: return "F8_E4M3";
    case Contents::words_of_codes:
    case Contents::words_of_zeros:
    case Contents::groups: return "I32";
  }
  return "";
}

std::string make_safetensors_header(const std::vector<StoredTensor>& tensors, WeightFormat format) {
  std::string json = "{";
  for (const StoredTensor& tensor : tensors) {
    const char* type = type_of(tensor.contents, format);
    const bool is_vector =
        tensor.contents == Contents::ones || tensor.contents == Contents::groups || tensor.contents == Contents::tensor_scale;
    json += str_cat(json.size() > 1 ? "," : "", "\"", tensor.name, "\":{\"dtype\":\"", type, "\",\"shape\":[",
                    is_vector ? std::string() : str_cat(tensor.rows, ","), tensor.columns, "],\"data_offsets\":[", tensor.offset,
                    ",", tensor.offset + tensor.num_elements() * tensor.element_bytes(), "]}");
  }
  json += "}";
  json.resize(static_cast<size_t>(round_up(static_cast<int64_t>(json.size()), int64_t{8})), ' ');
  std::string bytes;
  append(bytes, static_cast<uint64_t>(json.size()));
  return bytes + json;
}

// Holds codes whose values are normally distributed, by 16 random bits.
class Codes {
 public:
  Codes(const Normals& normals, WeightFormat format) {
    const bool is_float = format == WeightFormat::f8_e4m3;
    const double deviation = is_float ? 64.0 : is_int4(format) ? 2.0 : 24.0;  // the largest of the normals is below 4.8
    double squares = 0.0;
    for (const double normal : normals.values()) {
      const double value = is_int4(format) ? std::clamp(normal * deviation, -8.0, 7.0) : normal * deviation;
      codes_.push_back(is_float ? nearest_float8(value) : static_cast<uint8_t>(static_cast<int8_t>(std::lround(value))));
      const double of_code = is_float ? float8(codes_.back()) : static_cast<double>(static_cast<int8_t>(codes_.back()));
      squares += of_code * of_code;
    }
    deviation_ = std::sqrt(squares / static_cast<double>(codes_.size()));
  }
  uint8_t code(uint64_t random) const { return codes_[random & 0xffff]; }
  double deviation() const { return deviation_; }

 private:
  // float8_e4m3fn: 4 bits of exponent, of which 7 is 1, 3 of mantissa.
  static double float8(uint8_t code) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const double magnitude = exponent == 0 ? mantissa / 512.0 : std::ldexp(8 + mantissa, exponent - 10);
    return code < 128 ? magnitude : -magnitude;
  }
  static uint8_t nearest_float8(double value) {
    uint8_t above = 0;
    while (float8(above) < std::fabs(value) && above < 0x7e) ++above;
    const bool is_below =
        above > 0 && std::fabs(value) - float8(static_cast<uint8_t>(above - 1)) < float8(above) - std::fabs(value);
    return static_cast<uint8_t>((is_below ? above - 1 : above) | (value < 0.0 ? 0x80 : 0));
  }

  std::vector<uint8_t> codes_;
  double deviation_ = 1.0;
};

std::vector<char> make_elements(const StoredTensor& tensor, const Piece& piece, uint64_t seed, const Normals& normals,
                                const Codes& codes) {
  std::vector<char> bytes(static_cast<size_t>(piece.count * tensor.element_bytes()));
  const uint64_t stream = mix(seed + 0x9e3779b97f4a7c15ull * (piece.tensor + 1));
  const std::vector<BFloat16> weights =
      tensor.contents == Contents::weights ? normals.scaled(tensor.deviation) : std::vector<BFloat16>();
  uint64_t random = 0;
  for (int64_t i = 0; i < piece.count; ++i) {  // pieces begin at multiples of 4
    if (i % 4 == 0) random = mix(stream + 0x9e3779b97f4a7c15ull * static_cast<uint64_t>((piece.begin + i) / 4 + 1));
    char* const to = bytes.data() + i * tensor.element_bytes();
    if (tensor.contents == Contents::ones) {
      const BFloat16 one = to_bfloat16(1.0f);
      std::memcpy(to, &one, sizeof one);
    } else if (tensor.contents == Contents::weights) {
      std::memcpy(to, &weights[random & 0xffff], sizeof(BFloat16));
    } else if (tensor.contents == Contents::codes) {
      *to = static_cast<char>(codes.code(random));
    } else if (tensor.contents == Contents::pairs_of_codes) {
      *to = static_cast<char>(random);
    } else if (tensor.contents == Contents::small_scales) {  // 128 to 240
      *to = static_cast<char>(0x70 | (random & 7));
    } else if (tensor.contents == Contents::tensor_scale) {
      const float scale = nvfp4_scale(tensor.deviation);
      std::memcpy(to, &scale, sizeof scale);
    } else if (tensor.contents == Contents::words_of_codes) {  // a code is stored with 8 added, the zero point
      uint32_t word = 0;
      uint64_t of_code = 0;
      for (int j = 0; j < 8; ++j) {
        if (j % 4 == 0) of_code = mix(stream + 0x9e3779b97f4a7c15ull * static_cast<uint64_t>(2 * (piece.begin + i) + j / 4 + 1));
        word |= static_cast<uint32_t>((codes.code(of_code) + 8) & 15) << (4 * j);
        of_code >>= 16;
      }
      std::memcpy(to, &word, sizeof word);
    } else if (tensor.contents == Contents::words_of_zeros) {
      constexpr uint32_t kSevens = 0x77777777;  // zero points are stored less 1
      std::memcpy(to, &kSevens, sizeof kSevens);
    } else if (tensor.contents == Contents::groups) {
      const auto group = static_cast<int32_t>((piece.begin + i) / static_cast<int64_t>(tensor.deviation));
      std::memcpy(to, &group, sizeof group);
    } else {  // they differ by up to 2.8, and the mean of their squares is right
      const double factor = (static_cast<double>(random & 15) + 8.5) / std::sqrt(16.0 * 16.0 + (16.0 * 16.0 - 1.0) / 12.0);
      const auto scale = static_cast<float>(tensor.deviation / codes.deviation() * factor);
      const Float16 half = to_float16(scale);
      if (tensor.contents == Contents::half_scales) {
        std::memcpy(to, &half, sizeof half);
      } else {
        std::memcpy(to, &scale, sizeof scale);
      }
    }
    random >>= 16;
  }
  return bytes;
}

std::string json_text(std::string_view text) {
  std::string json = "\"";
  for (const char c : text)
    json += c == '"' || c == '\\' ? std::string{'\\', c} : c == '\n' ? std::string("\\n") : std::string{c};
  return json + "\"";
}

std::string make_config(const ModelShape& shape, WeightFormat format, bool scales_of_rows) {
  const std::string quantization =
      format == WeightFormat::nvfp4 ? std::string(R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]})")
      : is_int4(format)
          ? str_cat(
                R"({"quant_method": "gptq", "bits": 4, "desc_act": false, "sym": true, "checkpoint_format": "gptq", "group_size": )",
                weight_block_elements(format), "}")
      : format == WeightFormat::f8_e4m3 && scales_of_rows
          ? R"({"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"], "config_groups": {"group_0":
{"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "symmetric": true, "strategy": "channel"},
"input_activations": {"num_bits": 8, "type": "float", "symmetric": true, "dynamic": true, "strategy": "token"}}}})"
      : format == WeightFormat::f8_e4m3
          ? R"({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]})"
          : R"({"quant_method": "compressed-tensors", "format": "int-quantized", "ignore": ["lm_head"], "config_groups": {"group_0":
{"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "symmetric": true, "strategy": "channel"}}}})";
  return str_cat("{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": ", shape.hidden_size,
                 ", \"intermediate_size\": ", shape.ffn_size, ", \"num_hidden_layers\": ", shape.num_layers,
                 ", \"num_attention_heads\": ", shape.num_q_heads, ", \"num_key_value_heads\": ", shape.num_kv_heads,
                 ", \"head_dim\": ", shape.head_dim, ", \"vocab_size\": ", shape.vocab_size,
                 ", \"max_position_embeddings\": ", shape.context_length,
                 ", \"rope_theta\": ", static_cast<double>(shape.rope_theta),
                 ", \"rms_norm_eps\": 1e-05, \"tie_word_embeddings\": ", shape.tied_output ? "true" : "false",
                 ", \"bos_token_id\": 1, \"eos_token_id\": 2, \"quantization_config\": ", quantization, "}\n");
}

std::string make_tokenizer_json(const ModelShape& shape) {
  const std::vector<std::string> tokens = make_tokens(shape);
  std::string added, vocabulary;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::string token = json_text(tokens[i]);
    if (i < kNumControlTokens) {
      added += str_cat(i > 0 ? ", " : "", "{\"id\": ", i, ", \"content\": ", token, ", \"special\": true}");
    } else {
      vocabulary += str_cat(vocabulary.empty() ? "" : ", ", token, ": ", i);
    }
  }
  return str_cat("{\"added_tokens\": [", added, "], \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}, ",
                 "\"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"vocab\": {", vocabulary,
                 "}, \"merges\": []}}\n");
}

Status write_text(const std::string& path, const std::string& text) {
  const File file(path);
  PROLOGUE_RETURN_IF_ERROR(file.check());
  return file.write(text.data(), text.size(), 0);
}

Status write_directory(const ModelShape& shape, uint64_t seed, const std::string& path, int32_t num_threads, WeightFormat format,
                       bool scales_of_rows) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return data_loss(path, ": this directory cannot be made: ", error.message());
  PROLOGUE_RETURN_IF_ERROR(write_text(path + "/config.json", make_config(shape, format, scales_of_rows)));
  PROLOGUE_RETURN_IF_ERROR(write_text(path + "/tokenizer.json", make_tokenizer_json(shape)));
  PROLOGUE_RETURN_IF_ERROR(
      write_text(path + "/tokenizer_config.json",
                 str_cat("{\"eos_token\": \"<|im_end|>\", \"chat_template\": ", json_text(kChatTemplate), "}\n")));
  const std::vector<StoredTensor> tensors = make_stored_tensors(shape, format, scales_of_rows);
  const std::string header = make_safetensors_header(tensors, format), weights = path + "/model.safetensors";
  const File file(weights);
  PROLOGUE_RETURN_IF_ERROR(file.check());
  PROLOGUE_RETURN_IF_ERROR(file.write(header.data(), header.size(), 0));
  std::vector<Piece> pieces;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t count = tensors[i].num_elements();
    for (int64_t begin = 0; begin < count; begin += kPieceElements) {
      pieces.push_back({i, begin, std::min(kPieceElements, count - begin)});
    }
  }
  const Normals normals;
  const Codes codes(normals, format);
  return write_pieces(file, pieces.size(), num_threads, [&](size_t i) {
    const StoredTensor& tensor = tensors[pieces[i].tensor];
    const int64_t offset = static_cast<int64_t>(header.size()) + tensor.offset + pieces[i].begin * tensor.element_bytes();
    return Written{offset, make_elements(tensor, pieces[i], seed, normals, codes)};
  });
}

}  // namespace

std::span<const ModelShape> model_shapes() {
  static const ModelShape kShapes[] = {
      {"smollm2", 30, 576, 1536, 9, 3, 64, 49152, 8192, 100000.0f, true, "smollm"},
      {"1b", 16, 2048, 8192, 32, 8, 64, 128256, 131072, 500000.0f, true, "llama-bpe"},
      {"8b", 32, 4096, 14336, 32, 8, 128, 128256, 131072, 500000.0f, false, "llama-bpe"},
      {"70b", 80, 8192, 28672, 64, 8, 128, 128256, 131072, 500000.0f, false, "llama-bpe"},
      {"gpt-oss-20b", 24, 2880, 2880, 64, 8, 64, 201088, 131072, 150000.0f, false, "gpt-4o", 32, 4},
      {"qwen3-30b-a3b", 48, 2048, 768, 32, 4, 128, 151936, 40960, 1000000.0f, false, "qwen2", 128, 8},
      {"tiny", 2, 64, 128, 4, 2, 16, 10240, 8192, 10000.0f, true, "smollm"},
  };
  return kShapes;
}

std::vector<std::string> model_formats() {
  std::vector<std::string> names = {std::string(kBFloat16Name)};
  for (const WeightFormat format : kBlockFormats) names.emplace_back(weight_format_name(format));
  names.emplace_back(kMixtureName);
  for (const WeightFormat format : kDirectoryFormats) names.emplace_back(weight_format_name(format));
  names.emplace_back(kFloat8RowsName);
  names.emplace_back(kModelOptName);
  return names;
}

Status write_random_model(const ModelShape& shape, uint64_t seed, const std::string& path, int32_t num_threads,
                          std::string_view format) {
  const std::vector<std::string> formats = model_formats();
  if (std::find(formats.begin(), formats.end(), format) == formats.end()) {
    return invalid_argument("the format of the weights is ", format,
                            ": it must be bfloat16, a block format of GGUF, q4_k_m, f8_e4m3, f8_e4m3_rows, i8, i4_32, i4_64, "
                            "i4_128 or nvfp4_modelopt");
  }
  if (shape.vocab_size < 259) {
    return invalid_argument("the vocabulary has ", shape.vocab_size,
                            " tokens: it must have at least 259, the bytes and three markers");
  }
  if (const WeightFormat of_directory = format_of_directory(format); of_directory != WeightFormat::dense) {
    if (shape.num_experts > 0) {
      return unsupported(shape.name, " has experts: as ", format, " only models without experts are written");
    }
    const int64_t extents[] = {shape.hidden_size, shape.ffn_size, shape.num_q_heads * shape.head_dim,
                               shape.num_kv_heads * shape.head_dim};
    for (const int64_t extent : extents) {
      const int64_t unit = is_int4(of_directory) ? 8 : of_directory == WeightFormat::nvfp4 ? 16 : 1;
      if (extent % unit == 0) continue;
      return invalid_argument("a matrix has ", extent, " rows or columns: ", format, " needs multiples of ", unit);
    }
    return write_directory(shape, seed, path, num_threads, of_directory, format == kFloat8RowsName);
  }
  const std::vector<Tensor> tensors = make_tensors(shape, format);
  for (const Tensor& tensor : tensors) {
    if (tensor.columns % block_elements_of(tensor.format) == 0) continue;
    return invalid_argument(tensor.name, " has rows of ", tensor.columns, " weights: blocks of ",
                            weight_format_name(tensor.format), " have ", block_elements_of(tensor.format));
  }
  const std::string header = make_header(shape, tensors);
  const File file(path);
  PROLOGUE_RETURN_IF_ERROR(file.check());
  PROLOGUE_RETURN_IF_ERROR(file.write(header.data(), header.size(), 0));

  std::vector<Piece> pieces;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t count = tensors[i].columns * tensors[i].rows;
    for (int64_t begin = 0; begin < count; begin += kPieceElements) {
      pieces.push_back({i, begin, std::min(kPieceElements, count - begin)});
    }
  }
  const Normals normals;
  return write_pieces(file, pieces.size(), num_threads, [&](size_t i) {
    const Tensor& tensor = tensors[pieces[i].tensor];
    const int64_t offset = static_cast<int64_t>(header.size()) + tensor.offset + tensor.bytes_of(pieces[i].begin);
    return Written{offset, make_piece(tensor, pieces[i], seed, normals)};
  });
}

}  // namespace prologue::bench
