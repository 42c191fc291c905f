#include <algorithm>
#include <array>

#include <prologue/layers/graph/print.h>

namespace prologue {

namespace {

std::string describe(const Graph& graph, Value value) {
  const ValueInfo& info = graph.info(value);
  return str_cat(info.name, " [", info.rows == Rows::tokens ? "tokens" : "logits", ", ", info.width, "] ",
                 dtype_name(info.dtype));
}

template <class Item, class Text>
std::string join(const std::vector<Item>& items, Text text) {
  std::string joined;
  for (const Item& item : items) joined += (joined.empty() ? "" : ", ") + text(item);
  return joined;
}

std::string reads_text(const Graph& graph, const NodeFacts& facts) {
  std::string text = join(facts.reads, [&](Value value) { return graph.info(value).name; });
  for (const char* input : facts.step_inputs) text += str_cat(text.empty() ? "" : ", ", "step.", input);
  for (const Weight& weight : facts.weights)
    text += str_cat(text.empty() ? "" : ", ", "weight [", weight.rows, ", ", weight.cols, "]");
  return text;
}

std::string writes_text(const Graph& graph, const NodeFacts& facts) {
  std::string text = join(facts.writes, [&](Value value) { return describe(graph, value); });
  const bool reads_cache = std::string(facts.kind) == "paged_attention";
  if (facts.cache_layer >= 0 && !reads_cache) text += str_cat(text.empty() ? "" : ", ", "cache[", facts.cache_layer, "]");
  return text;
}

}  // namespace

std::string graph_table(const Graph& graph) {
  using Row = std::array<std::string, 4>;
  std::vector<Row> rows = {{"node", "operation", "reads", "writes"}};
  for (const Node& node : graph.nodes) {
    const NodeFacts facts = facts_of(node.operation);
    std::string kind = facts.kind;
    if (!node.fused_from.empty()) kind += " = " + node.fused_from;
    if (*facts.remark != 0) kind += str_cat(" (", facts.remark, ")");
    rows.push_back({node.name, kind, reads_text(graph, facts), writes_text(graph, facts)});
  }
  std::array<size_t, 4> widths = {};
  for (const Row& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const Row& row : rows) {
    for (size_t c = 0; c + 1 < row.size(); ++c) text += row[c] + std::string(widths[c] - row[c].size() + 2, ' ');
    text += row.back() + "\n";
  }
  return text + str_cat(graph.nodes.size(), " nodes\n");
}

std::string graph_dot(const Graph& graph) {
  std::string text = "digraph prologue {\n  rankdir=TB;\n  node [shape=box, fontname=\"monospace\"];\n";
  std::vector<int> writer(graph.values.size(), -1);  // the last node so far that wrote the value's memory
  std::vector<std::pair<int64_t, int>> cache_writers;
  for (int n = 0; n < static_cast<int>(graph.nodes.size()); ++n) {
    const Node& node = graph.nodes[static_cast<size_t>(n)];
    const NodeFacts facts = facts_of(node.operation);
    text += str_cat("  n", n, " [label=\"", node.name, "\\n", facts.kind,
                    node.fused_from.empty() ? "" : "\\n= " + node.fused_from, "\"];\n");
    for (const Value value : facts.reads) {
      const int from = writer[static_cast<size_t>(graph.storage_of(value).id)];
      if (from >= 0) text += str_cat("  n", from, " -> n", n, " [label=\"", graph.info(value).name, "\"];\n");
    }
    if (std::holds_alternative<PagedAttentionOp>(node.operation)) {
      for (const auto& [layer, from] : cache_writers) {
        if (layer == facts.cache_layer)
          text += str_cat("  n", from, " -> n", n, " [style=dashed, label=\"cache[", layer, "]\"];\n");
      }
    } else if (facts.cache_layer >= 0) {
      cache_writers.emplace_back(facts.cache_layer, n);
    }
    for (const Value value : facts.writes) writer[static_cast<size_t>(graph.storage_of(value).id)] = n;
  }
  return text + "}\n";
}

}  // namespace prologue
