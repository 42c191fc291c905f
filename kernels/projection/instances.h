// The instances of the one kernel, for tests. Internal; only in builds with CUDA. Listing them needs no GPU.
#pragma once

#include <string>
#include <vector>

#include <prologue/kernels/base/host/instances.h>
#include <prologue/kernels/projection/projection.h>

namespace prologue::cuda {

// All instances that can run the call, which must be valid, with every number of blocks in a cluster or some numbers of rows for a block.
// projection() uses one of them, or another number of rows.
PROLOGUE_API std::vector<KernelInstance<ProjectionParams>> instances_of(const ProjectionParams& params);

// The same for the kernel of one token, with every number of rows of a warp and of warps that share a row.
PROLOGUE_API std::vector<KernelInstance<ProjectionParams>> vector_instances_of(const ProjectionParams& params);

// Whether projection() chooses one kernel for the call.
PROLOGUE_API bool chooses_one_kernel(const ProjectionParams& params);

// The names of all instances for a type, without the number of blocks or of rows.
PROLOGUE_API std::vector<std::string> projection_instances(DType dtype);

}  // namespace prologue::cuda
