// This file has one token of gather_cos_sin, for host and device.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/shared/any_type.h>
#include <prologue/kernels/base/shared/token.h>
#include <prologue/kernels/token_ops/gather_cos_sin.h>

namespace prologue {

// Whether token t gets cos 1 and sin 0.
PROLOGUE_HOST_DEVICE inline bool gathers_identity(const GatherCosSinParams& p, int64_t t) {
  if (p.past_table != PastTable::identity) return false;
  PositionFacts facts;
  for (int64_t axis = 0; axis < p.num_axes; ++axis) {
    add_position(index_at(p.positions, axis * p.position_axis_stride + t), false, p.max_position, facts);
  }
  return !decide_position(facts, p.past_table).rotated;
}

// Gathers pair i of token t.
PROLOGUE_HOST_DEVICE inline void gather_pair(const GatherCosSinParams& p, int64_t t, int64_t i, bool identity) {
  int64_t axis = p.pair_axis == nullptr ? 0 : p.pair_axis[i];
  if (axis >= p.num_axes) axis = 0;
  const int64_t position = index_at(p.positions, axis * p.position_axis_stride + t);
  PositionFacts facts;
  add_position(position, false, p.max_position, facts);
  const Token token = decide_position(facts, PastTable::zero);
  const bool inside = !(token.padding | token.zero);
  const int64_t row = inside ? position * p.rotary_dim : 0, half = p.rotary_dim / 2;
  float* out = p.out + t * p.rotary_dim;
  out[i] = identity ? 1.0f : inside ? float_at<float>(p.type, p.cos_sin, row + i) : 0.0f;
  out[half + i] = identity || !inside ? 0.0f : float_at<float>(p.type, p.cos_sin, row + half + i);
}

}  // namespace prologue
