// Computes the norm before attention, the QKV projection and the attention prologue, in one launch if there are few tokens, and in one
// launch after the norm if there are many:
//
//   x = norm(hidden_states)                (optional)
//   qkv = x W^T                            the heads of q, then of k, then of v
//   attention_prologue(qkv)                bias, norms of heads, rotation, ... , K and V into the paged cache
//
//   hidden_states  [num_tokens, hidden_size] dtype, row stride hidden_stride >= hidden_size
//   norm           its weight (and bias) [hidden_size]; optional: norm.given = 0 means none
//   weight         [(num_q_heads + num_kv_heads) * head_dim + num_kv_heads * v_head_dim, hidden_size] dtype, rows contiguous;
//                  or packed rows (gemm.h)
//   prologue       all of it but q, k, v, q_rope and k_rope, which must be null; q_out or q8_out as there
//   workspace      qkv_prologue_workspace_bytes() bytes or more, on the device, aligned to 16; contents undefined
//
// No output may overlap an input. num_tokens = 0 is a no-op. Errors, guards and padding are those of attention_prologue.h; the rows of
// hidden_states of padding tokens are read, and must not make another token's result depend on them: they do not.
//
// Numerics. Separately: those of norm.h, gemm.h and attention_prologue.h, one after another. In one kernel of few tokens: x = round(h * w),
// the product is accumulated in float32 in an order that depends on the sizes and the number of tokens, multiplied by
// 1 / sqrt(mean(h^2) + eps) and rounded once to dtype, as the separate projection rounds; what follows is the prologue, bit for bit. In one
// kernel of many tokens the norm is the separate one, the product is accumulated in the order of k, and the rest is the same. So all differ
// as two orders of one sum do. With batch_invariant they are separate: gemm.h. Packed weights: projection.h (up to 16 tokens no weight
// is rounded; of one and two tokens x is, to whole numbers).
//
// The operation never allocates, synchronises or throws; on CUDA it can be captured into a graph.
#pragma once

#include <cstdint>

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/execution.h>
#include <prologue/kernels/gemm/gemm.h>
#include <prologue/kernels/projection/projection.h>

namespace prologue {

struct QkvPrologueParams {
  int64_t hidden_size = 0;
  const void* hidden_states = nullptr;
  int64_t hidden_stride = 0;  // must be hidden_size if there is a norm
  InputNorm norm;
  const void* weight = nullptr;
  PackedWeight packed = {};  // instead of `weight`
  AttentionPrologueParams prologue;
  bool batch_invariant = false;  // separate operations, whose bits for a token do not depend on the others
  // The launch may begin while the kernels before it in the stream run; they must not write `weight` or norm.weight. One kernel of few
  // tokens lets the launch after it begin as soon as it has begun itself, if that has a programmatic edge (paged_attention with
  // past_is_ready).
  bool overlaps = false;
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
  uint64_t reserved[8] = {};  // zeros: docs/versioning.md
};

// Returns the bytes of a workspace for calls with these sizes or fewer tokens. Sizes that validate() refuses need none.
PROLOGUE_API int64_t qkv_prologue_workspace_bytes(const QkvPrologueParams& params);

PROLOGUE_API Status validate(const QkvPrologueParams& params, const GemmContext& context, const Execution& execution);
PROLOGUE_API Status qkv_prologue(const QkvPrologueParams& params, GemmContext& context, const Execution& execution);

}  // namespace prologue
