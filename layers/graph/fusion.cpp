#include <algorithm>
#include <optional>
#include <string>

#include <prologue/kernels/base/out_of_memory.h>
#include <prologue/layers/graph/fusion.h>

namespace prologue {

namespace {

// The nodes that write and read each value, as node indices. The readers of a view do not include readers of its base.
struct Uses {
  explicit Uses(const Graph& graph) : writer(graph.values.size(), -1), readers(graph.values.size()) {
    for (int n = 0; n < static_cast<int>(graph.nodes.size()); ++n) {
      const Node& node = graph.nodes[static_cast<size_t>(n)];
      for (const Value value : node.writes()) writer[static_cast<size_t>(value.id)] = n;
      for (const Value value : node.reads()) readers[static_cast<size_t>(value.id)].push_back(n);
    }
  }
  int writer_of(Value value) const { return writer[static_cast<size_t>(value.id)]; }
  const std::vector<int>& readers_of(Value value) const { return readers[static_cast<size_t>(value.id)]; }

  std::vector<int> writer;
  std::vector<std::vector<int>> readers;
};

// A node of the graph whose parameters are a P.
template <class P>
struct Step {
  const Node* node = nullptr;
  const P* params = nullptr;

  explicit operator bool() const { return params != nullptr; }
};

template <class P>
Step<P> step_as(const Graph& graph, int node) {
  if (node < 0) return {};
  const Node& found = graph.nodes[static_cast<size_t>(node)];
  return {&found, std::get_if<P>(&found.parameters)};
}

// The steps applied to one of q, k and v after it is taken from its columns of the packed tensor.
struct Steps {
  Step<AddBiasParams> bias;
  Step<QkNormParams> norm;
  Step<RotaryParams> rope;
  Step<QueryScaleParams> scale;
  bool norm_after_rope = false;
  std::vector<int> nodes;

  // Adds a node, if the kernel can do its step at this point.
  bool pass(const Graph& graph, int node) {
    if (const auto as_bias = step_as<AddBiasParams>(graph, node); as_bias && nodes.empty()) {
      bias = as_bias;
    } else if (const auto as_norm = step_as<QkNormParams>(graph, node); as_norm && !norm && !scale) {
      norm = as_norm;
      norm_after_rope = static_cast<bool>(rope);
    } else if (const auto as_rope = step_as<RotaryParams>(graph, node); as_rope && !rope && !scale) {
      rope = as_rope;
    } else if (const auto as_scale = step_as<QueryScaleParams>(graph, node); as_scale && !scale) {
      scale = as_scale;
    } else {
      return false;
    }
    nodes.push_back(node);
    return true;
  }

  bool of_heads(int64_t num_heads) const {
    return (!norm || norm.params->num_heads == num_heads) && (!rope || rope.params->tensors[0].num_heads == num_heads) &&
           (!scale || scale.params->num_heads == num_heads);
  }
};

// The steps between a view, which is returned in `columns`, and `end`.
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

// The steps that follow a view, as many as possible; `value` becomes the output of the last one.
Steps steps_after(const Graph& graph, const Uses& uses, Value& value) {
  Steps steps;
  while (uses.readers_of(value).size() == 1 && value != graph.output) {
    const int node = uses.readers_of(value).front();
    if (!steps.pass(graph, node)) break;
    value = graph.nodes[static_cast<size_t>(node)].writes().front();
  }
  return steps;
}

bool same_norm(const QkNormParams& a, const QkNormParams& b) {
  return a.kind == b.kind && a.scope == b.scope && a.eps == b.eps && a.weight_offset == b.weight_offset;
}

// TEMPORARY until the operations share one description of a rope.
Rotation rotation_of(const RotaryParams& p) {
  Rotation rotation;
  rotation.style = p.style;
  rotation.rotary_dim = p.rotary_dim;
  rotation.rotary_offset = p.rotary_offset;
  rotation.inverse = p.inverse;
  rotation.source = p.angles.source == RotarySource::inv_freq ? CosSinSource::inv_freq
                    : p.angles.per_token                      ? CosSinSource::per_token
                                                              : CosSinSource::table;
  rotation.inv_freq = static_cast<const float*>(p.angles.inv_freq);
  rotation.attention_factor = static_cast<float>(p.angles.attention_factor);
  rotation.max_position = p.angles.max_position;
  rotation.past_table = p.angles.past_table;
  rotation.num_axes = p.positions.num_axes;
  rotation.pair_axis = p.positions.pair_axis;
  return rotation;
}

// What a member of a node is bound to; null: nothing.
const Binding* binding_of(const Node& node, const void* member) {
  const auto offset = static_cast<const char*>(member) - static_cast<const char*>(address_of(node.parameters));
  for (const Binding& each : node.bindings) {
    if (each.member == offset) return &each;
  }
  return nullptr;
}

// Both null, or the same value or table.
bool same_source(const Binding* a, const Binding* b) {
  return (a == nullptr) == (b == nullptr) && (a == nullptr || (a->to == b->to && a->index == b->index && a->table == b->table));
}

bool same_rope(const Step<RotaryParams>& a, const Step<RotaryParams>& b) {
  return rotation_of(*a.params) == rotation_of(*b.params) &&
         same_source(binding_of(*a.node, &a.params->angles.cos.data), binding_of(*b.node, &b.params->angles.cos.data)) &&
         same_source(binding_of(*a.node, &a.params->angles.max_position), binding_of(*b.node, &b.params->angles.max_position));
}

// Q and K must have the same norm and rotation.
bool treated_alike(const Steps& q, const Steps& k) {
  if (static_cast<bool>(q.norm) != static_cast<bool>(k.norm) || static_cast<bool>(q.rope) != static_cast<bool>(k.rope)) return false;
  if (q.norm && (!same_norm(*q.norm.params, *k.norm.params) || q.norm_after_rope != k.norm_after_rope)) return false;
  return !q.rope || same_rope(q.rope, k.rope);
}

// kv_write must refuse the positions that the rotation of K refuses.
bool guards(const Step<KvWriteParams>& write, const Step<RotaryParams>& rope) {
  const KvWriteParams& w = *write.params;
  const Binding* const bound = binding_of(*write.node, &w.max_position);
  if (!rope) return w.max_position == 0 && bound == nullptr;
  const RotaryParams& r = *rope.params;
  const PastTable past_table = w.past_table == PastTable::record ? PastTable::zero : w.past_table;
  return w.max_position == r.angles.max_position && same_source(bound, binding_of(*rope.node, &r.angles.max_position)) &&
         past_table == r.angles.past_table && w.num_axes == r.positions.num_axes;
}

bool is_v_norm(const QkNormParams& norm) {
  return norm.kind == NormKind::rms && norm.scope == NormScope::head && norm.weight == nullptr && norm.bias == nullptr;
}

Weight slice(const Weight& weight, int64_t begin, int64_t count) {
  return {static_cast<const unsigned char*>(weight.data) + begin * dtype_size(weight.dtype), 1, count, weight.dtype};
}

struct Match {
  int kv_write = -1;         // replaced by the fused node
  std::vector<int> removed;  // the others of the chain
  Value q;                   // what it writes besides the cache; none: q is read from its columns unchanged
  Node fused;
};

// True if only the matched nodes read the values that fusion removes, and q is read only after the fused node.
bool keeps_to_itself(const Graph& graph, const Uses& uses, const Match& match, Value packed, Value q) {
  const auto matched = [&](int node) {
    return node == match.kv_write || std::find(match.removed.begin(), match.removed.end(), node) != match.removed.end();
  };
  for (int32_t id = 0; id < static_cast<int32_t>(graph.values.size()); ++id) {
    const Value value = {id};
    const std::vector<int>& readers = uses.readers_of(value);
    if (value == q) {
      const bool made_here = match.q == q;
      if (made_here && std::any_of(readers.begin(), readers.end(), [&](int node) { return node < match.kv_write; })) return false;
      continue;
    }
    if (value != packed && graph.info(value).base != packed && !matched(uses.writer_of(value))) continue;
    if (value == graph.output || !std::all_of(readers.begin(), readers.end(), matched)) return false;
  }
  return true;
}

// The chain that ends in the kv_write node `index`.
std::optional<Match> match_chain(const Graph& graph, const Uses& uses, int index, Rounding rounding) {
  const auto write = step_as<KvWriteParams>(graph, index);
  if (!write) return {};
  const int64_t num_kv_heads = write.params->num_kv_heads, head_dim = write.params->head_dim;
  const std::vector<Value> written = write.node->reads();
  Value k_columns, v_columns;
  const auto k = steps_before(graph, uses, written.front(), k_columns);
  const auto v = steps_before(graph, uses, written.back(), v_columns);
  if (!k || !v || k->scale || v->scale || v->rope) return {};
  if (v->norm && !is_v_norm(*v->norm.params)) return {};
  if (!k->of_heads(num_kv_heads) || !v->of_heads(num_kv_heads) || !guards(write, k->rope)) return {};

  // The columns must be q, k, v side by side, or q, k with V taken from k.
  const Value packed = graph.info(k_columns).base;
  const int64_t q_width = graph.info(k_columns).base_column;
  const int64_t kv_width = num_kv_heads * head_dim;
  const bool v_from_k = graph.info(v_columns).base_column == q_width;
  if (graph.info(v_columns).base != packed || graph.info(v_columns).width != kv_width) return {};
  if (q_width % head_dim != 0) return {};
  if (!v_from_k && graph.info(v_columns).base_column != q_width + kv_width) return {};
  if (graph.info(packed).width != q_width + (v_from_k ? 1 : 2) * kv_width) return {};

  // q: the view of the columns before k that something reads.
  Value q_out;
  for (int32_t id = 0; id < static_cast<int32_t>(graph.values.size()); ++id) {
    const ValueInfo& info = graph.values[static_cast<size_t>(id)];
    if (info.base != packed || info.base_column != 0 || info.width != q_width || uses.readers_of({id}).empty()) continue;
    if (q_out) return {};
    q_out = {id};
  }
  const Steps q = q_out ? steps_after(graph, uses, q_out) : Steps();

  Match match;
  match.kv_write = index;
  for (const Steps* steps : {&q, &*k, &*v}) match.removed.insert(match.removed.end(), steps->nodes.begin(), steps->nodes.end());
  const auto joint = step_as<AddBiasParams>(graph, uses.writer_of(packed));
  if (joint) {
    if (q.bias || k->bias || v->bias) return {};
    match.removed.push_back(uses.writer_of(packed));
  }
  if (q_out && (joint || !q.nodes.empty())) {  // otherwise q is read from its columns unchanged
    if (!q.of_heads(q_width / head_dim) || !treated_alike(q, *k)) return {};
    match.q = q_out;
  }

  // A chain of only kv_write is already one launch.
  std::sort(match.removed.begin(), match.removed.end());
  match.removed.erase(std::unique(match.removed.begin(), match.removed.end()), match.removed.end());
  if (match.removed.empty() || !keeps_to_itself(graph, uses, match, packed, q_out)) return {};
  const Value source = joint ? joint.node->reads().front() : packed;
  match.fused = fused_node(graph, write, source, match.q, v_from_k, q, *k, *v, joint);
  return match;
}

Graph fuse(const Graph& graph, Rounding rounding) {
  const Uses uses(graph);
  Graph fused;
  fused.values = graph.values;
  fused.output = graph.output;
  std::vector<bool> removed(graph.nodes.size(), false);
  std::vector<std::optional<Match>> matches(graph.nodes.size());
  for (int n = 0; n < static_cast<int>(graph.nodes.size()); ++n) {
    matches[static_cast<size_t>(n)] = match_chain(graph, uses, n, rounding);
    if (!matches[static_cast<size_t>(n)]) continue;
    for (const int gone : matches[static_cast<size_t>(n)]->removed) removed[static_cast<size_t>(gone)] = true;
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (removed[n]) continue;
    const Node& node = graph.nodes[n];
    if (!matches[n]) {
      fused.nodes.push_back(node);
      continue;
    }
    const size_t scope = node.name.rfind('.') + 1;
    std::string fused_from;
    for (const int gone : matches[n]->removed) fused_from += graph.nodes[static_cast<size_t>(gone)].name.substr(scope) + " + ";
    fused.nodes.push_back({node.name.substr(0, scope) + "prologue", matches[n]->fused, fused_from + node.name.substr(scope)});
  }
  return fused;
}

}  // namespace

Result<Graph> fuse_attention_prologue(const Graph& graph, Rounding rounding) {
  return catch_out_of_memory([&]() -> Result<Graph> { return fuse(graph, rounding); });
}

}  // namespace prologue
