// This file has owners of raw memory, host or device. Operations never allocate; their callers own Buffers.
#pragma once

#include <cstdint>
#include <utility>

#include <prologue/kernels/base/execution.h>

struct CUevent_st;

namespace prologue {

// Chooses the pages of large blocks of host memory. `huge` is faster to read, but what is touched first in 2 MiB takes all of them. `small`
// is for memory of which little may ever be used, at scattered addresses.
enum class HostPages : int32_t { huge = 0, small };

// Owns memory. It can be moved, not copied. Host memory is aligned to 64 bytes (large blocks: to 2 MiB), device memory to 256 bytes
// (cudaMalloc). The contents are undefined at first.
class PROLOGUE_API Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer taken(std::move(other));
    swap(taken);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  // The message of resource_exhausted has the bytes requested and, on a GPU, the bytes free.
  static Result<Buffer> allocate(Device device, int64_t num_bytes, HostPages host_pages = HostPages::huge);

  void* data() const { return data_; }
  template <class T>
  T* as() const { return static_cast<T*>(data_); }
  int64_t size_bytes() const { return size_bytes_; }
  Device device() const { return device_; }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
    std::swap(device_, other.device_);
  }

  void* data_ = nullptr;
  int64_t size_bytes_ = 0;
  Device device_ = Device::cpu;
};

// Returns the bytes that can still be allocated: on the CPU what the system and the control group (cgroup) allow, on a GPU its free memory.
PROLOGUE_API Result<int64_t> available_bytes(Device device);

// Copies between the host and the execution's device, in stream order. On CUDA `copy_to_host` returns after the copy has
// finished (it synchronises the stream). `copy_to_device` returns when `source` may be reused, except if `source` is pinned
// memory: that is read later, when the stream reaches the copy. A copy captured into a CUDA graph reads its source at every
// replay; use a StagingBuffer for such copies.
PROLOGUE_API Status copy_to_device(void* target, const void* source, int64_t num_bytes, const Execution& execution);
PROLOGUE_API Status copy_to_host(void* target, const void* source, int64_t num_bytes, const Execution& execution);
// Copies within the execution's device, in stream order, without waiting: num_rows rows of row_bytes, row i at i * stride_bytes
// of both `target` and `source`. No row of the one may overlap a row of the other. On CUDA it is one call of the runtime if
// stride_bytes is below 2^31, else one for each row.
PROLOGUE_API Status copy_strided(void* target, const void* source, int64_t num_rows, int64_t row_bytes, int64_t stride_bytes,
                                 const Execution& execution);
PROLOGUE_API Status fill_zero(void* target, int64_t num_bytes, const Execution& execution);
PROLOGUE_API Status synchronize(const Execution& execution);

// Owns host memory that is copied to a device, or from it, at every step. For CUDA it is pinned: a copy that does not wait needs that, and
// so does a copy that a graph replays. It can be moved, not copied.
class PROLOGUE_API StagingBuffer {
 public:
  StagingBuffer() = default;
  StagingBuffer(StagingBuffer&& other) noexcept { swap(other); }
  StagingBuffer& operator=(StagingBuffer&& other) noexcept {
    StagingBuffer taken(std::move(other));
    swap(taken);
    return *this;
  }
  StagingBuffer(const StagingBuffer&) = delete;
  StagingBuffer& operator=(const StagingBuffer&) = delete;
  ~StagingBuffer();

  // Allocates memory for copies to and from `device`.
  static Result<StagingBuffer> allocate(Device device, int64_t num_bytes);

  // Returns the memory, to be filled. First waits until the last copy has read it.
  Result<void*> fill();
  // Copies the first num_bytes in stream order; does not wait. Captured into a CUDA graph, each replay copies what the memory
  // holds then. fill() does not wait for replays; the caller must.
  Status copy_to_device(void* target, int64_t num_bytes, const Execution& execution);

  // Copies in the other direction: num_bytes of the device's memory into this, in stream order; does not wait. Not for graphs.
  Status copy_from_device(const void* source, int64_t num_bytes, const Execution& execution);
  // Waits until the last copy has finished, and returns the memory.
  Result<const void*> read();
  // Returns whether the last copy has finished: read() and fill() would not wait.
  Result<bool> is_done() const;

  int64_t size_bytes() const { return size_bytes_; }

 private:
  Status check_copy(int64_t num_bytes, const Execution& execution) const;
  void swap(StagingBuffer& other) noexcept {
    std::swap(host_, other.host_);
    std::swap(pinned_, other.pinned_);
    std::swap(copied_, other.copied_);
    std::swap(size_bytes_, other.size_bytes_);
  }

  Buffer host_;                    // for the CPU
  void* pinned_ = nullptr;         // for a GPU
  CUevent_st* copied_ = nullptr;   // recorded after the last copy
  int64_t size_bytes_ = 0;
};

}  // namespace prologue
