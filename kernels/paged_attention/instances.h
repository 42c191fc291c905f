// This file lists the kernels of paged attention for tests. Which kernel runs a call depends on the call's sizes, its types and the GPU;
// tests must reach every kernel that ships, whatever these are. Internal; only in builds with CUDA. Listing them needs no GPU.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <prologue/kernels/paged_attention/paged_attention.h>

namespace prologue::cuda {

struct AttentionInstance {
  std::string name;          // unique among all instances
  int64_t shared_bytes = 0;  // shared memory of a block
  bool wgmma = false;        // only where runs_wgmma()
  std::function<Status(const PagedAttentionParams&, CUstream_st*)> launch;
};

// Returns all instances that can run the call (which must be valid), whatever its num_tokens, num_seqs, max_seqlen_q and max_seq_len are.
PROLOGUE_API std::vector<AttentionInstance> instances_of(const PagedAttentionParams& params);

// Return the name of the instance that paged_attention() runs on a GPU that allows a block `shared_bytes` of shared memory: for the
// sequences that decode runs, and for those that prefill runs. The name is empty if there are no such sequences. `wgmma` is what
// runs_wgmma() returns there.
PROLOGUE_API std::string chosen_decode_instance(const PagedAttentionParams& params, int64_t shared_bytes, bool wgmma = false);
PROLOGUE_API std::string chosen_prefill_instance(const PagedAttentionParams& params, int64_t shared_bytes, bool wgmma = false);

// Returns the names of all instances.
PROLOGUE_API std::vector<std::string> paged_attention_instances();

// Whether the current device is a Hopper GPU for which the library holds code.
PROLOGUE_API bool runs_wgmma();

// Lets paged_attention() use the kernels of Hopper from now on (as it does at first), or only those of other GPUs.
PROLOGUE_API void allow_wgmma(bool allowed);

}  // namespace prologue::cuda
