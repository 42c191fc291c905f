// Takes calls of vLLM: rotary_embedding, reshape_and_cache_flash. See adapter.h and docs/coming-from.md.
#pragma once

#include <cstdint>
#include <string_view>

#include <prologue/adapters/adapter.h>
#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/rotary/rotary.h>

namespace prologue::adapters::vllm {

struct RotaryEmbedding {
  const int64_t* positions = nullptr;  // [num_tokens]
  void* query = nullptr;               // [num_tokens, num_heads * head_size], rotated in place
  void* key = nullptr;                 // [num_tokens, num_kv_heads * head_size], or null
  DType dtype = DType::bf16;
  int64_t num_tokens = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_size = 0;
  int64_t query_stride = 0;  // of a token; for slices of a packed qkv: its row stride
  int64_t key_stride = 0;
  const void* cos_sin_cache = nullptr;  // [max_position, rot_dim]
  DType cache_dtype = DType::bf16;
  int64_t max_position = 0;
  int64_t rot_dim = 0;
  bool is_neox = true;
  int64_t rope_dim_offset = 0;
  bool inverse = false;
};

inline Status rotary_embedding(const RotaryEmbedding& call, FaultRecord* faults, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(
      detail::check_sizes("vllm", {{"head_size", call.head_size, detail::kDim}, {"rot_dim", call.rot_dim, detail::kDim}}));
  if (call.positions == nullptr) return invalid_argument("vllm: positions is null: they must be given");
  RotaryParams params;
  params.seq_len = call.num_tokens;
  params.head_dim = call.head_size;
  params.dtype = call.dtype;
  params.tensors[params.num_tensors++] =
      rotary_tensor(call.query, call.query, call.num_heads, {0, call.query_stride, call.head_size, 1});
  if (call.key != nullptr) {
    params.tensors[params.num_tensors++] =
        rotary_tensor(call.key, call.key, call.num_kv_heads, {0, call.key_stride, call.head_size, 1});
  }
  params.rope.style = call.is_neox ? RopeStyle::neox : RopeStyle::interleaved;
  params.rope.rotary_dim = call.rot_dim;
  params.rope.rotary_offset = call.rope_dim_offset;
  params.rope.inverse = call.inverse;
  params.tail = RotaryTail::leave;
  set_cos_sin_table(params.rope, call.cos_sin_cache, call.cache_dtype, call.max_position);
  params.rope.width = RopeWidth::half;
  params.positions.ids = index_view(call.positions);
  params.faults = faults;
  return rotary(params, execution);
}

// rotary_embedding and reshape_and_cache_flash in one launch.
struct RopeAndCache {
  RotaryEmbedding rope;  // key not null; cos_sin_cache not in float64
  const void* value = nullptr;
  int64_t value_stride = 0;
  void* key_cache = nullptr;  // [num_blocks, block_size, num_kv_heads, head_size], or HND
  void* value_cache = nullptr;
  int64_t num_blocks = 0;
  int64_t block_size = 0;
  int64_t block_stride = 0;  // key_cache.stride(0), (1), (2); HND: (0), (2), (1)
  int64_t page_stride = 0;
  int64_t head_stride = 0;
  const int64_t* slot_mapping = nullptr;
  int64_t num_actual_tokens = 0;  // slot_mapping.size(0), where query, key and value are padded beyond it; 0: num_tokens
  std::string_view kv_cache_dtype = "auto";  // "auto", "fp8", "fp8_e4m3", "fp8_e5m2"
  float* k_scale = nullptr;                  // [1] or [num_kv_heads]
  float* v_scale = nullptr;
  bool scale_per_head = false;
};

inline Status rope_and_cache(const RopeAndCache& call, FaultRecord* faults, const Execution& execution) {
  const RotaryEmbedding& rope = call.rope;
  if (rope.positions == nullptr) return invalid_argument("vllm: positions is null: they must be given");
  if (!dtype_is_activation(rope.cache_dtype)) {
    return unsupported("vllm: cache_dtype is ", dtype_is_float(rope.cache_dtype) ? dtype_name(rope.cache_dtype) : "unknown",
                       ": with the cache cos_sin_cache must be float32 or of 16 bits");
  }
  if (rope.dtype == DType::f64) return unsupported("vllm: dtype is float64: with the cache it must be float32 or of 16 bits");
  const std::string_view type = call.kv_cache_dtype;
  if (type != "auto" && type != "fp8" && type != "fp8_e4m3" && type != "fp8_e5m2") {
    return unsupported("vllm: kv_cache_dtype is '", type.substr(0, 16), "': supported are auto, fp8, fp8_e4m3 and fp8_e5m2");
  }
  AttentionPrologueParams params;
  params.num_tokens = rope.num_tokens;
  params.num_q_heads = rope.num_heads;
  params.num_kv_heads = rope.num_kv_heads;
  params.head_dim = rope.head_size;
  params.dtype = rope.dtype;
  params.q = {rope.query, rope.query_stride, rope.head_size};
  params.k = {rope.key, rope.key_stride, rope.head_size};
  params.v = {call.value, call.value_stride, rope.head_size};
  params.q_out = {rope.query, rope.query_stride, rope.head_size};
  params.k_out = {rope.key, rope.key_stride, rope.head_size};  // remove this line if only the cache needs the rotated key
  params.rope.style = rope.is_neox ? RopeStyle::neox : RopeStyle::interleaved;
  params.rope.rotary_dim = rope.rot_dim;
  params.rope.rotary_offset = rope.rope_dim_offset;
  params.rope.inverse = rope.inverse;
  set_cos_sin_table(params.rope, rope.cos_sin_cache, rope.cache_dtype, rope.max_position);
  params.places.positions = index_view(rope.positions);
  params.places.slot_mapping = index_view(call.slot_mapping);
  params.places.slot_mapping_len = call.num_actual_tokens;
  params.cache.k.data = call.key_cache;
  params.cache.v.data = call.value_cache;
  params.cache.num_pages = call.num_blocks;
  params.cache.page_size = call.block_size;
  params.cache.num_kv_heads = rope.num_kv_heads;
  params.cache.k.head_dim = rope.head_size;
  params.cache.k.strides = params.cache.v.strides = {call.block_stride, call.page_stride, call.head_stride};
  params.cache.k.format.type = params.cache.v.format.type = type == "auto"       ? params.dtype
                                                            : type == "fp8_e5m2" ? DType::fp8_e5m2
                                                                                 : DType::fp8_e4m3;
  if (type != "auto") {
    params.cache.k.format.scaling = params.cache.v.format.scaling = call.scale_per_head ? KvScaling::head : KvScaling::tensor;
    params.cache.k.scale = call.k_scale;
    params.cache.v.scale = call.v_scale;
  }
  params.faults = faults;
  return attention_prologue(params, execution);
}

}  // namespace prologue::adapters::vllm
