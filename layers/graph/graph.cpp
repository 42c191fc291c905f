#include <utility>

#include <prologue/layers/graph/graph.h>

namespace prologue {

namespace {

NodeFacts facts(const EmbeddingOp& op) { return {"embedding", {}, {op.out}, {"token_ids"}, {op.table}}; }
NodeFacts facts(const SelectRowsOp& op) { return {"select_rows", {op.x}, {op.out}, {"logit_rows"}, {}}; }
NodeFacts facts(const RmsNormOp& op) {
  if (!op.residual) return {"rms_norm", {op.x}, {op.out}, {}, {op.weight}};
  return {"add_rms_norm", {op.x, op.residual}, {op.residual, op.out}, {}, {op.weight}};
}
NodeFacts facts(const LinearOp& op) { return {"linear", {op.x}, {op.out}, {}, {op.weight}}; }
NodeFacts facts(const AddBiasOp& op) { return {"add_bias", {op.x}, {op.out}, {}, {op.bias}}; }
NodeFacts facts(const RopeOp& op) { return {"rope", {op.x}, {op.out}, {"positions"}, {}}; }
NodeFacts facts(const KvWriteOp& op) { return {"kv_write", {op.k, op.v}, {}, {"positions", "slot_mapping"}, {}, op.layer}; }
NodeFacts facts(const AttentionPrologueOp& op) {
  std::vector<Weight> weights;
  if (op.bias) weights.push_back(op.bias);
  return {"attention_prologue", {op.qkv}, {op.q}, {"positions", "slot_mapping"}, std::move(weights), op.layer};
}
NodeFacts facts(const PagedAttentionOp& op) {
  return {"paged_attention", {op.q}, {op.out}, {"block_table", "cu_seqlens_q", "seq_lens"}, {}, op.layer};
}
NodeFacts facts(const GatedActivationOp& op) { return {"gated_activation", {op.gate_up}, {op.out}, {}, {}}; }

}  // namespace

NodeFacts facts_of(const Operation& operation) {
  return std::visit([](const auto& op) { return facts(op); }, operation);
}

Value GraphBuilder::add_value(const std::string& name, Rows rows, int64_t width, DType dtype) {
  graph_.values.push_back({prefix_ + name, rows, width, dtype, {}, 0});
  return {static_cast<int32_t>(graph_.values.size()) - 1};
}

Value GraphBuilder::add_view(const std::string& name, Value base, int64_t column, int64_t width) {
  const ValueInfo& info = graph_.info(base);
  graph_.values.push_back({prefix_ + name, info.rows, width, info.dtype, base, column});
  return {static_cast<int32_t>(graph_.values.size()) - 1};
}

void GraphBuilder::add_node(const std::string& name, Operation operation) {
  graph_.nodes.push_back({prefix_ + name, std::move(operation), {}});
}

Value GraphBuilder::embedding(const std::string& name, const Weight& table, float scale) {
  const Value out = add_value(name, Rows::tokens, table.cols, activations_);
  add_node(name, EmbeddingOp{table, scale, out});
  return out;
}

Value GraphBuilder::select_logit_rows(const std::string& name, Value x) {
  const Value out = add_value(name, Rows::logits, graph_.info(x).width, activations_);
  add_node(name, SelectRowsOp{x, out});
  return out;
}

Value GraphBuilder::rms_norm(const std::string& name, Value x, const Weight& weight, float eps) {
  return add_rms_norm(name, x, {}, weight, eps);
}

Value GraphBuilder::add_rms_norm(const std::string& name, Value x, Value residual, const Weight& weight, float eps) {
  const ValueInfo info = graph_.info(x);
  const Value out = add_value(name, info.rows, info.width, info.dtype);
  add_node(name, RmsNormOp{x, residual, weight, eps, out});
  return out;
}

Value GraphBuilder::linear(const std::string& name, Value x, const Weight& weight) { return linear(name, x, weight, activations_); }

Value GraphBuilder::linear(const std::string& name, Value x, const Weight& weight, DType out_dtype) {
  const Value out = add_value(name, graph_.info(x).rows, weight.rows, out_dtype);
  add_node(name, LinearOp{x, weight, out});
  return out;
}

Value GraphBuilder::add_bias(const std::string& name, Value x, const Weight& bias) {
  const ValueInfo info = graph_.info(x);
  const Value out = add_value(name, info.rows, info.width, info.dtype);
  add_node(name, AddBiasOp{x, bias, out});
  return out;
}

GraphBuilder::Qkv GraphBuilder::split_heads(Value qkv, int64_t num_q_heads, int64_t num_kv_heads, int64_t head_dim) {
  const int64_t q_width = num_q_heads * head_dim;
  const int64_t kv_width = num_kv_heads * head_dim;
  const Value q = add_view("q", qkv, 0, q_width);
  const Value k = add_view("k", qkv, q_width, kv_width);
  const Value v = add_view("v", qkv, q_width + kv_width, kv_width);
  return {q, k, v};
}

Value GraphBuilder::rope(const std::string& name, Value x, int64_t num_heads, const RopeTable* table) {
  const ValueInfo info = graph_.info(x);
  const Value out = add_value(name, info.rows, info.width, info.dtype);
  add_node(name, RopeOp{x, num_heads, table, out});
  return out;
}

void GraphBuilder::kv_write(const std::string& name, Value k, Value v, int64_t num_kv_heads, int64_t layer, const RopeTable* table) {
  add_node(name, KvWriteOp{k, v, num_kv_heads, layer, table});
}

Value GraphBuilder::paged_attention(const std::string& name, Value q, int64_t num_q_heads, float scale, int64_t layer) {
  const ValueInfo info = graph_.info(q);
  const Value out = add_value(name, info.rows, info.width, info.dtype);
  add_node(name, PagedAttentionOp{q, num_q_heads, scale, layer, out});
  return out;
}

Value GraphBuilder::gated_activation(const std::string& name, Value gate_up, Activation activation) {
  const ValueInfo info = graph_.info(gate_up);
  const Value out = add_value(name, info.rows, info.width / 2, info.dtype);
  add_node(name, GatedActivationOp{gate_up, activation, out});
  return out;
}

Graph GraphBuilder::finish(Value output) && {
  graph_.output = output;
  return std::move(graph_);
}

}  // namespace prologue
