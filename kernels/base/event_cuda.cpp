#include <prologue/kernels/base/host/backends.h>

#include <cuda_runtime.h>

#include <prologue/kernels/base/device/cuda_launch.cuh>

namespace prologue::cuda {

Status record_event(cudaEvent_t& event, cudaStream_t stream) {
  if (event == nullptr) PROLOGUE_CUDA_RETURN_IF_ERROR(cudaEventCreate(&event));
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaEventRecord(event, stream));
  return {};
}

Result<double> seconds_between(cudaEvent_t start, cudaEvent_t end) {
  float milliseconds = 0.0f;
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaEventSynchronize(end));
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaEventElapsedTime(&milliseconds, start, end));
  return static_cast<double>(milliseconds) * 1e-3;
}

void destroy_event(cudaEvent_t event) { cudaEventDestroy(event); }

}  // namespace prologue::cuda
