// Gathers the cos/sin rows of a step's tokens, once for all layers with the same rotation. RopeSource::per_token reads them.
//
//   out[t, i] = cos_sin[position, i], out[t, r/2 + i] = cos_sin[position, r/2 + i], position = positions[pair_axis[i], t]
//
//   cos_sin    [max_position, rotary_dim] of `type`: float32, float16 or bfloat16; cos then sin
//   positions  [num_axes, num_tokens], row stride position_axis_stride (0: one row for all axes)
//   pair_axis  [rotary_dim / 2], values not below num_axes count as 0; null: all pairs use axis 0
//   out        [num_tokens, rotary_dim] float32, must not overlap the inputs
//
// For a pair whose position is outside [0, max_position), cos and sin become 0. Nothing is recorded here: the operations that
// rotate and write record the token. So past_table = record and zero do the same here. With past_table = identity, all pairs of a
// token whose position is >= max_position on any of num_axes axes get cos 1 and sin 0.
// float32 is copied bitwise, 16-bit values are widened exactly. num_tokens = 0 is a no-op. Never allocates or synchronises.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/execution.h>
#include <prologue/kernels/base/export.h>
#include <prologue/kernels/base/rope.h>
#include <prologue/kernels/base/status.h>
#include <prologue/kernels/base/views.h>

namespace prologue {

struct GatherCosSinParams {
  int64_t num_tokens = 0;
  int64_t rotary_dim = 0;  // even
  int64_t max_position = 0;
  const void* cos_sin = nullptr;
  IndexView positions;
  int64_t num_axes = 1;                         // 1 to 4
  int64_t position_axis_stride = kUnsetStride;  // must be set if num_axes > 1
  const uint8_t* pair_axis = nullptr;
  float* out = nullptr;
  PastTable past_table = PastTable::record;
  DType type = DType::f32;  // of cos_sin
  uint64_t reserved[4] = {};  // zeros: docs/versioning.md
};

PROLOGUE_API Status gather_cos_sin(const GatherCosSinParams& params, const Execution& execution);

}  // namespace prologue
