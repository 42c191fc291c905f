// The rotary embedding as an operation of its own: y = rotate(x) for one tensor of heads.
//
//   x  [num_tokens, num_heads, head_dim] dtype, strided
//   y  the same shape, strided; may be x itself (same pointer and strides), no other overlap
// Pairs, table, positions, padding and numerics as in kernels/attention_prologue/attention_prologue.h. A position outside the
// table writes the token's rows as zeros and is recorded; a negative position leaves them untouched.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/execution.h>
#include <prologue/kernels/base/faults.h>
#include <prologue/kernels/base/views.h>

namespace prologue {

struct RotaryParams {
  int64_t num_tokens = 0;
  int64_t num_heads = 0;
  int64_t head_dim = 0;
  DType dtype = DType::f32;
  HeadsView x;
  MutableHeadsView y;
  RopeStyle style = RopeStyle::neox;
  int64_t rotary_dim = 0;
  const float* cos_sin_cache = nullptr;  // [max_position, rotary_dim] float32, cos then sin
  int64_t max_position = 0;
  IndexView positions;
  FaultRecord* faults = nullptr;
};

PROLOGUE_API Status rotary(const RotaryParams& params, const Execution& execution);

}  // namespace prologue
