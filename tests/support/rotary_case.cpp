#include "tests/support/rotary_case.h"

namespace prologue::test {

std::string RotaryCase::describe() const {
  std::string text = str_cat(
      "batch=", batch, " seq_len=", seq_len, " head_dim=", head_dim, " ", dtype_name(dtype), " rope=", rotary_dim, "+",
      rotary_offset, "/", num_blocks, rope_style_name(style), inverse ? " inverse" : "", " tail=", static_cast<int>(tail),
      " source=", static_cast<int>(source), " ", dtype_name(type), " width=", static_cast<int>(width),
      per_token ? " per_token" : "", " max=", max_position, "/", static_cast<int>(past_table), bounded ? "" : " unbounded",
      " factor=", attention_factor, " ids=", static_cast<int>(ids), "/", static_cast<int>(ids_type), " offset=", offset,
      offsets ? " offsets" : "", extremes ? " extremes" : "", " seqs=", num_seqs, " max_seqlen=", max_seqlen, " axes=", num_axes,
      pair_axis ? "p" : "", " misalign=", misalign, plan ? " plan" : "", " seed=", seed, " tensors:");
  for (const RotaryCaseTensor& t : tensors) text += str_cat(" ", t.num_heads, t.rotate ? "" : "copy", t.in_place ? "in" : "out");
  return text;
}

}  // namespace prologue::test
