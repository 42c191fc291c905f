// Takes a call of the Triton tutorial: rope_forward_kernel_v4. See adapter.h and docs/coming-from.md.
#pragma once

#include <cstdint>

#include <prologue/kernels/rotary/rotary.h>

namespace prologue::adapters::triton_tutorial {

struct RopeForward {
  const void* x_ptr = nullptr;
  void* out_ptr = nullptr;
  const void* cos_ptr = nullptr;  // [seq_len, head_dim / 2] or more columns
  const void* sin_ptr = nullptr;
  DType dtype = DType::f16;
  DType cos_dtype = DType::f32;
  int64_t stride_x_batch = 0, stride_x_head = 0, stride_x_seq = 0, stride_x_dim = 1;
  int64_t stride_out_batch = 0, stride_out_head = 0, stride_out_seq = 0, stride_out_dim = 1;
  int64_t stride_cos_seq = 0, stride_cos_dim = 1;
  int64_t stride_sin_seq = 0, stride_sin_dim = 1;
  int64_t batch_size = 0;
  int64_t n_heads = 0;
  int64_t seq_len = 0;
  int64_t head_dim = 0;
};

inline Status rope_forward(const RopeForward& call, const Execution& execution) {
  RotaryParams params;
  params.batch = call.batch_size;
  params.seq_len = call.seq_len;
  params.head_dim = call.head_dim;
  params.dtype = call.dtype;
  params.num_tensors = 1;
  params.tensors[0] = {call.x_ptr,
                       call.out_ptr,
                       call.n_heads,
                       {call.stride_x_batch, call.stride_x_seq, call.stride_x_head, call.stride_x_dim},
                       {call.stride_out_batch, call.stride_out_seq, call.stride_out_head, call.stride_out_dim}};
  params.rope.style = RopeStyle::neox;
  params.rope.rotary_dim = call.head_dim;
  params.rope.inverse = 1;  // y1 = x1 cos + x2 sin: the inverse rotation
  params.rope.type = call.cos_dtype;
  params.rope.width = RopeWidth::half;
  params.rope.source = RopeSource::per_token;
  params.rope.cos = {call.cos_ptr, 0, call.stride_cos_seq, call.stride_cos_dim};
  params.rope.sin = {call.sin_ptr, 0, call.stride_sin_seq, call.stride_sin_dim};
  return rotary(params, execution);
}

}  // namespace prologue::adapters::triton_tutorial
