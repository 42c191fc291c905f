// The attention prologue: everything between the QKV GEMM and attention, in one pass over the tokens and one launch.
//
// For token t and head h (each step only where it is asked for):
//   Q, K:  x = in[t, h, :] + bias[h, :]
//          x = norm(x)                                  before the rotation ...
//          (a, b) = (a cos - b sin, a sin + b cos)      for each pair of the rotated channels
//          x = norm(x)                                  ... or after it
//          Q only: x = x * q_scale(position)
//   V:     x = in[t, h, :] + bias[h, :];  x = rms(x)
//   Q -> q_out[t, h, :], or q8_out with a scale;   K, V -> the token's slot of the paged cache, quantised as the cache is, and
//   k_out, v_out where given (rounded to dtype, before quantisation).
// Definitions, formulas and bounds: docs/numerics.md. Every pointer is on the operation's device; strides count elements.
//
//   q, k, v  [num_tokens, heads, head_dim] dtype, three views of one packed buffer (set_packed_qkv) or apart; V may have its own
//            head_dim (cache.v_head_dim). V taken from K (Gemma 4): point v, and bias.v, at k's
//   bias     q [num_q_heads * head_dim], k [num_kv_heads * head_dim], v [num_kv_heads * v_head_dim] dtype, each null = none
//   q_out    [num_tokens, num_q_heads, head_dim] dtype; may be q itself (same pointer and strides); no other overlap
//   k_out    [num_tokens, num_kv_heads, head_dim] dtype, v_out [.., v_head_dim]; may be k and v themselves. Written as q_out is:
//            for every token that is not padding, whatever its slot
//   cache    views.h. num_kv_heads = 0: Q only. k.data null: V only. v.data null: K only. num_q_heads = 0: no Q.
//            cache.k (cache.v) null: K (V) goes to k_out (v_out) alone
//
// Guards. A negative slot skips the write into the cache, Q is computed. A negative given position (of any stream), or a token at
// or past cu_seqlens_q[num_seqs] where anything is derived, is padding: nothing of the token is written, and what its rows hold
// does not matter. A position >= max_position (of any stream): rotation.past_table says what happens. record: the rows of q_out,
// k_out and v_out become zeros (q8_out: zeros with scale 0), the cache is not written, recorded; `faults` must not be null. zero:
// the same, but `faults` may be null. identity: the token's rows are not rotated, everything else is done for them, nothing is
// recorded. A derived position that is negative (or that int64 cannot hold) is treated as by record. A slot >= num_slots, a block_table entry
// outside [0, num_pages) (page_out_of_range), or a cache position that is negative or beyond the block table's row
// (sequence_too_long): all but the cache is written, recorded. Two tokens must not share a slot. Nothing outside the named rows
// and slots is touched.
//
// Quantisation: nearest even of x * (1 / scale), the reciprocal rounded to float32. fp8 saturates finite overflow and infinities
// to the largest number and keeps NaN (as 0x7f); int8 clamps to [-127, 127], int4 to [-7, 7]. Computed scales (token_head) are
// amax / 448 (e4m3), / 57344 (e5m2), / 127, / 7 of the head's float32 values; an all-zero head (or one so small that the
// reciprocal of its scale is not finite) stores scale 0 and zeros; a NaN or infinity in the head makes its scale NaN (the data
// are then zeros). With given scales a NaN stores 0 in an integer cache. A float cache may have another type than dtype.
//
// Numerics: float32 inside, products and sums of the rotation rounded once each (no fused multiply-add). Rounding::once rounds at
// the stores alone; Rounding::per_step also where the unfused stages store (after bias, norm and rotation), so that fused and
// unfused agree bit for bit in 16-bit types too (the Q scale is a step as well). Squares of a norm must fit float32. Copies that
// nothing changes are bitwise. Batch-invariant. num_tokens = 0 is a no-op. Never allocates, synchronises or throws; safe under
// graph capture.
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

enum class NormPlacement : int32_t { none = 0, before_rope, after_rope };
enum class NormKind : int32_t { rms = 0, layer };
enum class NormScope : int32_t { head = 0, token };  // token: over all heads of the token together (OLMo 2); rms only

// rms:    x / sqrt(mean(x^2) + eps) * (weight_offset + w)
// layer: (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * (weight_offset + w) + b
struct QkNorm {
  NormPlacement placement = NormPlacement::none;
  NormKind kind = NormKind::rms;
  NormScope scope = NormScope::head;
  float eps = 1e-6f;
  float weight_offset = 0.0f;      // 1 for Gemma, whose files hold w - 1
  const void* q_weight = nullptr;  // dtype; null = no weight at all, x is multiplied by 1
  const void* k_weight = nullptr;
  int64_t q_weight_head_stride = 0;  // 0: one [head_dim] for all heads; head_dim: [heads, head_dim]
  int64_t k_weight_head_stride = 0;
  const void* q_bias = nullptr;  // layer only; strides as the weights'
  const void* k_bias = nullptr;
};

// Weightless RMS norm of each head of V (Gemma 4).
struct VNorm {
  bool enabled = false;
  float eps = 1e-6f;
};

enum class CosSinSource : int32_t {
  table = 0,  // cos_sin [max_position, rotary_dim] float32: cos[0 .. rotary_dim/2) then sin; row = position
  per_token,  // cos_sin [num_tokens, rotary_dim] float32, gathered once a step for all layers (gather_cos_sin)
  inv_freq,   // computed in the kernel: angle = position * inv_freq[i], exactly reduced, positions up to 2^20, |inv_freq| <= 1
};

struct Rotation {
  RopeStyle style = RopeStyle::neox;
  int64_t rotary_dim = 0;     // even; 0 = no rotation (then neither cos_sin nor inv_freq may be given)
  int64_t rotary_offset = 0;  // even; channels [rotary_offset, rotary_offset + rotary_dim) turn, the others pass through
  bool inverse = false;       // turn back: -sin
  CosSinSource source = CosSinSource::table;
  const float* cos_sin = nullptr;
  const float* inv_freq = nullptr;  // [rotary_dim / 2] float32
  float attention_factor = 1.0f;    // multiplies cos and sin; for inv_freq (tables have it folded in)
  int64_t max_position = 0;         // rows of the table; inv_freq: at most 2^20; 0 without rotation or per token = no upper bound
  PastTable past_table = PastTable::record;  // of positions >= max_position

  // Several position streams (MRoPE, 2-D): pair i turns by stream pair_axis[i]. Null: one stream.
  int64_t num_axes = 1;                // 1 to 4
  const uint8_t* pair_axis = nullptr;  // [rotary_dim / 2], values below num_axes (others count as 0); not for per_token

  bool operator==(const Rotation&) const = default;
};

// Where each token stands: given, or derived in the kernel from arrays that a step has anyway.
struct TokenPlaces {
  // Given. positions [num_axes, num_tokens], rows position_axis_stride apart (0: one row for all axes); slot_mapping [num_tokens].
  // Positions may be null (and cu_seqlens_q too) where nothing needs them: no table, no inv_freq, no q_scale.by_position; all
  // count as 0 then.
  IndexView positions;
  int64_t position_axis_stride = kUnsetStride;  // must be set where num_axes > 1
  IndexView slot_mapping;

  // Derived, what is not given (cu_seqlens_q null: nothing is). Token t is number j = t - cu_seqlens_q[s] of sequence s,
  // cu_seqlens_q[s] <= t < cu_seqlens_q[s+1]; its cache position is p = cache_lens[s] + j. Position (all axes) = p +
  // position_offsets[s] (or [0]). Slot = that of r in the sequence's pages, r = p % ring_size where ring_size > 0, else p. Of the
  // tokens of a step that share a slot of the ring only the last is written: t is not where t + ring_size < cu_seqlens_q[s+1].
  int64_t num_seqs = 0;
  const int32_t* cu_seqlens_q = nullptr;  // [num_seqs + 1], non-decreasing from 0
  const int32_t* cache_lens = nullptr;    // [num_seqs]: tokens in the cache BEFORE this step
  const int32_t* block_table = nullptr;   // [num_seqs, max_pages_per_seq], row stride block_table_stride
  int64_t block_table_stride = 0;
  int64_t max_pages_per_seq = 0;
  int64_t ring_size = 0;  // tokens
  IndexView position_offsets;
  bool position_offset_per_seq = false;
};

enum class PositionScale : int32_t { none = 0, llama4, logn };

// Q is multiplied by constant * f(position):
//   llama4: f = 1 + a * log(1 + floor((position + 1) / b));  logn: f = max(1, log(position + 1) / log(b))
// (the quotient of llama4 rounded to float32; position of the first stream; logn: b > 1)
struct QueryScale {
  float constant = 1.0f;
  PositionScale by_position = PositionScale::none;
  float a = 0.0f;
  float b = 1.0f;

  bool operator==(const QueryScale&) const = default;
};

// Q as fp8 e4m3 in place of q_out (null then): stored x / scale. With a scale per token and head it is computed (amax / 448).
struct QuantizedQuery {
  void* data = nullptr;  // [num_tokens, num_q_heads, head_dim] bytes; null = q_out is written instead
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  KvScaling scaling = KvScaling::tensor;  // tensor or token_head
  float* scale = nullptr;                 // [1], or [num_tokens, num_q_heads]
};

enum class Rounding : int32_t { once = 0, per_step };

struct AttentionPrologueParams {
  int64_t num_tokens = 0;
  int64_t num_q_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;  // even, 2..576
  DType dtype = DType::f32;

  HeadsView q;
  HeadsView k;
  HeadsView v;
  QkvBias bias;
  QkNorm norm;
  VNorm v_norm;
  Rotation rotation;
  TokenPlaces places;
  QueryScale q_scale;
  Rounding rounding = Rounding::once;

  MutableHeadsView q_out;
  QuantizedQuery q8_out;
  MutableHeadsView k_out;  // null = not wanted
  MutableHeadsView v_out;
  PagedKvView cache;

  FaultRecord* faults = nullptr;    // null only where no position has a bound, or rotation.past_table is zero or identity
  uint8_t* token_faults = nullptr;  // [num_tokens], a FaultCode for each token concerned is written; null = not wanted
};

// Points q, k and v into one buffer [num_tokens, (num_q_heads + num_kv_heads) * head_dim + num_kv_heads * v_head_dim] with the
// given row stride. Sizes, dtype and cache.v_head_dim must be set.
PROLOGUE_API void set_packed_qkv(AttentionPrologueParams& params, const void* qkv, int64_t token_stride);

PROLOGUE_API Status validate(const AttentionPrologueParams& params);
PROLOGUE_API Status attention_prologue(const AttentionPrologueParams& params, const Execution& execution);

// Validated once, then launched with nothing but pointers that changed: for callers who run the same shape layer after layer.
class PROLOGUE_API AttentionProloguePlan {
 public:
  // Everything but num_tokens (up to max_tokens), places.num_seqs (up to that of `params`), places.position_axis_stride and the
  // pointers is fixed by `params`.
  static Result<AttentionProloguePlan> create(const AttentionPrologueParams& params, int64_t max_tokens,
                                              const Execution& execution);
  // What is fixed must be as it was, and a pointer null where it was null: an error names what differs. That pointers are aligned
  // as the plan's were and do not overlap is not checked again.
  Status run(const AttentionPrologueParams& params, const Execution& execution) const;
  // What will run: "cpu"; "lean", an instance compiled for what was asked; or "general", one CUDA kernel that decides everything
  // at run time and takes several times as long.
  const char* kernel() const;

 private:
  AttentionPrologueParams params_;  // with num_tokens = max_tokens
  const void* kernel_ = nullptr;    // the CUDA backend's choice
  Device device_ = Device::cpu;
};

}  // namespace prologue
