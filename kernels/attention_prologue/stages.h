// The prologue's stages as separate operations: what the unfused graph runs, and what the fused kernel is held against. The
// rotation is kernels/rotary. Contracts of padding, faults and numerics are those of attention_prologue.h.
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
  DType dtype = DType::f32;
  const void* x = nullptr;
  int64_t x_stride = 0;
  const void* bias = nullptr;
  void* y = nullptr;
  int64_t y_stride = 0;
};
PROLOGUE_API Status add_bias(const AddBiasParams& params, const Execution& execution);

// y = norm(x), of Q, K (QkNorm's formulas; placement is not looked at) or V (no weight, no bias); y may be x itself. A negative
// position leaves a token's rows untouched (positions may be null).
struct QkNormParams {
  int64_t num_tokens = 0;
  int64_t num_heads = 0;
  int64_t head_dim = 0;
  DType dtype = DType::f32;
  HeadsView x;
  MutableHeadsView y;
  NormKind kind = NormKind::rms;
  NormScope scope = NormScope::head;
  float eps = 1e-6f;
  float weight_offset = 0.0f;
  const void* weight = nullptr;
  int64_t weight_head_stride = 0;
  const void* bias = nullptr;
  IndexView positions;
};
PROLOGUE_API Status qk_norm(const QkNormParams& params, const Execution& execution);

// y = x * scale(position) of Q (QueryScale's formulas); y may be x itself. A negative position leaves a token's rows untouched
// (positions may be null where the scale does not depend on them). Rows that are multiplied by 1 are copied bitwise.
struct QueryScaleParams {
  int64_t num_tokens = 0;
  int64_t num_heads = 0;
  int64_t head_dim = 0;
  DType dtype = DType::f32;
  HeadsView x;
  MutableHeadsView y;
  QueryScale q_scale;
  IndexView positions;
};
PROLOGUE_API Status query_scale(const QueryScaleParams& params, const Execution& execution);

// K and V of each token into its slot, quantised as the cache is. Tokens whose slot is negative, or whose position is negative or
// >= max_position, in any of num_axes streams, are skipped (positions may be null: then none is skipped for its position;
// max_position = 0 means no upper bound, and so does past_table = identity). Bad slots and positions are recorded as the fused
// kernel does, each token once; where there is a bound and past_table is record, `faults` must not be null. k.data or v.data null:
// V or K only.
struct KvWriteParams {
  int64_t num_tokens = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;  // of K; V's is the cache's
  DType dtype = DType::f32;
  HeadsView k;
  HeadsView v;
  PagedKvView cache;
  IndexView slot_mapping;
  IndexView positions;  // [num_axes, num_tokens], rows position_axis_stride apart (0: one row for all axes)
  int64_t max_position = 0;
  FaultRecord* faults = nullptr;
  int64_t num_axes = 1;                         // 1 to 4
  int64_t position_axis_stride = kUnsetStride;  // must be set where num_axes > 1
  PastTable past_table = PastTable::record;
};
PROLOGUE_API Status kv_write(const KvWriteParams& params, const Execution& execution);

}  // namespace prologue
