// The kernels that were made for calls, in this process.
#pragma once

#include <vector>

#include <prologue/kernels/attention_prologue/described/kernels.h>
#include <prologue/kernels/attention_prologue/lean/families.h>

namespace prologue::cuda {

struct DescribedInstance {
  DescribedSize size;
  CallFacts facts;
  DescribedKernel kernel;
};

// The kernels of one call, for more and more tokens.
struct DescribedFamily {
  std::vector<DescribedInstance> instances;
  Family family;  // says that it is this one
};

// Returns whether kernels can be made for a call, where anything can be compiled.
bool can_be_described(const AttentionPrologueParams& params);

// Returns the kernels for a call, which must be valid and resolved, or null if there are none. They are made only if `makes`, which takes from a
// tenth of a second to seconds; what could not be made is not tried again. Any thread may call this.
const DescribedFamily* find_described(const AttentionPrologueParams& params, bool makes);

}  // namespace prologue::cuda
