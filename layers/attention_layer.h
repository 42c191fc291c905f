// This is the attention layer over raw pointers. An engine with its own buffers calls it once per layer and step.
//
//   hidden_states [T, hidden_size]
//     -> q, and K and V in the pages of the cache             kernels/qkv_prologue: hidden_states qkv_weight^T and
//                                                             kernels/attention_prologue (bias, norm, rotation, store)
//     -> attention of the new tokens over the pages           kernels/paged_attention
//     -> out = attention output_weight^T (+ output_bias)      kernels/projection
//   out [T, hidden_size]
//
// It runs three operations on one stream. On Hopper in 16 bits the first is one kernel where that is faster (prompts, one token, and up to 64
// tokens with `overlaps`), otherwise a GEMM and the prologue; and the last one is a kernel that may begin beside attention (one token, and up
// to 64 of large matrices with `overlaps`), otherwise a GEMM. The layer does not allocate or synchronise, and it has no state. With
// attention.past_is_ready decoding begins beside the prologue: the caller promises that no sequence reads what another one writes in this
// step. The headers of the operations document the parameters that are passed through; docs/embedding.md explains a whole engine.
// (layers/attention.h builds the same layer in a model's graph.)
//
//   hidden_states  [T, hidden_size] dtype, rows hidden_stride >= hidden_size apart; T = prologue.num_tokens
//   qkv_weight     [num_q_heads * head_dim + num_kv_heads * (head_dim + v_head_dim), hidden_size] dtype, rows contiguous: the rows
//                  of q, then k, then v. If num_kv_heads = 0 (the layer reads another layer's cache): only the rows of q
//   output_weight  [hidden_size, num_q_heads * v_head_dim] dtype, rows contiguous
//   output_bias    [hidden_size] dtype, null = none. (The bias of qkv is prologue.bias.)
//   out            [T, hidden_size] dtype, rows out_stride >= hidden_size apart; may be hidden_states (same pointer and stride)
//   workspace      attention_layer_workspace_bytes bytes on the device, aligned to 64; scratch, contents undefined
//
// `prologue` and `attention` are the parameters of those two operations. The layer sets some of their members itself:
//   prologue   The layer sets q, k, v and q_out. q8_out, q_rope and k_rope are not supported. places describes the batch for both
//              operations: num_seqs, cu_seqlens_q, page_table and the lengths of the sequences are always needed, even where positions and
//              slot_mapping are given.
//   attention  The caller sets scale, max_seqlen_q, max_seq_len and every option of that operation. The layer sets num_tokens,
//              num_seqs, num_q_heads, head_dim, dtype, q, kv, page_table, cu_seqlens_q, out, workspace and faults; and seq_lens, if
//              it is null.
// One array of lengths is enough: prologue.places.seq_lens or attention.seq_lens, whichever is given, serves both operations, and so
// does prologue.places.page_table.kv_last_page_len. If prologue.places.cache_lens is given, the prologue takes that one, and
// attention.seq_lens must be given as well.
//
// An array that one of the operations writes (workspace, out, cache, scales of a cache, k_out, v_out, faults, token_faults)
// must not overlap any other array that one of them reads or writes. The only exception: out may be hidden_states.
//
// Everything is checked before the first launch: after an error nothing has run and nothing was written. Rows of `out` that belong
// to no sequence are undefined. Both operations may count the same skipped token (faults). T = 0 is a no-op. Numerics: those of the
// operations; qkv, q and the result of attention are rounded to dtype between them. Safe under graph capture.
#pragma once

#include <cstdint>

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/collective/communicator.h>
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
  // A step of few tokens may begin while the kernel before it in the stream runs, on GPUs from Hopper on. That kernel must not write
  // qkv_weight or output_weight, nor, with attention.past_is_ready, what attention reads besides this step's rows: lengths, page table, earlier
  // positions.
  bool overlaps = false;
  uint64_t reserved[7] = {};  // zeros: docs/versioning.md
};

// Returns the workspace size that is enough for every call whose num_tokens, num_seqs, max_seqlen_q and max_seq_len are not larger than
// these. Reads no pointer.
PROLOGUE_API Result<int64_t> attention_layer_workspace_bytes(const AttentionLayerParams& params, Device device);

// Create one `gemm_context` (kernels/gemm) per device, and one for each thread and stream that runs layers; reuse it in every call.
PROLOGUE_API Status attention_layer(const AttentionLayerParams& params, GemmContext& gemm_context, const Execution& execution);

// Does the same on one of several ranks (kernels/collective/communicator.h): the heads are those of this rank, qkv_weight has their rows and
// output_weight their columns, and the cache their K and V. What each rank multiplies is added up: out is the sum over all ranks, on every
// rank (all_reduce). out_stride is hidden_size, and output_bias is given to one rank only. num_tokens = 0 is a no-op on all ranks. After
// an error that only this rank has, call abort(): the others wait for its part.
PROLOGUE_API Status attention_layer_of_rank(const AttentionLayerParams& params, GemmContext& gemm_context, Communicator& communicator,
                                            const Execution& execution);

}  // namespace prologue
