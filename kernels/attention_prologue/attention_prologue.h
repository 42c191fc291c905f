// The attention prologue: everything between the QKV GEMM and attention, in one pass over the tokens.
//
// For token t, head h of Q and K (v has no rotation):
//   x      = in[t, h, :] + bias[h, :]                                     (where there is a bias)
//   a', b' = a cos - b sin, a sin + b cos    for each pair (a, b) of x[0 .. rotary_dim), cos and sin from row positions[t]
//   q -> q_out[t, h, :];   k, v -> slot slot_mapping[t] of the paged cache, in the cache's type
// Pair i is (x[i], x[i + rotary_dim/2]) in the neox style and (x[2i], x[2i+1]) in the interleaved one; channels
// [rotary_dim, head_dim) pass through. Definitions: docs/numerics.md.
//
//   q, k, v       [num_tokens, heads, head_dim] dtype, strided: three views, of one packed QKV buffer (set_packed_qkv) or apart
//   bias          q [num_q_heads * head_dim], k and v [num_kv_heads * head_dim] dtype, each null = none
//   cos_sin_cache [max_position, rotary_dim] float32: cos[0 .. rotary_dim/2) then sin[0 .. rotary_dim/2); any attention
//                 factor is already multiplied in. rotary_dim = 0 means no rotation: table and positions may then be null, and
//                 max_position = 0 then means that positions have no upper bound
//   positions     [num_tokens] int32 or int64: the rope position, which need not be the cache position
//   slot_mapping  [num_tokens] int64 or int32: page * page_size + offset. Two tokens must not share a slot
//   q_out         [num_tokens, num_q_heads, head_dim] dtype, strided; may be q itself (same pointer and strides); no
//                 other overlap
//   cache         (views.h); num_kv_heads and head_dim as here; must not overlap any input
//
// Guards: a negative slot skips the K/V write, Q is computed. A negative position is padding: nothing of the token is written,
// and what its rows hold does not matter (the GPU reads them before it knows). A position >= max_position: the Q row becomes
// zeros, K and V are not written, recorded. A slot >= num_slots: Q is written, K and V are not, recorded. Nothing outside the
// named rows and slots is ever touched.
// Numerics: float32 inside, each product and sum rounded once (no fused multiply-add), one rounding at each store; V without
// bias and equal types, and channels behind rotary_dim without bias, are copied bitwise. Batch-invariant: a token's result does
// not depend on the others. num_tokens = 0 is a no-op. Never allocates, synchronises or throws; safe under graph capture.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/execution.h>
#include <prologue/kernels/base/faults.h>
#include <prologue/kernels/base/views.h>

namespace prologue {

struct QkvBias {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
};

struct Rotation {
  RopeStyle style = RopeStyle::neox;
  int64_t rotary_dim = 0;
  const float* cos_sin_cache = nullptr;
  int64_t max_position = 0;
  IndexView positions;
};

struct AttentionPrologueParams {
  int64_t num_tokens = 0;
  int64_t num_q_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;  // even, 2..256
  DType dtype = DType::f32;

  HeadsView q;
  HeadsView k;
  HeadsView v;
  QkvBias bias;
  Rotation rotation;

  MutableHeadsView q_out;
  PagedKvView cache;  // cache.dtype = dtype
  IndexView slot_mapping;

  FaultRecord* faults = nullptr;
};

// Points q, k and v into one buffer [num_tokens, (num_q_heads + 2 * num_kv_heads) * head_dim] with the given row stride.
void set_packed_qkv(AttentionPrologueParams& params, const void* qkv, int64_t token_stride);

Status validate(const AttentionPrologueParams& params);
Status attention_prologue(const AttentionPrologueParams& params, const Execution& execution);

}  // namespace prologue
