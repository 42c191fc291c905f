// Holds the bytes of a file that are read when they are needed, or bytes that are already in memory.
//
// A file is read, not mapped. Bytes that were read are a private copy, so they stay as they were checked. If another program
// truncates the file, the next read returns an error; with a mapping the process would end with SIGBUS.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <prologue/kernels/base/status.h>

namespace prologue {

// It can be moved, not copied. The address of the head does not change when the object is moved.
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

  // Opens the file and keeps it open; reads nothing yet. not_found: there is no such file. invalid_argument: it is a directory, it is
  // not a regular file, or it cannot be opened for reading.
  static Result<FileBytes> open(const std::string& path);

  // Returns the size of the whole file at the time when it was opened.
  uint64_t size() const { return size_; }

  // Returns the beginning of the file, as far as it has been read. Its address is valid while this object exists.
  std::span<const std::byte> head() const { return {head_, head_size_}; }
  // Reads until the head has at least `size` <= size() bytes. unsupported: `size` is more than 256 MiB. data_loss: the file has
  // become shorter. device_error: the system reported a read error.
  Status read_head(uint64_t size);

  // Copies the bytes [offset, offset + size), which must be within size(). Several threads may call it at the same time. Errors: as
  // read_head.
  Status read(uint64_t offset, uint64_t size, void* out) const;

  // data_loss: the size or the modification time of the file has changed since it was opened.
  Status check_unchanged() const;

 private:
  void swap(FileBytes& other) noexcept;

  std::string path_;
  int descriptor_ = -1;           // of a file
  std::vector<std::byte> owned_;  // of bytes in memory
  uint64_t size_ = 0;
  int64_t modified_ns_ = 0;
  std::byte* head_ = nullptr;  // of a file: an address range of size_ bytes, of which the first head_size_ have been read
  uint64_t head_size_ = 0;
};

}  // namespace prologue
