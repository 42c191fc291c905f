// Rewrites a graph into an equivalent, faster one.
#pragma once

#include <prologue/layers/graph/graph.h>

namespace prologue {

// Rewrites every chain of
//     qkv -> [bias] -> q, k, v
//     q -> [bias] -> [norm] and [rope] in either order -> [hadamard] -> [query_scale]
//     k -> [bias] -> [norm] and [rope] in q's order    -> [hadamard] -> kv_write
//     v or k -> [bias] -> [weightless rms norm]        -> [hadamard] -> kv_write
// into ONE attention_prologue node. A chain is not changed if one launch cannot replace it: another node reads an inner value, q and k
// have different norms, rotations or Hadamard transforms, or a step occurs twice or in another order.
//
// The fused graph matches the unfused one bit for bit: in float32 always, in 16-bit types with Rounding::per_step. (A token whose
// position is outside the table is a fault in both graphs. Its rows of q may differ, because a norm may follow the rotation.)
PROLOGUE_API Result<Graph> fuse_attention_prologue(const Graph& graph, Rounding rounding = Rounding::once);

// Rewrites the graph of steps of few tokens on CUDA, in which the launch is a good part of the time. Called after
// fuse_attention_prologue(), it rewrites
//   [norm] -> linear -> attention_prologue    into one qkv_prologue node
//   [norm] -> linear -> [activation]          into one projection node, if there is a norm or an activation, or all_reduce follows
//   linear -> add_norm                        into a projection node that adds to the residual, and a norm
//   all_reduce -> add_norm                    into an all_reduce node that adds to the residual, and a norm
//   norm -> select_rows                       into select_rows and the norm of what it selects, which lm_head then includes
// so that a layer of most models is five nodes, and what follows the layers two. A chain is not changed if another node reads an inner
// value, or if the norm is a LayerNorm or has a bias. The result differs from that of the other graph as two
// orders of one sum do (projection.h).
PROLOGUE_API Result<Graph> fuse_projections(const Graph& graph);

// Rewrites the graph of prompts on GPUs where has_qkv_gemm(). Called after fuse_attention_prologue(), it rewrites
//   linear -> attention_prologue     into one qkv_prologue node
//   linear -> a gated activation     into one projection node
// under the same conditions, if the weights are not packed, and
//   all_reduce -> add_norm           into an all_reduce node that adds to the residual, and a norm
PROLOGUE_API Result<Graph> fuse_prompt_projections(const Graph& graph);

}  // namespace prologue
