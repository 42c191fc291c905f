// Lists the instances of each way (kernels/projection/way.h) for tests. Internal; only in builds with CUDA. Listing them needs no GPU.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <prologue/kernels/base/host/instances.h>
#include <prologue/kernels/qkv_prologue/qkv_prologue.h>

namespace prologue::cuda {

// Returns the names in the order in which the ways are asked. Launch::way is one of them.
PROLOGUE_API std::vector<std::string> qkv_prologue_ways();

// Returns the names of all instances of a way for a type.
PROLOGUE_API std::vector<std::string> qkv_prologue_instances(std::string_view way, DType dtype);

// Returns all instances of a way that can run the call, which must be valid, with every division of the work. What is after the last comma
// of an instance's name says how it divides the work; the names of "tiles" do not say it. Calls with a norm have no instances of "tiles":
// the norm is a kernel of its own before them.
PROLOGUE_API std::vector<KernelInstance<QkvPrologueParams>> instances_of(std::string_view way, const QkvPrologueParams& params);

}  // namespace prologue::cuda
