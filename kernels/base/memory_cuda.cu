#include <prologue/kernels/base/host/backends.h>

#include <cuda_runtime.h>

#include <prologue/kernels/base/device/cuda_launch.cuh>

namespace prologue::cuda {

namespace {

constexpr int kThreads = 256;

__global__ void copy_words_kernel(uint4* to, const uint4* from, int count) {
  for (int i = threadIdx.x; i < count; i += kThreads) to[i] = from[i];
}

// The GPU writes few words to pinned memory sooner than a copy engine does, which must be told that the kernels before are done, and
// the kernels after that it is.
constexpr int64_t kMostBytesByKernel = 16 * 1024;

bool are_words(const void* target, const void* source, int64_t num_bytes) {
  return ((reinterpret_cast<uintptr_t>(target) | reinterpret_cast<uintptr_t>(source) | static_cast<uintptr_t>(num_bytes)) & 15) == 0;
}

}  // namespace

Result<void*> allocate(int64_t num_bytes) {
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, static_cast<size_t>(num_bytes));
  if (error != cudaSuccess) cudaGetLastError();  // clears the error: the next call starts clean
  if (error == cudaErrorMemoryAllocation) {
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    PROLOGUE_CUDA_RETURN_IF_ERROR(cudaMemGetInfo(&free_bytes, &total_bytes));
    return resource_exhausted("out of GPU memory: ", num_bytes, " bytes were asked for, ", free_bytes, " of ", total_bytes,
                              " are free");
  }
  if (error != cudaSuccess) return device_error("cudaMalloc of ", num_bytes, " bytes failed: ", cudaGetErrorString(error));
  return data;
}

void release(void* data) {
  if (cudaFree(data) != cudaSuccess) cudaGetLastError();  // a capture forbids it, for one
}

Result<int64_t> available_bytes() {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaMemGetInfo(&free_bytes, &total_bytes));
  return static_cast<int64_t>(free_bytes);
}

Status copy(void* target, const void* source, int64_t num_bytes, cudaStream_t stream, bool to_host) {
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(target, source, static_cast<size_t>(num_bytes),
                                                to_host ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, stream));
  // The source is pageable: the runtime has staged it when the call returns. Copies to the host must wait for the data.
  if (to_host) PROLOGUE_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream));
  return {};
}

Status copy_strided(void* target, const void* source, int64_t num_rows, int64_t row_bytes, int64_t stride_bytes,
                    cudaStream_t stream) {
  constexpr int64_t kMaxPitch = INT32_MAX;  // cudaDeviceProp::memPitch of every GPU
  const auto width = static_cast<size_t>(row_bytes), pitch = static_cast<size_t>(stride_bytes);
  if (stride_bytes <= kMaxPitch) {
    PROLOGUE_CUDA_RETURN_IF_ERROR(cudaMemcpy2DAsync(target, pitch, source, pitch, width, static_cast<size_t>(num_rows),
                                                    cudaMemcpyDeviceToDevice, stream));
    return {};
  }
  for (int64_t row = 0; row < num_rows; ++row) {
    PROLOGUE_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(static_cast<char*>(target) + row * stride_bytes,
                                                  static_cast<const char*>(source) + row * stride_bytes, width,
                                                  cudaMemcpyDeviceToDevice, stream));
  }
  return {};
}

Status fill_zero(void* target, int64_t num_bytes, cudaStream_t stream) {
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(target, 0, static_cast<size_t>(num_bytes), stream));
  return {};
}

Status synchronize(cudaStream_t stream) {
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream));
  return {};
}

Result<void*> allocate_pinned(int64_t num_bytes) {
  void* data = nullptr;
  const cudaError_t error = cudaMallocHost(&data, static_cast<size_t>(num_bytes));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return resource_exhausted("out of memory: ", num_bytes, " bytes of pinned host memory were asked for");
  }
  PROLOGUE_CUDA_RETURN_IF_ERROR(error);
  return data;
}

void release_pinned(void* data) {
  if (cudaFreeHost(data) != cudaSuccess) cudaGetLastError();
}

Result<cudaEvent_t> create_copy_event() {
  cudaEvent_t event = nullptr;
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return event;
}

Status copy_from_pinned(void* target, const void* pinned, int64_t num_bytes, cudaStream_t stream, cudaEvent_t copied) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaStreamIsCapturing(stream, &capture));
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(target, pinned, static_cast<size_t>(num_bytes), cudaMemcpyHostToDevice, stream));
  // The host cannot wait for an event that a graph has captured.
  if (capture == cudaStreamCaptureStatusNone) PROLOGUE_CUDA_RETURN_IF_ERROR(cudaEventRecord(copied, stream));
  return {};
}

Status copy_to_pinned(void* pinned, const void* source, int64_t num_bytes, cudaStream_t stream, cudaEvent_t copied) {
  if (num_bytes <= kMostBytesByKernel && are_words(pinned, source, num_bytes)) {
    PROLOGUE_RETURN_IF_ERROR(launch("copy", copy_words_kernel, {1, kThreads}, stream, static_cast<uint4*>(pinned),
                                    static_cast<const uint4*>(source), static_cast<int>(num_bytes / 16)));
  } else {
    PROLOGUE_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(pinned, source, static_cast<size_t>(num_bytes), cudaMemcpyDeviceToHost, stream));
  }
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaEventRecord(copied, stream));
  return {};
}

Status wait_for_copy(cudaEvent_t copied) {
  // CUDA forbids waiting in a thread that captures. It is safe here: the event does not belong to a capture.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaThreadExchangeStreamCaptureMode(&mode));
  const cudaError_t waited = cudaEventSynchronize(copied);
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaThreadExchangeStreamCaptureMode(&mode));
  PROLOGUE_CUDA_RETURN_IF_ERROR(waited);
  return {};
}

Result<bool> copy_is_done(cudaEvent_t copied) {
  const cudaError_t error = cudaEventQuery(copied);
  if (error == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  PROLOGUE_CUDA_RETURN_IF_ERROR(error);
  return true;
}

}  // namespace prologue::cuda
