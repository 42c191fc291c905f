// Takes calls of Hugging Face transformers: apply_rotary_pos_emb, GPTJAttention. See adapter.h and docs/coming-from.md.
#pragma once

#include <cstdint>
#include <utility>

#include <prologue/adapters/adapter.h>
#include <prologue/kernels/rotary/rotary.h>

namespace prologue::adapters::huggingface {

struct ApplyRotaryPosEmb {
  const void* q = nullptr;  // [batch, heads, seq_len, head_dim] (unsqueeze_dim 1) or [batch, seq_len, heads, head_dim] (2)
  const void* k = nullptr;
  void* q_embed = nullptr;
  void* k_embed = nullptr;
  DType dtype = DType::bf16;
  int64_t batch = 0;
  int64_t seq_len = 0;
  int64_t num_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  const void* cos = nullptr;  // [batch, seq_len, rotary_ndims], or [1, seq_len, rotary_ndims], in dtype
  const void* sin = nullptr;
  bool cos_per_batch = true;  // false: [1, ..]
  int64_t rotary_ndims = 0;   // cos.shape[-1]: head_dim, or less
  int64_t unsqueeze_dim = 1;
};

inline Status apply_rotary_pos_emb(const ApplyRotaryPosEmb& call, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(detail::check_sizes("huggingface", {{"seq_len", call.seq_len, detail::kTokens},
                                                               {"num_heads", call.num_heads, detail::kHeads},
                                                               {"num_key_value_heads", call.num_key_value_heads, detail::kHeads},
                                                               {"head_dim", call.head_dim, detail::kDim},
                                                               {"rotary_ndims", call.rotary_ndims, detail::kDim}}));
  if (call.unsqueeze_dim != 1 && call.unsqueeze_dim != 2) {
    return invalid_argument("huggingface: unsqueeze_dim is ", call.unsqueeze_dim, ": it must be 1 or 2");
  }
  if (call.rotary_ndims <= 0) {
    return invalid_argument("huggingface: rotary_ndims is ", call.rotary_ndims, ": give the columns of cos");
  }
  const auto strides = [&](int64_t heads) {
    return call.unsqueeze_dim == 1 ? head_major_strides(call.seq_len, heads, call.head_dim)
                                   : batch_major_strides(call.seq_len, heads, call.head_dim);
  };
  RotaryParams params;
  params.batch = call.batch;
  params.seq_len = call.seq_len;
  params.head_dim = call.head_dim;
  params.dtype = call.dtype;
  params.num_tensors = 2;
  params.tensors[0] = rotary_tensor(call.q, call.q_embed, call.num_heads, strides(call.num_heads));
  params.tensors[1] = rotary_tensor(call.k, call.k_embed, call.num_key_value_heads, strides(call.num_key_value_heads));
  params.rope.style = RopeStyle::neox;
  params.rope.rotary_dim = call.rotary_ndims;
  const int64_t batch_stride = call.cos_per_batch ? call.seq_len * call.rotary_ndims : 0;
  params.rope.type = call.dtype;
  params.rope.width = RopeWidth::full;
  params.rope.source = RopeSource::per_token;
  params.rope.cos = {call.cos, batch_stride, call.rotary_ndims, 1};
  params.rope.sin = {call.sin, batch_stride, call.rotary_ndims, 1};
  return rotary(params, execution);
}

// Holds q and k of GPTJAttention.
struct Gptj {
  const void* q = nullptr;  // [batch, seq_len, heads, head_dim]
  const void* k = nullptr;
  void* q_out = nullptr;
  void* k_out = nullptr;
  DType dtype = DType::bf16;
  int64_t batch = 0;
  int64_t seq_len = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t rotary_dim = 0;
  const void* embed_positions = nullptr;  // [max_positions, rotary_dim], sin then cos, in dtype
  int64_t max_positions = 0;
  IndexView position_ids = {};  // [batch, seq_len]
};

inline Status gptj_rotary(const Gptj& call, FaultRecord* faults, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(detail::check_sizes("huggingface", {{"seq_len", call.seq_len, detail::kTokens},
                                                               {"num_heads", call.num_heads, detail::kHeads},
                                                               {"num_kv_heads", call.num_kv_heads, detail::kHeads},
                                                               {"head_dim", call.head_dim, detail::kDim},
                                                               {"rotary_dim", call.rotary_dim, detail::kDim}}));
  if (call.position_ids.data == nullptr) return invalid_argument("huggingface: position_ids is null: they must be given");
  RotaryParams params;
  params.batch = call.batch;
  params.seq_len = call.seq_len;
  params.head_dim = call.head_dim;
  params.dtype = call.dtype;
  params.num_tensors = 2;
  params.tensors[0] =
      rotary_tensor(call.q, call.q_out, call.num_heads, batch_major_strides(call.seq_len, call.num_heads, call.head_dim));
  params.tensors[1] =
      rotary_tensor(call.k, call.k_out, call.num_kv_heads, batch_major_strides(call.seq_len, call.num_kv_heads, call.head_dim));
  params.rope.style = RopeStyle::interleaved;
  params.rope.rotary_dim = call.rotary_dim;
  set_cos_sin_table(params.rope, call.embed_positions, call.dtype, call.max_positions);
  params.rope.width = RopeWidth::half;
  std::swap(params.rope.cos, params.rope.sin);  // embed_positions is sin then cos
  params.positions.ids = call.position_ids;
  params.positions.batch_stride = call.seq_len;
  params.faults = faults;
  return rotary(params, execution);
}

}  // namespace prologue::adapters::huggingface
