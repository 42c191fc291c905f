// This file has the position of a token and the rotation of each of its pairs: the rules of rotary.h, once for host and device. Whatever
// the arrays hold, nothing is read outside their stated shapes.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/shared/angle.h>
#include <prologue/kernels/base/shared/any_type.h>
#include <prologue/kernels/base/shared/float64.h>
#include <prologue/kernels/base/shared/rope_pairs.h>
#include <prologue/kernels/base/shared/token.h>
#include <prologue/kernels/rotary/rotary.h>

namespace prologue {

inline constexpr int kMaxRotaryTensors = 4;
inline constexpr int kMaxRotaryPairs = kMaxHeadDim / 2;
// A block has at most so many frequencies if the source is theta: they are a kernel's parameters, which have 4 KiB.
inline constexpr int kMaxFrequencies = sizeof(RotaryFrequencies) / sizeof(double);

struct RotaryToken : Token {
  int64_t batch = 0;
  int64_t token = 0;
  int64_t positions[kMaxAxes] = {};  // on axes that there are not: as on axis 0
};

PROLOGUE_HOST_DEVICE inline RotaryToken resolve_token(const RotaryParams& params, int64_t batch, int64_t token) {
  const RotaryPositions& p = params.positions;
  RotaryToken at;
  at.batch = batch;
  at.token = token;
  PositionFacts facts;
  const bool given = p.ids.data != nullptr;
  if (given) {
    for (int axis = 0; axis < kMaxAxes; ++axis) {
      const bool there = axis < params.rope.num_axes;
      const int64_t entry = (there ? axis : 0) * p.axis_stride + batch * p.batch_stride + token * p.token_stride;
      at.positions[axis] = there ? int_at(p.ids, entry) : at.positions[0];
    }
  } else {
    int64_t sequence = batch;
    ExactSum number = token;
    if (p.cu_seqlens.data != nullptr) {
      if (token >= int_at(p.cu_seqlens, p.num_seqs)) {
        at.padding = true;
        return at;
      }
      sequence = sequence_of(token, p.num_seqs, [&](int64_t n) { return int_at(p.cu_seqlens, n); });
      number -= int_at(p.cu_seqlens, sequence);
    }
    facts.too_long = p.max_seqlen > 0 && number >= p.max_seqlen;
    ExactSum sum = number + p.offset;
    if (p.offsets.data != nullptr) sum += int_at(p.offsets, sequence * p.offsets_stride);
    for (int64_t& position : at.positions) position = derived_position(sum);
  }
  for (const int64_t position : at.positions) add_position(position, !given, params.rope.max_position, facts);
  static_cast<Token&>(at) = decide_position(facts, params.rope.past_table);
  return at;
}

// Returns cos and sin of position * frequency, in float32 for the calls for which the prologue uses float32.
template <class A>
PROLOGUE_HOST_DEVICE void cos_sin_at(int64_t position, DType type, const void* inv_freq, int64_t column, A& cos, A& sin) {
  constexpr int64_t kLargest = int64_t{1} << 20;  // angle.h
  if (sizeof(A) == 4 && type == DType::f32 && position <= kLargest) {
    const float frequency = static_cast<const float*>(inv_freq)[column];
    const float angle = multiply_rounded(static_cast<float>(position), frequency);
    if (angle <= static_cast<float>(kLargest) && angle >= -static_cast<float>(kLargest)) {
      const CosSin value = cos_sin_of(static_cast<int32_t>(position), frequency);
      cos = value.cos;
      sin = value.sin;
      return;
    }
  }
  const CosSin64 value = cos_sin_of_product(static_cast<double>(position), float_at<double>(type, inv_freq, column));
  cos = static_cast<A>(value.cos);
  sin = static_cast<A>(value.sin);
}

// Returns the rotation of pair `pair` (counted through all blocks) of a token without a fault.
template <class A>
PROLOGUE_HOST_DEVICE PairRotation<A> rotation_of_pair(const Rope& p, const RotaryFrequencies* frequencies,
                                                      const RotaryToken& token, int32_t pair) {
  const int32_t block_pairs = pairs_of_block(p), column = pair % block_pairs;
  const int64_t position = position_on_axis(token.positions, axis_of_pair(p, pair));

  PairRotation<A> rotation = {};
  if (!rope_rows_are_given(p.source)) {
    const bool given = p.source == RopeSource::inv_freq;
    cos_sin_at(position, given ? p.type : DType::f64, given ? p.inv_freq : frequencies->values, column, rotation.cos_a,
               rotation.sin_a);
    rotation.cos_b = rotation.cos_a;
    rotation.sin_b = rotation.sin_a;
  } else {
    const int64_t row = rope_row_is_token(p.source) ? token.token : position;
    const auto load = [&](int64_t at, A& cos, A& sin) {
      const auto index = [&](const RopeColumns& columns) {
        return token.batch * columns.batch_stride + row * columns.row_stride + at * columns.column_stride;
      };
      if (p.source == RopeSource::table || p.source == RopeSource::per_token) {
        cos = float_at<A>(p.type, p.cos.data, index(p.cos));
        sin = float_at<A>(p.type, p.sin.data, index(p.sin));
      } else {
        const CosSin64 taken = cos_sin_of_product(float_at<double>(p.type, p.angles.data, index(p.angles)), 1.0);
        cos = static_cast<A>(taken.cos);
        sin = static_cast<A>(taken.sin);
      }
    };
    if (p.width == RopeWidth::half) {
      load(column, rotation.cos_a, rotation.sin_a);
      rotation.cos_b = rotation.cos_a;
      rotation.sin_b = rotation.sin_a;
    } else {
      const bool neox = p.style == RopeStyle::neox;
      load(neox ? column : 2 * column, rotation.cos_a, rotation.sin_a);
      load(neox ? column + block_pairs : 2 * column + 1, rotation.cos_b, rotation.sin_b);
    }
  }
  const A factor = static_cast<A>(p.attention_factor);
  rotation = {multiply_rounded(rotation.cos_a, factor), multiply_rounded(rotation.sin_a, factor),
              multiply_rounded(rotation.cos_b, factor), multiply_rounded(rotation.sin_b, factor)};
  if (p.inverse && p.inverse_by_own_sine) return {rotation.cos_a, -rotation.sin_a, rotation.cos_b, -rotation.sin_b};
  if (p.inverse) return {rotation.cos_a, -rotation.sin_b, rotation.cos_b, -rotation.sin_a};
  return rotation;
}

}  // namespace prologue
