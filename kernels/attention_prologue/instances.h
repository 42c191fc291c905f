// Lists the kernel instances of the prologue, for tests. Internal; only in builds with CUDA. Listing them needs no GPU.
#pragma once

#include <string>
#include <vector>

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/base/host/instances.h>

namespace prologue::cuda {

// The instances that can run the call (which must be valid), whatever its num_tokens is. attention_prologue() uses the first one whose
// max_tokens is large enough. With `all` it also returns those that are never used for it, since they have layouts or steps that it has
// not.
PROLOGUE_API std::vector<KernelInstance<AttentionPrologueParams>> instances_of(const AttentionPrologueParams& params,
                                                                               bool all = false);

// Returns the kind of kernel that a call runs, "lean" or "general"; if `compiles`, that of a plan where kernels can be compiled: also "compiled".
PROLOGUE_API const char* kernel_kind(const AttentionPrologueParams& params, bool compiles);

// Makes the kernels of exactly this call, as a plan does where no instance has just its steps, and returns them: none if only the general
// kernel can run it, or if nothing can be compiled.
PROLOGUE_API std::vector<KernelInstance<AttentionPrologueParams>> described_instances_of(const AttentionPrologueParams& params);

// Returns the names of all instances.
PROLOGUE_API std::vector<std::string> attention_prologue_instances();

}  // namespace prologue::cuda
