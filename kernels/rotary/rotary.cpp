#include <prologue/kernels/rotary/rotary.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include <prologue/kernels/base/host/dispatch.h>
#include <prologue/kernels/base/host/plan_checks.h>
#include <prologue/kernels/base/host/view_checks.h>
#include <prologue/kernels/rotary/backends.h>
#include <prologue/kernels/rotary/rope_checks.h>
#include <prologue/kernels/rotary/rotary_token.h>

namespace prologue {

namespace {

constexpr const char* kName = "rotary";
constexpr const char* kX[] = {"tensors[0].x", "tensors[1].x", "tensors[2].x", "tensors[3].x"};
constexpr const char* kY[] = {"tensors[0].y", "tensors[1].y", "tensors[2].y", "tensors[3].y"};
constexpr const char* kNumHeads[] = {"tensors[0].num_heads", "tensors[1].num_heads", "tensors[2].num_heads",
                                     "tensors[3].num_heads"};

template <class Enum>
Status check_enum(const char* name, Enum value, Enum last, const char* supported) {
  const auto number = static_cast<int32_t>(value);
  if (number >= 0 && number <= static_cast<int32_t>(last)) return {};
  return unsupported(kName, ": ", name, " is ", number, ": supported are ", supported);
}

Status check_int_type(const char* name, const IndexView& view) {
  if (view.data == nullptr || dtype_is_integer(view.type)) return {};
  return invalid_argument(kName, ": ", name, ".type is ", dtype_text(view.type), ": it must be an integer type");
}

Region tensor_region(const char* name, const void* data, const RotaryParams& p, int64_t num_heads, const RotaryStrides& s) {
  return strided_region(name, data, dtype_size(p.dtype),
                        {{p.batch, s.batch}, {p.seq_len, s.token}, {num_heads, s.head}, {p.head_dim, s.channel}});
}

Status check_sizes(const RotaryParams& p) {
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "batch", p.batch, 0, INT32_MAX));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "seq_len", p.seq_len, 0, INT32_MAX));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "batch * seq_len", p.batch * p.seq_len, 0, INT32_MAX));
  if (!dtype_is_float(p.dtype)) {
    return unsupported(kName, ": dtype is ", dtype_text(p.dtype), ": supported are float32, float16, bfloat16 and float64");
  }
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_tensors", p.num_tensors, 1, kMaxRotaryTensors));
  for (int64_t i = 0; i < p.num_tensors; ++i) {
    PROLOGUE_RETURN_IF_ERROR(check_range(kName, kNumHeads[i], p.tensors[i].num_heads, 1, 65536));
  }
  PROLOGUE_RETURN_IF_ERROR(check_rope_channels(kName, p.rope, p.head_dim));
  return check_enum("tail", p.tail, RotaryTail::zero, "copy, leave and zero");
}

Status check_positions(const RotaryParams& p) {
  const RotaryPositions& q = p.positions;
  PROLOGUE_RETURN_IF_ERROR(check_rope_axes(kName, p.rope));
  PROLOGUE_RETURN_IF_ERROR(check_int_type("positions.ids", q.ids));
  PROLOGUE_RETURN_IF_ERROR(check_int_type("positions.offsets", q.offsets));
  PROLOGUE_RETURN_IF_ERROR(check_int_type("positions.cu_seqlens", q.cu_seqlens));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "positions.offset", q.offset, -kMaxRows, kMaxRows));
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "positions.max_seqlen", q.max_seqlen, 0, INT32_MAX));
  if (q.ids.data != nullptr) {
    const char* besides = q.cu_seqlens.data != nullptr ? "cu_seqlens"
                          : q.offsets.data != nullptr  ? "offsets"
                          : q.offset != 0              ? "offset"
                          : q.max_seqlen != 0          ? "max_seqlen"
                                                       : nullptr;
    if (besides == nullptr) return {};
    return invalid_argument(kName, ": positions.", besides, " is given, and so is positions.ids: it is one or the other");
  }
  if (q.cu_seqlens.data == nullptr) return {};
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "positions.num_seqs", q.num_seqs, p.batch * p.seq_len > 0 ? 1 : 0, INT32_MAX));
  if (p.batch <= 1) return {};
  return invalid_argument(kName, ": batch is ", p.batch, ", but positions.cu_seqlens is given: packed sequences have batch 1");
}

Status add_positions(const RotaryParams& p, RegionChecks& regions) {
  const RotaryPositions& q = p.positions;
  PROLOGUE_RETURN_IF_ERROR(add_pair_axis(p.rope, regions));
  const auto read = [&](const char* name, const IndexView& view, const Dim(&dims)[4]) {
    return regions.read(strided_region(name, view.data, dtype_size(view.type), dims));
  };
  if (q.ids.data != nullptr) {
    PROLOGUE_RETURN_IF_ERROR(check_stride_set(kName, "positions.axis_stride", q.axis_stride, "rope.num_axes", p.rope.num_axes));
    PROLOGUE_RETURN_IF_ERROR(check_stride_set(kName, "positions.batch_stride", q.batch_stride, "batch", p.batch));
    return read("positions.ids", q.ids,
                {{1, 0}, {p.rope.num_axes, q.axis_stride}, {p.batch, q.batch_stride}, {p.seq_len, q.token_stride}});
  }
  const bool packed = q.cu_seqlens.data != nullptr;
  if (packed) PROLOGUE_RETURN_IF_ERROR(read("positions.cu_seqlens", q.cu_seqlens, {{1, 0}, {1, 0}, {1, 0}, {q.num_seqs + 1, 1}}));
  if (q.offsets.data == nullptr) return {};
  return read("positions.offsets", q.offsets, {{1, 0}, {1, 0}, {1, 0}, {packed ? q.num_seqs : p.batch, q.offsets_stride}});
}

bool has_pointers(const RotaryParams& p) {
  for (int64_t i = 0; i < p.num_tensors && i < kMaxRotaryTensors; ++i) {
    if (p.tensors[i].x != nullptr || p.tensors[i].y != nullptr) return true;
  }
  return false;
}

// Used by the checks of a plan without pointers: placeholder addresses 2^60 bytes apart, the largest extent of an array.
RotaryParams with_stand_ins(RotaryParams p) {
  uintptr_t next = 0;
  const auto stand_in = [&](auto*& pointer) {
    next += uintptr_t{1} << 60;
    if (pointer == nullptr) pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(next);
  };
  for (RotaryTensor& tensor : p.tensors) {
    stand_in(tensor.x);
    stand_in(tensor.y);
  }
  if (p.rope.rotary_dim > 0) {
    stand_in(p.rope.cos.data);
    stand_in(p.rope.sin.data);
    stand_in(p.rope.angles.data);
    stand_in(p.rope.inv_freq);
    if (p.rope.num_axes != p.rope.num_blocks) stand_in(p.rope.pair_axis);
  }
  stand_in(p.faults);
  return p;
}

// Checks that a run has the parameters of its plan, except those that it may change. A plan without pointers fixes everything else.
Status check_run(const RotaryParams& plan, const RotaryParams& run, bool with_pointers) {
  using Checks = PlanChecks<RotaryParams>;
  Checks checks("rotary plan", plan, run);
  if (!with_pointers) checks.pointers_may_change();
  checks.may_change(run.seq_len, true, 0, plan.seq_len);
  const RotaryPositions& positions = run.positions;
  checks.may_change(positions.num_seqs, positions.cu_seqlens.data != nullptr, run.seq_len > 0 ? 1 : 0, plan.positions.num_seqs);

  // A stride matters only if something repeats.
  const auto stride = [&](const int64_t& of_run, int64_t count) { checks.may_change(of_run, count > 1, 0, Checks::kAnything); };
  for (int64_t i = 0; i < plan.num_tensors; ++i) {
    for (const RotaryStrides* of : {&run.tensors[i].x_strides, &run.tensors[i].y_strides}) {
      stride(of->batch, plan.batch);
      stride(of->head, plan.tensors[i].num_heads);
    }
  }
  for (int64_t i = plan.num_tensors; i < kMaxRotaryTensors; ++i) checks.may_change(run.tensors[i]);
  for (const RopeColumns* of : {&run.rope.cos, &run.rope.sin, &run.rope.angles}) {
    stride(of->batch_stride, of->data != nullptr ? plan.batch : 1);
  }
  const bool given = positions.ids.data != nullptr;
  stride(positions.axis_stride, given ? plan.rope.num_axes : 1);
  stride(positions.batch_stride, given ? plan.batch : 1);
  return checks.status();
}

}  // namespace

// The power is rounded once, whatever the exponent's rounding would add. Each thread keeps the last ones: a model's calls have one theta,
// and the powers take longer than the launch.
void compute_frequencies(const Rope& rope, RotaryFrequencies& frequencies) {
  if (rope.rotary_dim == 0 || rope.source != RopeSource::theta) return;
  struct Last {
    double theta = 0;
    int64_t width = 0;
    double values[kMaxFrequencies] = {};
  };
  thread_local Last last;
  const int64_t width = rope.rotary_dim / rope.num_blocks;
  if (last.theta != rope.theta || last.width != width) {
    for (int64_t c = 0; c < width / 2; ++c) {
      const long double exponent = -2.0L * static_cast<long double>(c) / static_cast<long double>(width);
      last.values[c] = static_cast<double>(std::pow(static_cast<long double>(rope.theta), exponent));
    }
    last.theta = rope.theta, last.width = width;
  }
  std::copy_n(last.values, width / 2, frequencies.values);
}

Status validate(const RotaryParams& p) {
  PROLOGUE_RETURN_IF_ERROR(check_sizes(p));
  PROLOGUE_RETURN_IF_ERROR(check_rope_angles(kName, p.rope, p.batch * p.seq_len > 0));
  PROLOGUE_RETURN_IF_ERROR(check_positions(p));
  if (p.batch * p.seq_len == 0) return {};
  PROLOGUE_RETURN_IF_ERROR(check_past_table(kName, p.rope.past_table, p.rope.max_position, p.faults));

  RegionChecks regions(kName);
  for (int64_t i = 0; i < p.num_tensors; ++i) {
    const RotaryTensor& t = p.tensors[i];
    PROLOGUE_RETURN_IF_ERROR(regions.read(tensor_region(kX[i], t.x, p, t.num_heads, t.x_strides)));
  }
  PROLOGUE_RETURN_IF_ERROR(add_rope_angles(kName, p.rope, p.batch, p.seq_len, regions));
  PROLOGUE_RETURN_IF_ERROR(add_positions(p, regions));
  for (int64_t i = 0; i < p.num_tensors; ++i) {
    const RotaryTensor& t = p.tensors[i];
    PROLOGUE_RETURN_IF_ERROR(regions.write(tensor_region(kY[i], t.y, p, t.num_heads, t.y_strides), kX[i]));
  }
  PROLOGUE_RETURN_IF_ERROR(
      regions.write(array_region("token_faults", p.token_faults, p.token_faults == nullptr ? 0 : p.batch * p.seq_len, 1)));
  PROLOGUE_RETURN_IF_ERROR(regions.write(array_region("faults", p.faults, p.faults == nullptr ? 0 : 1, alignof(FaultRecord))));
  return regions.check_all_apart();
}

Status validate(const RotaryParams& params, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(check_device(kName, execution.device));
  return validate(params);
}

Status run_validated(const RotaryParams& params, const Execution& execution) {
  if (params.batch * params.seq_len == 0) return {};
  RotaryFrequencies frequencies;
  compute_frequencies(params.rope, frequencies);
  return dispatch(execution, cpu::rotary, cuda::rotary, params, frequencies);
}

Status rotary(const RotaryParams& params, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(validate(params, execution));
  return run_validated(params, execution);
}

Result<RotaryPlan> RotaryPlan::create(const RotaryParams& params, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(check_device("rotary plan", execution.device));
  const bool given = has_pointers(params);
  PROLOGUE_RETURN_IF_ERROR(validate(given ? params : with_stand_ins(params)));
  PROLOGUE_RETURN_IF_ERROR(check_range("rotary plan", "batch * seq_len", params.batch * params.seq_len, 1, INT32_MAX));
  if (execution.device == Device::cuda && !built_with_cuda()) return cuda_not_built(kName);
  RotaryPlan plan;
  plan.params_ = params;
  compute_frequencies(params.rope, plan.frequencies_);
  plan.device_ = execution.device;
  plan.has_pointers_ = given;
  return plan;
}

Status RotaryPlan::run(const RotaryParams& params, const Execution& execution) const {
  if (execution.device != device_) {
    return invalid_argument("rotary plan: device is ", device_name(execution.device), ": the plan was made for ",
                            device_name(device_));
  }
  PROLOGUE_RETURN_IF_ERROR(check_run(params_, params, has_pointers_));
  if (!has_pointers_) PROLOGUE_RETURN_IF_ERROR(validate(params));
  if (params.seq_len == 0) return {};
  return dispatch(execution, cpu::rotary, cuda::rotary, params, frequencies_);
}

}  // namespace prologue
