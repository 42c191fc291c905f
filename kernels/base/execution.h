// Where an operation runs. Every operation takes its parameters and an Execution.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/status.h>

struct CUstream_st;  // cudaStream_t is a pointer to this; no CUDA header is needed to name it

namespace prologue {

enum class Device : int32_t { cpu = 0, cuda };

constexpr const char* device_name(Device device) { return device == Device::cpu ? "cpu" : "cuda"; }

struct Execution {
  Device device = Device::cpu;
  int32_t num_threads = 1;        // CPU: threads an operation may use
  CUstream_st* stream = nullptr;  // CUDA: operations are enqueued here and never synchronise
  uint64_t reserved[2] = {};      // zeros: docs/versioning.md
};

// Returns true if the library was built with its CUDA kernels. It does not say whether there is a GPU: see check_gpu() in gpu.h.
PROLOGUE_API bool built_with_cuda();

// Returns the error of an operation whose backend is not in this build.
PROLOGUE_API Status cuda_not_built(const char* operation);

}  // namespace prologue
