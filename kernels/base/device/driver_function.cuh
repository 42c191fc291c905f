// Finds functions of the driver, which is not linked. Host code.
#pragma once

#include <cuda_runtime_api.h>

namespace prologue::cuda {

// Returns the function that the driver has had under this name since version `since` of CUDA (12000: 12.0), or null if there is no driver, or
// none that has it.
template <class Function>
Function driver_function(const char* name, [[maybe_unused]] unsigned since) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if defined(CUDART_VERSION) && CUDART_VERSION < 12050
  const cudaError_t error = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
#else
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &found, since, cudaEnableDefault, &result);
#endif
  if (error != cudaSuccess) cudaGetLastError();
  return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<Function>(found) : nullptr;
}

}  // namespace prologue::cuda
