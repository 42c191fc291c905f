// A GGUF file has a model's weights, configuration and tokenizer. Versions 2 and 3 are read, little-endian.
//
// The reader trusts nothing in a file. open() checks every count, length, type, dimension and offset against the size of the file;
// after that, tensors and values can be read without further checks. An inconsistent file is an error (StatusCode::data_loss) whose
// message says what is wrong. No allocation has a size that was not checked. The checked data is a private copy: if the file is
// overwritten or truncated while it is open, the result is an error or different weights, never a crash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <prologue/engine/base/file_bytes.h>
#include <prologue/engine/gguf/ggml_type.h>
#include <prologue/kernels/base/status.h>

namespace prologue {

// The numbers are those of the file format.
enum class GgufValueType : uint32_t {
  uint8 = 0,
  int8,
  uint16,
  int16,
  uint32,
  int32,
  float32,
  boolean,
  string,
  array,
  uint64,
  int64,
  float64,
};

const char* gguf_value_type_name(GgufValueType type);

// Describes one tensor of a file. dims[0] is the contiguous dimension, the number of elements in a row. The weight of a linear layer has
// dims [in_features, out_features] here, which is [out_features, in_features] in row-major order.
struct GgufTensor {
  std::string_view name;
  GgmlType type = GgmlType::f32;
  std::vector<int64_t> dims;  // one to four, each at least 1
  uint64_t offset = 0;        // from the start of the file; all of the data is within the file
  int64_t size_bytes = 0;

  int64_t row_elements() const { return dims[0]; }
  int64_t num_rows() const;
  int64_t num_elements() const { return row_elements() * num_rows(); }
};

// A GgufFile is a model file, open for reading. It can be moved, not copied; names and keys point into it.
//
// The object records which keys and tensors were read. A model loader reads those that it knows, then returns an error if others are
// left (unused_tensors, unused_keys), so that nothing that changes the result is silently ignored. Const functions update this
// record, so only one thread at a time may use them; read() may be called by several threads.
class GgufFile {
 public:
  // Opens the file and reads its metadata. unsupported: these take more than 256 MiB, or are more than 65536 keys or 2^20 tensors.
  // Other errors: of FileBytes::open.
  static Result<GgufFile> open(const std::string& path);
  // Uses the bytes of a whole file in memory; messages have `name` instead of a path.
  static Result<GgufFile> from_bytes(std::vector<std::byte> bytes, std::string name = "memory");

  const std::string& path() const { return path_; }  // as messages show it (printable_path)
  uint32_t version() const { return version_; }

  // ---- Metadata ----

  bool has(std::string_view key) const { return key_index_.count(key) != 0; }

  // Returns the value of `key`; the key then counts as used. T is bool, int32_t, uint32_t, int64_t, uint64_t, float, double, std::string,
  // or a std::vector of int32_t, uint32_t, int64_t, float, double, bool or std::string. An integer T accepts every integer type of the file
  // if the value fits. A float T accepts both float types. not_found: no such key. data_loss: the value has another type, or does not fit.
  // unsupported: an array has more than 2^22 values.
  template <class T>
  Result<T> get(std::string_view key) const;
  // Does the same, but returns `fallback` if there is no such key. A value of a wrong type is still an error.
  template <class T>
  Result<T> get_or(std::string_view key, T fallback) const {
    return has(key) ? get<T>(key) : Result<T>(std::move(fallback));
  }

  std::vector<std::string> keys() const;
  // Returns the keys that start with `prefix` and have not been read. general.*, tokenizer.* and quantize.* are never included: they do not
  // change how the model computes (the tokenizer has its own reader).
  std::vector<std::string> unused_keys(std::string_view prefix = {}) const;

  // ---- Tensors ----

  std::span<const GgufTensor> tensors() const { return tensors_; }
  bool has_tensor(std::string_view name) const { return tensor_index_.count(name) != 0; }

  // Returns the tensor with this name; it then counts as used. The pointer is valid while the file object exists. not_found: there is no
  // such tensor.
  Result<const GgufTensor*> tensor(std::string_view name) const;
  // Does the same, and returns data_loss if its dimensions are not `dims`.
  Result<const GgufTensor*> tensor(std::string_view name, std::span<const int64_t> dims) const;
  Result<const GgufTensor*> tensor(std::string_view name, std::initializer_list<int64_t> dims) const {
    return tensor(name, std::span<const int64_t>(dims.begin(), dims.size()));
  }

  std::vector<std::string> unused_tensors() const;

  // Copies bytes [begin, begin + size) of the tensor's data. invalid_argument: the range is not within the data. data_loss: the file
  // has become shorter since it was opened. device_error: the system reported a read error.
  Status read(const GgufTensor& tensor, int64_t begin, int64_t size, void* out) const;
  // data_loss: the size or the modification time of the file has changed since it was opened. The data that was read may then be a
  // mixture of two versions.
  Status check_unchanged() const;

 private:
  friend class GgufParser;

  // Describes a metadata value as stored in the file; `payload` points at the first element.
  struct Entry {
    std::string_view key;
    GgufValueType type = GgufValueType::uint8;  // of the value, or of an array's elements
    bool is_array = false;
    uint64_t count = 1;
    const std::byte* payload = nullptr;
    mutable bool used = false;
  };

  GgufFile() = default;
  static Result<GgufFile> parse(FileBytes bytes, const std::string& path);
  template <class T>
  Result<T> get_value(std::string_view key) const;
  Result<const GgufTensor*> tensor_of(std::string_view name, std::span<const int64_t> dims) const;
  const Entry* find(std::string_view key) const;
  std::string type_description(const Entry& entry) const;

  FileBytes bytes_;
  std::string path_;
  uint32_t version_ = 0;
  std::vector<Entry> entries_;
  std::unordered_map<std::string_view, size_t> key_index_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string_view, size_t> tensor_index_;
  mutable std::vector<bool> tensor_used_;
};

}  // namespace prologue
