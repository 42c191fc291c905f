#include <prologue/kernels/rotary/rotary.h>

#include "groups.h"
#include "plans.h"

namespace prologue::python {
namespace {

// What each axis of a tensor is: 'b' batch, 's' tokens, 'h' heads, 'd' channels. Without 'b' the batch is 1.
struct Axes {
  int b = -1, s = -1, h = -1, d = -1;
};

Axes axes_of(std::string_view layout) {
  Axes axes;
  for (size_t i = 0; i < layout.size(); ++i) {
    int* axis = layout[i] == 'b'   ? &axes.b
                : layout[i] == 's' ? &axes.s
                : layout[i] == 'h' ? &axes.h
                : layout[i] == 'd' ? &axes.d
                                   : nullptr;
    if (axis == nullptr || *axis >= 0) axis = nullptr;
    if (axis == nullptr) fail_value("layout is '", layout, "': it must be some order of 's', 'h', 'd' and for 4 axes also 'b'");
    *axis = static_cast<int>(i);
  }
  if (axes.s < 0 || axes.h < 0 || axes.d < 0) fail_value("layout is '", layout, "': it must have 's', 'h' and 'd'");
  return axes;
}

RotaryStrides strides_of(const Array& array, const Axes& axes) {
  return {axes.b < 0 ? 0 : array.stride(axes.b), array.stride(axes.s), array.stride(axes.h), array.stride(axes.d)};
}

void read_positions(Arguments& arguments, RotaryParams& params) {
  RotaryPositions& positions = params.positions;
  const Array ids = arguments.optional_array("positions");
  if (ids) {
    if (!dtype_is_integer(ids.dtype())) fail_type("positions is ", dtype_name(ids.dtype()), ": it must be integers");
    positions.ids = {ids.data(), ids.dtype()};
    // One axis: [batch, seq_len]. Several: [num_axes, batch, seq_len]. What is in front of seq_len may be missing, or 1.
    const int64_t num_axes = params.rope.num_axes;
    const int leading = num_axes > 1 && ids.rank() > 1 ? 1 : 0;
    ids.require_rank(1, leading + 2).require_size(ids.rank() - 1, params.seq_len, "one for each token of a sequence");
    if (leading == 1 && ids.size(0) != num_axes && ids.size(0) != 1) {
      fail_value("positions has the shape ", ids.shape_text(), ": with ", num_axes, " position axes it must be [", params.seq_len,
                 "], [", num_axes, ", ", params.seq_len, "] or [", num_axes, ", ", params.batch, ", ", params.seq_len, "]");
    }
    const bool has_batch = ids.rank() == leading + 2;
    if (has_batch && ids.size(leading) != params.batch && ids.size(leading) != 1) {
      fail_value("positions has the shape ", ids.shape_text(), ": there are ", params.batch, " sequences");
    }
    positions.axis_stride = leading == 1 && ids.size(0) > 1 ? ids.stride(0) : 0;
    positions.batch_stride = has_batch && ids.size(leading) > 1 ? ids.stride(leading) : 0;
    positions.token_stride = ids.stride(ids.rank() - 1);
  }
  positions.offset = arguments.integer("offset");
  const Array offsets = arguments.optional_array("offsets"), cu_seqlens = arguments.optional_array("cu_seqlens");
  positions.max_seqlen = arguments.integer("max_seqlen", 0);
  int64_t num_seqs = params.batch;
  if (cu_seqlens) {
    cu_seqlens.require_rank(1, 1);
    if (cu_seqlens.size(0) < 1) fail_value("cu_seqlens is empty: it must have one element more than there are sequences");
    num_seqs = positions.num_seqs = cu_seqlens.size(0) - 1;
    positions.cu_seqlens = index_view_of(cu_seqlens);
    if (num_seqs == 0) params.seq_len = 0;  // every row is padding
  }
  if (offsets) {
    offsets.require_rank(1, 1);
    if (offsets.size(0) != 1) offsets.require_size(0, num_seqs, "one for each sequence, or one for all");
    positions.offsets = index_view_of(offsets);
    positions.offsets_stride = offsets.size(0) == 1 ? 0 : 1;
  }
}

struct RotaryCall {
  using Params = RotaryParams;
  static void read(Arguments& arguments, RotaryParams& params);
  // The plan is made at once: its frequencies are computed on the host.
  static Result<RotaryPlan> plan(const RotaryParams& params, const Execution& execution) {
    return RotaryPlan::create(params, execution);
  }
  static bool is_empty(const RotaryParams& params) { return params.batch * params.seq_len == 0; }
  static Status run(const RotaryParams& params, const Execution& execution) { return rotary(params, execution); }
  static PastTable past_table(const RotaryParams& params) { return params.rope.past_table; }
};

void RotaryCall::read(Arguments& arguments, RotaryParams& params) {
  params.num_tensors = arguments.num_groups("tensors");
  if (params.num_tensors < 1 || params.num_tensors > 4) {
    fail_value("rotary takes 1 to 4 tensors: there are ", params.num_tensors);
  }
  static constexpr const char* kLabels[] = {"x", "the second tensor", "the third tensor", "the fourth tensor"};
  static constexpr const char* kOutLabels[] = {"out", "the second out", "the third out", "the fourth out"};
  Array inputs[4], outputs[4];
  for (int64_t i = 0; i < params.num_tensors; ++i) {
    Arguments tensor(arguments, "tensors", i);
    inputs[i] = tensor.array("x", kLabels[i]);
    outputs[i] = tensor.optional_array("out", kOutLabels[i]);
    params.tensors[i].rotate = tensor.flag("rotate") ? 1 : 0;
    tensor.require_all_read();
  }
  const Array& first = inputs[0];
  if (first.rank() != 3 && first.rank() != 4) {
    first.fail_heads("3 axes, [tokens, heads, head_dim], or 4, [batch, seq_len, heads, head_dim]");
  }
  const Axes axes = axes_of(arguments.given("layout") ? arguments.string("layout") : first.rank() == 4 ? "bshd" : "shd");
  const int rank = axes.b < 0 ? 3 : 4;
  params.tail = arguments.choice<RotaryTail>(
      "tail", {{"copy", RotaryTail::copy}, {"leave", RotaryTail::leave}, {"zero", RotaryTail::zero}});
  first.require_rank(rank, rank);
  params.batch = axes.b < 0 ? 1 : first.size(axes.b);
  params.seq_len = first.size(axes.s);
  params.head_dim = first.size(axes.d);
  params.dtype = first.dtype();
  for (int64_t i = 0; i < params.num_tensors; ++i) {
    const Array& x = inputs[i];
    x.require(params.dtype, kLabels[0]).require_rank(rank, rank);
    if (axes.b >= 0) x.require_size(axes.b, params.batch, "the batch");
    x.require_size(axes.s, params.seq_len, "the tokens").require_size(axes.d, params.head_dim, "head_dim");
    RotaryTensor& tensor = params.tensors[i];
    tensor.x = tensor.y = x.data();
    tensor.num_heads = x.size(axes.h);
    tensor.x_strides = tensor.y_strides = strides_of(x, axes);
    if (const Array& y = outputs[i]; y) {
      y.require(params.dtype, kLabels[0]).require_rank(rank, rank);
      for (int axis = 0; axis < rank; ++axis) y.require_size(axis, x.size(axis), "as its input");
      tensor.y = y.data();
      tensor.y_strides = strides_of(y, axes);
    }
  }
  const int64_t num_tokens = params.batch * params.seq_len;
  params.rope = read_rope(arguments, params.batch, params.seq_len, params.head_dim, RopeSources::all);
  read_positions(arguments, params);
  const Array faults = arguments.optional_array("faults");
  params.token_faults = token_faults_of(arguments.optional_array("token_faults"), num_tokens);
  params.faults = fault_record_of(faults);
  arguments.require_all_read();
}

}  // namespace
}  // namespace prologue::python

PROLOGUE_PLANNED_FUNCTION(rotary, prologue::python::RotaryCall)
