#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include <prologue/kernels/base/out_of_memory.h>
#include <prologue/kernels/internal/run.h>
#include <prologue/layers/graph/fusion.h>
#include <prologue/layers/graph/uses.h>

namespace prologue {

namespace {

// Holds the steps applied to one of q, k and v after it is taken from its columns of the packed tensor.
struct Steps {
  Step<AddBiasParams> bias;
  Step<QkNormParams> norm;
  Step<RotaryParams> rope;
  Step<HadamardParams> hadamard;
  Step<QueryScaleParams> scale;
  bool norm_after_rope = false;
  std::vector<int> nodes;

  // Adds a node, if the kernel can do its step at this point.
  bool pass(const Graph& graph, int node) {
    if (const auto as_bias = step_as<AddBiasParams>(graph, node); as_bias && nodes.empty()) {
      bias = as_bias;
    } else if (const auto as_norm = step_as<QkNormParams>(graph, node); as_norm && !norm && !hadamard && !scale) {
      norm = as_norm;
      norm_after_rope = static_cast<bool>(rope);
    } else if (const auto as_rope = step_as<RotaryParams>(graph, node); as_rope && !rope && !hadamard && !scale) {
      rope = as_rope;
    } else if (const auto as_hadamard = step_as<HadamardParams>(graph, node); as_hadamard && !hadamard && !scale) {
      hadamard = as_hadamard;
    } else if (const auto as_scale = step_as<QueryScaleParams>(graph, node); as_scale && !scale) {
      scale = as_scale;
    } else {
      return false;
    }
    nodes.push_back(node);
    return true;
  }

  int64_t hadamard_block() const { return hadamard ? hadamard.params->block : 0; }
  bool of_heads(int64_t num_heads) const {
    return (!norm || norm.params->num_heads == num_heads) && (!rope || rope.params->tensors[0].num_heads == num_heads) &&
           (!hadamard || hadamard.params->num_heads == num_heads) && (!scale || scale.params->num_heads == num_heads);
  }
};

// Returns the steps between a view, which is returned in `columns`, and `end`.
std::optional<Steps> steps_before(const Graph& graph, const Uses& uses, Value end, Value& columns) {
  std::vector<int> nodes;
  columns = end;
  while (!graph.info(columns).base) {
    const int node = uses.writer_of(columns);
    if (node < 0 || (!nodes.empty() && node >= nodes.back())) return {};
    const std::vector<Value> reads = graph.nodes[static_cast<size_t>(node)].reads();
    if (reads.empty()) return {};
    nodes.push_back(node);
    columns = reads.front();
  }
  Steps steps;
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    if (!steps.pass(graph, *node)) return {};
  }
  return steps;
}

// Returns the steps that follow a view, as many as possible; `value` becomes the output of the last one.
Steps steps_after(const Graph& graph, const Uses& uses, Value& value) {
  Steps steps;
  while (uses.readers_of(value).size() == 1 && value != graph.output) {
    const int node = uses.readers_of(value).front();
    if (!steps.pass(graph, node)) break;
    value = graph.nodes[static_cast<size_t>(node)].writes().front();
  }
  return steps;
}

// Whether both are bound to the same thing.
bool same_binding(const Binding& a, const Binding& b) {
  return a.to == b.to && a.index == b.index && a.column == b.column && a.table == b.table && a.member == b.member;
}

bool same_rope(const Step<RotaryParams>& of_a, const Step<RotaryParams>& of_b) {
  const Rope &a = of_a.params->rope, &b = of_b.params->rope;
  const auto bound_a = of_a.node->bindings_within(&a, sizeof a), bound_b = of_b.node->bindings_within(&b, sizeof b);
  return equal(a, b) && std::equal(bound_a.begin(), bound_a.end(), bound_b.begin(), bound_b.end(), same_binding);
}

// Q and K must have the same rotation, or none, and the same Hadamard transform. Each has its own norm.
bool treated_alike(const Steps& q, const Steps& k) {
  if (q.hadamard_block() != k.hadamard_block()) return false;
  return static_cast<bool>(q.rope) == static_cast<bool>(k.rope) && (!q.rope || same_rope(q.rope, k.rope));
}

// kv_write must skip the tokens that the rotation of K skips.
bool guards(const Step<KvWriteParams>& write, const Step<RotaryParams>& rotary) {
  const KvWriteParams& w = *write.params;
  const Binding* const rows = write.node->binding_of(&w.max_position);
  if (!rotary) return w.max_position == 0 && rows == nullptr;
  const Rope& rope = rotary.params->rope;
  const Binding* const rope_rows = rotary.node->binding_of(&rope.max_position);
  if ((rows == nullptr) != (rope_rows == nullptr) || (rows != nullptr && rows->table != rope_rows->table)) return false;
  const PastTable past_table = w.past_table == PastTable::record ? PastTable::zero : w.past_table;
  return w.max_position == rope.max_position && past_table == rope.past_table && w.num_axes == rope.num_axes;
}

// Whether the scale of K or V, if there is one, is a constant that the kernel takes.
bool has_constant(const Steps& steps) {
  if (!steps.scale) return true;
  const QueryScale& scale = steps.scale.params->q_scale;
  return scale.by_position == PositionScale::none && std::isfinite(scale.constant) && scale.constant != 0.0f;
}

bool is_v_norm(const HeadNorm& norm) {
  return norm.kind == NormKind::rms && norm.scope == NormScope::head && norm.weight == nullptr && norm.bias == nullptr;
}

Weight slice(const Weight& weight, int64_t begin, int64_t count) {
  return {static_cast<const unsigned char*>(weight.data) + begin * dtype_size(weight.dtype), 1, count, weight.dtype};
}

// A chain is what one node can replace.
struct Chain {
  int kv_write = -1;         // replaced by the fused node
  std::vector<int> removed;  // the others
  Step<KvWriteParams> write;
  Step<AddBiasParams> joint_bias;  // of q, k and v together
  Steps q, k, v;
  Value packed;                    // q, k and v side by side, or q and k if V is taken from k
  int64_t q_width = 0, width = 0;  // of q; of q, k and v: other columns may follow
  bool v_from_k = false;
  Value q_out;  // none: q is read from its columns unchanged
};

// Returns the chain's steps as one node: their parameters and weights, and what they are bound to.
Node fused_node(const Graph& graph, const Chain& chain, Rounding rounding) {
  Node node = {"", "attention_prologue", AttentionPrologueParams()};
  auto& p = std::get<AttentionPrologueParams>(node.parameters);
  const KvWriteParams& write = *chain.write.params;
  const int64_t v_head_dim = write.cache.v.head_dim;
  const Value source = chain.joint_bias ? chain.joint_bias.node->reads().front() : chain.packed;
  const int64_t stride = graph.row_stride(source), kv_width = write.num_kv_heads * write.head_dim;
  const int64_t v_at = chain.v_from_k ? chain.q_width : chain.q_width + kv_width;
  const auto read = [&](HeadsView& view, int64_t column, int64_t head_dim) {
    view = {nullptr, stride, head_dim};
    node.read(view.data, source, column);
  };
  node.step(p.num_tokens, StepCount::num_tokens);
  p.num_kv_heads = write.num_kv_heads;
  p.head_dim = write.head_dim;
  p.dtype = write.dtype;
  read(p.k, chain.q_width, write.head_dim);
  read(p.v, v_at, v_head_dim);
  if (chain.q_out) {
    p.num_q_heads = chain.q_width / write.head_dim;
    read(p.q, 0, write.head_dim);
    p.q_out = {nullptr, graph.row_stride(chain.q_out), write.head_dim};
    node.write(p.q_out.data, chain.q_out);
  }

  const auto add_bias = [&](const void*& bias, const Steps& steps, int64_t column, int64_t width) {
    if (steps.bias) node.weight(bias, steps.bias.node->weights.front());
    if (chain.joint_bias) node.weight(bias, slice(chain.joint_bias.node->weights.front(), column, width));
  };
  if (chain.q_out) add_bias(p.bias.q, chain.q, 0, chain.q_width);
  add_bias(p.bias.k, chain.k, chain.q_width, kv_width);
  add_bias(p.bias.v, chain.v, v_at, write.num_kv_heads * v_head_dim);

  const auto add_norm = [&](const Steps& steps, HeadNorm& norm) {
    if (!steps.norm) return;
    norm = steps.norm.params->norm;
    norm.placement = steps.norm_after_rope ? NormPlacement::after_rope : NormPlacement::before_rope;
    node.weights.insert(node.weights.end(), steps.norm.node->weights.begin(), steps.norm.node->weights.end());
  };
  if (chain.q_out) add_norm(chain.q, p.q_norm);
  add_norm(chain.k, p.k_norm);
  add_norm(chain.v, p.v_norm);

  if (chain.k.rope) {
    node.copy(p.rope, *chain.k.rope.node, chain.k.rope.params->rope);
    p.rope.past_table = write.past_table;
  }
  node.positions(p.places.positions, p.places.position_axis_stride, p.rope.num_axes);
  node.step(p.places.slot_mapping, StepArray::slot_mapping);
  p.hadamard_block = chain.k.hadamard_block();
  p.v_hadamard_block = chain.v.hadamard_block();
  if (chain.q.scale) p.q_scale = chain.q.scale.params->q_scale;
  if (chain.k.scale) p.k_constant = chain.k.scale.params->q_scale.constant;
  if (chain.v.scale) p.v_constant = chain.v.scale.params->q_scale.constant;
  p.cache.v.head_dim = v_head_dim;
  node.bind(&p.cache, *chain.write.node->cache_binding());
  node.faults(p.faults, p.token_faults);
  p.rounding = rounding;
  if (rounding == Rounding::per_step) node.remark = "rounds per step";

  const std::string& name = chain.write.node->name;
  const size_t scope = name.rfind('.') + 1;
  for (const int gone : chain.removed) node.fused_from += graph.nodes[static_cast<size_t>(gone)].name.substr(scope) + " + ";
  node.fused_from += name.substr(scope);
  node.name = name.substr(0, scope) + "prologue";
  return node;
}

// Returns true if only the chain's nodes read the values that fusion removes, and q is read only after the fused node.
bool keeps_to_itself(const Graph& graph, const Uses& uses, const Chain& chain, Value q) {
  const auto in_chain = [&](int node) {
    return node == chain.kv_write || std::find(chain.removed.begin(), chain.removed.end(), node) != chain.removed.end();
  };
  for (int32_t id = 0; id < static_cast<int32_t>(graph.values.size()); ++id) {
    const Value value = {id};
    const std::vector<int>& readers = uses.readers_of(value);
    if (value == q) {
      const bool made_here = chain.q_out == q;
      if (made_here && std::any_of(readers.begin(), readers.end(), [&](int node) { return node < chain.kv_write; })) return false;
      continue;
    }
    if (value != chain.packed && graph.info(value).base != chain.packed && !in_chain(uses.writer_of(value))) continue;
    if (graph.info(value).base == chain.packed && graph.info(value).base_column >= chain.width)
      continue;  // they stay as they are
    if (value == graph.output || !std::all_of(readers.begin(), readers.end(), in_chain)) return false;
  }
  return true;
}

// Whether all columns after those of q, k and v are one view, which something reads: a gate.
bool rest_is_read(const Graph& graph, const Uses& uses, const Chain& chain) {
  for (int32_t id = 0; id < static_cast<int32_t>(graph.values.size()); ++id) {
    const ValueInfo& info = graph.values[static_cast<size_t>(id)];
    const bool is_rest = info.base == chain.packed && info.base_column == chain.width;
    if (is_rest && info.width == graph.info(chain.packed).width - chain.width && !uses.readers_of({id}).empty()) return true;
  }
  return false;
}

// Returns the chain that ends in the kv_write node `index`.
std::optional<Chain> match_chain(const Graph& graph, const Uses& uses, int index) {
  Chain chain;
  chain.kv_write = index;
  chain.write = step_as<KvWriteParams>(graph, index);
  if (!chain.write) return {};
  const std::vector<Value> written = chain.write.node->reads();
  const int64_t num_kv_heads = chain.write.params->num_kv_heads, head_dim = chain.write.params->head_dim;
  Value k_columns, v_columns;
  const auto k = steps_before(graph, uses, written.front(), k_columns);
  const auto v = steps_before(graph, uses, written.back(), v_columns);
  if (!k || !v || v->rope || !has_constant(*k) || !has_constant(*v)) return {};
  if (v->norm && !is_v_norm(v->norm.params->norm)) return {};
  if (!k->of_heads(num_kv_heads) || !v->of_heads(num_kv_heads) || !guards(chain.write, k->rope)) return {};
  chain.k = *k;
  chain.v = *v;

  // The columns must be q, k, v side by side, or q, k with V taken from k.
  const int64_t k_width = num_kv_heads * head_dim, v_width = num_kv_heads * chain.write.params->cache.v.head_dim;
  chain.packed = graph.info(k_columns).base;
  chain.q_width = graph.info(k_columns).base_column;
  chain.v_from_k = graph.info(v_columns).base_column == chain.q_width;
  if (graph.info(v_columns).base != chain.packed || graph.info(v_columns).width != v_width) return {};
  if (chain.q_width % head_dim != 0) return {};
  if (!chain.v_from_k && graph.info(v_columns).base_column != chain.q_width + k_width) return {};
  chain.width = chain.q_width + k_width + (chain.v_from_k ? 0 : v_width);
  if (graph.info(chain.packed).width != chain.width && !rest_is_read(graph, uses, chain)) return {};

  // q: the view of the columns before k that something reads.
  Value q;
  for (int32_t id = 0; id < static_cast<int32_t>(graph.values.size()); ++id) {
    const ValueInfo& info = graph.values[static_cast<size_t>(id)];
    if (info.base != chain.packed || info.base_column != 0 || info.width != chain.q_width || uses.readers_of({id}).empty())
      continue;
    if (q) return {};
    q = {id};
  }
  if (q) chain.q = steps_after(graph, uses, q);

  for (const Steps* steps : {&chain.q, &chain.k, &chain.v})
    chain.removed.insert(chain.removed.end(), steps->nodes.begin(), steps->nodes.end());
  // Where other columns follow, theirs is added, too: it stays a node.
  if (graph.info(chain.packed).width == chain.width)
    chain.joint_bias = step_as<AddBiasParams>(graph, uses.writer_of(chain.packed));
  if (chain.joint_bias) {
    if (chain.q.bias || chain.k.bias || chain.v.bias) return {};
    chain.removed.push_back(uses.writer_of(chain.packed));
  }
  if (q && (chain.joint_bias || !chain.q.nodes.empty())) {
    if (!chain.q.of_heads(chain.q_width / head_dim) || !treated_alike(chain.q, chain.k)) return {};
    chain.q_out = q;
  }

  // A chain of only kv_write is already one launch.
  std::sort(chain.removed.begin(), chain.removed.end());
  chain.removed.erase(std::unique(chain.removed.begin(), chain.removed.end()), chain.removed.end());
  if (chain.removed.empty() || !keeps_to_itself(graph, uses, chain, q)) return {};
  return chain;
}

Graph fuse(const Graph& graph, Rounding rounding) {
  const Uses uses(graph);
  Graph fused;
  fused.values = graph.values;
  fused.output = graph.output;
  std::vector<bool> removed(graph.nodes.size(), false);
  std::vector<std::optional<Chain>> chains(graph.nodes.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    chains[n] = match_chain(graph, uses, static_cast<int>(n));
    if (!chains[n]) continue;
    for (const int gone : chains[n]->removed) removed[static_cast<size_t>(gone)] = true;
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (!removed[n]) fused.nodes.push_back(chains[n] ? fused_node(graph, *chains[n], rounding) : graph.nodes[n]);
  }
  return fused;
}

}  // namespace

Result<Graph> fuse_attention_prologue(const Graph& graph, Rounding rounding) {
  return catch_out_of_memory([&]() -> Result<Graph> { return fuse(graph, rounding); });
}

}  // namespace prologue
