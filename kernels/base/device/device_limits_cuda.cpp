#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>

#include <prologue/kernels/base/device/device_limits.cuh>

namespace prologue::cuda {

namespace {

cudaError_t ask_for_limits(int device, DeviceLimits& limits) {
  limits.device = device;
  cudaError_t error = cudaSuccess;
  const auto ask = [&](int& value, cudaDeviceAttr attribute) {
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&value, attribute, device);
  };
  ask(limits.major, cudaDevAttrComputeCapabilityMajor);
  ask(limits.minor, cudaDevAttrComputeCapabilityMinor);
  ask(limits.multiprocessors, cudaDevAttrMultiProcessorCount);
  ask(limits.shared_bytes_of_block, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  ask(limits.shared_bytes_of_multiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  return error;
}

}  // namespace

Result<DeviceLimits> current_device() {
  constexpr int kDevices = 64;  // that are remembered
  static std::array<DeviceLimits, kDevices> known;
  static std::array<std::atomic<bool>, kDevices> is_known = {};
  static std::mutex mutex;
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  const auto at = static_cast<size_t>(device);
  if (error == cudaSuccess && device < kDevices && is_known[at].load(std::memory_order_acquire)) return known[at];
  DeviceLimits limits;
  if (error == cudaSuccess) error = ask_for_limits(device, limits);
  if (error != cudaSuccess) {
    cudaGetLastError();
    return device_error("asking for the limits of the current device failed: ", cudaGetErrorString(error));
  }
  const std::scoped_lock lock(mutex);
  if (device < kDevices && !is_known[at].load(std::memory_order_relaxed)) {
    known[at] = limits;
    is_known[at].store(true, std::memory_order_release);
  }
  return limits;
}

bool device_is_hopper_or_later() {
  const Result<DeviceLimits> device = current_device();
  return device.ok() && device->major >= 9;
}

}  // namespace prologue::cuda
