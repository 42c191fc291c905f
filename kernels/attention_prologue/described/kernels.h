// Finds the kernels of a described call: compiled on demand, or, where the kernels are emulated, one for all calls.
#pragma once

#include <prologue/kernels/attention_prologue/described/args.h>
#include <prologue/kernels/attention_prologue/described/described.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>

namespace prologue::cuda {

// One that was compiled, or where kernels are emulated the one that takes facts as arguments.
struct DescribedKernel {
  const void* kernel = nullptr;
};

// Compiles the kernel for the current device, or takes it from a file.
Result<DescribedKernel> make_kernel(DType dtype, const CallFacts& facts, const DescribedSize& size);

// `facts` are those that the kernel was made for.
Status launch_described(const DescribedKernel& kernel, const CallFacts& facts, const LaunchShape& shape, cudaStream_t stream,
                        const DescribedArgs& args);

}  // namespace prologue::cuda
