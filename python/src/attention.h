// What attention_prologue, paged_attention and attention_layer read in common.
#pragma once

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/paged_attention/paged_attention.h>

#include "groups.h"

namespace prologue::python {

// The cache, biases, norms, rope, places and the other steps. num_tokens, the numbers of heads, head_dim, dtype and, if it is not that
// of the cache, cache.v.head_dim must be set. Returns the caller's fault record.
Array read_prologue_steps(Arguments& arguments, AttentionPrologueParams& params);

// scale to batch_invariant of PagedAttentionParams. num_tokens must be set, and ring_size if 0 stands for something else; `kv` and `table`
// give the default bounds.
void read_attention_options(Arguments& arguments, PagedAttentionParams& params, const PagedKvView& kv, const PageTable& table,
                            int64_t num_q_heads);

}  // namespace prologue::python
