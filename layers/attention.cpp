#include <prologue/layers/attention.h>

namespace prologue {

Value Attention::build(GraphBuilder& g, Value hidden_states) const {
  Value qkv = g.linear("qkv", hidden_states, qkv_weight);
  if (qkv_bias) qkv = g.add_bias("qkv_bias", qkv, qkv_bias);
  auto [q, k, v] = g.split_heads(qkv, num_q_heads, num_kv_heads, head_dim);
  q = g.rope("rope_q", q, num_q_heads, rope);
  k = g.rope("rope_k", k, num_kv_heads, rope);
  g.kv_write("kv_write", k, v, num_kv_heads, layer, rope);
  const Value out = g.paged_attention("attention", q, num_q_heads, scale, layer);
  return g.linear("output", out, output_weight);
}

}  // namespace prologue
