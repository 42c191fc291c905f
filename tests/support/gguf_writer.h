// Writes small GGUF files for tests, valid or, on request, inconsistent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace prologue::test {

// These are type numbers of the format, for add_array and add_tensor.
namespace gguf {
inline constexpr uint32_t kUint8 = 0, kInt8 = 1, kUint16 = 2, kInt16 = 3, kUint32 = 4, kInt32 = 5, kFloat32 = 6, kBool = 7,
                          kString = 8, kArray = 9, kUint64 = 10, kInt64 = 11, kFloat64 = 12;
inline constexpr uint32_t kF32 = 0, kF16 = 1, kQ4_0 = 2, kQ4_1 = 3, kQ5_0 = 6, kQ5_1 = 7, kQ8_0 = 8, kQ4_K = 12, kQ5_K = 13,
                          kQ6_K = 14, kBF16 = 30, kQ2_K = 10, kQ3_K = 11, kIQ4_NL = 20, kIQ4_XS = 23, kMXFP4 = 39, kNVFP4 = 40;
}  // namespace gguf

// Appends numbers as little-endian bytes.
template <class T>
void append_bytes(std::vector<std::byte>& bytes, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  bytes.resize(bytes.size() + sizeof value);
  std::memcpy(bytes.data() + bytes.size() - sizeof value, &value, sizeof value);
}

class GgufWriter {
 public:
  uint32_t version = 3;
  uint32_t alignment = 32;  // written as general.alignment when it is not 32

  // Scalars: the type of `value` names the type in the file (uint8_t ... double, bool).
  template <class T>
  requires std::is_arithmetic_v<T>
  void add(std::string_view key, T value) {
    add_raw(key, type_number<T>(), [&] {
      std::vector<std::byte> payload;
      append_bytes(payload, value);
      return payload;
    }());
  }
  void add(std::string_view key, std::string_view value);
  void add(std::string_view key, const char* value) { add(key, std::string_view(value)); }
  void add(std::string_view key, const std::vector<std::string>& values);
  template <class T>
  requires std::is_arithmetic_v<T>
  void add(std::string_view key, const std::vector<T>& values) {
    std::vector<std::byte> payload;
    append_bytes(payload, type_number<T>());
    append_bytes(payload, static_cast<uint64_t>(values.size()));
    for (const T value : values) append_bytes(payload, value);
    add_raw(key, gguf::kArray, std::move(payload));
  }
  // Whatever follows the type number in the file.
  void add_raw(std::string_view key, uint32_t type, std::vector<std::byte> payload);

  // dims[0] is the contiguous dimension. The bytes are written as they are, whatever `dims` and `type` call for.
  void add_tensor(std::string_view name, std::vector<uint64_t> dims, uint32_t type, std::vector<std::byte> bytes);

  // The file offsets of numbers that a reader must not trust: versions, counts, lengths, type numbers, dimensions, offsets.
  struct Field {
    size_t offset;
    size_t size;  // 4 or 8
    std::string what;
  };
  std::vector<std::byte> bytes(std::vector<Field>* fields = nullptr) const;
  // Returns the file in parts, as llama-gguf-split writes it: the first has the keys, each has split.no, split.count and
  // split.tensors.count, and the tensors follow each other from part to part.
  std::vector<GgufWriter> parts(uint16_t count) const;
  // Returns false if the file could not be written.
  [[nodiscard]] bool write(const std::string& path) const;

 private:
  struct Entry {
    std::string key;
    uint32_t type;
    std::vector<std::byte> payload;
  };
  struct Tensor {
    std::string name;
    std::vector<uint64_t> dims;
    uint32_t type;
    std::vector<std::byte> bytes;
  };

  template <class T>
  static constexpr uint32_t type_number() {
    if constexpr (std::is_same_v<T, bool>) return gguf::kBool;
    if constexpr (std::is_same_v<T, float>) return gguf::kFloat32;
    if constexpr (std::is_same_v<T, double>) return gguf::kFloat64;
    constexpr bool kSigned = std::is_signed_v<T>;
    if constexpr (sizeof(T) == 1) return kSigned ? gguf::kInt8 : gguf::kUint8;
    if constexpr (sizeof(T) == 2) return kSigned ? gguf::kInt16 : gguf::kUint16;
    if constexpr (sizeof(T) == 4) return kSigned ? gguf::kInt32 : gguf::kUint32;
    return kSigned ? gguf::kInt64 : gguf::kUint64;
  }

  std::vector<Entry> entries_;
  std::vector<Tensor> tensors_;
};

// Describes a random llama with a byte-level vocabulary: small enough to run everywhere, whole enough to generate from. The norm weights
// are near one, the matrices are scaled so that activations neither vanish nor explode.
//
// Vocabulary: 0 <|endoftext|>, 1 <|im_start|>, 2 <|im_end|> (control tokens), 3..258 the bytes in GPT-2's order, then one token
// per merge.
struct TinyLlamaOptions {
  std::string name = "tiny random llama";  // general.name
  uint64_t seed = 1;
  uint32_t matrix_type = gguf::kF32;  // kF32, kF16 or kBF16: embedding, projections, output; norms and biases are F32
  std::function<uint32_t(const std::string& name)> type_of;  // of a matrix, instead of matrix_type; also kQ4_0 and kQ8_0
  bool tied_output = true;                                   // false: output.weight is present
  bool rope_freqs = false;                                   // rope_freqs.weight, with Llama 3's low/high frequency factors
  bool qkv_bias = false;                                     // blk.N.attn_{q,k,v}.bias
  int num_layers = 2;
  int hidden_size = 64;
  int num_q_heads = 4;
  int num_kv_heads = 2;
  int head_dim = 16;
  int ffn_size = 96;
  int num_experts = 0;  // above 0: that many MLPs of ffn_size in a layer, two of them for a token
  int context_length = 512;
  float rope_freq_base = 10000.0f;
  std::function<void(GgufWriter&)> extra;  // called last: more keys or tensors
};

GgufWriter tiny_llama(const TinyLlamaOptions& options = {});
[[nodiscard]] bool write_tiny_llama(const std::string& path, const TinyLlamaOptions& options = {});

}  // namespace prologue::test
