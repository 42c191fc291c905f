// Lists the instances of each way (way.h), for tests. Internal; only in builds with CUDA. Listing them needs no GPU.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <prologue/kernels/base/host/instances.h>
#include <prologue/kernels/projection/projection.h>

namespace prologue::cuda {

// Returns the names in the order in which the ways are asked. Launch::way is one of them.
PROLOGUE_API std::vector<std::string> projection_ways();

// Returns the names of all instances of a way for a type.
PROLOGUE_API std::vector<std::string> projection_instances(std::string_view way, DType dtype);

// Returns all instances of a way that can run the call, which must be valid, with every division of the work, or some numbers of rows for a
// block. What is after the last comma of its name says how an instance divides the work. projection() uses one of them, or another number
// of rows.
PROLOGUE_API std::vector<KernelInstance<ProjectionParams>> instances_of(std::string_view way, const ProjectionParams& params);

}  // namespace prologue::cuda
