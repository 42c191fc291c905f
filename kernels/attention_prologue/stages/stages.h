// The prologue's stages as separate operations. The unfused graph runs them, and tests compare the fused kernel with them. The
// rotation is in kernels/rotary. The rules for padding, faults and numerics are those of attention_prologue.h.
#pragma once

#include <cstdint>

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/execution.h>
#include <prologue/kernels/base/export.h>
#include <prologue/kernels/base/faults.h>
#include <prologue/kernels/base/views.h>

namespace prologue {

// y[t, i] = x[t, i] + bias[i];  x, y [num_tokens, width] dtype with row strides; y may be x.
struct AddBiasParams {
  int64_t num_tokens = 0;
  int64_t width = 0;
  DType dtype = DType::unset;
  const void* x = nullptr;
  int64_t x_stride = 0;
  const void* bias = nullptr;
  void* y = nullptr;
  int64_t y_stride = 0;
  uint64_t reserved[4] = {};  // zeros: docs/versioning.md
};
PROLOGUE_API Status add_bias(const AddBiasParams& params, const Execution& execution);

// y = norm(x) of Q or K (HeadNorm's formulas), or of V (no weight, no bias). y may be x itself.
// The rows of a token with a negative position are not touched. positions may be null: then no token is padding.
struct QkNormParams {
  int64_t num_tokens = 0;
  int64_t num_heads = 0;
  int64_t head_dim = 0;
  DType dtype = DType::unset;
  HeadsView x;
  MutableHeadsView y;
  HeadNorm norm;  // its placement does not matter
  IndexView positions;
  uint64_t reserved[4] = {};  // zeros: docs/versioning.md
};
PROLOGUE_API Status qk_norm(const QkNormParams& params, const Execution& execution);

// Describes the Hadamard transform of Q or K (hadamard_block in attention_prologue.h). y may be x itself. The rows of a token with a
// negative position are not touched. positions may be null: then no token is padding.
struct HadamardParams {
  int64_t num_tokens = 0;
  int64_t num_heads = 0;
  int64_t head_dim = 0;
  DType dtype = DType::unset;
  HeadsView x;
  MutableHeadsView y;
  int64_t block = 0;  // a power of two in 2..512 that divides head_dim
  IndexView positions;
  uint64_t reserved[4] = {};  // zeros: docs/versioning.md
};
PROLOGUE_API Status hadamard(const HadamardParams& params, const Execution& execution);

// y = x * scale(position) of Q (QueryScale's formulas), or x * q_scale.constant of K or V. y may be x itself. The rows of a token with a
// negative position are not touched. positions may be null if the scale does not depend on them. Rows that are multiplied by 1 are copied
// bitwise.
struct QueryScaleParams {
  int64_t num_tokens = 0;
  int64_t num_heads = 0;
  int64_t head_dim = 0;
  DType dtype = DType::unset;
  HeadsView x;
  MutableHeadsView y;
  QueryScale q_scale;
  IndexView positions;
  uint64_t reserved[4] = {};  // zeros: docs/versioning.md
};
PROLOGUE_API Status query_scale(const QueryScaleParams& params, const Execution& execution);

// Writes K and V of each token into its slot, quantised to the cache's type. k.data null: V only. v.data null: K only.
// Skipped are tokens whose slot is negative, tokens at or past slot_mapping_len, and tokens whose position is negative or >=
// max_position on any of num_axes axes.
//   positions null                              no token is skipped for its position
//   max_position = 0, or past_table = identity  positions have no upper bound
// Bad slots and positions are recorded as by the fused kernel, each token once. `faults` must not be null if there is a bound and
// past_table is record.
struct KvWriteParams {
  int64_t num_tokens = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;  // of K; V's is the cache's
  DType dtype = DType::unset;
  HeadsView k;
  HeadsView v;
  PagedKvView cache;
  IndexView slot_mapping;  // [slot_mapping_len]: of the first tokens (0: of all of them)
  IndexView positions;     // [num_axes, num_tokens], row stride position_axis_stride (0: one row for all axes)
  int64_t max_position = 0;
  FaultRecord* faults = nullptr;
  int64_t num_axes = 1;                         // 1 to 4
  int64_t position_axis_stride = kUnsetStride;  // must be set if num_axes > 1
  PastTable past_table = PastTable::record;
  int64_t slot_mapping_len = 0;
  uint64_t reserved[4] = {};  // zeros: docs/versioning.md
};
PROLOGUE_API Status kv_write(const KvWriteParams& params, const Execution& execution);

}  // namespace prologue
