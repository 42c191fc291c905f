#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include <prologue/kernels/base/out_of_memory.h>
#include <prologue/kernels/internal/run.h>
#include <prologue/layers/graph/fusion.h>
#include <prologue/layers/graph/uses.h>

namespace prologue {

namespace {

std::string name_in_scope(const Node& node) { return node.name.substr(node.name.rfind('.') + 1); }

// Returns "norm + linear + activation".
std::string joined(std::initializer_list<const Node*> nodes) {
  std::string text;
  for (const Node* node : nodes) {
    if (node != nullptr) text += (text.empty() ? "" : " + ") + name_in_scope(*node);
  }
  return text;
}

// Whether a node after `first` and before `last` writes the value's memory.
bool is_written_between(const Graph& graph, Value value, int first, int last) {
  for (int n = first + 1; n < last; ++n) {
    for (const Value written : graph.nodes[static_cast<size_t>(n)].writes()) {
      if (graph.storage_of(written) == graph.storage_of(value)) return true;
    }
  }
  return false;
}

// Returns the only node that reads the value, or a view of it; -1 if there are several or it is the graph's output.
int only_reader(const Graph& graph, const Uses& uses, Value value) {
  int reader = -1;
  for (int32_t id = 0; id < static_cast<int32_t>(graph.values.size()); ++id) {
    if (id != value.id && graph.values[static_cast<size_t>(id)].base != value) continue;
    if (graph.output == Value{id}) return -1;
    for (const int node : uses.readers_of({id})) {
      if (reader >= 0 && reader != node) return -1;
      reader = node;
    }
  }
  return reader;
}

// Whether one of the fused operations can do the product.
bool can_fuse(const Step<GemmParams>& linear) { return static_cast<bool>(linear); }

// Whether they can also do something with the product: it is rounded to the activations' type.
bool can_continue(const Step<GemmParams>& linear) { return can_fuse(linear) && linear.params->y_dtype == linear.params->dtype; }

// Whether they can do the norm.
bool can_fuse(const Step<NormParams>& norm) {
  return norm && norm.node->binding_of(&norm.params->residual) == nullptr && norm.params->kind == NormKind::rms &&
         norm.params->bias == nullptr;
}

// Returns the weight of a linear node, as printed.
const Weight& weight_of(const Step<GemmParams>& linear) { return linear.node->weights.front(); }

template <class Params>
void set_weight(Node& node, Params& p, const Step<GemmParams>& of) {
  node.weight(p.weight, weight_of(of));
  p.packed = of.params->packed;
  if (p.packed.num_segments > 0) p.weight = nullptr;
}

void set_norm(Node& node, InputNorm& norm, const Step<NormParams>& of) {
  if (!of) return;
  norm.given = 1;
  norm.kind = of.params->kind;
  norm.weight = of.params->weight;
  norm.weight_type = of.params->weight_type;
  norm.eps = of.params->eps;
  node.weights.insert(node.weights.end(), of.node->weights.begin(), of.node->weights.end());
}

bool may_start_early(const Graph& graph, const Uses& uses, const Step<GemmParams>& linear) {
  const int before = uses.writer_of(linear.node->reads().front());
  return !step_as<PagedAttentionParams>(graph, before) || may_begin_beside_attention(linear.params->n, linear.params->k);
}

// Attention lets such a projection start when it has read its keys, or at its own begin.
void signal_one_token(Graph& graph) {
  for (size_t n = 0; n + 1 < graph.nodes.size(); ++n) {
    auto* const attention = std::get_if<PagedAttentionParams>(&graph.nodes[n].parameters);
    const auto* const next = std::get_if<ProjectionParams>(&graph.nodes[n + 1].parameters);
    if (attention == nullptr || next == nullptr || graph.nodes[n + 1].binding_of(&next->overlaps) == nullptr) continue;
    graph.nodes[n].one_token(waits_with_its_weights(next->n, next->k) ? attention->early_signal : attention->late_signal);
  }
}

// Returns a norm of x without a residual, with the options of `of`.
Node norm_node(const Graph& graph, const Step<NormParams>& of, Value x) {
  Node node = {of.node->name, of.params->kind == NormKind::layer ? "layer_norm" : "rms_norm", *of.params};
  auto& p = std::get<NormParams>(node.parameters);
  node.step(p.num_tokens, count_of(graph.info(x).rows));
  node.read(p.x, x);
  node.write(p.out, Value{static_cast<int32_t>(of.node->binding_of(&of.params->out)->index)});
  node.weights = of.node->weights;
  return node;
}

// Returns the node of a projection without what it is fused with.
Node projection_node(const Graph& graph, const Uses& uses, const Step<NormParams>& norm, const Step<GemmParams>& linear) {
  Node node = {linear.node->name, "projection", ProjectionParams()};
  auto& p = std::get<ProjectionParams>(node.parameters);
  const Value x = (norm ? norm.node : linear.node)->reads().front();
  node.step(p.num_tokens, count_of(graph.info(x).rows));
  p.n = linear.params->n;
  p.k = linear.params->k;
  p.dtype = linear.params->dtype;
  p.y_dtype = linear.params->y_dtype;
  node.read(p.x, x);
  p.x_stride = graph.row_stride(x);
  set_norm(node, p.norm, norm);
  set_weight(node, p, linear);
  if (linear.params->bias != nullptr) node.weight(p.bias, linear.node->weights.back());
  if (may_start_early(graph, uses, linear)) {
    p.overlaps = true;
  } else {
    node.one_or_many(p.overlaps, tokens_of_rings(p.n, p.k));
  }
  return node;
}

// Returns the same with what follows the product, if there is an activation.
Node activated_node(const Graph& graph, const Uses& uses, const Step<NormParams>& norm, const Step<GemmParams>& linear,
                    const Step<ActivationParams>& activation) {
  Node node = projection_node(graph, uses, norm, linear);
  auto& p = std::get<ProjectionParams>(node.parameters);
  const Value y = (activation ? activation.node : linear.node)->writes().front();
  if (activation) {
    p.n = activation.params->width;
    p.activation = {1, activation.params->kind, activation.params->gated, activation.params->limit, activation.params->alpha};
    node.remark = activation.node->remark;
  }
  node.write(p.y, y);
  p.y_stride = graph.row_stride(y);
  node.fused_from = joined({norm.node, linear.node, activation.node});
  return node;
}

// Says which norm adds what node `n` writes to a residual, if nothing else reads it and node `n` can add it as well.
struct ResidualSum {
  Step<NormParams> add_norm;
  int norm_at = -1;
  Value residual;
};

std::optional<ResidualSum> residual_sum_of(const Graph& graph, const Uses& uses, int n) {
  const Node& node = graph.nodes[static_cast<size_t>(n)];
  const Value written = node.writes().front();
  const int reader = only_reader(graph, uses, written);
  const auto add_norm = step_as<NormParams>(graph, reader);
  if (!add_norm || reader < n) return {};
  const Binding* const updated = add_norm.node->binding_of(&add_norm.params->residual);
  if (updated == nullptr || add_norm.node->reads().front() != written) return {};
  const Value residual = {static_cast<int32_t>(updated->index)};
  // Whoever reads or writes the residual in between must see it without the sum.
  bool apart = !is_written_between(graph, residual, n, reader);
  for (const int other : uses.readers_of(residual)) apart = apart && (other <= n || other >= reader);
  if (!apart || graph.info(residual).base || node.reads().front() == residual) return {};
  return ResidualSum{add_norm, reader, residual};
}

// Rewrites all_reduce -> add_norm as an all_reduce that adds to the residual and a norm of the sum; with `projections`, linear -> add_norm
// likewise.
void fuse_residuals(Graph& graph, bool projections) {
  const Uses uses(graph);
  std::vector<Node> nodes = graph.nodes;
  for (int n = 0; n < static_cast<int>(graph.nodes.size()); ++n) {
    const auto linear = step_as<GemmParams>(graph, n);
    const auto all_reduce = step_as<AllReduceParams>(graph, n);
    if (!(projections && can_continue(linear)) && !all_reduce) continue;
    const std::optional<ResidualSum> sum = residual_sum_of(graph, uses, n);
    if (!sum) continue;

    Node fused;
    if (all_reduce) {
      fused = {all_reduce.node->name, "all_reduce", *all_reduce.params};
      auto& p = std::get<AllReduceParams>(fused.parameters);
      const Value x = all_reduce.node->reads().front();
      fused.step(p.num_tokens, count_of(graph.info(x).rows));
      fused.read(p.x, x);
      fused.update(p.y, sum->residual);
      p.adds = 1;
    } else {
      fused = projection_node(graph, uses, {}, linear);
      auto& p = std::get<ProjectionParams>(fused.parameters);
      fused.update(p.y, sum->residual);
      p.y_stride = graph.row_stride(sum->residual);
      p.adds = 1;
    }
    fused.remark = "adds to the residual";
    fused.fused_from = name_in_scope(graph.nodes[static_cast<size_t>(n)]) + " + residual";
    nodes[static_cast<size_t>(n)] = std::move(fused);
    nodes[static_cast<size_t>(sum->norm_at)] = norm_node(graph, sum->add_norm, sum->residual);
  }
  for (Node& node : nodes) {
    if (auto* const p = std::get_if<AllReduceParams>(&node.parameters)) p->overlaps = true;
  }
  graph.nodes = std::move(nodes);
}

void replace_read(Node& node, Value value, Value by) {
  for (Binding& each : node.bindings) {
    if (each.to == Binding::To::read && each.index == value.id) each.index = by.id;
  }
}

// Rewrites norm -> select_rows as select_rows -> norm: the norm of the rows that need logits, which can be fused with what is made of them.
// The selection, a kernel of few blocks, then begins early.
void select_before_norms(Graph& graph) {
  const Uses uses(graph);
  for (int n = 0; n < static_cast<int>(graph.nodes.size()); ++n) {
    const auto select = step_as<EmbeddingParams>(graph, n);
    if (!select || select.node->reads().empty()) continue;  // the embedding of the tokens reads no value
    const Value normed = select.node->reads().front(), selected = select.node->writes().front();
    const int before = uses.writer_of(normed), reader = only_reader(graph, uses, selected);
    const auto norm = step_as<NormParams>(graph, before);
    if (!norm || norm.node->binding_of(&norm.params->residual) != nullptr || only_reader(graph, uses, normed) != n) continue;
    const Value x = norm.node->reads().front();
    if (reader < n || graph.info(x).base || graph.info(normed).base || is_written_between(graph, x, before, n)) continue;

    Node select_first = *select.node, norm_of_selected = norm_node(graph, norm, selected);
    replace_read(select_first, normed, x);
    std::get<EmbeddingParams>(select_first.parameters).overlaps = true;
    replace_read(graph.nodes[static_cast<size_t>(reader)], selected, normed);
    graph.values[static_cast<size_t>(normed.id)].rows = graph.info(selected).rows;
    graph.nodes[static_cast<size_t>(before)] = std::move(select_first);
    graph.nodes[static_cast<size_t>(n)] = std::move(norm_of_selected);
  }
}

// Returns the node of `prologue` after `linear` and, if there is one, `norm`. There is none if it does not take the product as it is.
std::optional<Node> qkv_node(const Graph& graph, const Step<NormParams>& norm, const Step<GemmParams>& linear,
                             const Step<AttentionPrologueParams>& prologue) {
  const AttentionPrologueParams& given = *prologue.params;
  if (linear.params->bias != nullptr || given.num_q_heads == 0) return {};
  // q, k and v are the product's columns, side by side.
  const Value product = linear.node->writes().front();
  const int64_t k_at = given.num_q_heads * given.head_dim, v_at = k_at + given.num_kv_heads * given.head_dim;
  const auto is_at = [&](const HeadsView& view, int64_t column) {
    const Binding* const binding = prologue.node->binding_of(&view.data);
    return binding != nullptr && binding->index == product.id && binding->column == column;
  };
  if (!is_at(given.q, 0) || !is_at(given.k, k_at) || !is_at(given.v, v_at)) return {};
  if (linear.params->n != v_at + given.num_kv_heads * v_head_dim(given)) return {};

  const Value from = (norm ? norm.node : linear.node)->reads().front();
  Node fused = {prologue.node->name, "qkv_prologue", QkvPrologueParams()};
  auto& p = std::get<QkvPrologueParams>(fused.parameters);
  p.hidden_size = linear.params->k;
  fused.read(p.hidden_states, from);
  p.hidden_stride = graph.row_stride(from);
  set_norm(fused, p.norm, norm);
  set_weight(fused, p, linear);
  Node without_inputs = *prologue.node;
  auto& params = std::get<AttentionPrologueParams>(without_inputs.parameters);
  for (HeadsView* view : {&params.q, &params.k, &params.v}) {
    const Binding inputs = *without_inputs.binding_of(&view->data);
    std::erase_if(without_inputs.bindings, [&](const Binding& each) { return each.member == inputs.member; });
    *view = {};
  }
  fused.copy(p.prologue, without_inputs, params);
  fused.weights.insert(fused.weights.end(), prologue.node->weights.begin(), prologue.node->weights.end());
  fused.position_axes = prologue.node->position_axes;
  fused.remark = prologue.node->remark;
  p.overlaps = true;
  const std::string inner = prologue.node->fused_from.empty() ? "prologue" : prologue.node->fused_from;
  fused.fused_from = joined({norm.node, linear.node}) + " + " + inner;
  return fused;
}

// Says what one node replaces: `linear`, and any of the others.
struct ProjectionChain {
  int norm = -1, linear = -1, last = -1;
  Node fused;
};

// Returns an activation that a projection can include.
Step<ActivationParams> activation_of(const Graph& graph, int index) {
  const auto activation = step_as<ActivationParams>(graph, index);
  return activation && activation.params->groups == 1 ? activation : Step<ActivationParams>();
}

std::optional<ProjectionChain> match_projection(const Graph& graph, const Uses& uses, int index) {
  const auto linear = step_as<GemmParams>(graph, index);
  if (!can_fuse(linear)) return {};
  ProjectionChain chain;
  chain.linear = index;
  const Value x = linear.node->reads().front(), product = linear.node->writes().front();
  const int reader = can_continue(linear) ? only_reader(graph, uses, product) : -1;
  const Step<ActivationParams> activation = activation_of(graph, reader);
  const auto prologue = step_as<AttentionPrologueParams>(graph, reader);
  chain.last = activation || prologue ? reader : index;

  Step<NormParams> norm;
  const int before = uses.writer_of(x);
  if (const auto found = step_as<NormParams>(graph, before); can_fuse(found) && only_reader(graph, uses, x) == index) {
    if (!is_written_between(graph, found.node->reads().front(), before, chain.last)) norm = found, chain.norm = before;
  }
  const Value from = (norm ? norm.node : linear.node)->reads().front();
  if (is_written_between(graph, from, norm ? before : index, chain.last)) return {};
  if (graph.info(from).base) return {};

  if (prologue) {
    std::optional<Node> node = qkv_node(graph, norm, linear, prologue);
    if (!node) return {};
    chain.fused = std::move(*node);
    return chain;
  }
  if (!norm && !activation && !step_as<AllReduceParams>(graph, reader)) return {};
  chain.fused = activated_node(graph, uses, norm, linear, activation);
  return chain;
}

// Matches the projection of q, k and v and the prologue, or that of gate and up and the activation, whatever is before them.
std::optional<ProjectionChain> match_of_prompt(const Graph& graph, const Uses& uses, int index) {
  const auto linear = step_as<GemmParams>(graph, index);
  if (!can_continue(linear) || linear.params->packed.num_segments > 0) return {};  // packed ones are separate operations
  const Value x = linear.node->reads().front();
  const int reader = only_reader(graph, uses, linear.node->writes().front());
  if (reader < 0 || is_written_between(graph, x, index, reader) || graph.info(x).base) return {};
  if (const auto prologue = step_as<AttentionPrologueParams>(graph, reader)) {
    std::optional<Node> node = qkv_node(graph, {}, linear, prologue);
    if (!node) return {};
    return ProjectionChain{-1, index, reader, std::move(*node)};
  }
  const Step<ActivationParams> activation = activation_of(graph, reader);
  if (!activation || !activation.params->gated) return {};
  return ProjectionChain{-1, index, reader, activated_node(graph, uses, {}, linear, activation)};
}

// Replaces every chain that `match` finds by one node, where its last one was.
template <class Match>
Graph fuse_chains(Graph graph, const Match& match) {
  const Uses uses(graph);
  std::vector<bool> removed(graph.nodes.size(), false);
  std::vector<std::optional<Node>> fused(graph.nodes.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    std::optional<ProjectionChain> chain = match(graph, uses, static_cast<int>(n));
    if (!chain) continue;
    for (const int gone : {chain->norm, chain->linear, chain->last}) {
      if (gone >= 0) removed[static_cast<size_t>(gone)] = true;
    }
    fused[static_cast<size_t>(chain->last)] = std::move(chain->fused);
  }
  Graph result;
  result.values = std::move(graph.values);
  result.output = graph.output;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (fused[n]) {
      result.nodes.push_back(std::move(*fused[n]));
    } else if (!removed[n]) {
      result.nodes.push_back(std::move(graph.nodes[n]));
    }
  }
  return result;
}

Graph fuse(Graph graph) {
  fuse_residuals(graph, true);
  select_before_norms(graph);
  graph = fuse_chains(std::move(graph), match_projection);
  signal_one_token(graph);
  return graph;
}

}  // namespace

Result<Graph> fuse_projections(const Graph& graph) {
  return catch_out_of_memory([&]() -> Result<Graph> { return fuse(graph); });
}

Result<Graph> fuse_prompt_projections(const Graph& graph) {
  return catch_out_of_memory([&]() -> Result<Graph> {
    Graph fused = graph;
    fuse_residuals(fused, false);
    return fuse_chains(std::move(fused), match_of_prompt);
  });
}

}  // namespace prologue
