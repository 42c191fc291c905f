// Only this function chooses between the CPU and CUDA. Internal.
#pragma once

#include <prologue/kernels/base/execution.h>

namespace prologue {

// Runs a validated call on the execution's device. The backends.h of an operation's folder declares both backends. In a build
// without CUDA, those of CUDA are in kernels/cuda_stubs.cpp and return cuda_not_built().
template <class Backend, class... Args>
Status dispatch(const Execution& execution, Backend* cpu, Backend* cuda, Args&... args) {
  Backend* const backend = execution.device == Device::cpu ? cpu : cuda;
  return backend(args..., execution);
}

}  // namespace prologue
