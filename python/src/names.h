// The names of the arguments that Python passes to operations, and of the members of their groups (a Rope, for example). Python and C++
// share no order: see arguments.h.
#pragma once

#include <cstddef>
#include <iterator>
#include <string_view>

namespace prologue::python {

inline constexpr std::string_view kNames[] = {
    "a",
    "activation",
    "angles",
    "array",
    "attention_factor",
    "b",
    "batch_invariant",
    "beta_fast",
    "beta_slow",
    "bias",
    "block_table",
    "by_position",
    "cache",
    "cache_lens",
    "cache_scale",
    "cache_type",
    "chunk",
    "ckv_cache",
    "clears",
    "constant",
    "cos",
    "cos_sin",
    "count",
    "counters",
    "cu_seqlens",
    "cu_seqlens_q",
    "dtype",
    "eps",
    "factor",
    "faults",
    "first",
    "from_positions",
    "groups",
    "hadamard_block",
    "head_dim",
    "hidden_states",
    "high_freq_factor",
    "interleaved",
    "inv_freq",
    "inverse",
    "inverse_by_own_sine",
    "k",
    "k_bias",
    "k_block_scale",
    "k_block_scale_layout",
    "k_constant",
    "k_norm",
    "k_out",
    "k_pe",
    "k_pe_norm",
    "k_pe_out",
    "k_rope",
    "k_scale",
    "k_type",
    "kind",
    "kpe_cache",
    "kv_c",
    "kv_c_out",
    "kv_cache",
    "kv_indices",
    "kv_indptr",
    "kv_last_page_len",
    "layout",
    "long_factors",
    "low_freq_factor",
    "max_position",
    "max_seq_len",
    "max_seqlen",
    "max_seqlen_q",
    "mscale",
    "mscale_all_dim",
    "norm",
    "num_axes",
    "num_blocks",
    "num_decode_seqs",
    "num_kv_heads",
    "num_q_heads",
    "num_threads",
    "offset",
    "offsets",
    "original_max_position",
    "out",
    "output_bias",
    "output_weight",
    "page_table",
    "pair_axis",
    "partial_rotary_factor",
    "past_table",
    "per_token",
    "placement",
    "places",
    "position_offsets",
    "positions",
    "precision",
    "q",
    "q8_out",
    "q8_scale",
    "q_bias",
    "q_norm",
    "q_out",
    "q_pe",
    "q_pe_out",
    "q_rope",
    "q_scale",
    "qkv",
    "qkv_weight",
    "ring_size",
    "rope",
    "rotary_dim",
    "rotary_offset",
    "rotate",
    "rounding",
    "scale",
    "scaling",
    "scheme",
    "scope",
    "sections",
    "seq_lens",
    "sequence_length",
    "short_factors",
    "sin",
    "sinks",
    "slot_mapping",
    "soft_cap",
    "style",
    "tail",
    "tensors",
    "theta",
    "to_positions",
    "token_faults",
    "truncate",
    "v",
    "v_bias",
    "v_block_scale",
    "v_block_scale_layout",
    "v_constant",
    "v_from_k",
    "v_hadamard_block",
    "v_head_dim",
    "v_norm",
    "v_out",
    "v_scale",
    "v_type",
    "weight",
    "weight_offset",
    "width",
    "window",
    "workspace",
    "x",
};
inline constexpr size_t kNumNames = std::size(kNames);

// The index of a name; kNumNames for what is none.
constexpr size_t index_of_name(std::string_view text) {
  size_t index = 0;
  while (index < kNumNames && kNames[index] != text) ++index;
  return index;
}

// One of kNames: where a string literal is converted to it, one that is not there does not compile.
class Name {
 public:
  consteval Name(const char* text) : text_(text), index_(index_of_name(text)) {
    if (index_ == kNumNames) throw "the name is not in kNames";
  }

  const char* text() const { return text_; }
  size_t index() const { return index_; }

 private:
  const char* text_;
  size_t index_;
};

}  // namespace prologue::python
