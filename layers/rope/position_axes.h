// This file has rotations with more than one position per token (images, video). A token has one position on each axis; these functions
// assign an axis to each pair of channels.
//
// The result is one axis number per pair, [rotary_dim / 2]; positions are then [axes, tokens].
#pragma once

#include <cstdint>
#include <vector>

#include <prologue/layers/rope/rope_scaling.h>

namespace prologue {

// Returns the axes of MRoPE: `sections[a]` pairs belong to axis a (t, h, w). The number of pairs is the sum of the sections.
//   contiguous   first all pairs of axis 0, then all pairs of axis 1, ... (Qwen2-VL); one to four sections
//   interleaved  pair i belongs to axis i % 3 while i < 3 * sections[i % 3]; all other pairs belong to axis 0 (Qwen3-VL)
PROLOGUE_API Result<std::vector<uint8_t>> mrope_pair_axis(const std::vector<int64_t>& sections, bool interleaved);

// Returns the axes of a 2-D rotation: the first half of the pairs belongs to axis 0, the second half to axis 1.
PROLOGUE_API Result<std::vector<uint8_t>> two_axis_pair_axis(int64_t rotary_dim);
// Returns its frequencies: those of one axis (rope_frequencies with rotary_dim / 2), once for each half.
PROLOGUE_API RopeFrequencies two_axis_frequencies(const RopeFrequencies& one_axis);

}  // namespace prologue
