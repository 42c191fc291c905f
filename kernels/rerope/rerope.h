// Moves keys that are already in a paged cache to other positions, in place: what was rotated by one position is rotated by another. So the
// keys of a text can be used again where it is no prefix: after other text, or after a part before it was removed. One launch.
//
// For key i, every head of its slot, and each pair (a, b) of the rotated channels, with M(p) the matrix that the prologue multiplies a pair by
// at position p (kernels/base/rope.h):
//   (a, b) = M(to) M(from)^-1 (a, b)
// With one cos and sin for a pair, (co, so) at the old position and (cn, sn) at the new one, this is
//   c = (cn co + sn so) / (co^2 + so^2),  s = (sn co - cn so) / (co^2 + so^2);  (a, b) = (a c - b s, a s + b c)
// So a factor in the table (YaRN's mscale) cancels. Width full is the same with the two cosines and sines of each pair.
//
//   cache         that of the prologue (PagedKvView in views.h). Only K is read and written; cache.v is ignored. cache.k.format.type must
//                 be set
//   slot_mapping  [num_keys]; slot = page * page_size + offset. To move the pages of a block table, list their slots. Two keys must not
//                 share a slot
//   from_positions, to_positions
//                 [num_axes, num_keys], row stride position_axis_stride (0: one row for all axes): the position that the key was rotated by,
//                 and the one that it shall have
//   rope          the one that rotated the keys: every source except per_token and angles_per_token, every width, style, offset, block and
//                 axis. rotary_dim > 0, attention_factor not 0
//   hadamard_block
//                 the one of the prologue that wrote the keys: the transform is undone before (it is its own inverse) and done again after
//
// A norm after the rotation (NormPlacement::after_rope) does not commute with the rotation: such keys cannot be moved. Nor can a key whose
// pair was multiplied by zero: it becomes NaN.
//
// What is written.
//   from = to on every axis, or no position that rotates (identity, below): the key's bytes are not touched
//   float types, and codes with given scales (or none), without hadamard_block: only the rotated channels. Codes saturate as always
//   scales that are computed (token_head): the whole head is decoded, rotated, and quantised again as the prologue would quantise these
//                values: its scale (and zero point) are computed again, for the largest magnitude may have changed
//   hadamard_block: all channels, for the transform mixes them
//
// Guards. Nothing outside the named slots is touched. The first that is true decides.
//   negative slot, or a position (old or new) that is negative on any axis: the key is skipped
//   position >= rope.max_position on any axis (old or new); rope.past_table decides:
//     record     the key is not moved, position_out_of_range is recorded with its index i. `faults` must not be null
//     zero       the same, and recorded only if `faults` is given
//     identity   the key is (was) not rotated at this position: cos 1, sin 0, on every axis
//   slot >= num_slots: slot_out_of_range is recorded; nothing is written
//
// Numerics. Arithmetic is float32, with cos and sin of the rotary operation (kernels/rotary/rotary.h). c and s are a rounded product, a fused
// multiply-add and a division; a channel is a rounded product and a fused multiply-add; the store rounds once. The bits are the same on CPU
// and GPU. docs/numerics.md has the bound of the difference to a key that was written at the new position.
//
// num_keys = 0 is a no-op. The operation never allocates, synchronises or throws, and is safe under graph capture.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/execution.h>
#include <prologue/kernels/base/export.h>
#include <prologue/kernels/base/faults.h>
#include <prologue/kernels/base/rope.h>
#include <prologue/kernels/base/status.h>
#include <prologue/kernels/base/views.h>

namespace prologue {

struct ReropeParams {
  int64_t num_keys = 0;
  PagedKvView cache;
  Rope rope;
  IndexView slot_mapping;
  IndexView from_positions;
  IndexView to_positions;
  int64_t position_axis_stride = kUnsetStride;  // of both; must be set if num_axes > 1
  int64_t hadamard_block = 0;                   // 0: no transform

  FaultRecord* faults = nullptr;    // null only if positions have no bound, or rope.past_table is zero or identity
  uint8_t* token_faults = nullptr;  // [num_keys]: a FaultCode is written for each faulty key; null = not wanted
  uint64_t reserved[8] = {};        // zeros: docs/versioning.md
};

PROLOGUE_API Status rerope(const ReropeParams& params, const Execution& execution);

}  // namespace prologue
