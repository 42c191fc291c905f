// The bytes of a whole file, mapped read-only or held in memory.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <prologue/kernels/base/status.h>

namespace prologue {

// Move-only; the bytes keep their address when the owner moves.
class FileBytes {
 public:
  FileBytes() = default;
  explicit FileBytes(std::vector<std::byte> bytes) : owned_(std::move(bytes)), bytes_(owned_) {}
  FileBytes(FileBytes&& other) noexcept { swap(other); }
  FileBytes& operator=(FileBytes&& other) noexcept {
    FileBytes taken(std::move(other));
    swap(taken);
    return *this;
  }
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;
  ~FileBytes();

  // not_found when there is no such file; invalid_argument when it is a directory, not a regular file, or may not be read.
  // An empty file is mapped as no bytes.
  static Result<FileBytes> map(const std::string& path);

  std::span<const std::byte> bytes() const { return bytes_; }

  // Tells the system that these bytes will not be read again soon, so that a mapped file does not stay in memory.
  void discard(const std::byte* begin, size_t size) const;

 private:
  void swap(FileBytes& other) noexcept {
    std::swap(owned_, other.owned_);
    std::swap(mapping_, other.mapping_);
    std::swap(bytes_, other.bytes_);
  }

  std::vector<std::byte> owned_;
  void* mapping_ = nullptr;
  std::span<const std::byte> bytes_;
};

}  // namespace prologue
