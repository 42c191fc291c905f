// The cos/sin rows of a step's tokens, gathered once for all layers that rotate alike: the input of CosSinSource::per_token.
//
//   out[t, i] = cos_sin[position, i], out[t, r/2 + i] = cos_sin[position, r/2 + i], position = positions[pair_axis[i], t]
//
//   cos_sin    [max_position, rotary_dim] float32, cos then sin
//   positions  [num_axes, num_tokens], rows position_axis_stride apart (0: one row for all axes)
//   pair_axis  [rotary_dim / 2], values below num_axes (others count as 0); may be null: all pairs turn by the first stream
//   out        [num_tokens, rotary_dim] float32, must not overlap the inputs
//
// A pair whose position lies outside [0, max_position) gets zeros; the operations that rotate and write record it. With
// past_table = identity all pairs of a token with a position >= max_position, in any of num_axes streams, get cos 1 and sin 0
// (zero and record do the same here). Copies are bitwise. num_tokens = 0 is a no-op. Allocates and synchronises nothing.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/execution.h>
#include <prologue/kernels/base/export.h>
#include <prologue/kernels/base/status.h>
#include <prologue/kernels/base/views.h>

namespace prologue {

struct GatherCosSinParams {
  int64_t num_tokens = 0;
  int64_t rotary_dim = 0;  // even
  int64_t max_position = 0;
  const float* cos_sin = nullptr;
  IndexView positions;
  int64_t num_axes = 1;                         // 1 to 4
  int64_t position_axis_stride = kUnsetStride;  // must be set where num_axes > 1
  const uint8_t* pair_axis = nullptr;
  float* out = nullptr;
  PastTable past_table = PastTable::record;
};

PROLOGUE_API Status gather_cos_sin(const GatherCosSinParams& params, const Execution& execution);

}  // namespace prologue
