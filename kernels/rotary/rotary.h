// The rotary embedding as an operation of its own: y = rotate(x) for up to four tensors of heads in one launch (of every 65535
// tokens of a sequence).
//
// A token is (b, s), b in [0, batch), s in [0, seq_len); its number is t = b * seq_len + s. For every head of every tensor that
// is to be rotated, and each pair i of the rotated channels:
//   (a, b) = (a cos - b sin, a sin + b cos)         inverse (transpose, backward): (a cos + b sin, -a sin + b cos)
// Pairs: neox (x[i], x[i + w/2]), interleaved (x[2i], x[2i + 1]), i in [0, w/2), within each of num_blocks blocks of w =
// rotary_dim / num_blocks channels that lie side by side from rotary_offset on. Every block starts at cos/sin column 0 again. The
// channels outside are the tail.
//
//   x, y  [batch, seq_len, num_heads, head_dim] dtype, every stride free (in elements, not negative). y may be x itself (same
//         pointer and strides); no other overlap of anything written. A token's rows may lie anywhere: batch-major,
//         sequence-major, head-major, columns of a packed buffer. 3-D tensors: batch = 1
// Every pointer is on the operation's device.
//
// Guards, as in kernels/attention_prologue/attention_prologue.h. A negative given position (of any stream), or a token at or past
// cu_seqlens[num_seqs], is padding: none of the token's rows is touched. A position >= max_position (of any stream):
// angles.past_table says what happens. record: what would be written of the token's rows (in place too) becomes zeros, recorded in
// `faults` with token t (position_out_of_range); `faults` must not be null. zero: the same, but `faults` may be null. identity: the
// channels to rotate are copied bitwise, nothing is recorded. A negative position that is not given, or a sum that int64 cannot
// hold, is treated as by record; so is a token that is number max_seqlen or later of its sequence (sequence_too_long). Nothing
// outside the named rows is ever touched.
//
// Numerics: arithmetic in float32 (float64 for f64), each product and sum rounded once (no fused multiply-add), one rounding at
// the store. Given cos and sin are converted to the type of the arithmetic; angles and frequencies are taken exactly. Computed
// cos and sin are those of the exact product of position and frequency (theta's frequencies are rounded to float64 first): within
// 0.75 * 2^-24 in float32, 0.75 * 2^-53 in float64; angles beyond 2^31 give NaN. Channels that nothing changes are copied
// bitwise. The same bits on CPU and GPU, in any batch, and in the prologue. batch * seq_len = 0 is a no-op. Never allocates,
// synchronises or throws; safe under graph capture.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/any_type.h>
#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/execution.h>
#include <prologue/kernels/base/export.h>
#include <prologue/kernels/base/faults.h>
#include <prologue/kernels/base/status.h>
#include <prologue/kernels/base/views.h>

namespace prologue {

// Element (b, s, h, d) lies at b * batch + s * token + h * head + d * channel.
struct RotaryStrides {
  int64_t batch = 0;
  int64_t token = 0;
  int64_t head = 0;
  int64_t channel = 1;
};

// Of dense tensors.
constexpr RotaryStrides batch_major_strides(int64_t seq_len, int64_t num_heads, int64_t head_dim) {  // [b, s, h, d]
  return {seq_len * num_heads * head_dim, num_heads * head_dim, head_dim, 1};
}
constexpr RotaryStrides sequence_major_strides(int64_t batch, int64_t num_heads, int64_t head_dim) {  // [s, b, h, d]
  return {num_heads * head_dim, batch * num_heads * head_dim, head_dim, 1};
}
constexpr RotaryStrides head_major_strides(int64_t seq_len, int64_t num_heads, int64_t head_dim) {  // [b, h, s, d]
  return {num_heads * seq_len * head_dim, head_dim, seq_len * head_dim, 1};
}

struct RotaryTensor {
  const void* x = nullptr;
  void* y = nullptr;
  int64_t num_heads = 0;
  RotaryStrides x_strides;
  RotaryStrides y_strides;
  bool rotate = true;  // false: only copied
};

// Alike strided, or in place.
inline RotaryTensor rotary_tensor(const void* x, void* y, int64_t num_heads, const RotaryStrides& strides) {
  return {x, y, num_heads, strides, strides, true};
}
// [num_tokens, num_heads, head_dim].
inline RotaryTensor rotary_tensor(const HeadsView& x, const MutableHeadsView& y, int64_t num_heads) {
  return {x.data, y.data, num_heads, {0, x.token_stride, x.head_stride, 1}, {0, y.token_stride, y.head_stride, 1}, true};
}

enum class RotaryTail : int32_t { copy = 0, leave, zero };

enum class RotarySource : int32_t {
  cos_sin = 0,  // given
  angles,       // given, cos and sin taken in the kernel
  inv_freq,     // angle = position * inv_freq[column]
  theta,        // angle = position * theta^(-2 * column / w)
};

enum class RotaryWidth : int32_t {
  unset = 0,  // an error where cos and sin, or angles, are given: a table does not show its width
  half,       // a column for each pair of a block: [rows, w / 2]
  full,       // a column for each channel of a block, [rows, w]: (a cos_a - b sin_a, a sin_b + b cos_b); inverse, its transpose:
              // (a cos_a + b sin_b, -a sin_a + b cos_b)
};

// Column c of row r (of sequence b, where rows go by token) lies at b * batch_stride + r * row_stride + c * column_stride. Rows may
// be shared (row_stride 0), but must not overlap.
struct RotaryColumns {
  const void* data = nullptr;
  int64_t batch_stride = kUnsetStride;  // must be set where batch > 1; 0: all sequences share the rows
  int64_t row_stride = 0;
  int64_t column_stride = 1;
};

struct RotaryAngles {
  RotarySource source = RotarySource::cos_sin;
  FloatType type = FloatType::f32;  // of cos and sin, of angles, of inv_freq (f32 or f64)
  RotaryWidth width = RotaryWidth::unset;
  bool per_token = false;                    // cos_sin, angles: false: row = position, true: row = s (no positions are needed)
  int64_t max_position = 0;                  // cos_sin, angles by position: the rows; else a bound where one is wanted, 0 = none
  PastTable past_table = PastTable::record;  // of positions >= max_position
  RotaryColumns cos;
  RotaryColumns sin;
  RotaryColumns angles;
  const void* inv_freq = nullptr;  // [w / 2]
  double theta = 0.0;
  double attention_factor = 1.0;  // multiplies cos and sin, rounded once
};

// A cos||sin cache [rows, rotary_dim], cos[0 .. rotary_dim/2) then sin, row = position; as layers/rope makes it.
inline RotaryAngles cos_sin_cache(const void* cache, FloatType type, int64_t rows, int64_t rotary_dim) {
  RotaryAngles angles;
  angles.type = type;
  angles.width = RotaryWidth::half;
  angles.max_position = rows;
  const auto* bytes = static_cast<const char*>(cache);
  angles.cos = {cache, 0, rotary_dim, 1};
  angles.sin = {bytes == nullptr ? nullptr : bytes + rotary_dim / 2 * float_type_size(type), 0, rotary_dim, 1};
  return angles;
}
// Two dense tables [rows, w / 2] (half) or [rows, w] (full) of `columns` columns, row = position.
inline RotaryAngles cos_and_sin(const void* cos, const void* sin, FloatType type, int64_t rows, int64_t columns,
                                RotaryWidth width) {
  RotaryAngles angles;
  angles.type = type;
  angles.width = width;
  angles.max_position = rows;
  angles.cos = {cos, 0, columns, 1};
  angles.sin = {sin, 0, columns, 1};
  return angles;
}

// The position of a token: given, or its number in its sequence plus an offset.
struct RotaryPositions {
  // Given: stream `axis` of token (b, s) at axis * axis_stride + b * batch_stride + s * token_stride. 0 is a statement: all streams,
  // or all sequences, share the ids.
  IntView ids;
  int64_t axis_stride = kUnsetStride;   // must be set where num_axes > 1
  int64_t batch_stride = kUnsetStride;  // must be set where batch > 1
  int64_t token_stride = 1;

  // Not given (ids null): all streams stand at j + offset + offsets[n * offsets_stride]. j = s and n = b; or, for sequences
  // packed one after another (batch = 1), token s is number j = s - cu_seqlens[n] of sequence n, cu_seqlens[n] <= s <
  // cu_seqlens[n + 1].
  int64_t offset = 0;
  IntView offsets;             // null = none
  int64_t offsets_stride = 1;  // 0: one for all sequences
  int64_t num_seqs = 0;
  IntView cu_seqlens;      // [num_seqs + 1], non-decreasing; null = not packed
  int64_t max_seqlen = 0;  // 0 = no bound

  // Several streams (2-D, MRoPE): pair i of the call (counted through all blocks) turns by stream pair_axis[i] (values that are
  // not below num_axes count as 0), or, where pair_axis is null, by that of its block (num_axes = num_blocks). Where the rows of cos
  // and sin go by token the streams matter to the guards alone.
  int64_t num_axes = 1;                // 1 to 4
  const uint8_t* pair_axis = nullptr;  // [rotary_dim / 2]
};

struct RotaryParams {
  int64_t batch = 1;
  int64_t seq_len = 0;
  int64_t head_dim = 0;  // even, 2..576
  FloatType dtype = FloatType::f32;
  int64_t num_tensors = 0;  // 1 to 4
  RotaryTensor tensors[4];

  RopeStyle style = RopeStyle::neox;
  int64_t rotary_dim = 0;     // 0 = nothing turns (then no cos, sin, angles, inv_freq or theta may be given)
  int64_t rotary_offset = 0;  // even
  int64_t num_blocks = 1;     // 1 to 4
  bool inverse = false;
  // Width full: the inverse by each channel's own sine, (a cos_a + b sin_a, -a sin_b + b cos_b). It is the transpose only where the
  // two sines of a pair are equal; some systems compute it as their backward pass.
  bool inverse_by_own_sine = false;
  RotaryTail tail = RotaryTail::copy;

  RotaryAngles angles;
  RotaryPositions positions;

  FaultRecord* faults = nullptr;    // null only where no position has a bound, or angles.past_table is zero or identity
  uint8_t* token_faults = nullptr;  // [batch * seq_len], a FaultCode for each token concerned is written; null = not wanted
};

PROLOGUE_API Status validate(const RotaryParams& params);
PROLOGUE_API Status rotary(const RotaryParams& params, const Execution& execution);

// theta^(-2 * column / w), made on the host once a call, or once for a plan.
struct RotaryFrequencies {
  double values[288];
};

// Validated once, then launched with nothing but pointers that changed.
class PROLOGUE_API RotaryPlan {
 public:
  // Everything is fixed but the pointers, seq_len and positions.num_seqs (up to those of `params`), and the strides that follow
  // from seq_len in a dense array: batch strides, the tensors' head strides, positions.axis_stride.
  // x and y of every tensor null: a plan made before there is memory. Then cos, sin, angles, inv_freq, pair_axis and faults may be
  // null too; sizes, types and strides are checked here, and every run checks its pointers as rotary() does.
  static Result<RotaryPlan> create(const RotaryParams& params, const Execution& execution);
  // The parameters that the plan was made with: a start for those of run().
  const RotaryParams& params() const { return params_; }
  // What is fixed must be as it was, and a pointer null where it was null: an error names what differs. That pointers are aligned
  // as the plan's were and do not overlap is not checked again.
  Status run(const RotaryParams& params, const Execution& execution) const;
  // Device memory that run() needs beside its tensors.
  static constexpr int64_t workspace_bytes() { return 0; }

 private:
  RotaryParams params_;
  RotaryFrequencies frequencies_ = {};
  Device device_ = Device::cpu;
  bool has_pointers_ = true;
};

}  // namespace prologue
