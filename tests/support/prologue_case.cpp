#include "tests/support/prologue_case.h"

namespace prologue::test {

std::string PrologueCase::describe() const {
  std::string text = str_cat("T=", num_tokens, " Hq=", num_q_heads, " Hkv=", num_kv_heads, " D=", head_dim, " Dv=", v_head_dim,
                             " k=", with_k, " v=", with_v, " v_is_k=", v_is_k, " bias=", bias_q, bias_k, bias_v);
  text += str_cat(" norm=", static_cast<int>(norm), "/", static_cast<int>(norm_kind), "/", static_cast<int>(norm_scope), "/",
                  static_cast<int>(weights), static_cast<int>(weights_of_k()), "/", norm_bias, " offset=", weight_offset,
                  " v_norm=", v_norm);
  text += str_cat(" r=", rotary_dim, "@", rotary_offset, " ", rope_style_name(style), " inverse=", inverse,
                  " source=", static_cast<int>(source), " factor=", attention_factor, " axes=", num_axes,
                  interleaved_axes ? "i" : "s", " max=", max_position, "/", static_cast<int>(past_table),
                  " q_scale=", q_scale.constant, "/", static_cast<int>(q_scale.by_position));
  text += str_cat(" per_step=", per_step, " derive=", derive_positions, derive_slots, " after=", lengths_after,
                  " pages=", static_cast<int>(page_form), " ring=", ring_size, " offsets=", static_cast<int>(offsets),
                  " pos64=", int64_positions, " slot64=", int64_slots, " no_slot=", tokens_without_slot, " bad=", bad_indices,
                  extremes);
  text += str_cat(" packed=", packed, " in_place=", in_place, kv_in_place, " row_padding=", row_padding,
                  " head_padding=", head_padding, " heads_first=", heads_first, " misalign=", misalign);
  text += str_cat(" q8=", q8 ? static_cast<int>(*q8) : -1, " out=", k_out, v_out, " cached=", cached,
                  " kv=", kv_type ? dtype_name(*kv_type) : "dtype", "/", static_cast<int>(scaling), " page=", page_size,
                  " layout=", static_cast<int>(layout), " flags=", token_faults, " values=", static_cast<int>(values),
                  " seed=", seed);
  return text;
}

PrologueCase plain_case(int64_t num_tokens) {
  PrologueCase c;
  c.num_tokens = num_tokens;
  c.bad_indices = false;
  c.bias_q = c.bias_k = c.bias_v = true;
  return c;
}

}  // namespace prologue::test
