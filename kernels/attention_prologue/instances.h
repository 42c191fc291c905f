// The prologue's instances, for tests. Internal; defined in builds with CUDA. No GPU is needed to list them.
#pragma once

#include <string>
#include <vector>

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/base/instances.h>

namespace prologue::cuda {

// All that can do the call (which must be valid), whatever its num_tokens. attention_prologue() itself takes the first whose
// max_tokens is large enough.
PROLOGUE_API std::vector<KernelInstance<AttentionPrologueParams>> instances_of(const AttentionPrologueParams& params);

// The names of all that ship.
PROLOGUE_API std::vector<std::string> attention_prologue_instances();

}  // namespace prologue::cuda
