// The kernels that were made for calls, in this process.
#pragma once

#include <vector>

#include <prologue/kernels/attention_prologue/described/kernels.h>
#include <prologue/kernels/attention_prologue/lean/families.h>

namespace prologue::cuda {

struct DescribedInstance {
  DescribedSize size;
  CallFacts facts;
  DescribedKernel kernel;  // null: not made yet
};

// The kernels of one call, for more and more tokens.
struct DescribedFamily {
  std::vector<DescribedInstance> instances;
  bool failed = false;  // one could not be made
  Family family;        // says that it is this one
};

// Returns whether kernels can be made for a call, where anything can be compiled.
bool can_be_described(const AttentionPrologueParams& params);

// Which kernels are made, if they are not there yet. Each takes from a tenth of a second to seconds.
enum class Making {
  nothing,
  up_to_num_tokens,  // for calls of up to so many tokens
  everything,
};

// Returns the kernels for a call, which must be valid and resolved. Those for the call's num_tokens are there, and with up_to_num_tokens those for
// fewer, too. Null: they are not there. What could not be made is not tried again. Any thread may call this.
const DescribedFamily* find_described(const AttentionPrologueParams& params, Making making);

}  // namespace prologue::cuda
