// Rewrites a graph into an equivalent, faster one.
#pragma once

#include <prologue/layers/graph/graph.h>

namespace prologue {

// Rewrites every chain of
//     qkv -> [bias] -> q, k, v
//     q -> [bias] -> [norm] and [rope] in either order -> [hadamard] -> [query_scale]
//     k -> [bias] -> [norm] and [rope] in q's order    -> [hadamard] -> kv_write
//     v or k -> [bias] -> [weightless rms norm]                      -> kv_write
// into ONE attention_prologue node. A chain is not changed if one launch cannot replace it: another node reads an inner value, q and k
// have different norms, rotations or Hadamard transforms, or a step occurs twice or in another order.
//
// The fused graph matches the unfused one bit for bit: in float32 always, in 16-bit types with Rounding::per_step. (A token whose
// position is outside the table is a fault in both graphs. Its rows of q may differ, because a norm may follow the rotation.)
PROLOGUE_API Result<Graph> fuse_attention_prologue(const Graph& graph, Rounding rounding = Rounding::once);

}  // namespace prologue
