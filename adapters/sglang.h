// Takes a call of SGLang: apply_rope_with_cos_sin_cache_inplace. See adapter.h and docs/coming-from.md.
#pragma once

#include <cstdint>

#include <prologue/adapters/adapter.h>
#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/rotary/rotary.h>

namespace prologue::adapters::sglang {

struct ApplyRopeInplace {
  void* q = nullptr;  // [num_tokens, heads, head_dim], rotated in place
  void* k = nullptr;
  DType dtype = DType::bf16;
  int64_t num_tokens = 0;
  int64_t num_qo_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t q_stride = 0;  // of a token
  int64_t k_stride = 0;
  const float* cos_sin_cache = nullptr;  // [max_position, rope_dim]
  int64_t max_position = 0;
  int64_t rope_dim = 0;  // must be given (in SGLang 0 means the width of cos_sin_cache)
  IndexView positions = {};
  bool is_neox = true;
  const void* value = nullptr;  // fused_args, FusedSetKVBufferArg; null = none
  int64_t value_stride = 0;
  void* k_buffer = nullptr;  // [buffer_size, num_kv_heads * head_dim]
  void* v_buffer = nullptr;
  int64_t buffer_size = 0;
  IndexView cache_loc = {};
};

inline Status apply_rope_inplace(const ApplyRopeInplace& call, FaultRecord* faults, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(detail::check_sizes("sglang", {{"num_kv_heads", call.num_kv_heads, detail::kHeads},
                                                          {"head_dim", call.head_dim, detail::kDim},
                                                          {"rope_dim", call.rope_dim, detail::kDim}}));
  if (call.positions.data == nullptr) return invalid_argument("sglang: positions is null: they must be given");
  if (call.rope_dim <= 0) return invalid_argument("sglang: rope_dim is ", call.rope_dim, ": give the width of cos_sin_cache");
  if (call.value == nullptr) {  // no fused_args: only the rotation
    RotaryParams params;
    params.seq_len = call.num_tokens;
    params.head_dim = call.head_dim;
    params.dtype = call.dtype;
    params.num_tensors = 2;
    params.tensors[0] = rotary_tensor(call.q, call.q, call.num_qo_heads, {0, call.q_stride, call.head_dim, 1});
    params.tensors[1] = rotary_tensor(call.k, call.k, call.num_kv_heads, {0, call.k_stride, call.head_dim, 1});
    params.rope.style = call.is_neox ? RopeStyle::neox : RopeStyle::interleaved;
    params.rope.rotary_dim = call.rope_dim;
    set_cos_sin_table(params.rope, call.cos_sin_cache, DType::f32, call.max_position);
    params.rope.width = RopeWidth::half;
    params.positions.ids = call.positions;
    params.faults = faults;
    return rotary(params, execution);
  }
  if (call.cache_loc.data == nullptr) return invalid_argument("sglang: cache_loc is null: with value it must be given");
  AttentionPrologueParams params;
  params.num_tokens = call.num_tokens;
  params.num_q_heads = call.num_qo_heads;
  params.num_kv_heads = call.num_kv_heads;
  params.head_dim = call.head_dim;
  params.dtype = call.dtype;
  params.q_out = {call.q, call.q_stride, call.head_dim};
  params.q = as_input(params.q_out);
  params.k_out = {call.k, call.k_stride, call.head_dim};
  params.k = as_input(params.k_out);
  params.v = {call.value, call.value_stride, call.head_dim};
  params.rope.style = call.is_neox ? RopeStyle::neox : RopeStyle::interleaved;
  params.rope.rotary_dim = call.rope_dim;
  set_cos_sin_table(params.rope, call.cos_sin_cache, DType::f32, call.max_position);
  params.places.positions = call.positions;
  params.places.slot_mapping = call.cache_loc;
  params.cache.k.data = call.k_buffer;  // a row of the pool is a page of one token
  params.cache.v.data = call.v_buffer;
  params.cache.k.format.type = params.cache.v.format.type = call.dtype;
  params.cache.num_pages = call.buffer_size;
  params.cache.page_size = 1;
  params.cache.num_kv_heads = call.num_kv_heads;
  params.cache.k.head_dim = call.head_dim;
  params.cache.k.strides = params.cache.v.strides = nhd_strides(1, call.num_kv_heads, call.head_dim);
  params.faults = faults;
  return attention_prologue(params, execution);
}

}  // namespace prologue::adapters::sglang
