// The tables of kernels that are shipped, one per source file, and what a launch needs to know of each.
#pragma once

#include <cstddef>
#include <span>

#include <prologue/kernels/paged_attention/attention_args.cuh>

namespace prologue::cuda {

struct DecodeInstance {
  DType cache;
  bool any_dtype;  // of q and out; otherwise that of the cache
  int head_dim;    // the largest it serves, of K and V
  int tile_rows;   // packed rows of a block
  void (*decode)(AttentionArgs);
};

struct PrefillInstance {
  DType dtype;     // mma: of q and out
  bool quantized;  // mma: the cache holds codes; otherwise it holds dtype
  int head_dim;
  int rows;  // packed rows of a block, and
  int keys;  // keys that it takes at a time
  int threads;
  size_t shared_bytes;
  void (*kernel)(AttentionArgs);
};

std::span<const DecodeInstance> decode_instances_of_floats();
std::span<const DecodeInstance> decode_instances_of_codes();
std::span<const DecodeInstance> decode_instances_of_large_heads();
std::span<const PrefillInstance> prefill_mma_instances();
std::span<const PrefillInstance> prefill_simple_instances();

}  // namespace prologue::cuda
