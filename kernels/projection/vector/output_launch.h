// The kernel of projection for one token (vector/output_kernel.cuh): which calls it can do, and its launch. Internal, for CUDA.
#pragma once

#include <string>

#include <prologue/kernels/projection/projection.h>
#include <prologue/kernels/projection/vector/output_kernel.cuh>

namespace prologue::cuda {

struct VectorLaunch {
  void (*kernel)(VectorArgs, OutputArgs) = nullptr;  // null: it is not possible
  VectorArgs args;
  int64_t blocks = 0;
};

std::string vector_instance_name(DType dtype);
// With so many rows for each warp, of which 2^log_ways share a row.
VectorLaunch vector_launch_of(const ProjectionParams& params, int64_t rows, int log_ways);
// If it is faster than other kernels.
VectorLaunch choose_vector(const ProjectionParams& params);
Status run(const VectorLaunch& launch, const ProjectionParams& params, cudaStream_t stream);

}  // namespace prologue::cuda
