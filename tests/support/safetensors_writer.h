// Writes small safetensors files and Hugging Face directories for tests, valid or, on request, inconsistent.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <prologue/kernels/base/status.h>

namespace prologue::test {

// Returns a whole file: `header` is written as it is, after its length.
inline std::vector<std::byte> safetensors_file(const std::string& header, std::span<const std::byte> data) {
  const uint64_t length = header.size();
  std::vector<std::byte> bytes(sizeof length + header.size());
  std::memcpy(bytes.data(), &length, sizeof length);
  std::memcpy(bytes.data() + sizeof length, header.data(), header.size());
  bytes.insert(bytes.end(), data.begin(), data.end());
  return bytes;
}

// Writes tensors one after another, in the order in which they were added.
class SafetensorsWriter {
 public:
  template <class T>
  void add(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape, const std::vector<T>& values) {
    const size_t begin = data_.size(), size = values.size() * sizeof(T);
    data_.resize(begin + size);
    if (size > 0) std::memcpy(data_.data() + begin, values.data(), size);
    std::string dims;
    for (const int64_t dim : shape) dims += str_cat(dims.empty() ? "" : ",", dim);
    entries_ += str_cat(entries_.empty() ? "" : ",", "\"", name, "\":{\"dtype\":\"", dtype, "\",\"shape\":[", dims,
                        "],\"data_offsets\":[", begin, ",", data_.size(), "]}");
  }
  std::string header() const { return "{" + entries_ + "}"; }
  const std::vector<std::byte>& data() const { return data_; }
  std::vector<std::byte> bytes() const { return safetensors_file(header(), data_); }

 private:
  std::string entries_;
  std::vector<std::byte> data_;
};

// Owns an empty directory, removed with what is in it.
class TemporaryDirectory {
 public:
  explicit TemporaryDirectory(const std::string& parent) {
    path_ = parent + "/prologue_XXXXXX";
    if (mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  ~TemporaryDirectory() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  void write(const std::string& name, std::span<const std::byte> bytes) const {
    std::ofstream(file(name), std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  void write(const std::string& name, const std::string& text) const { write(name, std::as_bytes(std::span(text))); }

 private:
  std::string path_;
};

}  // namespace prologue::test
