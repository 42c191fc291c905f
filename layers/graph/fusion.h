// The optimisation, apart from the mathematics: graph in, equivalent graph out.
#pragma once

#include <prologue/layers/graph/graph.h>

namespace prologue {

// Rewrites every chain of
//     qkv -> [bias] -> q, k, v
//     q -> [bias] -> [norm] and [rope] in either order -> [query_scale]
//     k -> [bias] -> [norm] and [rope] in q's order   -> kv_write
//     v or k -> [bias] -> [weightless rms norm]       -> kv_write
// into ONE attention_prologue node. A chain is left as it is where one launch cannot do it: an inner value is read by anything
// else, q and k are normed or turned differently, a step comes twice or in another order.
//
// The fused graph gives the bits of the unfused one: in float32 always, in 16-bit types with Rounding::per_step. (Tokens whose
// position lies outside the table are faults in both, and their rows of q are not compared: norms may follow the rotation.)
PROLOGUE_API Result<Graph> fuse_attention_prologue(const Graph& graph, Rounding rounding = Rounding::once);

}  // namespace prologue
