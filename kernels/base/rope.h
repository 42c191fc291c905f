// Describes a rotary embedding, for every operation that rotates: where cos and sin come from, which channels form pairs, and which
// position rotates which pair. An operation that takes only a part of it says so, and returns an error for the rest.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/views.h>

namespace prologue {

enum class RopeStyle : int32_t {
  neox = 0,     // half-split: pair i of a block of w channels is (x[i], x[i + w/2])
  interleaved,  // pair i is (x[2i], x[2i + 1])
};

constexpr const char* rope_style_name(RopeStyle style) { return style == RopeStyle::neox ? "neox" : "interleaved"; }

enum class RopeSource : int32_t {
  table = 0,  // cos and sin are given; row = position
  per_token,  // cos and sin are given; row = token. Positions are needed only for what they are checked against
  inv_freq,   // angle = position * inv_freq[column]
  theta,      // angle = position * theta^(-2 * column / w)
  angles,     // angles are given, row = position; the kernel computes their cos and sin
  angles_per_token,
};

constexpr bool rope_rows_are_given(RopeSource source) { return source != RopeSource::inv_freq && source != RopeSource::theta; }
constexpr bool rope_row_is_token(RopeSource source) {
  return source == RopeSource::per_token || source == RopeSource::angles_per_token;
}

enum class RopeWidth : int32_t {
  unset = 0,  // an error if rows are given: the width cannot be seen from a table's pointer and strides
  half,       // one column for each pair of a block: [rows, w / 2]
  full,       // one column for each channel of a block: [rows, w]. Each channel of a pair has its own cos and sin:
              // (a cos_a - b sin_a, a sin_b + b cos_b); inverse (the transpose): (a cos_a + b sin_b, -a sin_a + b cos_b)
};

// Says what happens to a token whose position is past the last row of the table, or past another bound on positions.
enum class PastTable : int32_t {
  record = 0,  // its rows become zeros, its K and V are not cached, it is recorded; `faults` must not be null
  zero,        // the same, but `faults` may be null (then nothing is recorded)
  identity,    // its rows are not rotated (cos 1, sin 0), its K and V are cached, nothing is recorded
};

// Column c of row r is at r * row_stride + c * column_stride. If the row is the token, the row of sequence b starts b * batch_stride
// later. Rows may be shared (row_stride 0), but must not overlap. Strides are in elements.
struct RopeColumns {
  const void* data = nullptr;
  int64_t batch_stride = kUnsetStride;  // must be set if there are several sequences; 0: all of them share the rows
  int64_t row_stride = 0;
  int64_t column_stride = 1;
};

// The rotated channels are [rotary_offset, rotary_offset + rotary_dim). They form num_blocks adjacent blocks of
// w = rotary_dim / num_blocks channels; every block starts again at column 0.
struct Rope {
  RopeStyle style = RopeStyle::neox;
  int64_t rotary_dim = 0;     // even; 0 = no rotation (then cos, sin, angles, inv_freq and theta must not be given)
  int64_t rotary_offset = 0;  // even
  int64_t num_blocks = 1;     // 1 to 4
  int32_t inverse = 0;        // not 0: inverse rotation, -sin
  // If it is not 0, the inverse uses each channel's own sine, (a cos_a + b sin_a, -a sin_b + b cos_b); only for width full. This is the
  // transpose only if the two sines of a pair are equal. Some systems compute this as their backward pass.
  int32_t inverse_by_own_sine = 0;

  RopeSource source = RopeSource::table;
  DType type = DType::unset;  // of the elements of cos and sin, of angles, or of inv_freq (f32 or f64)
  RopeWidth width = RopeWidth::unset;
  RopeColumns cos;
  RopeColumns sin;
  RopeColumns angles;
  const void* inv_freq = nullptr;  // [w / 2]
  double theta = 0.0;
  double attention_factor = 1.0;             // multiplies cos and sin
  int64_t max_position = 0;                  // row = position: rows of the table; else an optional bound, 0 = none
  PastTable past_table = PastTable::record;  // what happens at positions >= max_position

  // There may be several position axes (2-D, MRoPE). Pair i, counted through all blocks, is rotated by the position on axis pair_axis[i];
  // values not below num_axes count as 0. If pair_axis is null, each block uses the axis of its own number (num_axes = num_blocks). Where
  // the row is the token, the axes matter only for what positions are checked against.
  int64_t num_axes = 1;                // 1 to 4
  const uint8_t* pair_axis = nullptr;  // [rotary_dim / 2]
  uint64_t reserved[4] = {};           // zeros: docs/versioning.md
};

// Takes cos and sin from one table [rows, rotary_dim]: cos[0 .. rotary_dim/2), then sin; row = position. layers/rope makes such a table.
// rope.rotary_dim must be set before: without it rope.width is left unset, and the operation is an error.
inline void set_cos_sin_table(Rope& rope, const void* table, DType type, int64_t rows) {
  rope.source = RopeSource::table;
  rope.type = type;
  rope.width = rope.rotary_dim > 0 ? RopeWidth::half : RopeWidth::unset;
  rope.max_position = rows;
  const auto* bytes = static_cast<const char*>(table);
  rope.cos = {table, 0, rope.rotary_dim, 1};
  rope.sin = {bytes == nullptr ? nullptr : bytes + rope.rotary_dim / 2 * dtype_size(type), 0, rope.rotary_dim, 1};
}

// Does the same with a row for each token: [num_tokens, rotary_dim], as gather_cos_sin makes them. There is no bound on positions.
inline void set_cos_sin_rows(Rope& rope, const void* rows, DType type) {
  set_cos_sin_table(rope, rows, type, 0);
  rope.source = RopeSource::per_token;
}

// Takes cos and sin from two dense tables [rows, columns]; row = position. Columns: w / 2 (half) or w (full).
inline void set_cos_and_sin(Rope& rope, const void* cos, const void* sin, DType type, int64_t rows, int64_t columns,
                            RopeWidth width) {
  rope.source = RopeSource::table;
  rope.type = type;
  rope.width = width;
  rope.max_position = rows;
  rope.cos = {cos, 0, columns, 1};
  rope.sin = {sin, 0, columns, 1};
}

}  // namespace prologue
