#include <cstdlib>
#include <cstring>

#include <prologue/kernels/base/memory.h>

namespace prologue {

namespace cuda {
Result<void*> allocate(int64_t num_bytes);
void release(void* data);
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
Status copy(void*, const void*, int64_t, CUstream_st*, bool) { return cuda_not_built("memory"); }
Status fill_zero(void*, int64_t, CUstream_st*) { return cuda_not_built("memory"); }
Status synchronize(CUstream_st*) { return cuda_not_built("memory"); }
}  // namespace cuda
#endif

namespace {

constexpr int64_t kHostAlignment = 64;

Result<void*> allocate_host(int64_t num_bytes) {
  const int64_t rounded = (num_bytes + kHostAlignment - 1) / kHostAlignment * kHostAlignment;
  void* data = std::aligned_alloc(kHostAlignment, static_cast<size_t>(rounded));
  if (data == nullptr) return resource_exhausted("out of memory: ", num_bytes, " bytes of host memory were asked for");
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
  PROLOGUE_ASSIGN_OR_RETURN(buffer.data_, device == Device::cpu ? allocate_host(num_bytes) : cuda::allocate(num_bytes));
  return buffer;
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
