#include <prologue/kernels/base/host/backends.h>

#include <cuda_runtime.h>

#include <prologue/kernels/base/device/cuda_launch.cuh>

namespace prologue {

bool built_with_cuda() { return true; }

namespace cuda {

namespace {

__global__ void probe_kernel() {}

}  // namespace

Status check_gpu() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  cudaGetLastError();  // clears the error: the next CUDA call must not report it
  int driver = 0;
  int runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (error == cudaErrorInsufficientDriver && driver != 0) {
    return device_error("the NVIDIA driver is too old: it supports CUDA ", driver / 1000, ".", driver % 1000 / 10,
                        ", this build needs CUDA ", runtime / 1000, ".", runtime % 1000 / 10);
  }
  if (error != cudaSuccess || count == 0) {
    return device_error("there is no usable NVIDIA GPU on this machine (",
                        cudaGetErrorString(error == cudaSuccess ? cudaErrorNoDevice : error), ")");
  }
  cudaFuncAttributes attributes;
  const cudaError_t loaded = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(probe_kernel));
  cudaGetLastError();
  if (loaded == cudaErrorNoKernelImageForDevice || loaded == cudaErrorInvalidDeviceFunction ||
      loaded == cudaErrorUnsupportedPtxVersion) {
    int device = 0;
    cudaDeviceProp properties;
    PROLOGUE_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device));
    PROLOGUE_CUDA_RETURN_IF_ERROR(cudaGetDeviceProperties(&properties, device));
    return device_error("the GPU (", properties.name, ") has compute capability ", properties.major, ".", properties.minor,
                        ", which this build has no code for: configure it with CMAKE_CUDA_ARCHITECTURES=", properties.major,
                        properties.minor);
  }
  PROLOGUE_CUDA_RETURN_IF_ERROR(loaded);
  return {};
}

Result<std::string> gpu_name() {
  PROLOGUE_RETURN_IF_ERROR(check_gpu());
  int device = 0;
  cudaDeviceProp properties;
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device));
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaGetDeviceProperties(&properties, device));
  return std::string(properties.name);
}

Result<int32_t> num_gpus() {
  PROLOGUE_RETURN_IF_ERROR(check_gpu());
  int count = 0;
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaGetDeviceCount(&count));
  return static_cast<int32_t>(count);
}

Status use_gpu(int32_t gpu) {
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaSetDevice(gpu));
  return {};
}

Result<cudaStream_t> create_stream() {
  PROLOGUE_RETURN_IF_ERROR(check_gpu());
  cudaStream_t stream = nullptr;
  PROLOGUE_CUDA_RETURN_IF_ERROR(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

void destroy_stream(cudaStream_t stream) { cudaStreamDestroy(stream); }

}  // namespace cuda

}  // namespace prologue
