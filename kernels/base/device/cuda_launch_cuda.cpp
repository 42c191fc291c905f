#include <prologue/kernels/base/device/cuda_launch.cuh>

namespace prologue::cuda {

Status launch_failed(const char* name, const LaunchShape& shape, cudaError_t error) {
  cudaGetLastError();
  return device_error("launching ", name, " with a grid of ", shape.grid.x, " x ", shape.grid.y, " x ", shape.grid.z,
                      " blocks of ", shape.block.x, " threads and ", shape.shared_bytes,
                      " bytes of shared memory failed: ", cudaGetErrorString(error));
}

}  // namespace prologue::cuda
