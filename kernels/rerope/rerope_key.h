// This file has what is decided for one key, the rotation of each of its pairs and the decoding of its codes: the rules of rerope.h, once for
// host and device.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/shared/quantize.h>
#include <prologue/kernels/base/shared/rotation.h>
#include <prologue/kernels/base/shared/token.h>
#include <prologue/kernels/rerope/rerope.h>
#include <prologue/kernels/rotary/rotary_token.h>

namespace prologue {

struct ReropeKey {
  bool moves = false;
  FaultCode fault = FaultCode::none;  // to be recorded
  int64_t page = 0;
  uint32_t offset = 0;
  int64_t from[kMaxAxes] = {};  // positions; on axes that there are not: as on axis 0
  int64_t to[kMaxAxes] = {};
};

inline constexpr int64_t kNotRotated = -1;  // in place of a position

PROLOGUE_HOST_DEVICE inline ReropeKey resolve_key(const ReropeParams& p, const PageDivider& pages, int64_t i) {
  ReropeKey key;
  const int64_t slot = index_at(p.slot_mapping, i);
  PositionFacts old_facts, new_facts;
  bool same = true;
  for (int axis = 0; axis < kMaxAxes; ++axis) {
    const bool there = axis < p.rope.num_axes;
    const int64_t entry = there ? axis * p.position_axis_stride + i : 0;
    key.from[axis] = there ? index_at(p.from_positions, entry) : key.from[0];
    key.to[axis] = there ? index_at(p.to_positions, entry) : key.to[0];
    same &= key.from[axis] == key.to[axis];
    add_position(key.from[axis], false, p.rope.max_position, old_facts);
    add_position(key.to[axis], false, p.rope.max_position, new_facts);
  }
  const Token from = decide_position(old_facts, p.rope.past_table), to = decide_position(new_facts, p.rope.past_table);
  Token token = from.zero ? from : to;
  decide_slot(given_slot(slot, num_slots(p.cache)), token);
  if (slot < 0 || from.padding || to.padding) return key;
  key.fault = token.fault;
  key.moves = token.reaches_cache && !same && (from.rotated || to.rotated);
  for (int axis = 0; axis < kMaxAxes; ++axis) {
    if (!from.rotated) key.from[axis] = kNotRotated;
    if (!to.rotated) key.to[axis] = kNotRotated;
  }
  if (key.moves) split_slot(pages, slot, key.page, key.offset);
  return key;
}

// Returns M(to) M(from)^-1 of a pair, from the positions on its axis.
PROLOGUE_HOST_DEVICE inline PairRotation<float> moving_rotation(const Rope& rope, const RotaryFrequencies* frequencies,
                                                                int64_t old_position, int64_t new_position, int32_t pair) {
  const auto rotation_at = [&](int64_t position) {
    if (position == kNotRotated) return PairRotation<float>{1.0f, 0.0f, 1.0f, 0.0f};
    RotaryToken token;
    for (int64_t& of_axis : token.positions) of_axis = position;
    return rotation_of_pair<float>(rope, frequencies, token, pair);
  };
  const PairRotation<float> from = rotation_at(old_position), to = rotation_at(new_position);
  const auto sum = [](float a, float b, float c, float d) { return fused_multiply_add(a, b, multiply_rounded(c, d)); };
  const float determinant = sum(from.cos_a, from.cos_b, from.sin_a, from.sin_b);
  return {divide_rounded(sum(to.cos_a, from.cos_b, to.sin_a, from.sin_b), determinant),
          divide_rounded(sum(to.sin_a, from.cos_a, -to.cos_a, from.sin_a), determinant),
          divide_rounded(sum(to.cos_b, from.cos_a, to.sin_b, from.sin_a), determinant),
          divide_rounded(sum(to.sin_b, from.cos_b, -to.cos_b, from.sin_b), determinant)};
}

// Says whether every channel of a head is written, not only those that are rotated.
PROLOGUE_HOST_DEVICE inline bool rewrites_whole_heads(const ReropeParams& p) {
  return p.hadamard_block != 0 || p.cache.k.format.scaling == KvScaling::token_head;
}

// Returns the address of the scale of a head; null if the type has none.
PROLOGUE_HOST_DEVICE inline float* scale_of_key(const PagedHeads& k, const ReropeKey& key, int64_t head) {
  switch (k.format.scaling) {
    case KvScaling::tensor: return k.scale;
    case KvScaling::head: return k.scale + head;
    case KvScaling::token_head:
      return k.scale + key.page * k.scale_strides.page + key.offset * k.scale_strides.token + head * k.scale_strides.head;
    default: return nullptr;
  }
}

// Returns the scale that a head was stored with.
PROLOGUE_HOST_DEVICE inline AsymmetricScale stored_scale(const KvFormat& format, const float* scale) {
  AsymmetricScale stored;
  if (scale == nullptr) return stored;
  static_cast<HeadScale&>(stored) = given_scale(scale[0]);
  if (format.type == DType::uint4) stored.zero_point = scale[1];
  return stored;
}

// Returns the value of a code: a byte, or the low four bits of one.
PROLOGUE_HOST_DEVICE inline float decoded(uint8_t code, const AsymmetricScale& by, DType type) {
  if (type != DType::uint4) return dequantize(code, by.scale, type);
  return add_rounded(multiply_rounded(static_cast<float>(code & 0x0fu), by.scale), by.zero_point);
}

}  // namespace prologue
