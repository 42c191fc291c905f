// A graph for people: as a table of nodes, or in Graphviz's DOT language.
#pragma once

#include <string>

#include <prologue/layers/graph/graph.h>

namespace prologue {

PROLOGUE_API std::string graph_table(const Graph& graph);
PROLOGUE_API std::string graph_dot(const Graph& graph);

}  // namespace prologue
