// The instances of each way (kernels/projection/way.h), for tests. Internal; only in builds with CUDA. Listing them needs no GPU.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <prologue/kernels/base/host/instances.h>
#include <prologue/kernels/qkv_prologue/qkv_prologue.h>

namespace prologue::cuda {

// Returns the names in the order in which the ways are asked. Launch::way is one of them.
PROLOGUE_API std::vector<std::string> qkv_prologue_ways();

// The names of all instances of a way for a type.
PROLOGUE_API std::vector<std::string> qkv_prologue_instances(std::string_view way, DType dtype);

// All instances of a way that can run the call, which must be valid, with every division of the work. Behind the last comma of its name is how
// an instance divides the work; those of "tiles" do not say. Calls with a norm have none of "tiles": the norm is a kernel of its own before them.
PROLOGUE_API std::vector<KernelInstance<QkvPrologueParams>> instances_of(std::string_view way, const QkvPrologueParams& params);

}  // namespace prologue::cuda
