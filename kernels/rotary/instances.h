// The rotary operation's instances, for tests. Internal; defined in builds with CUDA. No GPU is needed to list them.
#pragma once

#include <string>
#include <vector>

#include <prologue/kernels/base/instances.h>
#include <prologue/kernels/rotary/rotary.h>

namespace prologue::cuda {

// All that can do the call (which must be valid), whatever its number of tokens. rotary() itself takes the first whose max_tokens
// is at least batch * seq_len.
PROLOGUE_API std::vector<KernelInstance<RotaryParams>> instances_of(const RotaryParams& params);

// The names of all that ship.
PROLOGUE_API std::vector<std::string> rotary_instances();

}  // namespace prologue::cuda
