// A safetensors file has named tensors, each one range of the file.
//
// The reader trusts nothing in a file. open() checks the header, and that the tensors' ranges cover the data without overlap or hole, as the
// format requires; after that, data can be read without further checks. An inconsistent file is an error (StatusCode::data_loss) whose
// message says what is wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <prologue/engine/base/file_bytes.h>
#include <prologue/kernels/base/status.h>

namespace prologue {

struct SafetensorsTensor {
  std::string name;
  std::string dtype;           // "BF16"; may be a type that this library does not know
  std::vector<int64_t> shape;  // row-major; may be empty, dimensions may be 0
  uint64_t offset = 0;         // from the start of the file
  int64_t size_bytes = 0;      // of a known type: what the shape takes
};

// It can be moved, not copied; the addresses of the tensors do not change when the object is moved.
class SafetensorsFile {
 public:
  // unsupported: the header has more than 32 MiB. Other errors: those of FileBytes::open.
  static Result<SafetensorsFile> open(const std::string& path);
  // Uses the bytes of a whole file in memory; messages have `name` instead of a path.
  static Result<SafetensorsFile> from_bytes(std::vector<std::byte> bytes, std::string name = "memory");

  const std::string& path() const { return path_; }                        // as messages show it
  std::span<const SafetensorsTensor> tensors() const { return tensors_; }  // sorted by name

  // Copies bytes [begin, begin + size) of the tensor's data. Errors: as of Checkpoint::read.
  Status read(const SafetensorsTensor& tensor, int64_t begin, int64_t size, void* out) const;
  // data_loss: the file has changed since it was opened.
  Status check_unchanged() const;

 private:
  SafetensorsFile() = default;
  static Result<SafetensorsFile> parse(FileBytes bytes, std::string path);
  Status read_header();
  Status check_ranges(uint64_t data_begin) const;

  FileBytes bytes_;
  std::string path_;
  std::vector<SafetensorsTensor> tensors_;
};

}  // namespace prologue
