#include <algorithm>
#include <optional>
#include <string>

#include <prologue/layers/graph/fusion.h>

namespace prologue {

namespace {

// Who writes and who reads each value, as node indices. A view's readers are readers of that view alone.
struct Uses {
  explicit Uses(const Graph& graph) : writer(graph.values.size(), -1), readers(graph.values.size()) {
    for (int n = 0; n < static_cast<int>(graph.nodes.size()); ++n) {
      const NodeFacts facts = facts_of(graph.nodes[static_cast<size_t>(n)].operation);
      for (const Value value : facts.writes) writer[static_cast<size_t>(value.id)] = n;
      for (const Value value : facts.reads) readers[static_cast<size_t>(value.id)].push_back(n);
    }
  }
  std::vector<int> writer;
  std::vector<std::vector<int>> readers;

  bool read_only_by(Value value, int node) const {
    const std::vector<int>& all = readers[static_cast<size_t>(value.id)];
    return std::all_of(all.begin(), all.end(), [&](int reader) { return reader == node; });
  }
};

// The node that writes `value`, if it is an Op.
template <class Op>
const Op* written_by(const Graph& graph, const Uses& uses, Value value) {
  const int writer = uses.writer[static_cast<size_t>(value.id)];
  return writer < 0 ? nullptr : std::get_if<Op>(&graph.nodes[static_cast<size_t>(writer)].operation);
}

struct Match {
  int kv_write = -1;         // replaced by the fused node
  std::vector<int> removed;  // the others of the chain
  AttentionPrologueOp fused;
};

// The chain that ends in the kv_write node `index`, matched backwards.
std::optional<Match> match_chain(const Graph& graph, const Uses& uses, int index) {
  const auto* write = std::get_if<KvWriteOp>(&graph.nodes[static_cast<size_t>(index)].operation);
  if (write == nullptr) return {};
  const auto* rope_k = written_by<RopeOp>(graph, uses, write->k);
  if (rope_k == nullptr || !uses.read_only_by(write->k, index)) return {};
  const Value packed = graph.info(rope_k->x).base;
  if (!packed || graph.info(write->v).base != packed) return {};

  // The rotation of q is the one other rope over a view of the same packed tensor.
  int rope_q_index = -1;
  for (int n = 0; n < static_cast<int>(graph.nodes.size()); ++n) {
    const auto* rope = std::get_if<RopeOp>(&graph.nodes[static_cast<size_t>(n)].operation);
    if (rope == nullptr || rope == rope_k || graph.info(rope->x).base != packed) continue;
    if (rope_q_index >= 0) return {};
    rope_q_index = n;
  }
  if (rope_q_index < 0) return {};
  const auto& rope_q = std::get<RopeOp>(graph.nodes[static_cast<size_t>(rope_q_index)].operation);
  if (rope_q.table != rope_k->table || write->table != rope_k->table) return {};

  // The views must be q, k, v side by side, and nothing else may read them or the packed tensor.
  const ValueInfo& q = graph.info(rope_q.x);
  const ValueInfo& k = graph.info(rope_k->x);
  const ValueInfo& v = graph.info(write->v);
  const bool packed_in_order = q.base_column == 0 && k.base_column == q.width && v.base_column == q.width + k.width &&
                               graph.info(packed).width == q.width + k.width + v.width;
  const int rope_k_index = uses.writer[static_cast<size_t>(write->k.id)];
  if (!packed_in_order || !uses.read_only_by(rope_q.x, rope_q_index) || !uses.read_only_by(rope_k->x, rope_k_index) ||
      !uses.read_only_by(write->v, index) || !uses.readers[static_cast<size_t>(packed.id)].empty()) {
    return {};
  }

  Match match;
  match.kv_write = index;
  match.removed = {rope_q_index, rope_k_index};
  match.fused = {packed, {}, rope_q.num_heads, write->num_kv_heads, rope_q.table, write->layer, rope_q.out};
  if (const auto* bias = written_by<AddBiasOp>(graph, uses, packed)) {
    match.removed.push_back(uses.writer[static_cast<size_t>(packed.id)]);
    match.fused.qkv = bias->x;
    match.fused.bias = bias->bias;
  }
  return match;
}

}  // namespace

Graph fuse_attention_prologue(const Graph& graph) {
  const Uses uses(graph);
  Graph fused;
  fused.values = graph.values;
  fused.output = graph.output;
  std::vector<bool> removed(graph.nodes.size(), false);
  std::vector<std::optional<Match>> matches(graph.nodes.size());
  for (int n = 0; n < static_cast<int>(graph.nodes.size()); ++n) {
    matches[static_cast<size_t>(n)] = match_chain(graph, uses, n);
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
    std::vector<int> replaced = matches[n]->removed;
    std::sort(replaced.begin(), replaced.end());
    std::string fused_from;
    for (const int gone : replaced) fused_from += graph.nodes[static_cast<size_t>(gone)].name.substr(scope) + " + ";
    fused.nodes.push_back({node.name.substr(0, scope) + "prologue", matches[n]->fused, fused_from + node.name.substr(scope)});
  }
  return fused;
}

}  // namespace prologue
