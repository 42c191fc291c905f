// The kernels of paged attention, for tests: which one a call runs in depends on its sizes, its types and the GPU, and every one
// that ships must be reachable with any of them. Internal; defined in builds with CUDA. No GPU is needed to list them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <prologue/kernels/paged_attention/paged_attention.h>

namespace prologue::cuda {

struct AttentionInstance {
  std::string name;          // unique among all that ship
  int64_t shared_bytes = 0;  // that a block needs at its launch
  std::function<Status(const PagedAttentionParams&, CUstream_st*)> launch;
};

// All that can serve the call (which must be valid), whatever its num_tokens, num_seqs, max_seqlen_q and max_seq_len.
PROLOGUE_API std::vector<AttentionInstance> instances_of(const PagedAttentionParams& params);

// The name of the one that paged_attention() takes on a GPU where a block may have `shared_bytes` of shared memory; empty: none.
PROLOGUE_API std::string chosen_instance(const PagedAttentionParams& params, int64_t shared_bytes);

// The names of all that ship.
PROLOGUE_API std::vector<std::string> paged_attention_instances();

}  // namespace prologue::cuda
