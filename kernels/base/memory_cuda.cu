#include <prologue/kernels/base/memory.h>

#include <cuda_runtime.h>

#include <prologue/kernels/base/cuda_launch.cuh>

namespace prologue::cuda {

Result<void*> allocate(int64_t num_bytes) {
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, static_cast<size_t>(num_bytes));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // clears the error: the next call starts clean
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    PROLOGUE_CUDA_RETURN_IF_ERROR(cudaMemGetInfo(&free_bytes, &total_bytes));
    return resource_exhausted("out of GPU memory: ", num_bytes, " bytes were asked for, ", free_bytes, " of ", total_bytes, " are free");
  }
  PROLOGUE_CUDA_RETURN_IF_ERROR(error);
  return data;
}

void release(void* data) { cudaFree(data); }

Result<int64_t> available_bytes() {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaMemGetInfo(&free_bytes, &total_bytes));
  return static_cast<int64_t>(free_bytes);
}

Status copy(void* target, const void* source, int64_t num_bytes, cudaStream_t stream, bool to_host) {
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(target, source, static_cast<size_t>(num_bytes),
                                                to_host ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, stream));
  // From pageable memory the runtime has staged the source when the call returns; to the host the data must have arrived.
  if (to_host) PROLOGUE_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream));
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

}  // namespace prologue::cuda
