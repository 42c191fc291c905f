#include <prologue/layers/attention.h>

namespace prologue {

namespace {

// Returns the rows [first, first + count) of a weight. Of a packed one they must be whole segments; none, if they are not.
Weight rows_of(const Weight& weight, int64_t first, int64_t count) {
  Weight rows = weight;
  rows.rows = count;
  if (weight.packed.num_segments == 0) {
    rows.data = static_cast<const char*>(weight.data) + first * weight.cols * dtype_size(weight.dtype);
    return rows;
  }
  rows.packed = {};
  int64_t begin = 0, found = 0;
  for (int32_t s = 0; s < weight.packed.num_segments; ++s) {
    const PackedRows& segment = weight.packed.segments[s];
    const int64_t end = begin + segment.rows;
    if (begin >= first && end <= first + count) {
      rows.packed.segments[rows.packed.num_segments++] = segment;
      found += segment.rows;
    }
    begin = end;
  }
  if (found != count) return {};
  rows.data = rows.packed.segments[0].data;
  return rows;
}

// Normalises `heads` heads of x: the ones from `first` on of all heads of a token, of which the other ranks have the rest, if `all` is not 0.
Value norm_heads(GraphBuilder& g, const std::string& name, Value x, int64_t heads, int64_t head_dim, const HeadsNorm& norm,
                 int64_t all, int64_t first) {
  if (all == 0) return g.heads_norm(name, x, heads, norm);
  const Value gathered = g.all_gather(name + "_gather", x, all * head_dim, heads * head_dim);
  return g.columns(name + "_own", g.heads_norm(name, gathered, all, norm), first * head_dim, heads * head_dim);
}

}  // namespace

Value Attention::build(GraphBuilder& g, Value hidden_states) const {
  Value qkv, q, k, v;
  const int64_t gate_width = gated ? num_q_heads * (v_head_dim > 0 ? v_head_dim : head_dim) : 0;
  if (all_heads.num_q_heads > 0) {  // three products: all_gather reads contiguous rows
    const int64_t q_rows = num_q_heads * head_dim, kv_rows = num_kv_heads * head_dim;
    q = g.linear("q", hidden_states, rows_of(qkv_weight, 0, q_rows));
    k = g.linear("k", hidden_states, rows_of(qkv_weight, q_rows, kv_rows));
    v = g.linear("v", hidden_states, rows_of(qkv_weight, q_rows + kv_rows, kv_rows));
  } else {
    qkv = g.linear("qkv", hidden_states, qkv_weight);
    if (qkv_bias) qkv = g.add_bias("qkv_bias", qkv, qkv_bias);
    const auto parts = g.split_heads(qkv, num_q_heads, num_kv_heads, head_dim, v_from_k, v_head_dim, gate_width);
    q = parts.q, k = parts.k, v = parts.v;
  }
  if (q_bias) q = g.add_bias("q_bias", q, q_bias);
  if (k_bias) k = g.add_bias("k_bias", k, k_bias);
  if (v_from_k) {
    v = k;
  } else if (v_bias) {
    v = g.add_bias("v_bias", v, v_bias);
  }

  const bool writes_kv = num_kv_heads > 0;
  const auto add_norms = [&](NormPlacement placement) {
    const AllHeads& all = all_heads;
    if (q_norm.norm.placement == placement)
      q = norm_heads(g, "q_norm", q, num_q_heads, head_dim, q_norm, all.num_q_heads, all.first_q_head);
    if (k_norm.norm.placement == placement)
      k = norm_heads(g, "k_norm", k, num_kv_heads, head_dim, k_norm, all.num_kv_heads, all.first_kv_head);
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
  if (gated) out = g.gate("gate", out, g.columns("gate_columns", qkv, qkv_weight.rows - gate_width, gate_width));
  return g.linear("output", out, output_weight, output_bias);
}

}  // namespace prologue
