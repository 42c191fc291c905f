// Takes a call of torchtune: RotaryPositionalEmbeddings. See adapter.h and docs/coming-from.md.
#pragma once

#include <cstdint>

#include <prologue/adapters/adapter.h>
#include <prologue/kernels/rotary/rotary.h>

namespace prologue::adapters::torchtune {

struct RotaryPositionalEmbeddings {
  const void* x = nullptr;  // [b, s, n_h, h_d]
  void* out = nullptr;
  DType dtype = DType::bf16;
  int64_t b = 0;
  int64_t s = 0;
  int64_t n_h = 0;
  int64_t h_d = 0;  // dim
  int64_t max_seq_len = 4096;
  double base = 10000.0;
  const float* cache = nullptr;  // the module's buffer, [max_seq_len, dim / 2, 2]; null = computed from base
  IndexView input_pos = {};      // [b, s], or [s] for all; null = 0, 1, 2, ...
  bool input_pos_per_batch = true;
};

inline Status forward(const RotaryPositionalEmbeddings& call, FaultRecord* faults, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(detail::check_sizes(
      "torchtune", {{"s", call.s, detail::kTokens}, {"n_h", call.n_h, detail::kHeads}, {"h_d", call.h_d, detail::kDim}}));
  if (call.max_seq_len <= 0) {
    return invalid_argument("torchtune: max_seq_len is ", call.max_seq_len, ": it must be positive");
  }
  RotaryParams params;
  params.batch = call.b;
  params.seq_len = call.s;
  params.head_dim = call.h_d;
  params.dtype = call.dtype;
  params.num_tensors = 1;
  params.tensors[0] = rotary_tensor(call.x, call.out, call.n_h, batch_major_strides(call.s, call.n_h, call.h_d));
  params.rope.style = RopeStyle::interleaved;
  params.rope.rotary_dim = call.h_d;
  params.rope.width = RopeWidth::half;
  if (call.cache != nullptr) {
    params.rope.type = DType::f32;
    params.rope.cos = {call.cache, 0, call.h_d, 2};  // (cos, sin) pairs: a column is two numbers wide
    params.rope.sin = {call.cache + 1, 0, call.h_d, 2};
  } else {
    params.rope.source = RopeSource::theta;
    params.rope.theta = call.base;
  }
  params.rope.max_position = call.max_seq_len;
  params.positions.ids = call.input_pos;
  params.positions.batch_stride = call.input_pos_per_batch ? call.s : 0;
  params.faults = faults;
  return rotary(params, execution);
}

}  // namespace prologue::adapters::torchtune
