// This file says which devices run the library's code for sm_90a. Host code.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include <prologue/kernels/base/device/device_limits.cuh>

namespace prologue::cuda {

// Returns the number of multiprocessors of the current device, or 0 if the kernel would be empty there: code for other devices takes fewer
// registers, or admits fewer threads. `kernel_of()` names the kernel; each such function has an answer of its own for each device, found
// once.
template <class KernelOf>
int64_t hopper_multiprocessors(const KernelOf& kernel_of, int threads, int registers) {
  constexpr int kDevices = 64;
  static std::array<std::atomic<int>, kDevices> known = {};  // 1 more than the answer
  const Result<DeviceLimits> device = current_device();
  if (!device.ok() || device->device >= kDevices) return 0;
  auto& answer = known[static_cast<size_t>(device->device)];
  if (answer == 0) {
    cudaFuncAttributes attributes = {};
    if (cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel_of())) != cudaSuccess) {
      cudaGetLastError();
      return 0;
    }
    const bool has_code = attributes.maxThreadsPerBlock >= threads && attributes.numRegs >= registers;
    answer = 1 + (device->major == 9 && device->minor == 0 && has_code ? device->multiprocessors : 0);
  }
  return answer - 1;
}

}  // namespace prologue::cuda
