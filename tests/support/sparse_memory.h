#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <utility>

#include <prologue/kernels/base/memory.h>

#include "tests/support/arena.h"

namespace prologue::test {

// Owns memory that is reserved but, on the CPU, only committed where it is touched.
class SparseMemory {
 public:
  SparseMemory(Backend backend, int64_t num_bytes) : device_(backend_device(backend)), size_(num_bytes) {
    if (device_ == Device::cpu) {
      void* data = mmap(nullptr, static_cast<size_t>(num_bytes), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      data_ = data == MAP_FAILED ? nullptr : data;
    } else if (auto buffer = Buffer::allocate(device_, num_bytes); buffer.ok()) {
      buffer_ = std::move(buffer).value();
      data_ = buffer_.data();
    }
  }
  ~SparseMemory() {
    if (device_ == Device::cpu && data_ != nullptr) munmap(data_, static_cast<size_t>(size_));
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  void* data() const { return data_; }

 private:
  Device device_;
  int64_t size_;
  Buffer buffer_;
  void* data_ = nullptr;
};

}  // namespace prologue::test
