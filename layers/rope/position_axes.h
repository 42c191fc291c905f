// Rotations by more than one position per token (images, video): which of a token's position streams turns which pair.
//
// The result is one number per pair, [rotary_dim / 2]; positions are then [streams, tokens].
#pragma once

#include <cstdint>
#include <vector>

#include <prologue/layers/rope/rope_scaling.h>

namespace prologue {

// MRoPE: `sections[a]` pairs belong to stream a (t, h, w). There are as many pairs as the sections add up to.
//   contiguous   first all pairs of stream 0, then all of stream 1, ... (Qwen2-VL); one to four sections
//   interleaved  pair i belongs to stream i % 3 as long as i < 3 * sections[i % 3], and to stream 0 from there on (Qwen3-VL)
PROLOGUE_API Result<std::vector<uint8_t>> mrope_pair_axis(const std::vector<int64_t>& sections, bool interleaved);

// 2-D rotation: the first half of the pairs belongs to stream 0, the second to stream 1.
PROLOGUE_API Result<std::vector<uint8_t>> two_axis_pair_axis(int64_t rotary_dim);
// Its frequencies: those of one axis (rope_frequencies with rotary_dim / 2), once for either half.
PROLOGUE_API RopeFrequencies two_axis_frequencies(const RopeFrequencies& one_axis);

}  // namespace prologue
