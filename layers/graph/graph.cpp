#include <algorithm>
#include <utility>

#include <prologue/kernels/base/out_of_memory.h>
#include <prologue/layers/graph/graph.h>

namespace prologue {

namespace {

// Those that are there.
template <class T>
std::vector<T> present(std::vector<T> all) {
  all.erase(std::remove_if(all.begin(), all.end(), [](const T& each) { return !each; }), all.end());
  return all;
}

NodeFacts facts(const EmbeddingOp& op) {
  return {.kind = "embedding", .writes = {op.out}, .step_inputs = {"token_ids"}, .weights = {op.table}};
}
NodeFacts facts(const SelectRowsOp& op) {
  return {.kind = "select_rows", .reads = {op.x}, .writes = {op.out}, .step_inputs = {"logit_rows"}};
}
NodeFacts facts(const RmsNormOp& op) {
  if (!op.residual) return {.kind = "rms_norm", .reads = {op.x}, .writes = {op.out}, .weights = {op.weight}};
  return {.kind = "add_rms_norm", .reads = {op.x, op.residual}, .writes = {op.residual, op.out}, .weights = {op.weight}};
}
NodeFacts facts(const LinearOp& op) { return {.kind = "linear", .reads = {op.x}, .writes = {op.out}, .weights = {op.weight}}; }
NodeFacts facts(const AddBiasOp& op) { return {.kind = "add_bias", .reads = {op.x}, .writes = {op.out}, .weights = {op.bias}}; }
NodeFacts facts(const HeadsNormOp& op) {
  return {.kind = "heads_norm", .reads = {op.x}, .writes = {op.out}, .weights = present<Weight>({op.norm.weight, op.norm.bias})};
}
NodeFacts facts(const GatherCosSinOp& op) {
  return {.kind = "gather_cos_sin", .writes = {op.out}, .step_inputs = {"positions"}, .position_axes = op.rope.rotation.num_axes};
}
NodeFacts facts(const RopeOp& op) {
  return {.kind = "rope",
          .reads = present<Value>({op.x, op.rope.cos_sin}),
          .writes = {op.out},
          .step_inputs = {"positions"},
          .position_axes = op.rope.rotation.num_axes};
}
NodeFacts facts(const QueryScaleOp& op) {
  return {.kind = "query_scale", .reads = {op.x}, .writes = {op.out}, .step_inputs = {"positions"}, .position_axes = 1};
}
NodeFacts facts(const KvWriteOp& op) {
  return {.kind = "kv_write",
          .reads = {op.k, op.v},
          .step_inputs = {"positions", "slot_mapping"},
          .cache_layer = op.layer,
          .position_axes = op.rope.rotation.num_axes};
}
NodeFacts facts(const AttentionPrologueOp& op) {
  return {.kind = "attention_prologue",
          .remark = op.rounding == Rounding::per_step ? "rounds per step" : "",
          .reads = present<Value>({op.qkv, op.rope.cos_sin}),
          .writes = present<Value>({op.q}),
          .step_inputs = {"positions", "slot_mapping"},
          .weights = present<Weight>(
              {op.q_bias, op.k_bias, op.v_bias, op.q_norm.weight, op.q_norm.bias, op.k_norm.weight, op.k_norm.bias}),
          .cache_layer = op.layer,
          .position_axes = op.rope.rotation.num_axes};
}
NodeFacts facts(const PagedAttentionOp& op) {
  return {.kind = "paged_attention",
          .reads = {op.q},
          .writes = {op.out},
          .step_inputs = {"block_table", "cu_seqlens_q", "seq_lens"},
          .cache_layer = op.layer};
}
NodeFacts facts(const GatedActivationOp& op) { return {.kind = "gated_activation", .reads = {op.gate_up}, .writes = {op.out}}; }

}  // namespace

NodeFacts facts_of(const Operation& operation) {
  return std::visit([](const auto& op) { return facts(op); }, operation);
}

namespace {

Status check_bias(const Node& node, int64_t width, DType dtype, const Weight& bias) {
  if (!bias || (bias.rows * bias.cols == width && bias.dtype == dtype)) return {};
  return invalid_argument(node.name, ": a bias is [", bias.rows, ", ", bias.cols, "] ", dtype_name(bias.dtype),
                          ": what it is added to has ", width, " columns of ", dtype_name(dtype));
}

Status check_norm(const Node& node, int64_t num_heads, int64_t head_dim, DType dtype, const HeadsNorm& norm) {
  for (const Weight& weight : {norm.weight, norm.bias}) {
    if (!weight) continue;
    if ((weight.rows == 1 || weight.rows == num_heads) && weight.cols == head_dim && weight.dtype == dtype) continue;
    return invalid_argument(node.name, ": a norm's weight is [", weight.rows, ", ", weight.cols, "] ", dtype_name(weight.dtype),
                            ": it must be [1, ", head_dim, "] or [", num_heads, ", ", head_dim, "] of ", dtype_name(dtype));
  }
  if (norm.weight && norm.bias && norm.weight.rows != norm.bias.rows) {
    return invalid_argument(node.name, ": the norm's weight has ", norm.weight.rows, " rows and its bias ", norm.bias.rows,
                            ": they must have as many");
  }
  return {};
}

Status check(const Graph& graph, const Node& node, const AddBiasOp& op) {
  return check_bias(node, graph.info(op.x).width, graph.info(op.x).dtype, op.bias);
}
Status check(const Graph& graph, const Node& node, const HeadsNormOp& op) {
  return check_norm(node, op.num_heads, graph.info(op.x).width / op.num_heads, graph.info(op.x).dtype, op.norm);
}
// A rope that rotates nothing (rotary_dim 0), although it has frequencies.
Status check_rope(const Node& node, const Rope& rope) {
  if (rope || (rope.rotation.inv_freq == nullptr && rope.rotation.cos_sin == nullptr)) return {};
  return invalid_argument(node.name, ": rotary_dim is 0, but ", rope.rotation.inv_freq != nullptr ? "inv_freq" : "cos_sin",
                          " is given: set rotary_dim, or leave it null");
}

Status check(const Graph&, const Node& node, const KvWriteOp& op) { return check_rope(node, op.rope); }
Status check(const Graph& graph, const Node& node, const AttentionPrologueOp& op) {
  PROLOGUE_RETURN_IF_ERROR(check_rope(node, op.rope));
  const DType dtype = graph.info(op.qkv).dtype;
  PROLOGUE_RETURN_IF_ERROR(check_bias(node, op.num_q_heads * op.head_dim, dtype, op.q_bias));
  PROLOGUE_RETURN_IF_ERROR(check_bias(node, op.num_kv_heads * op.head_dim, dtype, op.k_bias));
  PROLOGUE_RETURN_IF_ERROR(check_bias(node, op.num_kv_heads * op.head_dim, dtype, op.v_bias));
  PROLOGUE_RETURN_IF_ERROR(check_norm(node, op.num_q_heads, op.head_dim, dtype, op.q_norm));
  return check_norm(node, op.num_kv_heads, op.head_dim, dtype, op.k_norm);
}
template <class Op>
Status check(const Graph&, const Node&, const Op&) {
  return {};
}

}  // namespace

Status check_weights(const Graph& graph) {
  for (const Node& node : graph.nodes) {
    PROLOGUE_RETURN_IF_ERROR(std::visit([&](const auto& op) { return check(graph, node, op); }, node.operation));
  }
  return {};
}

GraphBuilder::Scope::Scope(GraphBuilder& builder, const std::string& name) : builder_(builder), length_(builder.prefix_.size()) {
  builder_.attempt([&] { builder_.prefix_.append(name).append("."); });
}

// Runs code that may run out of memory, unless an earlier call failed.
template <class Work>
void GraphBuilder::attempt(const Work& work) {
  if (!status_.ok()) return;
  status_ = catch_out_of_memory([&] {
    work();
    return Status();
  });
}

// Of a value that an operation reads.
const ValueInfo& GraphBuilder::info(Value value) {
  static const ValueInfo none;
  if (value.id >= 0 && static_cast<size_t>(value.id) < graph_.values.size()) return graph_.info(value);
  if (status_.ok()) status_ = invalid_argument("graph: an operation reads value ", value.id, ": there is no such value");
  return none;
}

Value GraphBuilder::add_value(const std::string& name, Rows rows, int64_t width, DType dtype) {
  attempt([&] { graph_.values.push_back({prefix_ + name, rows, width, dtype, {}, 0}); });
  return status_.ok() ? Value{static_cast<int32_t>(graph_.values.size()) - 1} : Value();
}

Value GraphBuilder::add_value_like(const std::string& name, Value x) {
  const ValueInfo& like = info(x);
  return add_value(name, like.rows, like.width, like.dtype);
}

Value GraphBuilder::add_view(const std::string& name, Value base, int64_t column, int64_t width) {
  const ValueInfo& of = info(base);
  const Value view = add_value(name, of.rows, width, of.dtype);
  if (view) {
    graph_.values.back().base = base;
    graph_.values.back().base_column = column;
  }
  return view;
}

void GraphBuilder::add_node(const std::string& name, const Operation& operation) {
  attempt([&] { graph_.nodes.push_back({prefix_ + name, operation, {}}); });
}

Value GraphBuilder::embedding(const std::string& name, const Weight& table, float scale) {
  const Value out = add_value(name, Rows::tokens, table.cols, activations_);
  add_node(name, EmbeddingOp{table, scale, out});
  return out;
}

Value GraphBuilder::select_logit_rows(const std::string& name, Value x) {
  const Value out = add_value(name, Rows::logits, info(x).width, activations_);
  add_node(name, SelectRowsOp{x, out});
  return out;
}

Value GraphBuilder::rms_norm(const std::string& name, Value x, const Weight& weight, float eps) {
  return add_rms_norm(name, x, {}, weight, eps);
}

Value GraphBuilder::add_rms_norm(const std::string& name, Value x, Value residual, const Weight& weight, float eps) {
  const Value out = add_value_like(name, x);
  add_node(name, RmsNormOp{x, residual, weight, eps, out});
  return out;
}

Value GraphBuilder::linear(const std::string& name, Value x, const Weight& weight) {
  return linear(name, x, weight, activations_);
}

Value GraphBuilder::linear(const std::string& name, Value x, const Weight& weight, DType out_dtype) {
  const Value out = add_value(name, info(x).rows, weight.rows, out_dtype);
  add_node(name, LinearOp{x, weight, out});
  return out;
}

Value GraphBuilder::add_bias(const std::string& name, Value x, const Weight& bias) {
  const Value out = add_value_like(name, x);
  add_node(name, AddBiasOp{x, bias, out});
  return out;
}

GraphBuilder::Qkv GraphBuilder::split_heads(Value qkv, int64_t num_q_heads, int64_t num_kv_heads, int64_t head_dim,
                                            bool v_from_k) {
  const int64_t q_width = num_q_heads * head_dim;
  const int64_t kv_width = num_kv_heads * head_dim;
  const Value q = add_view("q", qkv, 0, q_width);
  const Value k = add_view("k", qkv, q_width, kv_width);
  const Value v = v_from_k ? k : add_view("v", qkv, q_width + kv_width, kv_width);
  return {q, k, v};
}

Value GraphBuilder::heads_norm(const std::string& name, Value x, int64_t num_heads, const HeadsNorm& norm) {
  const Value out = add_value_like(name, x);
  add_node(name, HeadsNormOp{x, num_heads, norm, out});
  return out;
}

Rope GraphBuilder::gather_cos_sin(const std::string& name, const Rope& rope) {
  Rope gathered = rope;
  gathered.cos_sin = add_value(name, Rows::tokens, rope.table->rotary_dim(), DType::f32);
  add_node(name, GatherCosSinOp{rope, gathered.cos_sin});
  return gathered;
}

Value GraphBuilder::rope(const std::string& name, Value x, int64_t num_heads, const Rope& rope) {
  const Value out = add_value_like(name, x);
  add_node(name, RopeOp{x, num_heads, rope, out});
  return out;
}

Value GraphBuilder::query_scale(const std::string& name, Value x, int64_t num_heads, const QueryScale& scale) {
  const Value out = add_value_like(name, x);
  add_node(name, QueryScaleOp{x, num_heads, scale, out});
  return out;
}

void GraphBuilder::kv_write(const std::string& name, Value k, Value v, int64_t num_kv_heads, int64_t layer, const Rope& rope) {
  add_node(name, KvWriteOp{k, v, num_kv_heads, layer, rope});
}

Value GraphBuilder::paged_attention(const std::string& name, Value q, int64_t num_q_heads, float scale, int64_t layer) {
  const Value out = add_value_like(name, q);
  add_node(name, PagedAttentionOp{q, num_q_heads, scale, layer, out});
  return out;
}

Value GraphBuilder::gated_activation(const std::string& name, Value gate_up, Activation activation) {
  const ValueInfo& both = info(gate_up);
  const Value out = add_value(name, both.rows, both.width / 2, both.dtype);
  add_node(name, GatedActivationOp{gate_up, activation, out});
  return out;
}

Result<Graph> GraphBuilder::finish(Value output) && {
  PROLOGUE_RETURN_IF_ERROR(status_);
  graph_.output = output;
  return std::move(graph_);
}

}  // namespace prologue
