#include "tests/support/gguf_writer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>

#include <prologue/kernels/base/dtype.h>

#include "tests/support/random.h"

namespace prologue::test {
namespace {

// Weights of a normal distribution with its tails (Box and Muller's): tests know answers of the tiny model.
std::vector<float> normals(Random& random, int64_t count, double deviation) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - random.uniform()));
    value = static_cast<float>(deviation * (radius * std::cos(6.283185307179586 * random.uniform())));
  }
  return values;
}

void append_string(std::vector<std::byte>& bytes, std::string_view text) {
  append_bytes(bytes, static_cast<uint64_t>(text.size()));
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  bytes.insert(bytes.end(), first, first + text.size());
}

// Makes blocks of 32 with one scale: the largest magnitude becomes 127 (Q8_0) or 7 (Q4_0).
std::vector<std::byte> to_blocks(const std::vector<float>& values, uint32_t type) {
  std::vector<std::byte> bytes;
  for (size_t first = 0; first + 32 <= values.size(); first += 32) {
    float largest = 0.0f;
    for (size_t i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(values[first + i]));
    const Float16 half = to_float16(largest / (type == gguf::kQ8_0 ? 127.0f : 7.0f));
    const float scale = to_float(half);
    const auto code = [&](size_t i) { return static_cast<int>(scale == 0.0f ? 0.0f : std::round(values[first + i] / scale)); };
    append_bytes(bytes, half.bits);
    if (type == gguf::kQ8_0) {
      for (size_t i = 0; i < 32; ++i) append_bytes(bytes, static_cast<int8_t>(code(i)));
    } else {
      for (size_t i = 0; i < 16; ++i) append_bytes(bytes, static_cast<uint8_t>((code(i) + 8) | (code(i + 16) + 8) << 4));
    }
  }
  return bytes;
}

std::vector<std::byte> to_storage(const std::vector<float>& values, uint32_t type) {
  if (type == gguf::kQ8_0 || type == gguf::kQ4_0) return to_blocks(values, type);
  std::vector<std::byte> bytes;
  for (const float value : values) {
    if (type == gguf::kF16) {
      append_bytes(bytes, to_float16(value).bits);
    } else if (type == gguf::kBF16) {
      append_bytes(bytes, to_bfloat16(value).bits);
    } else {
      append_bytes(bytes, value);
    }
  }
  return bytes;
}

std::string utf8(uint32_t code_point) {  // below 0x800
  if (code_point < 0x80) return {static_cast<char>(code_point)};
  return {static_cast<char>(0xc0 | (code_point >> 6)), static_cast<char>(0x80 | (code_point & 0x3f))};
}

// Returns GPT-2's alphabet: printable bytes stand for themselves, the others for U+0100 onwards. They are in its order: printable ones
// first.
std::vector<std::string> byte_alphabet() {
  const auto printable = [](uint32_t byte) {
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
  };
  std::vector<std::string> alphabet;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    if (printable(byte)) alphabet.push_back(utf8(byte));
  }
  for (uint32_t byte = 0, next = 256; byte < 256; ++byte) {
    if (!printable(byte)) alphabet.push_back(utf8(next++));
  }
  return alphabet;
}

constexpr const char* kChatTemplate =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% "
    "endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

// Returns the size of the vocabulary.
int add_tokenizer(GgufWriter& writer) {
  constexpr int32_t kNormal = 1, kControl = 3;
  const std::string space = utf8(0x120);  // what GPT-2's alphabet has for a blank
  const std::vector<std::pair<std::string, std::string>> merges = {
      {space, "t"}, {"h", "e"}, {space, "a"}, {"i", "n"}, {space + "t", "he"}, {"r", "e"}, {"o", "n"}, {space + "a", "n"}};
  std::vector<std::string> tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  std::vector<int32_t> types(tokens.size(), kControl);
  for (std::string& letter : byte_alphabet()) tokens.push_back(std::move(letter));
  std::vector<std::string> merge_lines;
  for (const auto& [left, right] : merges) {
    tokens.push_back(left + right);
    merge_lines.push_back(left + " " + right);
  }
  types.resize(tokens.size(), kNormal);

  writer.add("tokenizer.ggml.model", "gpt2");
  writer.add("tokenizer.ggml.pre", "smollm");
  writer.add("tokenizer.ggml.tokens", tokens);
  writer.add("tokenizer.ggml.token_type", types);
  writer.add("tokenizer.ggml.merges", merge_lines);
  writer.add("tokenizer.ggml.bos_token_id", uint32_t{1});
  writer.add("tokenizer.ggml.eos_token_id", uint32_t{2});
  writer.add("tokenizer.ggml.add_bos_token", false);
  writer.add("tokenizer.chat_template", kChatTemplate);
  return static_cast<int>(tokens.size());
}

// Returns Llama 3's factors: 1 for the fast pairs, 8 for the slow ones, and values between for the others.
std::vector<float> rope_factors(int head_dim, float base) {
  std::vector<float> factors;
  for (int pair = 0; pair < head_dim / 2; ++pair) {
    const double wavelength = 6.283185307179586 * std::pow(base, 2.0 * pair / head_dim);
    const double low_wavelength = 8192.0 / 1.0, high_wavelength = 8192.0 / 4.0;
    double factor = 1.0;
    if (wavelength > low_wavelength) {
      factor = 8.0;
    } else if (wavelength > high_wavelength) {
      const double smooth = (8192.0 / wavelength - 1.0) / (4.0 - 1.0);
      factor = 1.0 / ((1.0 - smooth) / 8.0 + smooth);
    }
    factors.push_back(static_cast<float>(factor));
  }
  return factors;
}

}  // namespace

void GgufWriter::add(std::string_view key, std::string_view value) {
  std::vector<std::byte> payload;
  append_string(payload, value);
  add_raw(key, gguf::kString, std::move(payload));
}

void GgufWriter::add(std::string_view key, const std::vector<std::string>& values) {
  std::vector<std::byte> payload;
  append_bytes(payload, gguf::kString);
  append_bytes(payload, static_cast<uint64_t>(values.size()));
  for (const std::string& value : values) append_string(payload, value);
  add_raw(key, gguf::kArray, std::move(payload));
}

void GgufWriter::add_raw(std::string_view key, uint32_t type, std::vector<std::byte> payload) {
  entries_.push_back({std::string(key), type, std::move(payload)});
}

void GgufWriter::add_tensor(std::string_view name, std::vector<uint64_t> dims, uint32_t type, std::vector<std::byte> bytes) {
  tensors_.push_back({std::string(name), std::move(dims), type, std::move(bytes)});
}

std::vector<std::byte> GgufWriter::bytes(std::vector<Field>* fields) const {
  std::vector<std::byte> file;
  const auto field = [&](size_t size, std::string what) {
    if (fields != nullptr) fields->push_back({file.size(), size, std::move(what)});
  };
  const auto pad = [&] {
    while (file.size() % alignment != 0) file.push_back(std::byte{0});
  };

  for (const char letter : {'G', 'G', 'U', 'F'}) file.push_back(static_cast<std::byte>(letter));
  const bool names_alignment = alignment != 32;
  field(4, "version");
  append_bytes(file, version);
  field(8, "number of tensors");
  append_bytes(file, static_cast<uint64_t>(tensors_.size()));
  field(8, "number of keys");
  append_bytes(file, static_cast<uint64_t>(entries_.size() + (names_alignment ? 1 : 0)));

  const auto entry = [&](const std::string& key, uint32_t type, const std::vector<std::byte>& payload) {
    field(8, key + ": key length");
    append_string(file, key);
    field(4, key + ": type");
    append_bytes(file, type);
    if (type == gguf::kString) field(8, key + ": string length");
    if (type == gguf::kUint32 || type == gguf::kInt32) field(4, key + ": value");
    const size_t start = file.size();
    file.insert(file.end(), payload.begin(), payload.end());
    if (type == gguf::kArray && fields != nullptr) {
      fields->push_back({start, 4, key + ": element type"});
      fields->push_back({start + 4, 8, key + ": number of elements"});
      uint32_t element_type = 0;
      std::memcpy(&element_type, payload.data(), sizeof element_type);
      if (element_type == gguf::kString && payload.size() >= 20)
        fields->push_back({start + 12, 8, key + ": first string's length"});
    }
  };
  for (const Entry& each : entries_) entry(each.key, each.type, each.payload);
  if (names_alignment) {
    std::vector<std::byte> payload;
    append_bytes(payload, alignment);
    entry("general.alignment", gguf::kUint32, payload);
  }

  uint64_t offset = 0;
  for (const Tensor& tensor : tensors_) {
    field(8, tensor.name + ": name length");
    append_string(file, tensor.name);
    field(4, tensor.name + ": number of dimensions");
    append_bytes(file, static_cast<uint32_t>(tensor.dims.size()));
    for (const uint64_t dim : tensor.dims) {
      field(8, tensor.name + ": dimension");
      append_bytes(file, dim);
    }
    field(4, tensor.name + ": type");
    append_bytes(file, tensor.type);
    field(8, tensor.name + ": offset");
    append_bytes(file, offset);
    offset = (offset + tensor.bytes.size() + alignment - 1) / alignment * alignment;
  }
  for (const Tensor& tensor : tensors_) {
    pad();
    file.insert(file.end(), tensor.bytes.begin(), tensor.bytes.end());
  }
  return file;
}

std::vector<GgufWriter> GgufWriter::parts(uint16_t count) const {
  std::vector<GgufWriter> parts(count);
  parts[0].entries_ = entries_;
  for (size_t i = 0; i < tensors_.size(); ++i) parts[i * count / tensors_.size()].tensors_.push_back(tensors_[i]);
  for (uint16_t part = 0; part < count; ++part) {
    parts[part].add("split.no", part);
    parts[part].add("split.count", count);
    parts[part].add("split.tensors.count", static_cast<int32_t>(tensors_.size()));
  }
  return parts;
}

bool GgufWriter::write(const std::string& path) const {
  const std::vector<std::byte> file = bytes();
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(file.data()), static_cast<std::streamsize>(file.size()));
  out.close();
  return !out.fail();
}

GgufWriter tiny_llama(const TinyLlamaOptions& options) {
  GgufWriter writer;
  const auto number = [](int value) { return static_cast<uint32_t>(value); };
  writer.add("general.architecture", "llama");
  writer.add("general.name", options.name);
  writer.add("llama.block_count", number(options.num_layers));
  writer.add("llama.context_length", number(options.context_length));
  writer.add("llama.embedding_length", number(options.hidden_size));
  writer.add("llama.feed_forward_length", number(options.ffn_size));
  writer.add("llama.attention.head_count", number(options.num_q_heads));
  writer.add("llama.attention.head_count_kv", number(options.num_kv_heads));
  writer.add("llama.rope.freq_base", options.rope_freq_base);
  writer.add("llama.rope.dimension_count", number(options.head_dim));
  if (options.head_dim * options.num_q_heads != options.hidden_size) {  // the default is hidden_size / num_q_heads
    writer.add("llama.attention.key_length", number(options.head_dim));
    writer.add("llama.attention.value_length", number(options.head_dim));
  }
  writer.add("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  if (options.num_experts > 0) {
    writer.add("llama.expert_count", number(options.num_experts));
    writer.add("llama.expert_used_count", uint32_t{2});
  }
  const int vocab_size = add_tokenizer(writer);
  writer.add("llama.vocab_size", number(vocab_size));
  writer.add("general.quantization_version", uint32_t{2});

  Random random(options.seed);
  const auto matrices = [&](const std::string& name, std::vector<uint64_t> dims, double deviation) {
    int64_t count = 1;
    for (const uint64_t dim : dims) count *= static_cast<int64_t>(dim);
    const std::vector<float> values = normals(random, count, deviation);
    const uint32_t type = options.type_of ? options.type_of(name) : options.matrix_type;
    writer.add_tensor(name, std::move(dims), type, to_storage(values, type));
  };
  const auto matrix = [&](const std::string& name, int in, int out, double deviation) {
    matrices(name, {static_cast<uint64_t>(in), static_cast<uint64_t>(out)}, deviation);
  };
  const auto vector = [&](const std::string& name, int size, float mean, double deviation) {
    std::vector<float> values = normals(random, size, deviation);
    for (float& value : values) value += mean;
    writer.add_tensor(name, {static_cast<uint64_t>(size)}, gguf::kF32, to_storage(values, gguf::kF32));
  };
  const int hidden = options.hidden_size;
  const int q_size = options.num_q_heads * options.head_dim;
  const int kv_size = options.num_kv_heads * options.head_dim;
  const auto linear = [&](const std::string& name, int in, int out) { matrix(name, in, out, 1.0 / std::sqrt(in)); };

  matrix("token_embd.weight", hidden, vocab_size, 0.5);
  for (int layer = 0; layer < options.num_layers; ++layer) {
    const std::string block = "blk." + std::to_string(layer) + ".";
    vector(block + "attn_norm.weight", hidden, 1.0f, 0.1);
    linear(block + "attn_q.weight", hidden, q_size);
    linear(block + "attn_k.weight", hidden, kv_size);
    linear(block + "attn_v.weight", hidden, kv_size);
    if (options.qkv_bias) {
      vector(block + "attn_q.bias", q_size, 0.0f, 0.5);
      vector(block + "attn_k.bias", kv_size, 0.0f, 0.5);
      vector(block + "attn_v.bias", kv_size, 0.0f, 0.5);
    }
    linear(block + "attn_output.weight", q_size, hidden);
    vector(block + "ffn_norm.weight", hidden, 1.0f, 0.1);
    if (options.num_experts > 0) {
      const auto linears = [&](const std::string& name, int in, int out) {
        matrices(name, {static_cast<uint64_t>(in), static_cast<uint64_t>(out), static_cast<uint64_t>(options.num_experts)},
                 1.0 / std::sqrt(in));
      };
      linear(block + "ffn_gate_inp.weight", hidden, options.num_experts);
      linears(block + "ffn_gate_exps.weight", hidden, options.ffn_size);
      linears(block + "ffn_up_exps.weight", hidden, options.ffn_size);
      linears(block + "ffn_down_exps.weight", options.ffn_size, hidden);
      continue;
    }
    linear(block + "ffn_gate.weight", hidden, options.ffn_size);
    linear(block + "ffn_up.weight", hidden, options.ffn_size);
    linear(block + "ffn_down.weight", options.ffn_size, hidden);
  }
  vector("output_norm.weight", hidden, 1.0f, 0.1);
  if (!options.tied_output) linear("output.weight", hidden, vocab_size);
  if (options.rope_freqs) {
    const std::vector<float> factors = rope_factors(options.head_dim, options.rope_freq_base);
    writer.add_tensor("rope_freqs.weight", {factors.size()}, gguf::kF32, to_storage(factors, gguf::kF32));
  }
  if (options.extra) options.extra(writer);
  return writer;
}

bool write_tiny_llama(const std::string& path, const TinyLlamaOptions& options) { return tiny_llama(options).write(path); }

}  // namespace prologue::test
