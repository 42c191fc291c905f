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
      const NodeFacts facts = facts_of(graph.nodes[static_cast<size_t>(n)].operation);
      for (const Value value : facts.writes) writer[static_cast<size_t>(value.id)] = n;
      for (const Value value : facts.reads) readers[static_cast<size_t>(value.id)].push_back(n);
    }
  }
  int writer_of(Value value) const { return writer[static_cast<size_t>(value.id)]; }
  const std::vector<int>& readers_of(Value value) const { return readers[static_cast<size_t>(value.id)]; }

  std::vector<int> writer;
  std::vector<std::vector<int>> readers;
};

template <class Op>
const Op* node_as(const Graph& graph, int node) {
  return node < 0 ? nullptr : std::get_if<Op>(&graph.nodes[static_cast<size_t>(node)].operation);
}

// The steps applied to one of q, k and v after it is taken from its columns of the packed tensor; null = no such step.
struct Steps {
  const AddBiasOp* bias = nullptr;
  const HeadsNormOp* norm = nullptr;
  const RopeOp* rope = nullptr;
  const QueryScaleOp* scale = nullptr;
  bool norm_after_rope = false;
  std::vector<int> nodes;

  // Adds a node, if the kernel can do its step at this point. Returns what the node reads and writes.
  struct Passage {
    Value from, to;
  };
  std::optional<Passage> pass(const Graph& graph, int node) {
    const bool is_first = nodes.empty(), is_scaled = scale != nullptr;
    if (const auto* as_bias = node_as<AddBiasOp>(graph, node); as_bias != nullptr && is_first) {
      bias = as_bias;
    } else if (const auto* as_norm = node_as<HeadsNormOp>(graph, node); as_norm != nullptr && norm == nullptr && !is_scaled) {
      norm = as_norm;
      norm_after_rope = rope != nullptr;
    } else if (const auto* as_rope = node_as<RopeOp>(graph, node); as_rope != nullptr && rope == nullptr && !is_scaled) {
      rope = as_rope;
    } else if (const auto* as_scale = node_as<QueryScaleOp>(graph, node); as_scale != nullptr && !is_scaled) {
      scale = as_scale;
    } else {
      return {};
    }
    nodes.push_back(node);
    const NodeFacts facts = facts_of(graph.nodes[static_cast<size_t>(node)].operation);
    return Passage{facts.reads.front(), facts.writes.front()};
  }

  bool of_heads(int64_t num_heads) const {
    return (norm == nullptr || norm->num_heads == num_heads) && (rope == nullptr || rope->num_heads == num_heads) &&
           (scale == nullptr || scale->num_heads == num_heads);
  }
};

// The steps between a view, which is returned in `columns`, and `end`.
std::optional<Steps> steps_before(const Graph& graph, const Uses& uses, Value end, Value& columns) {
  std::vector<int> nodes;
  columns = end;
  while (!graph.info(columns).base) {
    const int node = uses.writer_of(columns);
    if (node < 0 || (!nodes.empty() && node >= nodes.back())) return {};
    const NodeFacts facts = facts_of(graph.nodes[static_cast<size_t>(node)].operation);
    if (facts.reads.empty()) return {};
    nodes.push_back(node);
    columns = facts.reads.front();
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
    const auto passage = steps.pass(graph, uses.readers_of(value).front());
    if (!passage) break;
    value = passage->to;
  }
  return steps;
}

bool same_norm(const HeadsNorm& a, const HeadsNorm& b) {
  return a.kind == b.kind && a.scope == b.scope && a.eps == b.eps && a.weight_offset == b.weight_offset;
}

bool same_rotation(const Rotation& a, const Rotation& b) {
  return a.style == b.style && a.rotary_dim == b.rotary_dim && a.rotary_offset == b.rotary_offset && a.inverse == b.inverse &&
         a.source == b.source && a.cos_sin == b.cos_sin && a.inv_freq == b.inv_freq && a.attention_factor == b.attention_factor &&
         a.max_position == b.max_position && a.past_table == b.past_table && a.num_axes == b.num_axes &&
         a.pair_axis == b.pair_axis;
}

bool same_rope(const Rope& a, const Rope& b) {
  return a.table == b.table && a.cos_sin == b.cos_sin && same_rotation(a.rotation, b.rotation);
}

// Q and K must have the same norm and rotation.
bool treated_alike(const Steps& q, const Steps& k) {
  if ((q.norm == nullptr) != (k.norm == nullptr) || (q.rope == nullptr) != (k.rope == nullptr)) return false;
  if (q.norm != nullptr && (!same_norm(q.norm->norm, k.norm->norm) || q.norm_after_rope != k.norm_after_rope)) return false;
  return q.rope == nullptr || same_rope(q.rope->rope, k.rope->rope);
}

bool is_v_norm(const HeadsNorm& norm) {
  return norm.kind == NormKind::rms && norm.scope == NormScope::head && !norm.weight && !norm.bias;
}

Weight slice(const Weight& weight, int64_t begin, int64_t count) {
  return {static_cast<const unsigned char*>(weight.data) + begin * dtype_size(weight.dtype), 1, count, weight.dtype};
}

struct Match {
  int kv_write = -1;         // replaced by the fused node
  std::vector<int> removed;  // the others of the chain
  AttentionPrologueOp fused;
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
      const bool made_here = match.fused.q == q;
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
  const auto* write = node_as<KvWriteOp>(graph, index);
  if (write == nullptr || write->num_kv_heads < 1) return {};
  Value k_columns, v_columns;
  const auto k = steps_before(graph, uses, write->k, k_columns);
  const auto v = steps_before(graph, uses, write->v, v_columns);
  if (!k || !v || k->scale != nullptr || v->scale != nullptr || v->rope != nullptr) return {};
  if (v->norm != nullptr && !is_v_norm(v->norm->norm)) return {};
  if (!k->of_heads(write->num_kv_heads) || !v->of_heads(write->num_kv_heads)) return {};
  if (!same_rope(k->rope != nullptr ? k->rope->rope : Rope(), write->rope)) return {};

  // The columns must be q, k, v side by side, or q, k with V taken from k.
  const Value packed = graph.info(k_columns).base;
  const int64_t q_width = graph.info(k_columns).base_column;
  const int64_t kv_width = graph.info(k_columns).width;
  const int64_t head_dim = kv_width / write->num_kv_heads;
  const bool v_from_k = graph.info(v_columns).base_column == q_width;
  if (graph.info(v_columns).base != packed || graph.info(v_columns).width != kv_width) return {};
  if (head_dim < 1 || kv_width % write->num_kv_heads != 0 || q_width % head_dim != 0) return {};
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
  AttentionPrologueOp& fused = match.fused;
  fused.qkv = packed;
  fused.num_q_heads = q_width / head_dim;
  fused.num_kv_heads = write->num_kv_heads;
  fused.head_dim = head_dim;
  fused.v_from_k = v_from_k;
  if (q.bias != nullptr) fused.q_bias = q.bias->bias;
  if (k->bias != nullptr) fused.k_bias = k->bias->bias;
  if (v->bias != nullptr) fused.v_bias = v->bias->bias;
  for (const Steps* steps : {&q, &*k, &*v}) match.removed.insert(match.removed.end(), steps->nodes.begin(), steps->nodes.end());

  const auto* joint = node_as<AddBiasOp>(graph, uses.writer_of(packed));
  if (joint != nullptr) {
    if (fused.q_bias || fused.k_bias || fused.v_bias || joint->bias.rows * joint->bias.cols != graph.info(packed).width)
      return {};
    match.removed.push_back(uses.writer_of(packed));
    fused.qkv = joint->x;
    fused.q_bias = slice(joint->bias, 0, q_width);
    fused.k_bias = slice(joint->bias, q_width, kv_width);
    fused.v_bias = v_from_k ? fused.k_bias : slice(joint->bias, q_width + kv_width, kv_width);
  }

  if (q_out && (joint != nullptr || !q.nodes.empty())) {  // otherwise q is read from its columns unchanged
    if (!q.of_heads(fused.num_q_heads) || !treated_alike(q, *k)) return {};
    fused.q = q_out;
    if (q.norm != nullptr) fused.q_norm = q.norm->norm;
    if (q.scale != nullptr) fused.q_scale = q.scale->scale;
  }
  if (k->norm != nullptr) {
    fused.norm_placement = k->norm_after_rope ? NormPlacement::after_rope : NormPlacement::before_rope;
    fused.k_norm = k->norm->norm;
  }
  if (v->norm != nullptr) fused.v_norm = {true, v->norm->norm.eps};
  fused.rope = write->rope;
  fused.rounding = rounding;
  fused.layer = write->layer;

  // A chain of only kv_write is already one launch.
  std::sort(match.removed.begin(), match.removed.end());
  match.removed.erase(std::unique(match.removed.begin(), match.removed.end()), match.removed.end());
  if (match.removed.empty() || !keeps_to_itself(graph, uses, match, packed, q_out)) return {};
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
