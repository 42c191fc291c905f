// This file launches kernels. Every launch uses it: it is checked, and the error names the kernel. The CUDA runtime keeps its last error. An
// error that becomes a Status is cleared there, so that the next call (ours or the caller's) does not find it.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include <prologue/kernels/base/status.h>
#include <prologue/kernels/base/device/device_limits.cuh>

#define PROLOGUE_CUDA_RETURN_IF_ERROR(expression)                                                     \
  do {                                                                                                \
    const cudaError_t prologue_error_ = (expression);                                                 \
    if (prologue_error_ != cudaSuccess) {                                                             \
      cudaGetLastError();                                                                             \
      return ::prologue::device_error(#expression, " failed: ", cudaGetErrorString(prologue_error_)); \
    }                                                                                                 \
  } while (false)

namespace prologue::cuda {

// Returns the extent of a grid. A number that does not fit becomes one that makes the launch fail.
inline unsigned grid_extent(int64_t blocks) {
  return blocks < 0 || blocks > int64_t{0xffffffff} ? 0xffffffffu : static_cast<unsigned>(blocks);
}

// Makes the attributes of a launch in clusters of so many neighbouring blocks, if there are several. If it overlaps, and the device can, it
// has a programmatic edge from the kernel before it in the stream: it may start while that one runs, and waits for it (instructions.cuh:
// wait_for_previous_kernels).
class LaunchAttributes {
 public:
  LaunchAttributes(int cluster_blocks, bool overlaps) {
    if (cluster_blocks > 1) {
      cudaLaunchAttribute& cluster = attributes_[count_++];
      cluster.id = cudaLaunchAttributeClusterDimension;
      cluster.val.clusterDim.x = static_cast<unsigned>(cluster_blocks);
      cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    }
    if (overlaps && device_is_hopper_or_later()) {
      cudaLaunchAttribute& edge = attributes_[count_++];
      edge.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      edge.val.programmaticStreamSerializationAllowed = 1;
    }
  }
  std::span<cudaLaunchAttribute> span() { return {attributes_, count_}; }

 private:
  cudaLaunchAttribute attributes_[2] = {};
  size_t count_ = 0;
};

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  std::span<cudaLaunchAttribute> attributes = {};  // of LaunchAttributes, which must outlive launch()
};

// Makes the error of a launch that failed.
Status launch_failed(const char* name, const LaunchShape& shape, cudaError_t error);

// Launches a kernel, of whichever type, by enqueue(config).
template <class Kernel, class Enqueue>
Status launch_by(const Enqueue& enqueue, const char* name, Kernel kernel, const LaunchShape& shape, cudaStream_t stream) {
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = shape.attributes.data();
  config.numAttrs = static_cast<unsigned>(shape.attributes.size());
  constexpr size_t kSharedBytesWithoutAsking = 48 * 1024;
  cudaError_t error = cudaSuccess;
  if (shape.shared_bytes > kSharedBytesWithoutAsking) {  // kept per device by the driver, and cheap beside a launch
    error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shape.shared_bytes));
  }
  if (error == cudaSuccess) error = enqueue(config);
  return error == cudaSuccess ? Status() : launch_failed(name, shape, error);
}

// launch("norm", kernel, {grid, block}, stream, args...): arguments must have exactly the kernel's parameter types.
template <class... Params>
Status launch(const char* name, void (*kernel)(Params...), const LaunchShape& shape, cudaStream_t stream, Params... args) {
  const auto enqueue = [&](const cudaLaunchConfig_t& config) { return cudaLaunchKernelEx(&config, kernel, args...); };
  return launch_by(enqueue, name, kernel, shape, stream);
}

// The same for a kernel that compile() returned (base/compile/compiler.h). Nothing checks the types of its arguments.
template <class... Args>
Status launch(const char* name, const void* kernel, const LaunchShape& shape, cudaStream_t stream, Args... args) {
  const auto enqueue = [&](const cudaLaunchConfig_t& config) {
    void* addresses[] = {&args...};
    return cudaLaunchKernelExC(&config, kernel, addresses);
  };
  return launch_by(enqueue, name, kernel, shape, stream);
}

}  // namespace prologue::cuda
