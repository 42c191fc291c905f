#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <utility>

#include <prologue/layers/graph/print.h>

namespace prologue {

namespace {

// A view is printed as columns of its base, because no node writes the view itself.
std::string name_of(const Graph& graph, Value value) {
  const ValueInfo& info = graph.info(value);
  if (!info.base) return info.name;
  return str_cat(graph.info(info.base).name, "[", info.base_column, ":", info.base_column + info.width, "]");
}

std::string describe(const Graph& graph, Value value) {
  const ValueInfo& info = graph.info(value);
  return str_cat(name_of(graph, value), " [", info.rows == Rows::tokens ? "tokens" : "logits", ", ", info.width, "] ",
                 dtype_name(info.dtype));
}

// Returns the cache of a layer, if the node uses it so.
std::string cache_text(const Node& node, Binding::To use) {
  const Binding* cache = node.cache_binding();
  return cache != nullptr && cache->to == use ? str_cat("cache[", cache->index, "]") : "";
}

void add(std::string& list, const std::string& text) {
  if (!text.empty()) list += (list.empty() ? "" : ", ") + text;
}

// Returns the formats of packed rows: " q4_1", or " q4_k + q6_k" if the segments differ.
std::string formats_text(const Weight& weight) {
  std::string text;
  for (int32_t s = 0; s < weight.packed.num_segments; ++s) {
    if (s > 0 && weight.packed.segments[s].format == weight.packed.segments[s - 1].format) continue;
    text += str_cat(s == 0 ? " " : " + ", weight_format_name(weight.packed.segments[s].format));
  }
  return text;
}

std::string reads_text(const Graph& graph, const Node& node) {
  std::string text;
  for (const Value value : node.reads()) add(text, name_of(graph, value));
  add(text, cache_text(node, Binding::To::cache_read));
  for (const Binding& each : node.bindings) {
    if (each.to == Binding::To::array) add(text, str_cat("step.", step_member(static_cast<StepArray>(each.index)).name));
  }
  for (const Weight& weight : node.weights) {
    add(text, str_cat("weight [", weight.rows, ", ", weight.cols, "]", formats_text(weight)));
  }
  return text;
}

std::string writes_text(const Graph& graph, const Node& node) {
  std::string text;
  for (const Value value : node.writes()) add(text, describe(graph, value));
  add(text, cache_text(node, Binding::To::cache_write));
  return text;
}

// print() looks for numbers of tokens at which something changes, up to this one.
constexpr int64_t kMostTokensToNote = 64;

// Returns what a node does beyond its operation, " (window 4096, sinks)".
std::string options_text(const Graph& graph, size_t n) {
  const Node& node = graph.nodes[n];
  std::string text;
  if (begins_early(graph, n, 2)) {
    add(text, "begins early");
  } else if (begins_early(graph, n, 1)) {
    int64_t many = 2;
    while (many <= kMostTokensToNote && !begins_early(graph, n, many)) ++many;
    add(text,
        many <= kMostTokensToNote ? str_cat("begins early at one token, and from ", many, " on") : "begins early at one token");
  }
  if (const auto* attention = std::get_if<PagedAttentionParams>(&node.parameters)) {
    if (attention->window > 0) add(text, str_cat("window ", attention->window));
    if (attention->chunk > 0) add(text, str_cat("chunk ", attention->chunk));
    if (attention->soft_cap > 0.0f) add(text, str_cat("soft cap ", attention->soft_cap));
    if (attention->sinks != nullptr) add(text, "sinks");
  }
  add(text, node.remark);
  return text.empty() ? "" : " (" + text + ")";
}

using Row = std::array<std::string, 4>;  // node, operation, reads, writes

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

// Holds the rows of one layer, or of no layer (-1). The layer's number is replaced by N.
struct LayerRow {
  int64_t layer = -1;
  Row row;
};

LayerRow without_layer_number(Row row) {
  constexpr std::string_view kPrefix = "layers.";
  const std::string& name = row[0];
  if (name.rfind(kPrefix, 0) != 0) return {-1, std::move(row)};
  int64_t layer = -1;
  const char* end = std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), layer).ptr;
  if (layer < 0 || *end != '.') return {-1, std::move(row)};
  for (std::string& cell : row) {
    replace_all(cell, str_cat("layers.", layer, "."), "layers.N.");
    replace_all(cell, str_cat("layers.", layer - 1, "."), "layers.N-1.");
    replace_all(cell, str_cat("cache[", layer, "]"), "cache[N]");
  }
  return {layer, std::move(row)};
}

// Returns "0-2,5" for {0, 1, 2, 5}.
std::string ranges(const std::vector<int64_t>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const size_t first = i;
    while (i + 1 < numbers.size() && numbers[i + 1] == numbers[i] + 1) ++i;
    text += str_cat(text.empty() ? "" : ",", numbers[first]);
    if (i > first) text += str_cat("-", numbers[i]);
  }
  return text;
}

// In consecutive layers whose nodes have the same names, equal rows become one row, where the first was. A row of only one layer
// keeps its number.
std::vector<Row> fold(const std::vector<Row>& rows) {
  std::vector<LayerRow> numbered;
  for (const Row& row : rows) numbered.push_back(without_layer_number(row));
  const auto end_of_layer = [&](size_t begin) {
    size_t end = begin;
    while (end < numbered.size() && numbered[end].layer == numbered[begin].layer) ++end;
    return end;
  };
  std::vector<Row> folded;
  for (size_t begin = 0; begin < rows.size();) {
    if (numbered[begin].layer < 0) {
      folded.push_back(rows[begin++]);
      continue;
    }
    const size_t num_roles = end_of_layer(begin) - begin;
    const auto is_alike = [&](size_t at) {
      if (at >= rows.size() || numbered[at].layer < 0 || end_of_layer(at) - at != num_roles) return false;
      for (size_t i = 0; i < num_roles; ++i) {
        if (numbered[at + i].row[0] != numbered[begin + i].row[0]) return false;
      }
      return true;
    };
    size_t end = begin + num_roles;
    while (is_alike(end)) end += num_roles;
    for (size_t role = 0; role < num_roles; ++role) {
      std::vector<bool> is_printed(rows.size(), false);
      for (size_t at = begin + role; at < end; at += num_roles) {
        if (is_printed[at]) continue;
        std::vector<int64_t> layers;
        for (size_t other = at; other < end; other += num_roles) {
          if (numbered[other].row != numbered[at].row) continue;
          is_printed[other] = true;
          layers.push_back(numbered[other].layer);
        }
        Row row = layers.size() > 1 ? numbered[at].row : rows[at];
        replace_all(row[0], "layers.N.", str_cat("layers.", ranges(layers), "."));
        folded.push_back(std::move(row));
      }
    }
    begin = end;
  }
  return folded;
}

}  // namespace

std::string graph_table(const Graph& graph, bool fold_layers) {
  std::vector<Row> rows;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    std::string kind = node.kind;
    if (!node.fused_from.empty()) kind += " = " + node.fused_from;
    rows.push_back({node.name, kind + options_text(graph, n), reads_text(graph, node), writes_text(graph, node)});
  }
  if (fold_layers) rows = fold(rows);
  rows.insert(rows.begin(), {"node", "operation", "reads", "writes"});
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
  std::vector<std::pair<std::string, int>> cache_writers;
  for (int n = 0; n < static_cast<int>(graph.nodes.size()); ++n) {
    const Node& node = graph.nodes[static_cast<size_t>(n)];
    text += str_cat("  n", n, " [label=\"", node.name, "\\n", node.kind, node.fused_from.empty() ? "" : "\\n= " + node.fused_from,
                    "\"];\n");
    for (const Value value : node.reads()) {
      const int from = writer[static_cast<size_t>(graph.storage_of(value).id)];
      if (from >= 0) text += str_cat("  n", from, " -> n", n, " [label=\"", name_of(graph, value), "\"];\n");
    }
    const std::string read_cache = cache_text(node, Binding::To::cache_read);
    for (const auto& [cache, from] : cache_writers) {
      if (cache == read_cache) text += str_cat("  n", from, " -> n", n, " [style=dashed, label=\"", cache, "\"];\n");
    }
    const std::string written_cache = cache_text(node, Binding::To::cache_write);
    if (!written_cache.empty()) cache_writers.emplace_back(written_cache, n);
    for (const Value value : node.writes()) writer[static_cast<size_t>(graph.storage_of(value).id)] = n;
  }
  return text + "}\n";
}

}  // namespace prologue
