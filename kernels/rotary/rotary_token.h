// The position of a token and the rotation of each of its pairs: the rules of rotary.h, once for host and device. Whatever the
// arrays hold, nothing is read outside their stated shapes.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/angle.h>
#include <prologue/kernels/base/any_type.h>
#include <prologue/kernels/base/faults.h>
#include <prologue/kernels/base/float64.h>
#include <prologue/kernels/rotary/rotary.h>

namespace prologue {

inline constexpr int kMaxRotaryTensors = 4;
inline constexpr int kMaxRotaryAxes = 4;
inline constexpr int kMaxRotaryPairs = 288;
static_assert(sizeof(RotaryFrequencies) == kMaxRotaryPairs * sizeof(double));

struct RotaryPlace {
  bool padding = false;               // touch nothing
  FaultCode fault = FaultCode::none;  // otherwise the rows become zeros
  bool rotated = true;                // otherwise past the table, and the rows are copied
  int64_t batch = 0;
  int64_t token = 0;
  int64_t positions[kMaxRotaryAxes] = {};
};

// Exact, whatever an array holds.
__extension__ typedef __int128 ExactSum;

// The last n with cu_seqlens[n] <= token, in [0, num_seqs).
PROLOGUE_HOST_DEVICE inline int64_t packed_sequence_of(const RotaryPositions& p, int64_t token) {
  int64_t low = 0, high = p.num_seqs;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (int_at(p.cu_seqlens, middle) <= token ? low : high) = middle;
  }
  return low;
}

PROLOGUE_HOST_DEVICE inline RotaryPlace place_rotary_token(const RotaryParams& params, int64_t batch, int64_t token) {
  const RotaryPositions& p = params.positions;
  RotaryPlace place;
  place.batch = batch;
  place.token = token;
  if (p.ids.data != nullptr) {
    for (int axis = 0; axis < kMaxRotaryAxes; ++axis) {
      if (axis >= params.rope.num_axes) break;
      const int64_t at = axis * p.axis_stride + batch * p.batch_stride + token * p.token_stride;
      place.positions[axis] = int_at(p.ids, at);
      place.padding = place.padding || place.positions[axis] < 0;
    }
  } else {
    int64_t sequence = batch;
    ExactSum number = token;
    if (p.cu_seqlens.data != nullptr) {
      if (token >= int_at(p.cu_seqlens, p.num_seqs)) {
        place.padding = true;
        return place;
      }
      sequence = packed_sequence_of(p, token);
      number -= int_at(p.cu_seqlens, sequence);
    }
    if (p.max_seqlen > 0 && number >= p.max_seqlen) place.fault = FaultCode::sequence_too_long;
    ExactSum position = number + p.offset;
    if (p.offsets.data != nullptr) position += int_at(p.offsets, sequence * p.offsets_stride);
    const bool fits = position >= 0 && position <= INT64_MAX;
    for (int64_t& each : place.positions) each = fits ? static_cast<int64_t>(position) : -1;
  }
  if (place.padding || place.fault != FaultCode::none) return place;
  for (int axis = 0; axis < kMaxRotaryAxes; ++axis) {
    if (axis >= params.rope.num_axes) break;
    const int64_t position = place.positions[axis];
    const bool past_table = params.rope.max_position > 0 && position >= params.rope.max_position;
    const bool identity = past_table && params.rope.past_table == PastTable::identity;
    if (identity) place.rotated = false;
    if (position < 0 || (past_table && !identity)) place.fault = FaultCode::position_out_of_range;
  }
  return place;
}

// a' = a cos_a - b sin_a, b' = a sin_b + b cos_b.
template <class A>
struct PairTurn {
  A cos_a, sin_a, cos_b, sin_b;
};

template <class A>
PROLOGUE_HOST_DEVICE void turn_pair(A& a, A& b, const PairTurn<A>& turn) {
  const A turned = add_rounded(multiply_rounded(a, turn.cos_a), -multiply_rounded(b, turn.sin_a));
  b = add_rounded(multiply_rounded(a, turn.sin_b), multiply_rounded(b, turn.cos_b));
  a = turned;
}

// cos and sin of position * frequency; in float32 for the calls for which the prologue uses float32.
template <class A>
PROLOGUE_HOST_DEVICE void turn_by(int64_t position, DType type, const void* inv_freq, int64_t column, A& cos, A& sin) {
  constexpr int64_t kLargest = int64_t{1} << 20;  // angle.h
  if (sizeof(A) == 4 && type == DType::f32 && position <= kLargest) {
    const float frequency = static_cast<const float*>(inv_freq)[column];
    const float angle = multiply_rounded(static_cast<float>(position), frequency);
    if (angle <= static_cast<float>(kLargest) && angle >= -static_cast<float>(kLargest)) {
      const CosSin turn = cos_sin_of(static_cast<int32_t>(position), frequency);
      cos = turn.cos;
      sin = turn.sin;
      return;
    }
  }
  const CosSin64 turn = cos_sin_of_product(static_cast<double>(position), float_at<double>(type, inv_freq, column));
  cos = static_cast<A>(turn.cos);
  sin = static_cast<A>(turn.sin);
}

// The rotation of pair `pair` (counted through all blocks) of a token without a fault.
template <class A>
PROLOGUE_HOST_DEVICE PairTurn<A> turn_of_pair(const RotaryParams& params, const RotaryFrequencies* frequencies,
                                              const RotaryPlace& place, int32_t pair) {
  const Rope& p = params.rope;
  const int32_t block_pairs = static_cast<int32_t>(params.rope.rotary_dim) / static_cast<int32_t>(2 * params.rope.num_blocks);
  const int32_t block = pair / block_pairs, column = pair % block_pairs;
  int64_t axis = 0;
  if (params.rope.num_axes > 1) axis = params.rope.pair_axis == nullptr ? block : params.rope.pair_axis[pair];
  const int64_t position = axis < params.rope.num_axes ? place.positions[axis] : place.positions[0];

  PairTurn<A> turn = {};
  if (!rope_rows_are_given(p.source)) {
    const bool given = p.source == RopeSource::inv_freq;
    turn_by(position, given ? p.type : DType::f64, given ? p.inv_freq : frequencies->values, column, turn.cos_a, turn.sin_a);
    turn.cos_b = turn.cos_a;
    turn.sin_b = turn.sin_a;
  } else {
    const int64_t row = rope_row_is_token(p.source) ? place.token : position;
    const auto load = [&](int64_t at, A& cos, A& sin) {
      const auto index = [&](const RopeColumns& columns) {
        return place.batch * columns.batch_stride + row * columns.row_stride + at * columns.column_stride;
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
      load(column, turn.cos_a, turn.sin_a);
      turn.cos_b = turn.cos_a;
      turn.sin_b = turn.sin_a;
    } else {
      const bool neox = params.rope.style == RopeStyle::neox;
      load(neox ? column : 2 * column, turn.cos_a, turn.sin_a);
      load(neox ? column + block_pairs : 2 * column + 1, turn.cos_b, turn.sin_b);
    }
  }
  const A factor = static_cast<A>(p.attention_factor);
  turn = {multiply_rounded(turn.cos_a, factor), multiply_rounded(turn.sin_a, factor), multiply_rounded(turn.cos_b, factor),
          multiply_rounded(turn.sin_b, factor)};
  if (params.rope.inverse && params.rope.inverse_by_own_sine) return {turn.cos_a, -turn.sin_a, turn.cos_b, -turn.sin_b};
  if (params.rope.inverse) return {turn.cos_a, -turn.sin_b, turn.cos_b, -turn.sin_a};
  return turn;
}

}  // namespace prologue
