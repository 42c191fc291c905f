// Computes the rotary embedding as a separate operation: y = rotate(x) for one to four tensors of heads. One launch handles up to 65535
// tokens of each sequence; longer sequences take several launches.
//
// A token is (b, s), b in [0, batch), s in [0, seq_len). Its number is t = b * seq_len + s. For every head of every tensor with
// rotate set, and for each pair i of the rotated channels:
//   (a, b) = (a cos - b sin, a sin + b cos)         inverse (transpose, backward): (a cos + b sin, -a sin + b cos)
//
// The rotated channels are [rotary_offset, rotary_offset + rotary_dim). They form num_blocks adjacent blocks of
// w = rotary_dim / num_blocks channels. Every block starts again at cos/sin column 0. All other channels are the tail.
//   neox         pair i of a block is (x[i], x[i + w/2]),    i in [0, w/2)
//   interleaved  pair i of a block is (x[2i], x[2i + 1]),    i in [0, w/2)
//
//   x, y  [batch, seq_len, num_heads, head_dim] dtype; all four strides are free, in elements, not negative. So the layout may be
//         batch-major, sequence-major, head-major, or columns of a packed buffer. 3-D tensors: batch = 1
// Aliasing: y may be x itself (same pointer and strides). Nothing else that is written may overlap anything.
// Every pointer is on the operation's device.
//
// Guards (the same rules as in kernels/attention_prologue/attention_prologue.h). Nothing outside the named rows is ever touched.
//   padding            a given position that is negative on any axis, or a token at or past cu_seqlens[num_seqs]: no row of the
//                      token is touched
//   past the table     a position >= max_position on any axis; rope.past_table decides:
//     record           the channels that would be written (also in place) become zeros. The fault position_out_of_range is
//                      recorded in `faults` with token t. `faults` must not be null
//     zero             the same zeros, and recorded only if `faults` is given
//     identity         the channels to rotate are copied bitwise. Nothing is recorded
//   bad derived value  a position that is not given and is negative, or that int64 cannot hold: as `record`
//   sequence_too_long  a token whose number in its sequence is max_seqlen or more: as `record`, with this fault code
//
// Numerics.
//   Arithmetic is float32 (float64 for f64). A channel is a rounded product and a fused multiply-add. The result is
//   rounded once at the store. Channels that nothing changes are copied bitwise.
//   Given cos and sin are converted to the type of the arithmetic. Angles and frequencies are used exactly.
//   Computed cos and sin are those of the exact product of position and frequency (theta: the frequencies are first rounded to
//   float64). Their error is at most 0.75 * 2^-24 in float32 and 0.75 * 2^-53 in float64. Angles beyond 2^31 give NaN.
//   The bits are the same on CPU and GPU, in any batch, and in the prologue.
//
// batch * seq_len = 0 is a no-op. The operation never allocates, synchronises or throws, and is safe under graph capture.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/execution.h>
#include <prologue/kernels/base/export.h>
#include <prologue/kernels/base/faults.h>
#include <prologue/kernels/base/rope.h>
#include <prologue/kernels/base/status.h>
#include <prologue/kernels/base/views.h>

namespace prologue {

// Element (b, s, h, d) is at b * batch + s * token + h * head + d * channel.
struct RotaryStrides {
  int64_t batch = 0;
  int64_t token = 0;
  int64_t head = 0;
  int64_t channel = 1;
};

// These are the strides of dense tensors.
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
  int32_t rotate = 1;         // 0: x is only copied to y
  uint64_t reserved[1] = {};  // zeros: docs/versioning.md
};

// Describes x and y with the same strides, or y = x (in place).
inline RotaryTensor rotary_tensor(const void* x, void* y, int64_t num_heads, const RotaryStrides& strides) {
  return {x, y, num_heads, strides, strides, 1};
}
// x and y are [num_tokens, num_heads, head_dim].
inline RotaryTensor rotary_tensor(const HeadsView& x, const MutableHeadsView& y, int64_t num_heads) {
  return {x.data, y.data, num_heads, {0, x.token_stride, x.head_stride, 1}, {0, y.token_stride, y.head_stride, 1}, 1};
}

enum class RotaryTail : int32_t { copy = 0, leave, zero };

// A token's position is given, or it is the token's number in its sequence plus an offset.
struct RotaryPositions {
  // If positions are given, that of token (b, s) on axis `axis` is ids[axis * axis_stride + b * batch_stride + s * token_stride]. A stride
  // of 0 means that all axes, or all sequences, use the same ids.
  IndexView ids;
  int64_t axis_stride = kUnsetStride;   // must be set if num_axes > 1
  int64_t batch_stride = kUnsetStride;  // must be set if batch > 1
  int64_t token_stride = 1;

  // If positions are not given (ids null), the position on every axis is j + offset + offsets[n * offsets_stride], where j is the token's
  // number in its sequence n. Without cu_seqlens: j = s and n = b. With cu_seqlens, sequences are packed one after another (batch = 1):
  // cu_seqlens[n] <= s < cu_seqlens[n + 1] and j = s - cu_seqlens[n].
  int64_t offset = 0;
  IndexView offsets;           // null = none
  int64_t offsets_stride = 1;  // 0: one offset for all sequences
  int64_t num_seqs = 0;
  IndexView cu_seqlens;       // [num_seqs + 1], non-decreasing; null = not packed
  int64_t max_seqlen = 0;     // 0 = no bound
  uint64_t reserved[4] = {};  // zeros: docs/versioning.md
};

struct RotaryParams {
  int64_t batch = 1;
  int64_t seq_len = 0;
  int64_t head_dim = 0;  // even, 2..1024 (kMaxHeadDim)
  DType dtype = DType::unset;
  int64_t num_tensors = 0;  // 1 to 4
  RotaryTensor tensors[4];

  RotaryTail tail = RotaryTail::copy;

  Rope rope;
  RotaryPositions positions;

  FaultRecord* faults = nullptr;    // null only if positions have no bound, or past_table is zero or identity
  uint8_t* token_faults = nullptr;  // [batch * seq_len]: a FaultCode is written for each faulty token; null = not wanted
  uint64_t reserved[8] = {};        // zeros: docs/versioning.md
};

PROLOGUE_API Status validate(const RotaryParams& params);
PROLOGUE_API Status rotary(const RotaryParams& params, const Execution& execution);

// Holds theta^(-2 * column / w) for each column, computed on the host: once for each call, or once for a plan. So w is at most 576 if the
// source is theta.
struct RotaryFrequencies {
  double values[288];
};

// A plan is a call that is validated once and then launched many times with other pointers.
class PROLOGUE_API RotaryPlan {
 public:
  // Fixes everything except what a run may change: the pointers; seq_len and positions.num_seqs, up to those of `params`; and the
  // strides that follow from seq_len in a dense array (batch strides, the tensors' head strides, positions.axis_stride).
  // A plan may be made before there is memory: set x and y of every tensor to null. Then cos, sin, angles, inv_freq, pair_axis
  // and faults may be null too. Sizes, types and strides are checked here, and every run checks its pointers as rotary() does.
  static Result<RotaryPlan> create(const RotaryParams& params, const Execution& execution);
  // Returns the parameters that the plan was made with. Copy them to make the parameters of run().
  const RotaryParams& params() const { return params_; }
  // Everything fixed must be equal to the plan's, and a pointer must be null exactly if the plan's was; otherwise an error names
  // the member that differs. The alignment of the pointers and their overlap are not checked again: they must be as in the plan.
  Status run(const RotaryParams& params, const Execution& execution) const;
  // Returns the bytes of device memory that run() needs in addition to its tensors.
  static constexpr int64_t workspace_bytes() { return 0; }

 private:
  RotaryParams params_;
  RotaryFrequencies frequencies_ = {};
  Device device_ = Device::cpu;
  bool has_pointers_ = true;
};

}  // namespace prologue
