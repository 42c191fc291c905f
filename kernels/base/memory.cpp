#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <prologue/kernels/base/memory.h>
#include <prologue/kernels/base/out_of_memory.h>

namespace prologue {

namespace cuda {
Result<void*> allocate(int64_t num_bytes);
void release(void* data);
Result<int64_t> available_bytes();
Status copy(void* target, const void* source, int64_t num_bytes, CUstream_st* stream, bool to_host);
Status fill_zero(void* target, int64_t num_bytes, CUstream_st* stream);
Status synchronize(CUstream_st* stream);
}  // namespace cuda

bool built_with_cuda() {
#ifdef PROLOGUE_HAS_CUDA
  return true;
#else
  return false;
#endif
}

#ifndef PROLOGUE_HAS_CUDA
namespace cuda {
Result<void*> allocate(int64_t) { return cuda_not_built("memory"); }
void release(void*) {}
Result<int64_t> available_bytes() { return cuda_not_built("memory"); }
Status copy(void*, const void*, int64_t, CUstream_st*, bool) { return cuda_not_built("memory"); }
Status fill_zero(void*, int64_t, CUstream_st*) { return cuda_not_built("memory"); }
Status synchronize(CUstream_st*) { return cuda_not_built("memory"); }
}  // namespace cuda
#endif

namespace {

constexpr int64_t kHostAlignment = 64;
constexpr int64_t kHugePage = int64_t{2} << 20;

// Number that a system file holds; the largest int64 where there is none ("max", or no such file).
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

Result<void*> allocate_host(int64_t num_bytes) {
  // Linux grants more than there is and kills the process when it is touched: large requests are held against what is free.
  if (num_bytes >= 16 * kHugePage && num_bytes > available_host_bytes()) {
    return resource_exhausted("out of memory: ", num_bytes, " bytes of host memory were asked for, ", available_host_bytes(),
                              " are available");
  }
  const int64_t alignment = num_bytes >= kHugePage ? kHugePage : kHostAlignment;
  const int64_t rounded = (num_bytes + alignment - 1) / alignment * alignment;
  void* data = std::aligned_alloc(static_cast<size_t>(alignment), static_cast<size_t>(rounded));
  if (data == nullptr) return resource_exhausted("out of memory: ", num_bytes, " bytes of host memory were asked for");
#ifdef __linux__
  if (alignment == kHugePage) madvise(data, static_cast<size_t>(rounded), MADV_HUGEPAGE);  // fewer TLB misses; may be refused
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

Result<Buffer> Buffer::allocate(Device device, int64_t num_bytes) {
  if (num_bytes < 0) return invalid_argument("num_bytes is ", num_bytes, ": it must not be negative");
  Buffer buffer;
  buffer.device_ = device;
  buffer.size_bytes_ = num_bytes;
  if (num_bytes == 0) return buffer;
  const auto allocate = [&] { return device == Device::cpu ? allocate_host(num_bytes) : cuda::allocate(num_bytes); };
  PROLOGUE_ASSIGN_OR_RETURN(buffer.data_, catch_out_of_memory(allocate));
  return buffer;
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
