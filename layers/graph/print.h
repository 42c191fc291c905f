// Prints a graph as a table of nodes, or in Graphviz's DOT language.
#pragma once

#include <string>

#include <prologue/layers/graph/graph.h>

namespace prologue {

// Returns one row per node. A view is printed as columns of the value that it is a part of: "layers.0.attention.qkv[0:576]". With
// fold_layers, nodes that are equal in several layers are one row, "layers.0-29.mlp.down". In it, N is the layer's number ("cache[N]") and
// N-1 is the number of the previous layer.
PROLOGUE_API std::string graph_table(const Graph& graph, bool fold_layers = false);
PROLOGUE_API std::string graph_dot(const Graph& graph);

}  // namespace prologue
