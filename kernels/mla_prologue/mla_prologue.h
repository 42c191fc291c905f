// Runs the prologue of multi-head latent attention (MLA: DeepSeek V2 and V3, Kimi K2): everything between the projections and attention, in
// one pass over the tokens and one launch.
//
// For token t (each part is optional):
//   latent:  c = kv_c[t, :];  c = norm(c), rounded to dtype              -> kv_c_out[t, :]
//   K:       k = k_pe[t, :];  k = norm(k), rounded to dtype;  k = rotate(k), rounded to dtype -> k_pe_out[t, :]
//   Q:       q_pe_out[t, h, :] = rotate(q_pe[t, h, :])                   for every head h
//   cache:   entry = [c | k], in the token's slot, converted to the cache's types
// rotate: (a, b) = (a cos - b sin, a sin + b cos) for each pair of the channels (rope.h). DeepSeek's pairs are interleaved.
// norm: x / sqrt(mean(x^2) + eps) * (weight_offset + w).
//
//   kv_c   [num_tokens, kv_lora_rank] dtype, row stride kv_c_stride; null = no latent
//   k_pe   [num_tokens, qk_rope_head_dim] dtype, row stride k_pe_stride; null = no K
//   q_pe   [num_tokens, num_q_heads, qk_rope_head_dim] dtype; num_q_heads = 0: no Q
//          All three may be columns of larger rows: kv_c and k_pe of one projection, q_pe of whole heads. kv_lora_rank and
//          qk_rope_head_dim: multiples of 16 in 16..1024; 0 if there is nothing of that width
//   kv_c_norm.weight   [kv_lora_rank], weight_type;  k_pe_norm.weight [qk_rope_head_dim], of a type of its own
//   kv_c_out, k_pe_out as kv_c and k_pe, with strides of their own; null = not wanted; may be kv_c and k_pe themselves
//   q_pe_out           as q_pe, with strides of its own, for example beside the other channels of the query [num_tokens, num_q_heads,
//                      kv_lora_rank + qk_rope_head_dim]; may be q_pe itself
//   rope   rotary_dim = qk_rope_head_dim, or 0 = no rotation: K and Q are copied. Source table, per_token or inv_freq. cos and sin:
//          float32, float16 or bfloat16; width half, any row_stride, column_stride 1. inv_freq: float32. One block, one position axis
//   positions     [num_tokens] int32 or int64. May be null if the rotation needs none: then all positions count as 0
//   slot_mapping  [slot_mapping_len] int32 or int64, the slots of the first slot_mapping_len tokens (0: of all of them). May be null
//                 if nothing is cached
// "May be ... itself" means the same pointer and strides; nothing else that is written may overlap anything. Every pointer is on the
// operation's device. Strides count elements. Rows that are aligned to 16 bytes are faster.
//
// Cache. Slot s is at offset s % page_size of page s / page_size. Channel d of a part (the latent, or K) is there at
//   data + page * page_stride + offset * token_stride + d
// in elements of the part's type. Both parts may be in one entry (set_mla_entries), or in arrays of their own.
//   float types, fp8   as KvFormat in views.h says, with scaling none or tensor. Same type as dtype: stored bit by bit
//   fp8_e4m3, scaling token_head, only for the latent: vLLM's fp8_ds_mla. kv_lora_rank, a multiple of 256, codes are followed by
//                      kv_lora_rank / 128 float32 scales, one for each 128 channels:
//                        scale = max(2^ceil(log2(amax / 448)), 2^-13),  code = nearest_even(x / scale)
//                      A NaN or infinity makes the scale of its channels NaN and their codes zeros. K follows in dtype, float16 or
//                      bfloat16. For rank 512 and 64 channels that is a record of 656 bytes (set_mla_records)
//
// Guards. Nothing outside the named rows and slots is touched. Two tokens must not share a slot.
//   padding         a negative position: nothing of the token is written, and its input rows may hold anything
//   negative slot   not written to the cache. Everything else is done. The same holds for a token at or past slot_mapping_len
//   past the table  a position >= rope.max_position; rope.past_table decides, as in attention_prologue.h:
//     record        the rows of q_pe_out, kv_c_out and k_pe_out become zeros, the cache is not written, and the fault
//                   position_out_of_range is recorded. `faults` must not be null
//     zero          the same zeros, and recorded only if `faults` is given
//     identity      the token's rows are not rotated. Everything else is done. Nothing is recorded
//   bad slot        slot >= num_pages * page_size: everything except the cache is written, and slot_out_of_range is recorded
//
// Numerics. Arithmetic is float32. The results are those of qk_norm, rotary and kv_write one after another, bit for bit (a NaN may
// become another NaN): the sum of squares has the order of qk_norm's, and each step rounds to dtype. Batch-invariant.
//
// num_tokens = 0 is a no-op. The operation never allocates, synchronises or throws, and is safe under graph capture. Up to 65535 tokens are
// one launch; more take several.
#pragma once

#include <cstdint>

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/execution.h>
#include <prologue/kernels/base/faults.h>
#include <prologue/kernels/base/rope.h>
#include <prologue/kernels/base/views.h>

namespace prologue {

struct MlaCachePart {
  void* data = nullptr;  // null = the part is not cached
  KvFormat format;       // type: a float type or fp8; unset: dtype
  int64_t page_stride = 0;
  int64_t token_stride = 0;
  const float* scale = nullptr;  // [1], if the scaling is tensor
  uint64_t reserved[2] = {};     // zeros: docs/versioning.md
};

struct MlaCache {
  MlaCachePart latent;
  MlaCachePart rope;  // K
  int64_t num_pages = 0;
  int64_t page_size = 0;
  uint64_t reserved[2] = {};  // zeros: docs/versioning.md
};

struct MlaPrologueParams {
  int64_t num_tokens = 0;
  int64_t num_q_heads = 0;
  int64_t kv_lora_rank = 0;
  int64_t qk_rope_head_dim = 0;
  DType dtype = DType::unset;

  const void* kv_c = nullptr;
  int64_t kv_c_stride = 0;
  const void* k_pe = nullptr;
  int64_t k_pe_stride = 0;
  HeadsView q_pe;
  HeadNorm kv_c_norm;  // placement none: no norm; before_rope: this one. rms over a head, without bias
  HeadNorm k_pe_norm;  // the same of k_pe, before its rotation (dots3), for qk_rope_head_dim up to 512
  Rope rope;
  IndexView positions;
  IndexView slot_mapping;
  int64_t slot_mapping_len = 0;

  void* kv_c_out = nullptr;
  int64_t kv_c_out_stride = 0;
  void* k_pe_out = nullptr;
  int64_t k_pe_out_stride = 0;
  MutableHeadsView q_pe_out;
  MlaCache cache;

  // The launch may begin while the kernels before it in the stream run; they must not write kv_c_norm.weight or the cache's scales.
  bool overlaps = false;
  FaultRecord* faults = nullptr;    // null only if positions have no bound, or rope.past_table is zero or identity
  uint8_t* token_faults = nullptr;  // [num_tokens]: a FaultCode is written for each faulty token; null = not wanted
  uint64_t reserved[8] = {};        // zeros: docs/versioning.md
};

// Sets the parts of a cache [num_pages, page_size, kv_lora_rank + qk_rope_head_dim] of elements of `type` (unset: dtype). `scale` is that
// of fp8; null = none. kv_lora_rank and dtype must be set before: without them the strides are left unset, and the operation is an error.
PROLOGUE_API void set_mla_entries(MlaPrologueParams& params, void* data, DType type, const float* scale, int64_t page_stride,
                                  int64_t token_stride);
// Sets the parts of a cache of fp8_ds_mla records, with strides in bytes, multiples of 4. kv_lora_rank must be set before, likewise.
PROLOGUE_API void set_mla_records(MlaPrologueParams& params, void* data, int64_t page_stride, int64_t token_stride);

PROLOGUE_API Status validate(const MlaPrologueParams& params);
PROLOGUE_API Status mla_prologue(const MlaPrologueParams& params, const Execution& execution);

}  // namespace prologue
