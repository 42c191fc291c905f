#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/base/host/backends.h>
#include <prologue/kernels/base/memory.h>
#include <prologue/kernels/base/out_of_memory.h>

namespace prologue {

namespace {

constexpr int64_t kHostAlignment = 64;
constexpr int64_t kHugePage = int64_t{2} << 20;

// Returns the number in a system file, or INT64_MAX if there is none ("max", or no such file).
int64_t read_number(const char* path) {
  std::ifstream file(path);
  int64_t value = 0;
  return file >> value ? value : std::numeric_limits<int64_t>::max();
}

int64_t available_host_bytes() {
  int64_t available = std::numeric_limits<int64_t>::max();
  std::ifstream meminfo("/proc/meminfo");
  for (std::string key; meminfo >> key;) {
    if (key == "MemAvailable:") {
      int64_t kilobytes = 0;
      if (meminfo >> kilobytes) available = kilobytes * 1024;
      break;
    }
  }
  const int64_t limit = read_number("/sys/fs/cgroup/memory.max");
  const int64_t used = read_number("/sys/fs/cgroup/memory.current");
  return limit > used ? std::min(available, limit - used) : available;
}

Result<void*> allocate_host(int64_t num_bytes, HostPages pages) {
  // Linux grants more memory than there is and kills the process that touches it. So large requests are compared with what is
  // free.
  if (num_bytes >= 16 * kHugePage && num_bytes > available_host_bytes()) {
    return resource_exhausted("out of memory: ", num_bytes, " bytes of host memory were asked for, ", available_host_bytes(),
                              " are available");
  }
  const int64_t alignment = num_bytes >= kHugePage ? kHugePage : kHostAlignment;
  const int64_t rounded = round_up(num_bytes, alignment);
  void* data = std::aligned_alloc(static_cast<size_t>(alignment), static_cast<size_t>(rounded));
  if (data == nullptr) return resource_exhausted("out of memory: ", num_bytes, " bytes of host memory were asked for");
#ifdef __linux__
  if (alignment == kHugePage) {  // may fail
    madvise(data, static_cast<size_t>(rounded), pages == HostPages::huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  }
#endif
  return data;
}

}  // namespace

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  if (device_ == Device::cpu) {
    std::free(data_);
  } else {
    cuda::release(data_);
  }
}

Result<Buffer> Buffer::allocate(Device device, int64_t num_bytes, HostPages host_pages) {
  if (num_bytes < 0) return invalid_argument("num_bytes is ", num_bytes, ": it must not be negative");
  Buffer buffer;
  buffer.device_ = device;
  buffer.size_bytes_ = num_bytes;
  if (num_bytes == 0) return buffer;
  const auto allocate = [&] { return device == Device::cpu ? allocate_host(num_bytes, host_pages) : cuda::allocate(num_bytes); };
  PROLOGUE_ASSIGN_OR_RETURN(buffer.data_, catch_out_of_memory(allocate));
  return buffer;
}

StagingBuffer::~StagingBuffer() {
  if (copied_ != nullptr) {
    (void)cuda::wait_for_copy(copied_);  // the copy may still read the memory
    cuda::destroy_event(copied_);
  }
  if (pinned_ != nullptr) cuda::release_pinned(pinned_);
}

Result<StagingBuffer> StagingBuffer::allocate(Device device, int64_t num_bytes) {
  StagingBuffer staging;
  if (device == Device::cpu || num_bytes <= 0) {
    PROLOGUE_ASSIGN_OR_RETURN(staging.host_, Buffer::allocate(Device::cpu, num_bytes));
  } else {
    PROLOGUE_ASSIGN_OR_RETURN(staging.pinned_, cuda::allocate_pinned(num_bytes));
    PROLOGUE_ASSIGN_OR_RETURN(staging.copied_, cuda::create_copy_event());
  }
  staging.size_bytes_ = num_bytes;
  return staging;
}

Result<void*> StagingBuffer::fill() {
  if (pinned_ == nullptr) return host_.data();
  PROLOGUE_RETURN_IF_ERROR(cuda::wait_for_copy(copied_));
  return pinned_;
}

Status StagingBuffer::check_copy(int64_t num_bytes, const Execution& execution) const {
  if (num_bytes < 0 || num_bytes > size_bytes_) {
    return invalid_argument("num_bytes is ", num_bytes, ": the staging buffer has ", size_bytes_);
  }
  if (pinned_ != nullptr && execution.device != Device::cuda) {
    return invalid_argument("device is ", device_name(execution.device), ": the staging buffer is for cuda");
  }
  return {};
}

Status StagingBuffer::copy_to_device(void* target, int64_t num_bytes, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(check_copy(num_bytes, execution));
  if (num_bytes == 0) return {};
  if (pinned_ == nullptr) return prologue::copy_to_device(target, host_.data(), num_bytes, execution);
  return cuda::copy_from_pinned(target, pinned_, num_bytes, execution.stream, copied_);
}

Status StagingBuffer::copy_from_device(const void* source, int64_t num_bytes, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(check_copy(num_bytes, execution));
  if (num_bytes == 0) return {};
  if (pinned_ == nullptr) return prologue::copy_to_host(host_.data(), source, num_bytes, execution);
  return cuda::copy_to_pinned(pinned_, source, num_bytes, execution.stream, copied_);
}

Result<const void*> StagingBuffer::read() {
  PROLOGUE_ASSIGN_OR_RETURN(void* const data, fill());
  return data;
}

Result<bool> StagingBuffer::is_done() const {
  if (pinned_ == nullptr) return true;
  return cuda::copy_is_done(copied_);
}

Result<int64_t> available_bytes(Device device) {
  return catch_out_of_memory(
      [&] { return device == Device::cpu ? Result<int64_t>(available_host_bytes()) : cuda::available_bytes(); });
}

Status copy_to_device(void* target, const void* source, int64_t num_bytes, const Execution& execution) {
  if (num_bytes == 0) return {};
  if (execution.device == Device::cuda) return cuda::copy(target, source, num_bytes, execution.stream, false);
  std::memcpy(target, source, static_cast<size_t>(num_bytes));
  return {};
}

Status copy_to_host(void* target, const void* source, int64_t num_bytes, const Execution& execution) {
  if (num_bytes == 0) return {};
  if (execution.device == Device::cuda) return cuda::copy(target, source, num_bytes, execution.stream, true);
  std::memcpy(target, source, static_cast<size_t>(num_bytes));
  return {};
}

Status copy_strided(void* target, const void* source, int64_t num_rows, int64_t row_bytes, int64_t stride_bytes,
                    const Execution& execution) {
  if (num_rows == 0 || row_bytes == 0) return {};
  if (execution.device == Device::cuda) {
    return cuda::copy_strided(target, source, num_rows, row_bytes, stride_bytes, execution.stream);
  }
  for (int64_t row = 0; row < num_rows; ++row) {
    std::memcpy(static_cast<char*>(target) + row * stride_bytes, static_cast<const char*>(source) + row * stride_bytes,
                static_cast<size_t>(row_bytes));
  }
  return {};
}

Status fill_zero(void* target, int64_t num_bytes, const Execution& execution) {
  if (num_bytes == 0) return {};
  if (execution.device == Device::cuda) return cuda::fill_zero(target, num_bytes, execution.stream);
  std::memset(target, 0, static_cast<size_t>(num_bytes));
  return {};
}

Status synchronize(const Execution& execution) {
  return execution.device == Device::cuda ? cuda::synchronize(execution.stream) : Status();
}

}  // namespace prologue
