// The families of kernels of paged attention are a folder each. A family's launch says which calls the family can run and which of
// its instances is the best for a call, and launches it:
//
//   decode_mla/       latent attention (V is in K) on Hopper: wgmma
//   decode_mma/       16-bit types of q: mma.sync
//   decode/           any types
//   prefill_wgmma/    prefill on Hopper
//   prefill/          prefill elsewhere, and any types: mma_kernel.cuh, simple_kernel.cuh
//
// Code of several families is beside them. Internal, for CUDA. paged_attention_cuda.cpp says in which order the families are tried.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include <prologue/kernels/paged_attention/attention_instances.cuh>

namespace prologue::cuda {

template <class Instance>
using InstanceTable = std::span<const Instance> (*)();

template <class Instance>
struct AttentionFamily {
  bool wgmma;                                       // only where runs_wgmma()
  std::span<const InstanceTable<Instance>> tables;  // in the order of preference
  std::string (*name)(const Instance& instance);
  size_t (*shared_bytes)(const Instance& instance);  // of a block, at least
  // Whether the instance can run the call, whatever its num_tokens, num_seqs, max_seqlen_q and max_seq_len are.
  bool (*serves)(const Instance& instance, const PagedAttentionParams& params);
  // Returns the best instance for the call on a GPU that allows a block so much shared memory, or null if none can run it.
  const Instance* (*choose)(const PagedAttentionParams& params, size_t shared_bytes);
  // Returns the workspace that is enough for any instance that may run such a call with several blocks on one tile or sequence, whatever
  // the alignment of its arrays and the GPU are.
  int64_t (*workspace_bytes)(const PagedAttentionParams& params);
  // Runs the sequences from first_seq on (decode: all of them). Returns nothing if the driver takes no tensor map of the strides.
  std::optional<Status> (*run)(const Instance& instance, const PagedAttentionParams& params, int64_t first_seq,
                               cudaStream_t stream);
};

extern const AttentionFamily<DecodeMlaInstance> kDecodeMlaFamily;
extern const AttentionFamily<DecodeMmaInstance> kDecodeMmaFamily;
extern const AttentionFamily<DecodeInstance> kDecodeFamily;
extern const AttentionFamily<PrefillWgmmaInstance> kPrefillWgmmaFamily;
extern const AttentionFamily<PrefillInstance> kPrefillFamily;  // prefill_mma_kernel and prefill_simple_kernel

// Returns the number of multiprocessors of the current device, or 0 if it does not run the kernels with wgmma.
int64_t wgmma_multiprocessors();

// Returns the first instance of a family's tables that fits, or null.
template <class Instance, size_t kTables, class Fits>
const Instance* first_instance(std::span<const Instance> (*const (&tables)[kTables])(), const Fits& fits) {
  for (const InstanceTable<Instance> table : tables) {
    for (const Instance& instance : table()) {
      if (fits(instance)) return &instance;
    }
  }
  return nullptr;
}

}  // namespace prologue::cuda
