// The optimisation, apart from the mathematics: graph in, equivalent graph out.
#pragma once

#include <prologue/layers/graph/graph.h>

namespace prologue {

// Rewrites every
//     qkv -> [add_bias] -> (q, k, v) -> rope(q), rope(k) -> kv_write(k, v)
// into ONE attention_prologue node. A chain is left as it is when one of its inner values is read by anything else, or when
// its two rotations differ. In float32 the fused graph gives the same bits.
PROLOGUE_API Graph fuse_attention_prologue(const Graph& graph);

}  // namespace prologue
