// Takes calls of GPT-NeoX and apex: fused_apply_rotary_pos_emb, .._cached, .._thd, .._2d. See adapter.h and docs/coming-from.md.
#pragma once

#include <cstdint>

#include <prologue/adapters/adapter.h>
#include <prologue/kernels/rotary/rotary.h>

namespace prologue::adapters::apex {

struct FusedRope {
  const void* t = nullptr;  // [s, b, h, d]; thd: [t, h, d]
  void* out = nullptr;      // dense
  DType dtype = DType::bf16;
  int64_t s = 0;  // thd: t
  int64_t b = 0;  // thd: the number of sequences
  int64_t h = 0;
  int64_t d = 0;
  RotaryStrides t_strides;       // {t.stride(1), t.stride(0), t.stride(2), t.stride(3)}; thd: {0, t.stride(0), ...}
  const float* freqs = nullptr;  // [rows, 1, 1, d2]
  const void* cos_ = nullptr;    // or cos_ and sin_, of the same shape
  const void* sin_ = nullptr;
  DType cos_dtype = DType::f32;
  int64_t rows = 0;
  int64_t d2 = 0;
  const int32_t* cu_seqlens = nullptr;  // [b + 1], thd
  bool transpose_output_memory = false;
  bool backward = false;
};

inline Status fused_rope(const FusedRope& call, FaultRecord* faults, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(detail::check_sizes("apex", {{"s", call.s, detail::kTokens},
                                                        {"b", call.b, detail::kTokens},
                                                        {"h", call.h, detail::kHeads},
                                                        {"d", call.d, detail::kDim}}));
  const bool thd = call.cu_seqlens != nullptr;
  if ((call.freqs == nullptr) == (call.cos_ == nullptr)) {
    return invalid_argument("apex: freqs and cos_ are both ", call.freqs == nullptr ? "null" : "given", ": give one of them");
  }
  if (thd && call.transpose_output_memory) {
    return invalid_argument("apex: transpose_output_memory is set, but so is cu_seqlens: thd has one dimension of tokens");
  }
  RotaryParams params;
  params.batch = thd ? 1 : call.b;
  params.seq_len = call.s;
  params.head_dim = call.d;
  params.dtype = call.dtype;
  params.num_tensors = 1;
  params.tensors[0] = {call.t, call.out, call.h, call.t_strides,
                       thd || call.transpose_output_memory ? batch_major_strides(call.s, call.h, call.d)
                                                           : sequence_major_strides(call.b, call.h, call.d)};
  params.rope.style = RopeStyle::neox;
  params.rope.rotary_dim = call.d2;
  params.rope.inverse = call.backward;
  if (call.freqs != nullptr) {
    params.rope.source = RopeSource::angles;
    params.rope.type = DType::f32;
    params.rope.width = RopeWidth::full;
    params.rope.max_position = call.rows;
    params.rope.angles = {call.freqs, 0, call.d2, 1};
  } else {
    set_cos_and_sin(params.rope, call.cos_, call.sin_, call.cos_dtype, call.rows, call.d2, RopeWidth::full);
  }
  params.positions.cu_seqlens = index_view(call.cu_seqlens);
  params.positions.num_seqs = thd ? call.b : 0;
  params.faults = faults;
  return rotary(params, execution);
}

struct FusedRope2d {
  const void* t = nullptr;  // [b, img_h * img_w, h, d]
  void* out = nullptr;      // dense
  DType dtype = DType::bf16;
  int64_t b = 0;
  int64_t img_h = 0;
  int64_t img_w = 0;
  int64_t h = 0;
  int64_t d = 0;
  RotaryStrides t_strides;
  const void* cos_h = nullptr;  // [1, rows_h, 1, d / 2]
  const void* sin_h = nullptr;
  const void* cos_w = nullptr;  // [1, rows_w, 1, d / 2]
  const void* sin_w = nullptr;
  DType cos_dtype = DType::bf16;
  int64_t rows_h = 0;
  int64_t rows_w = 0;
  IndexView h_of_token = {};  // [img_h * img_w]: token / img_w
  IndexView w_of_token = {};  // [img_h * img_w]: token % img_w
  bool backward = false;
};

// Two launches, one for each half of the head. Both are checked before the first one runs.
inline Status fused_rope_2d(const FusedRope2d& call, FaultRecord* faults, const Execution& execution) {
  if (call.d % 4 != 0) return invalid_argument("apex: d is ", call.d, ": it must be a multiple of 4");
  if (call.h_of_token.data == nullptr || call.w_of_token.data == nullptr) {
    return invalid_argument("apex: ", call.h_of_token.data == nullptr ? "h_of_token" : "w_of_token",
                            " is null: it must be given");
  }
  PROLOGUE_RETURN_IF_ERROR(detail::check_sizes("apex", {{"img_h", call.img_h, detail::kTokens},
                                                        {"img_w", call.img_w, detail::kTokens},
                                                        {"h", call.h, detail::kHeads},
                                                        {"d", call.d, detail::kDim}}));
  if (call.img_h * call.img_w > detail::kTokens) {
    return invalid_argument("apex: img_h * img_w is ", call.img_h * call.img_w, ": it must lie in 0..", detail::kTokens);
  }
  if (call.rows_h < call.img_h || call.rows_w < call.img_w) {
    return invalid_argument("apex: the tables have ", call.rows_h, " and ", call.rows_w, " rows: they must have at least img_h, ",
                            call.img_h, ", and img_w, ", call.img_w);
  }
  RotaryParams top;
  top.batch = call.b;
  top.seq_len = call.img_h * call.img_w;
  top.head_dim = call.d;
  top.dtype = call.dtype;
  top.num_tensors = 1;
  top.tensors[0] = {call.t, call.out, call.h, call.t_strides, batch_major_strides(top.seq_len, call.h, call.d)};
  top.rope.style = RopeStyle::neox;
  top.rope.rotary_dim = call.d / 2;
  top.rope.inverse = call.backward;
  top.tail = RotaryTail::leave;  // each launch writes its half of the head
  top.faults = faults;
  RotaryParams bottom = top;
  set_cos_and_sin(top.rope, call.cos_h, call.sin_h, call.cos_dtype, call.rows_h, call.d / 2, RopeWidth::full);
  top.positions.ids = call.h_of_token;
  top.positions.batch_stride = 0;
  bottom.rope.rotary_offset = call.d / 2;
  set_cos_and_sin(bottom.rope, call.cos_w, call.sin_w, call.cos_dtype, call.rows_w, call.d / 2, RopeWidth::full);
  bottom.positions.ids = call.w_of_token;
  bottom.positions.batch_stride = 0;
  PROLOGUE_RETURN_IF_ERROR(validate(bottom));
  PROLOGUE_RETURN_IF_ERROR(rotary(top, execution));
  return rotary(bottom, execution);
}

}  // namespace prologue::adapters::apex
