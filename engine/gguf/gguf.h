// GGUF files: one file with weights, configuration and tokenizer. Versions 2 and 3, little-endian.
//
// The reader trusts nothing in a file: opening one checks every count, length, type, dimension and offset against the bytes
// that are there, and afterwards tensors and values can be read without further checks. A file that contradicts itself is
// refused with one sentence (StatusCode::data_loss); nothing is allocated in proportion to a number that was not checked. What was
// checked is a copy: a file that is overwritten or cut short while it is open gives an error or other weights, and no fault.
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

#include <prologue/engine/gguf/file_bytes.h>
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

// One tensor of a file. dims[0] is the dimension that is contiguous: the elements of a row. A linear layer's weight
// is [in_features, out_features] here, which is [out_features, in_features] in row-major terms.
struct GgufTensor {
  std::string_view name;
  GgmlType type = GgmlType::f32;
  std::vector<int64_t> dims;  // one to four, each at least 1
  uint64_t offset = 0;        // from the start of the file; the data lie inside it
  int64_t size_bytes = 0;

  int64_t row_elements() const { return dims[0]; }
  int64_t num_rows() const;
  int64_t num_elements() const { return row_elements() * num_rows(); }
};

// A model file, open for reading. Move-only; names and keys point into it.
//
// The file remembers what was asked for: a model loader reads what it understands and then refuses a file in which something
// is left over (unused_tensors, unused_keys), so that nothing that changes the result is silently ignored. That memory is
// updated by const reads, so one file is to be read by one thread at a time; the tensor data itself (read) may be read by many.
class GgufFile {
 public:
  // Opens the file and reads its metadata. unsupported: these take more than 256 MiB. Other errors: of FileBytes::open.
  static Result<GgufFile> open(const std::string& path);
  // Takes the bytes of a whole file; `name` stands for the path in messages.
  static Result<GgufFile> from_bytes(std::vector<std::byte> bytes, std::string name = "memory");

  const std::string& path() const { return path_; }  // as messages show it (printable_path)
  uint32_t version() const { return version_; }

  // ---- Metadata ----

  bool has(std::string_view key) const { return key_index_.count(key) != 0; }

  // The value of `key`, which counts as used from then on. T is bool, int32_t, uint32_t, int64_t, uint64_t, float, double,
  // std::string, or a std::vector of int32_t, uint32_t, int64_t, float, bool or std::string.
  // Every integer type of the file is accepted for an integer, provided the value fits; either float type for a float.
  // not_found: no such key. data_loss: the key is there with another type, or with a value that does not fit.
  template <class T>
  Result<T> get(std::string_view key) const;
  // The same, with `fallback` where there is no such key; a key of a wrong type is still an error.
  template <class T>
  Result<T> get_or(std::string_view key, T fallback) const {
    return has(key) ? get<T>(key) : Result<T>(std::move(fallback));
  }

  std::vector<std::string> keys() const;
  // The keys that start with `prefix` and have not been read. Informational ones, which say nothing about how to compute, are
  // never among them: general.*, tokenizer.* (a tokenizer is built by its own reader) and quantize.*.
  std::vector<std::string> unused_keys(std::string_view prefix = {}) const;

  // ---- Tensors ----

  std::span<const GgufTensor> tensors() const { return tensors_; }
  bool has_tensor(std::string_view name) const { return tensor_index_.count(name) != 0; }

  // The tensor of that name, which counts as used from then on; the pointer lives as long as the file. not_found when it is
  // missing.
  Result<const GgufTensor*> tensor(std::string_view name) const;
  // The same, and data_loss when its dimensions are not `dims`.
  Result<const GgufTensor*> tensor(std::string_view name, std::span<const int64_t> dims) const;
  Result<const GgufTensor*> tensor(std::string_view name, std::initializer_list<int64_t> dims) const {
    return tensor(name, std::span<const int64_t>(dims.begin(), dims.size()));
  }

  std::vector<std::string> unused_tensors() const;

  // Copies bytes [begin, begin + size) of the tensor's data. invalid_argument: they do not lie inside it. data_loss: the file has become
  // shorter since it was opened. device_error: the system cannot read it.
  Status read(const GgufTensor& tensor, int64_t begin, int64_t size, void* out) const;
  // data_loss when others have changed the file since it was opened, as far as its size and its time of modification tell: what
  // was read may then be of two files.
  Status check_unchanged() const;

 private:
  friend class GgufParser;

  // A metadata value as it lies in the file; `payload` starts at the first element.
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
