// This file says which column and which position axis a pair of channels takes: the rules of rope.h for blocks and axes, once for every
// operation and both backends.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/host_device.h>
#include <prologue/kernels/base/rope.h>

namespace prologue {

// Returns the pairs of a block, which are the columns of cos and sin if their width is half.
PROLOGUE_HOST_DEVICE constexpr int32_t pairs_of_block(const Rope& rope) {
  return static_cast<int32_t>(rope.rotary_dim) / static_cast<int32_t>(2 * rope.num_blocks);
}

// Returns the axis of pair `pair`, counted through all blocks. An axis that there is not counts as 0: see position_on_axis().
PROLOGUE_HOST_DEVICE inline int32_t axis_of_pair(const Rope& rope, int32_t pair) {
  if (rope.num_axes == 1) return 0;
  return rope.pair_axis == nullptr ? pair / pairs_of_block(rope) : rope.pair_axis[pair];
}

}  // namespace prologue
