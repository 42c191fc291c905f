// The attention layer over raw pointers: what an engine with its own buffers calls once per layer and step.
//
//   hidden_states [T, hidden_size]
//     -> qkv = hidden_states qkv_weight^T                     kernels/gemm
//     -> q, and K and V in the pages of the cache             kernels/attention_prologue: bias, norm, rotation, store
//     -> attention of the new tokens over the pages           kernels/paged_attention
//     -> out = attention output_weight^T (+ output_bias)      kernels/gemm
//   out [T, hidden_size]
//
// Four operations on one stream, and nothing else: no allocation, no synchronisation, no state. Their headers are the contracts
// of the parameters that are passed through; docs/embedding.md walks through a whole engine. (layers/attention.h is the same layer
// as a node of a model's graph.)
//
//   hidden_states  [T, hidden_size] dtype, rows hidden_stride >= hidden_size apart; T = prologue.num_tokens
//   qkv_weight     [num_q_heads * head_dim + num_kv_heads * (head_dim + v_head_dim), hidden_size] dtype, rows contiguous: the rows
//                  of q, then k, then v. num_kv_heads = 0 (a layer that reads another layer's cache): the rows of q only
//   output_weight  [hidden_size, num_q_heads * v_head_dim] dtype, rows contiguous
//   output_bias    [hidden_size] dtype, null = none. (The bias of qkv is prologue.bias.)
//   out            [T, hidden_size] dtype, rows out_stride >= hidden_size apart; may be hidden_states (same pointer and stride)
//   workspace      attention_layer_workspace_bytes bytes on the device, aligned to 64; scratch, contents undefined
//
// `prologue` and `attention` are the parameters of those two operations, except for what the layer itself knows:
//   prologue   The layer sets q, k, v and q_out. q8_out is not supported. places describes the batch for both operations: num_seqs,
//              cu_seqlens_q, block_table, block_table_stride and max_pages_per_seq are always needed, even where positions and
//              slot_mapping are given.
//   attention  The caller sets scale, seq_lens, max_seqlen_q, max_seq_len and every option of that operation. The layer sets
//              num_tokens, num_seqs, num_q_heads, head_dim, dtype, q, kv, block_table and its sizes, cu_seqlens_q, out, workspace
//              and faults.
//
// Whatever one of the four operations writes (workspace, out, cache, scales of a cache, k_out, v_out, faults, token_faults) must
// overlap nothing else that any of them reads or writes; the only exception is out, which may be hidden_states.
//
// Everything is checked before the first launch: after an error nothing has run and nothing is written. Rows of `out` that belong
// to no sequence hold no result. A token that is skipped (faults) may be counted by both operations. T = 0 is a no-op. Numerics:
// those of the four operations; qkv, q and the attention's result are rounded to dtype in between. Safe under graph capture.
#pragma once

#include <cstdint>

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/gemm/gemm.h>
#include <prologue/kernels/paged_attention/paged_attention.h>

namespace prologue {

struct AttentionLayerParams {
  int64_t hidden_size = 0;
  const void* hidden_states = nullptr;
  int64_t hidden_stride = 0;
  const void* qkv_weight = nullptr;
  const void* output_weight = nullptr;
  const void* output_bias = nullptr;
  void* out = nullptr;
  int64_t out_stride = 0;

  AttentionPrologueParams prologue;
  PagedAttentionParams attention;

  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
};

// Enough for every call whose num_tokens, num_seqs, max_seqlen_q and max_seq_len are not larger than these. Looks at no pointer.
PROLOGUE_API Result<int64_t> attention_layer_workspace_bytes(const AttentionLayerParams& params, Device device);

// `gemm_context` (kernels/gemm): made once for the device by whoever owns the stream; one for each thread and stream
// that runs layers.
PROLOGUE_API Status attention_layer(const AttentionLayerParams& params, GemmContext& gemm_context, const Execution& execution);

}  // namespace prologue
