// The bytes of a file, read as they are needed, or held in memory.
//
// A file is read, not mapped: what has been read once is a private copy that stays as it was checked, and a file that others cut
// short meanwhile is an error of the next read, where a mapping would end the process (SIGBUS).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <prologue/kernels/base/status.h>

namespace prologue {

// Move-only; the bytes of the head keep their address when the owner moves.
class FileBytes {
 public:
  FileBytes() = default;
  explicit FileBytes(std::vector<std::byte> bytes)
      : owned_(std::move(bytes)), size_(owned_.size()), head_(owned_.data()), head_size_(owned_.size()) {}
  FileBytes(FileBytes&& other) noexcept { swap(other); }
  FileBytes& operator=(FileBytes&& other) noexcept {
    FileBytes taken(std::move(other));
    swap(taken);
    return *this;
  }
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;
  ~FileBytes();

  // Opens the file, and keeps it open; reads nothing yet. not_found when there is no such file; invalid_argument when it is a
  // directory, not a regular file, or may not be read.
  static Result<FileBytes> open(const std::string& path);

  // Of the whole file, as it was when it was opened.
  uint64_t size() const { return size_; }

  // The beginning of the file as far as it has been read, the same copy for as long as the owner lives.
  std::span<const std::byte> head() const { return {head_, head_size_}; }
  // Reads on until the head has at least `size` <= size() bytes. unsupported: that is more than 256 MiB. data_loss: the file has
  // become shorter. device_error: the system cannot read it.
  Status read_head(uint64_t size);

  // Copies the bytes [offset, offset + size), which must lie inside size(). May be called by many threads. Errors: of read_head.
  Status read(uint64_t offset, uint64_t size, void* out) const;

  // data_loss when the file's size or time of modification are not what they were when it was opened.
  Status check_unchanged() const;

 private:
  void swap(FileBytes& other) noexcept;

  std::string path_;
  int descriptor_ = -1;           // of a file
  std::vector<std::byte> owned_;  // of bytes in memory
  uint64_t size_ = 0;
  int64_t modified_ns_ = 0;
  std::byte* head_ = nullptr;  // of a file: an address range of size_ bytes, of which head_size_ are there
  uint64_t head_size_ = 0;
};

}  // namespace prologue
