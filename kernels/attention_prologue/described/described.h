// Kernels that are made for a call: what is fixed of it, and for which numbers of tokens there is a kernel. There is no CUDA here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/attention_prologue/described/call_facts.h>

namespace prologue::cuda {

// A kernel for up to so many tokens.
struct DescribedSize {
  int64_t max_tokens;
  int vector;     // channels in one access
  int units;      // heads per thread
  bool together;  // which are computed at once
  int hints;
  int threads;  // of a block, at most
  int blocks;   // of an SM, at least, if there are enough
};

// Says whether blocks of a kernel have several tokens: TokenGroup.
constexpr bool groups_tokens(const DescribedSize& size, const CallFacts& facts) {
  return groups_tokens(facts, size.units, size.hints);
}

// Returns what is fixed of the call, which must be valid and resolved, or nothing if only the general kernel can run it: heads of more than 32
// lanes that work together; 4-bit elements that a lane cannot store by itself; blocks of a block-scaled format that are not of neighbouring lanes; a
// norm over more heads than a block has threads for; no sequence to derive from.
// `vector` is the number of channels in one access.
std::optional<CallFacts> facts_of(const AttentionPrologueParams& params, int64_t vector);

// Returns the kernels of all calls with these facts, for more and more tokens. `vector` is the widest that their data allow.
std::vector<DescribedSize> described_sizes(DType dtype, const CallFacts& facts, int64_t vector);

PackedFacts packed(const CallFacts& facts);

// Returns the kernel's name, as C++ writes it.
std::string described_name(DType dtype, const CallFacts& facts, const DescribedSize& size);

}  // namespace prologue::cuda
