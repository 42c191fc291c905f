// The fusions of a graph find out here who uses a value. Internal.
#pragma once

#include <variant>
#include <vector>

#include <prologue/layers/graph/graph.h>

namespace prologue {

// Holds the nodes that write and read each value, as node indices. The readers of a view do not include readers of its base.
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

// Points to a node of the graph whose parameters are a P.
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

}  // namespace prologue
