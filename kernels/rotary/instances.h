// This file lists the kernel instances of the rotary operation, for tests. Internal; only in builds with CUDA. Listing them needs no GPU.
#pragma once

#include <string>
#include <vector>

#include <prologue/kernels/base/host/instances.h>
#include <prologue/kernels/rotary/rotary.h>

namespace prologue::cuda {

// Returns all instances that can run the call (which must be valid), whatever its number of tokens is. rotary() uses the first one whose
// max_tokens is at least batch * seq_len.
PROLOGUE_API std::vector<KernelInstance<RotaryParams>> instances_of(const RotaryParams& params);

// Returns the names of all instances.
PROLOGUE_API std::vector<std::string> rotary_instances();

}  // namespace prologue::cuda
