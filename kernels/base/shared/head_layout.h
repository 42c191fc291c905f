// This file cuts the channels of a head into the units of head_unit.cuh.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/rope.h>

namespace prologue::cuda {

// Says how the channels of a head are cut: those in [rotary_offset, rotary_offset + rotary_dim) as pairs of `style`, the others in order.
struct HeadLayout {
  int32_t head_dim = 0;
  int32_t rotary_dim = 0;
  int32_t rotary_offset = 0;
  RopeStyle style = RopeStyle::neox;
};

// The pairs are inside each of num_blocks adjacent blocks of the rotated channels.
struct BlockLayout : HeadLayout {
  int32_t num_blocks = 1;
};

// Returns the number of units of a head, of two vectors of `vector` channels each.
constexpr int64_t units_of(const HeadLayout& layout, int64_t vector) {
  return layout.rotary_dim / (2 * vector) + (layout.head_dim - layout.rotary_dim + 2 * vector - 1) / (2 * vector);
}

}  // namespace prologue::cuda
