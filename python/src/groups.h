// Groups of arguments that several operations take, each the Python class of the same name. Each is read, checked and converted in
// one place, here.
#pragma once

#include <prologue/kernels/attention_prologue/attention_prologue.h>

#include "arguments.h"

namespace prologue::python {

// [tokens, heads, channels] with contiguous channels; null stays null.
HeadsView heads_view(const Array& array);
MutableHeadsView mutable_heads_view(const Array& array);
// A dense array of indices, int32 or int64 (the rotary operation takes every integer type).
IndexView index_view_of(const Array& array);
// An address in the fault codes of each token, or null.
uint8_t* token_faults_of(const Array& array, int64_t num_tokens);

// Which sources of cos and sin an operation takes: the prologues take tables, and inv_freq in float32 for positions below 2^20.
enum class RopeSources { all, of_prologues };
// `batch` and `seq_len` are the tokens of the call: they say what rows for each token must look like. Without rotary_dim and width, cos and
// sin with more columns than head_dim has pairs have one for each channel, as Hugging Face's have.
Rope read_rope(Arguments& arguments, int64_t batch, int64_t seq_len, int64_t head_dim, RopeSources sources);
HeadNorm read_head_norm(Arguments& arguments, Name name, int64_t num_heads, int64_t head_dim);
PageTable read_page_table(Arguments& arguments, int64_t num_seqs);
// num_axes comes from the rope.
TokenPlaces read_token_places(Arguments& arguments, int64_t num_tokens, int64_t num_axes);
QueryScale read_query_scale(Arguments& arguments);
PagedKvView read_paged_kv(Arguments& arguments);

}  // namespace prologue::python
