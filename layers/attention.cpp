#include <prologue/layers/attention.h>

namespace prologue {

Value Attention::build(GraphBuilder& g, Value hidden_states) const {
  Value qkv = g.linear("qkv", hidden_states, qkv_weight);
  if (qkv_bias) qkv = g.add_bias("qkv_bias", qkv, qkv_bias);
  const int64_t gate_width = gated ? num_q_heads * (v_head_dim > 0 ? v_head_dim : head_dim) : 0;
  auto [q, k, v] = g.split_heads(qkv, num_q_heads, num_kv_heads, head_dim, v_from_k, v_head_dim, gate_width);
  if (q_bias) q = g.add_bias("q_bias", q, q_bias);
  if (k_bias) k = g.add_bias("k_bias", k, k_bias);
  if (v_from_k) {
    v = k;
  } else if (v_bias) {
    v = g.add_bias("v_bias", v, v_bias);
  }

  const bool writes_kv = num_kv_heads > 0;
  const auto add_norms = [&, &q = q, &k = k](NormPlacement placement) {
    if (q_norm.norm.placement == placement) q = g.heads_norm("q_norm", q, num_q_heads, q_norm);
    if (k_norm.norm.placement == placement) k = g.heads_norm("k_norm", k, num_kv_heads, k_norm);
  };
  add_norms(NormPlacement::before_rope);
  if (rope) {
    q = g.rope("rope_q", q, num_q_heads, rope);
    if (writes_kv) k = g.rope("rope_k", k, num_kv_heads, rope);
  }
  add_norms(NormPlacement::after_rope);
  if (hadamard_block != 0) {
    q = g.hadamard("hadamard_q", q, num_q_heads, hadamard_block);
    if (writes_kv) k = g.hadamard("hadamard_k", k, num_kv_heads, hadamard_block);
  }
  if (v_norm.norm.placement != NormPlacement::none) v = g.heads_norm("v_norm", v, num_kv_heads, v_norm);
  if (v_hadamard_block != 0 && writes_kv) v = g.hadamard("hadamard_v", v, num_kv_heads, v_hadamard_block);
  if (q_scale.constant != 1.0f || q_scale.by_position != PositionScale::none)
    q = g.query_scale("q_scale", q, num_q_heads, q_scale);
  if (k_constant != 1.0f) k = g.query_scale("k_constant", k, num_kv_heads, {k_constant});
  if (v_constant != 1.0f) v = g.query_scale("v_constant", v, num_kv_heads, {v_constant});

  if (writes_kv) g.kv_write("kv_write", k, v, num_kv_heads, layer, rope);
  const AttentionOptions options = {scale, soft_cap, window, chunk, sinks, v_head_dim};
  Value out = g.paged_attention("attention", q, num_q_heads, options, layer);
  if (v_hadamard_block != 0) out = g.hadamard("hadamard_out", out, num_q_heads, v_hadamard_block);
  if (gated) out = g.gate("gate", out, g.last_columns("gate_columns", qkv, gate_width));
  return g.linear("output", out, output_weight, output_bias);
}

}  // namespace prologue
