// Launching kernels: every launch goes through here, is checked, and is named when it fails.
#pragma once

#include <cuda_runtime.h>

#include <prologue/kernels/base/status.h>

#define PROLOGUE_CUDA_RETURN_IF_ERROR(expression)                                                      \
  do {                                                                                                 \
    const cudaError_t prologue_error_ = (expression);                                                  \
    if (prologue_error_ != cudaSuccess) {                                                              \
      return ::prologue::device_error(#expression, " failed: ", cudaGetErrorString(prologue_error_)); \
    }                                                                                                  \
  } while (false)

namespace prologue::cuda {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
};

// launch("rms_norm", kernel, {grid, block}, stream, args...): arguments must have exactly the kernel's parameter types.
template <class... Params>
Status launch(const char* name, void (*kernel)(Params...), const LaunchShape& shape, cudaStream_t stream, Params... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, args...);
  if (error == cudaSuccess) return {};
  return device_error("launching ", name, " with a grid of ", shape.grid.x, " x ", shape.grid.y, " x ", shape.grid.z, " blocks of ",
                      shape.block.x, " threads and ", shape.shared_bytes, " bytes of shared memory failed: ", cudaGetErrorString(error));
}

}  // namespace prologue::cuda
