// The attention prologue does everything between the QKV GEMM and attention, in one pass over the tokens and one launch.
//
// For token t and head h (each step is optional):
//   Q, K:  x = in[t, h, :] + bias[h, :]
//          x = norm(x)                                  before the rotation ...
//          (a, b) = (a cos - b sin, a sin + b cos)      for each pair of the rotated channels
//          x = norm(x)                                  ... or after it
//          x = H x / sqrt(hadamard_block)               for each block of channels; the products of Q and K stay what they are
//          Q: x = x * q_scale(position);  K: x = x * k_constant
//   V:     x = in[t, h, :] + bias[h, :];  x = rms(x);  x = H x / sqrt(v_hadamard_block);  x = x * v_constant
//   Q    -> q_out[t, h, :], or q8_out with a scale
//   K, V -> the token's slot of the paged cache, quantised to the cache's type; and k_out, v_out if given (rounded to dtype, not
//           quantised)
// A call may have other groups of heads besides Q, K and V, in the same launch (HeadGroup): the heads of an indexer, or a gate.
// Definitions, formulas and bounds: docs/numerics.md. Every pointer is on the operation's device. Strides count elements.
//
//   q, k, v  [num_tokens, heads, head_dim] dtype: three views of one packed buffer (set_packed_qkv), or three buffers. V may have
//            its own head_dim (cache.v.head_dim). For models that take V from K (Gemma 4), set v = k and bias.v = bias.k
//   q_rope, k_rope
//            [num_tokens, heads, rotary_dim] dtype; null = q and k have whole heads. If given, the rotated channels come from there,
//            and q (k) is [num_tokens, heads, head_dim - rotary_dim]: the others, in order. The rotated channels must then be the
//            first or the last of the head, but not all. A head_stride of 0 is one head for all (DeepSeek's k_pe)
//   bias     q [num_q_heads * head_dim], k [num_kv_heads * head_dim], v [num_kv_heads * v_head_dim] dtype; each null = none
//   rope     source table, per_token or inv_freq. cos and sin: float32, float16 or bfloat16, widened exactly; width half, any
//            row_stride, column_stride 1. inv_freq: float32
//   q_out    [num_tokens, num_q_heads, head_dim] dtype; may be q itself (same pointer and strides) if there is no q_rope; no other
//            overlap
//   k_out    [num_tokens, num_kv_heads, head_dim] dtype, v_out [.., v_head_dim]; may be k (if there is no k_rope) and v themselves.
//            Written for every token that is not padding, whatever its slot
//   cache    see PagedKvView in views.h. cache.k.data (cache.v.data) null: K (V) is written only to k_out (v_out)
//   Which of Q, K and V there are: num_kv_heads = 0: only Q. num_q_heads = 0: no Q. k.data null: no K. v.data null: no V
//
// Guards. Nothing outside the named rows and slots is touched. Two tokens must not share a slot.
//   padding            a given position that is negative on any axis; or, if anything is derived, a token at or past
//                      cu_seqlens_q[num_seqs]: nothing of the token is written, and its input rows may hold anything
//   negative slot      K and V are not written to the cache. Everything else is done. The same holds for a token at or past
//                      slot_mapping_len, which has no slot
//   past the table     a position >= max_position on any axis; rope.past_table decides:
//     record           the rows of q_out, k_out and v_out become zeros (q8_out: zeros with scale 0), the cache is not written,
//                      and the fault is recorded. `faults` must not be null
//     zero             the same zeros, and recorded only if `faults` is given
//     identity         the token's rows are not rotated. Everything else is done. Nothing is recorded
//   bad derived value  a derived position that is negative, or that int64 cannot hold: as `record`
//   bad slot           slot >= num_slots (slot_out_of_range), an entry of the page table outside [0, num_pages)
//                      (page_out_of_range), or a cache position that is negative or beyond the sequence's pages
//                      (sequence_too_long): everything except the cache is written, and the fault is recorded
//   bad page table     a sequence whose entries of kv_indptr are bad has no pages. If its length should come from
//                      kv_last_page_len and these entries are bad, or its last page is not 1..page_size tokens long, then what
//                      is derived from its length is bad: its positions, and its cache positions as if they were negative
//
// Quantisation: the rules are those of KvFormat in views.h. A float cache may have a type other than dtype.
//
// Numerics.
//   Arithmetic is float32. The rotation is a rounded product and a fused multiply-add a channel (docs/numerics.md).
//   Rounding::once rounds only at the stores. Rounding::per_step also rounds where the unfused stages store: after bias, norm,
//   rotation, Hadamard transform, Q scale and the constants of K and V. So fused and unfused agree bit for bit in 16-bit types too.
//   The squares of a norm and the sums of the Hadamard transform must fit float32. Values that no step changes are copied bitwise.
//   Batch-invariant.
//
// num_tokens = 0 is a no-op. The operation never allocates, synchronises or throws, and is safe under graph capture.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/execution.h>
#include <prologue/kernels/base/faults.h>
#include <prologue/kernels/base/norm_kind.h>
#include <prologue/kernels/base/rope.h>
#include <prologue/kernels/base/views.h>

namespace prologue {

struct QkvBias {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
};

enum class NormPlacement : int32_t { none = 0, before_rope, after_rope };
enum class NormScope : int32_t { head = 0, token };  // token: one norm over all heads of the token (OLMo 2); rms only

// Describes the norm of each head of one of Q, K and V; each of them has its own.
//   rms:    x / sqrt(mean(x^2) + eps) * (weight_offset + w)
//   layer:  (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * (weight_offset + w) + b
struct HeadNorm {
  NormPlacement placement = NormPlacement::none;
  NormKind kind = NormKind::rms;
  NormScope scope = NormScope::head;
  float eps = 1e-6f;
  float weight_offset = 0.0f;        // 1 for Gemma, whose model files hold w - 1
  const void* weight = nullptr;      // null = no weight: x is multiplied by 1
  int64_t weight_head_stride = 0;    // 0: one [head_dim] for all heads; head_dim: [heads, head_dim]
  const void* bias = nullptr;        // layer only; same stride as the weight
  DType weight_type = DType::unset;  // of weight and bias: dtype (unset means that) or float32
  uint64_t reserved[2] = {};         // zeros: docs/versioning.md
};

// Tells the position and slot of each token: they are given, or derived in the kernel from arrays that a step of attention needs too.
struct TokenPlaces {
  // These are given: positions [num_axes, num_tokens], with row stride position_axis_stride (0: one row for all axes), and slot_mapping
  // [slot_mapping_len], the slots of the first slot_mapping_len tokens (0: of all of them). Positions may be null (and cu_seqlens_q too) if
  // nothing needs them: no table, no inv_freq, no q_scale.by_position. Then all positions count as 0.
  IndexView positions;
  int64_t position_axis_stride = kUnsetStride;  // must be set if num_axes > 1
  IndexView slot_mapping;
  int64_t slot_mapping_len = 0;

  // What is not given is derived, if cu_seqlens_q is not null. Token t with cu_seqlens_q[s] <= t < cu_seqlens_q[s+1] is number
  // j = t - cu_seqlens_q[s] of sequence s. Its cache position is p = cache_lens[s] + j, or seq_lens[s] - n + j, where n is the
  // sequence's number of tokens, cu_seqlens_q[s+1] - cu_seqlens_q[s]. Exactly one of cache_lens, seq_lens and
  // page_table.kv_last_page_len must be given; from the last follows what seq_lens would be, if there is no ring.
  //   position = p + position_offsets[s] (or [0]), the same on all axes; position_offsets null: p
  //   slot = page * page_size + r % page_size, where page is entry r / page_size of the sequence in page_table (PageTable in
  //          views.h), and r = p % ring_size (ring_size = 0: r = p)
  // If several tokens of a step share a slot of the ring, only the last is written: token t is not if t + ring_size <
  // cu_seqlens_q[s+1].
  int64_t num_seqs = 0;
  const int32_t* cu_seqlens_q = nullptr;  // [num_seqs + 1], non-decreasing from 0
  const int32_t* cache_lens = nullptr;    // [num_seqs]: tokens in the cache BEFORE this step
  const int32_t* seq_lens = nullptr;      // [num_seqs]: tokens AFTER this step's were added, as paged_attention takes them
  PageTable page_table;
  int64_t ring_size = 0;  // tokens
  IndexView position_offsets;
  int32_t position_offset_per_seq = 0;
  uint64_t reserved[4] = {};  // zeros: docs/versioning.md
};

enum class PositionScale : int32_t { none = 0, llama4, logn };

// Q is multiplied by constant * f(position):
//   llama4: f = 1 + a * log(1 + floor((position + 1) / b));  logn: f = max(1, log(position + 1) / log(b))
// The position is that on axis 0. llama4: the quotient is rounded to float32. logn: b > 1.
struct QueryScale {
  float constant = 1.0f;
  PositionScale by_position = PositionScale::none;
  float a = 0.0f;
  float b = 1.0f;
  uint64_t reserved[2] = {};  // zeros: docs/versioning.md
};

// Stores Q as fp8 (x / scale) instead of q_out, which is then null. A scale per token and head is computed (amax / 448 for e4m3,
// amax / 57344 for e5m2).
struct QuantizedQuery {
  void* data = nullptr;  // [num_tokens, num_q_heads, head_dim] bytes; null = q_out is written instead
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  KvScaling scaling = KvScaling::tensor;  // tensor or token_head
  float* scale = nullptr;                 // [1], or [num_tokens, num_q_heads]
  DType type = DType::unset;              // fp8_e4m3 (unset means that) or fp8_e5m2
  uint64_t reserved[2] = {};              // zeros: docs/versioning.md
};

enum class Rounding : int32_t { once = 0, per_step };

enum class HeadActivation : int32_t { none = 0, sigmoid };  // sigmoid: 1 / (1 + exp(-x))

inline constexpr int64_t kMaxHeadGroups = 4;  // of a call, besides Q, K and V

// Describes other heads that a call computes in the same launch: those of an indexer, or a gate. For token t and head h (each step is optional):
//   x = in[t, h, :] + bias[h, :];  norm, before or after the rotation;  rotation;  Hadamard transform;  x = x * constant;  x = activation(x)
//   x -> out[t, h, :], or q8_out with a scale; and the token's slot of `cache`, quantised to the cache's type
// Positions, slots, faults and rounding are those of the call. The guards of the operation hold for a group as if it were a call of its own
// with its heads as Q (out, q8_out) and as K (cache): past the table is what is past that of its own `rope`. A token's fault is recorded
// once: that of Q, K and V, otherwise that of the first group that has one.
// A gate is a group without norm and rope. Packed rows [q | gate] of each head are two views whose head_stride is 2 * head_dim.
struct HeadGroup {
  HeadsView in;                // [num_tokens, num_heads, head_dim] dtype
  int64_t num_heads = 0;       // 1..65536
  int64_t head_dim = 0;        // 1..1024 (kMaxHeadDim); even, if there is a norm, a rotation, or a cache of 4 bits
  const void* bias = nullptr;  // [num_heads * head_dim] dtype; null = none
  HeadNorm norm;               // of each head; its scope must be head
  // Whether and how heads are rotated: an array of cos and sin, a bound on positions and a past_table of its own. num_axes is 1..rope.num_axes
  // of the call: the first axes of its positions. A bound without a rotation is one, too, as in the rope of the call.
  Rope rope;
  int64_t hadamard_block = 0;  // as that of the call
  float constant = 1.0f;       // finite and not 0
  HeadActivation activation = HeadActivation::none;
  MutableHeadsView out;   // [num_tokens, num_heads, head_dim] dtype; may be `in` itself (all strides equal); null = not wanted
  QuantizedQuery q8_out;  // fp8 in place of `out` and of the cache, then null; computed scales: [num_tokens, num_heads]
  // [num_pages, page_size, num_heads, head_dim] in any format of K; null data = not cached. cache.head_dim is 0 or head_dim. The slot of a
  // token is that of the call; it is at offset slot % page_size of page slot / page_size.
  PagedHeads cache;
  int64_t num_pages = 0;      // 0 = that of the call's cache; num_pages * page_size must be at least as large as there
  int64_t page_size = 0;      // 0 = that of the call's cache; otherwise 1..2^20
  uint64_t reserved[6] = {};  // zeros: docs/versioning.md
};

struct AttentionPrologueParams {
  int64_t num_tokens = 0;
  int64_t num_q_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;  // even, 2..1024 (kMaxHeadDim); so is that of V
  DType dtype = DType::unset;

  HeadsView q;
  HeadsView k;
  HeadsView v;
  HeadsView q_rope;  // null = not apart
  HeadsView k_rope;
  QkvBias bias;
  HeadNorm q_norm;
  HeadNorm k_norm;  // Q and K have norms of their own, which may differ in everything; or only one of them has any
  HeadNorm v_norm;  // rms over a head, without weight and bias (Gemma 4)
  Rope rope;
  TokenPlaces places;
  // If it is not 0, Q and K get a Hadamard transform over so many channels: a power of two in 2..512 that divides head_dim. It spreads
  // large channels, so that a quantised K loses less. Each block of so many adjacent channels of each head, rotated or not, is multiplied
  // by Sylvester's Hadamard matrix (natural order) / sqrt(hadamard_block):
  //   (x[c], x[c + d]) = (x[c] + x[c + d], x[c] - x[c + d])   for d = 1, 2, 4 .. hadamard_block / 2, channels c without the bit d
  //   x = x * (1 / sqrt(hadamard_block))
  // Each sum, the factor and the product are rounded to float32. It is a step like the others: k_out has it too.
  int64_t hadamard_block = 0;
  QueryScale q_scale;
  Rounding rounding = Rounding::once;

  MutableHeadsView q_out;
  QuantizedQuery q8_out;
  MutableHeadsView k_out;  // null = not wanted
  MutableHeadsView v_out;
  PagedKvView cache;

  FaultRecord* faults = nullptr;    // null only if positions have no bound, or rope.past_table is zero or identity
  uint8_t* token_faults = nullptr;  // [num_tokens]: a FaultCode is written for each faulty token; null = not wanted
  // K and V are multiplied by these, which are finite and not 0, as their last step: k_out and v_out have it, and the cache stores the
  // products. 1: nothing is multiplied.
  float k_constant = 1.0f;
  float v_constant = 1.0f;
  // [num_groups]: other heads of the same tokens. The array is on the host, and read during the call only. With groups there may be no Q, K
  // and V at all: num_q_heads and num_kv_heads are then 0, and so may head_dim be. If only groups are cached, cache.num_pages and
  // cache.page_size still say which slots there are.
  const HeadGroup* groups = nullptr;
  int64_t num_groups = 0;     // 0..4 (kMaxHeadGroups)
  // If it is not 0, V gets a Hadamard transform over so many channels, as Q and K do by hadamard_block: a power of two in 2..512 that divides
  // the channels of V. Attention's output is then transformed, too; the same transform of each of its heads (the stage hadamard) undoes it.
  int64_t v_hadamard_block = 0;
  uint64_t reserved[4] = {};  // zeros: docs/versioning.md
};

// Returns the channels of a head of V.
constexpr int64_t v_head_dim(const AttentionPrologueParams& params) {
  return params.cache.v.head_dim > 0 ? params.cache.v.head_dim : params.head_dim;
}

// Sets q, k and v to one packed buffer [num_tokens, (num_q_heads + num_kv_heads) * head_dim + num_kv_heads * v_head_dim] whose
// row stride is token_stride elements. The sizes, dtype and cache.v.head_dim of `params` must be set before. Without head_dim or
// dtype the strides of the three are left unset, and a side without heads is null: the operation is then an error.
// A buffer of q and k alone, [num_tokens, (num_q_heads + num_kv_heads) * head_dim], with V taken from K: set v = k after this call.
PROLOGUE_API void set_packed_qkv(AttentionPrologueParams& params, const void* qkv, int64_t token_stride);

PROLOGUE_API Status validate(const AttentionPrologueParams& params);
PROLOGUE_API Status attention_prologue(const AttentionPrologueParams& params, const Execution& execution);

// A plan is a call that is validated once and then launched many times with other pointers, for example for every layer of a model. Making one
// may compile a kernel, which takes from a tenth of a second to seconds the first time: not while a stream is being captured.
class PROLOGUE_API AttentionProloguePlan {
 public:
  // `params` fixes everything except what a run may change: num_tokens (up to max_tokens), places.num_seqs (up to that of
  // `params`), places.slot_mapping_len, places.page_table.num_kv_indices (up to that of `params`), places.position_axis_stride,
  // and the pointers, also those of groups; num_groups and the other members of the groups are fixed.
  static Result<AttentionProloguePlan> create(const AttentionPrologueParams& params, int64_t max_tokens,
                                              const Execution& execution);
  // Everything fixed must be equal to the plan's, and a pointer must be null exactly if the plan's was; otherwise an error names
  // the member that differs. The alignment of the pointers and their overlap are not checked again: they must be as in the plan.
  Status run(const AttentionPrologueParams& params, const Execution& execution) const;
  // Returns the kernel that run() uses: "cpu"; "lean", an instance that ships and is made for the steps of this call; "compiled", one that was
  // compiled for exactly this call, now or by an earlier plan (docs/embedding.md, "Kernels compiled on demand"); or "general", one CUDA kernel
  // that decides everything at run time and takes several times as long. Without a compiler, "lean" is also an instance that decides the steps
  // at run time. (A run whose slot_mapping_len is less than its tokens, if the plan's was not, takes another kernel.)
  const char* kernel() const;

 private:
  AttentionPrologueParams params_;  // with num_tokens = max_tokens; its groups are:
  HeadGroup groups_[kMaxHeadGroups];
  const void* kernel_ = nullptr;    // the CUDA backend's choice
  Device device_ = Device::cpu;
};

}  // namespace prologue
