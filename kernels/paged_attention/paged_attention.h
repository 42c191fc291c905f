// Attention of new tokens over a paged KV cache that already holds them (the prologue wrote them): prefill, decode, or both
// in one batch. Causal, grouped-query.
//
// Sequence s owns the query rows [cu_seqlens_q[s], cu_seqlens_q[s+1]), n of them, the last n of its seq_lens[s] tokens. With
// j the index of a row in its sequence's rows, it attends to the cache positions p = 0 .. seq_lens[s] - n + j (inclusive),
// where position p lies in page block_table[s, p / page_size] at offset p % page_size, and q head h reads kv head
// h / (num_q_heads / num_kv_heads):
//
//   out[t, h, :] = sum_p softmax_p(scale * <q[t, h, :], K[p]>) V[p]
//
//   q             [T, num_q_heads, head_dim] dtype, strided; T = cu_seqlens_q[num_seqs] <= num_tokens; rows past it are padding
//   kv            one layer's cache (views.h); kv.head_dim = head_dim; kv.type = dtype, v_head_dim = head_dim, no scaling
//   block_table   [num_seqs, max_pages_per_seq] int32, row stride block_table_stride; entries past a sequence's pages are not read
//   cu_seqlens_q  [num_seqs + 1] int32, non-decreasing, starts at 0; a sequence without rows is allowed
//   seq_lens      [num_seqs] int32, tokens in the cache AFTER the append
//   out           [T, num_q_heads, head_dim] dtype, strided; must not overlap q or the cache; padding rows are not written
//   max_seqlen_q  host upper bound of the rows of a sequence;  max_seq_len  host upper bound of seq_lens (both shape the launch
//                 and must hold for every replay of a captured graph)
//
// Guards: a seq_lens entry larger than max_pages_per_seq * page_size or max_seq_len records sequence_too_long, a needed
// block_table entry outside [0, num_pages) records page_out_of_range (token = the query row); such rows are written as zeros.
// A row that attends to nothing (seq_lens < its rows) is zeros.
// Numerics: float32 scores, softmax and sums (16-bit inputs on CUDA prefill may use tensor cores with float32 accumulation and
// probabilities rounded to dtype before the second product); one rounding at the store. Decode may split a sequence over the
// workspace: not batch-invariant, still deterministic.
// num_tokens = 0 or num_seqs = 0 is a no-op. Allocates and synchronises nothing; safe under graph capture.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/execution.h>
#include <prologue/kernels/base/faults.h>
#include <prologue/kernels/base/views.h>

namespace prologue {

struct PagedAttentionParams {
  int64_t num_tokens = 0;
  int64_t num_seqs = 0;
  int64_t num_q_heads = 0;
  int64_t head_dim = 0;
  DType dtype = DType::f32;
  float scale = 0.0f;  // usually 1 / sqrt(head_dim)
  HeadsView q;
  PagedKvView kv;
  const int32_t* block_table = nullptr;
  int64_t block_table_stride = 0;
  int64_t max_pages_per_seq = 0;
  const int32_t* cu_seqlens_q = nullptr;
  const int32_t* seq_lens = nullptr;
  int64_t max_seqlen_q = 0;
  int64_t max_seq_len = 0;
  MutableHeadsView out;
  void* workspace = nullptr;  // device scratch of paged_attention_workspace_bytes; null where that is 0
  int64_t workspace_bytes = 0;
  FaultRecord* faults = nullptr;
};

// Upper bound for every call whose num_tokens, num_seqs, max_seqlen_q and max_seq_len are not larger than these (the CPU needs none).
PROLOGUE_API int64_t paged_attention_workspace_bytes(const PagedAttentionParams& params, Device device);

// Every check of paged_attention(), and nothing else.
PROLOGUE_API Status validate(const PagedAttentionParams& params, Device device);
PROLOGUE_API Status paged_attention(const PagedAttentionParams& params, const Execution& execution);

}  // namespace prologue
