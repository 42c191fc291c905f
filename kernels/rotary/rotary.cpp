#include <prologue/kernels/rotary/rotary.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include <prologue/kernels/base/host/dispatch.h>
#include <prologue/kernels/base/host/plan_checks.h>
#include <prologue/kernels/base/host/view_checks.h>
#include <prologue/kernels/rotary/backends.h>
#include <prologue/kernels/rotary/rotary_token.h>

namespace prologue {

namespace {

constexpr const char* kName = "rotary";
constexpr int64_t kMaxRows = int64_t{1} << 40;
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

struct Dim {
  int64_t count;
  int64_t stride;
};

// Returns the region of elements of `size` bytes. A dimension of one entry has no stride that matters.
Region strided_region(const char* name, const void* data, int64_t size, const Dim (&dims)[4]) {
  const auto bytes = [&](const Dim& dim) {
    int64_t result = 0;
    if (dim.count <= 1) return result;
    return __builtin_mul_overflow(dim.stride, size, &result) ? INT64_MAX : result;
  };
  Region region{
      name, data, size, size, {dims[0].count, dims[1].count, dims[2].count}, {bytes(dims[0]), bytes(dims[1]), bytes(dims[2])}};
  if (dims[3].stride == 1 && dims[3].count > 0) {
    region.width = dims[3].count * size;
  } else {
    region.inner_count = dims[3].count;
    region.inner_stride = bytes(dims[3]);
  }
  return region;
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
  PROLOGUE_RETURN_IF_ERROR(check_head_and_rotary_dim(kName, p.head_dim, p.rope.style, p.rope.rotary_dim));
  if (p.rope.rotary_offset < 0 || p.rope.rotary_offset % 2 != 0 || p.rope.rotary_offset > p.head_dim - p.rope.rotary_dim) {
    return invalid_argument(kName, ": rotary_offset is ", p.rope.rotary_offset,
                            ": it must be even and lie in 0..head_dim - rotary_dim, ", p.head_dim - p.rope.rotary_dim);
  }
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "num_blocks", p.rope.num_blocks, 1, 4));
  if (p.rope.rotary_dim % (2 * p.rope.num_blocks) != 0) {
    return invalid_argument(kName, ": num_blocks is ", p.rope.num_blocks, ": rotary_dim, ", p.rope.rotary_dim,
                            ", must be that many blocks of even width");
  }
  if (p.rope.inverse_by_own_sine && !p.rope.inverse) {
    return invalid_argument(kName, ": inverse_by_own_sine is set, but inverse is not: it says how to take the inverse");
  }
  return check_enum("tail", p.tail, RotaryTail::zero, "copy, leave and zero");
}

Status check_angles(const RotaryParams& p) {
  const Rope& a = p.rope;
  PROLOGUE_RETURN_IF_ERROR(check_enum("rope.source", a.source, RopeSource::angles_per_token,
                                      "table, per_token, inv_freq, theta, angles and angles_per_token"));
  PROLOGUE_RETURN_IF_ERROR(check_enum("rope.width", a.width, RopeWidth::full, "half and full"));
  PROLOGUE_RETURN_IF_ERROR(check_past_table(kName, a.past_table, 0, nullptr));
  const bool given = rope_rows_are_given(a.source);
  const bool by_position = p.rope.rotary_dim > 0 && given && !rope_row_is_token(a.source) && p.batch * p.seq_len > 0;
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "rope.max_position", a.max_position, by_position ? 1 : 0, kMaxRows));
  if (p.rope.rotary_dim == 0) {
    const char* const given_without = given_without_rotation(a);
    if (given_without == nullptr) return {};
    return invalid_argument(kName, ": rotary_dim is 0, but ", given_without, " is given: set rotary_dim, or leave it out");
  }
  if (given && a.width == RopeWidth::unset) {
    return invalid_argument(kName, ": rope.width is not set: half is a column for each pair of a block, ",
                            p.rope.rotary_dim / (2 * p.rope.num_blocks), ", full one for each channel, ",
                            p.rope.rotary_dim / p.rope.num_blocks, "; set_cos_sin_table needs rope.rotary_dim first");
  }
  if (a.source != RopeSource::theta && !dtype_is_float(a.type)) {
    return unsupported(kName, ": rope.type is ", dtype_text(a.type), ": supported are float32, float16, bfloat16 and float64");
  }
  if (a.source == RopeSource::inv_freq && a.type != DType::f32 && a.type != DType::f64) {
    return unsupported(kName, ": rope.type is ", dtype_name(a.type), ": for inv_freq supported are float32 and float64");
  }
  if (!given && a.width == RopeWidth::full) {
    return invalid_argument(kName, ": rope.width is full, but the angles are computed: they have a column for each pair");
  }
  if (a.source == RopeSource::theta && p.rope.rotary_dim > 2 * kMaxFrequencies * p.rope.num_blocks) {
    return unsupported(kName, ": rotary_dim is ", p.rope.rotary_dim, " in ", p.rope.num_blocks,
                       " blocks: with theta a block has at most ", 2 * kMaxFrequencies,
                       " channels; give inv_freq or a table instead");
  }
  if (a.source == RopeSource::theta && !(std::isfinite(a.theta) && a.theta > 0.0)) {
    return invalid_argument(kName, ": rope.theta is ", a.theta, ": it must be finite and greater than 0");
  }
  if (!std::isfinite(a.attention_factor)) {
    return invalid_argument(kName, ": rope.attention_factor is ", a.attention_factor, ": it must be finite");
  }
  return {};
}

Status check_positions(const RotaryParams& p) {
  const RotaryPositions& q = p.positions;
  PROLOGUE_RETURN_IF_ERROR(check_range(kName, "rope.num_axes", p.rope.num_axes, 1, kMaxAxes));
  if (p.rope.num_axes > 1 && p.rope.rotary_dim > 0 && !rope_row_is_token(p.rope.source) && p.rope.pair_axis == nullptr &&
      p.rope.num_axes != p.rope.num_blocks) {
    return invalid_argument(kName, ": rope.pair_axis is null: num_axes, ", p.rope.num_axes, ", must then be num_blocks, ",
                            p.rope.num_blocks);
  }
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

Status add_angles(const RotaryParams& p, RegionChecks& regions) {
  const Rope& a = p.rope;
  if (p.rope.rotary_dim == 0 || a.source == RopeSource::theta) return {};
  const int64_t block_pairs = p.rope.rotary_dim / (2 * p.rope.num_blocks);
  if (a.source == RopeSource::inv_freq) {
    return regions.read(array_region("rope.inv_freq", a.inv_freq, block_pairs, dtype_size(a.type)));
  }
  const int64_t rows = rope_row_is_token(a.source) ? p.seq_len : a.max_position;
  const int64_t columns = a.width == RopeWidth::full ? 2 * block_pairs : block_pairs;
  const auto read = [&](const char* name, const char* name_of_stride, const RopeColumns& c) -> Status {
    PROLOGUE_RETURN_IF_ERROR(check_stride_set(kName, name_of_stride, c.batch_stride, "batch", p.batch));
    const bool shared = rows <= 1 || columns <= 1 || c.row_stride <= 0 || c.column_stride <= 0;  // negative: below
    const auto within = [](int64_t inner, int64_t count, int64_t outer) { return (outer - 1) / inner < count - 1; };
    if (!shared && (c.column_stride <= c.row_stride ? within(c.column_stride, columns, c.row_stride)
                                                    : within(c.row_stride, rows, c.column_stride))) {
      return invalid_argument(kName, ": ", name, " has ", columns, " columns ", c.column_stride, " apart and ", rows, " rows ",
                              c.row_stride, " apart: rows must not overlap");
    }
    return regions.read(strided_region(name, c.data, dtype_size(a.type),
                                       {{p.batch, c.batch_stride}, {rows, c.row_stride}, {1, 0}, {columns, c.column_stride}}));
  };
  if (a.source == RopeSource::angles || a.source == RopeSource::angles_per_token)
    return read("rope.angles", "rope.angles.batch_stride", a.angles);
  PROLOGUE_RETURN_IF_ERROR(read("rope.cos", "rope.cos.batch_stride", a.cos));
  return read("rope.sin", "rope.sin.batch_stride", a.sin);
}

Status add_positions(const RotaryParams& p, RegionChecks& regions) {
  const RotaryPositions& q = p.positions;
  if (p.rope.num_axes > 1 && p.rope.rotary_dim > 0 && !rope_row_is_token(p.rope.source) && p.rope.pair_axis != nullptr) {
    PROLOGUE_RETURN_IF_ERROR(regions.read(array_region("rope.pair_axis", p.rope.pair_axis, p.rope.rotary_dim / 2, 1)));
  }
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
void compute_frequencies(const RotaryParams& params, RotaryFrequencies& frequencies) {
  if (params.rope.rotary_dim == 0 || params.rope.source != RopeSource::theta) return;
  struct Last {
    double theta = 0;
    int64_t width = 0;
    double values[kMaxFrequencies] = {};
  };
  thread_local Last last;
  const int64_t width = params.rope.rotary_dim / params.rope.num_blocks;
  if (last.theta != params.rope.theta || last.width != width) {
    for (int64_t c = 0; c < width / 2; ++c) {
      const long double exponent = -2.0L * static_cast<long double>(c) / static_cast<long double>(width);
      last.values[c] = static_cast<double>(std::pow(static_cast<long double>(params.rope.theta), exponent));
    }
    last.theta = params.rope.theta, last.width = width;
  }
  std::copy_n(last.values, width / 2, frequencies.values);
}

Status validate(const RotaryParams& p) {
  PROLOGUE_RETURN_IF_ERROR(check_sizes(p));
  PROLOGUE_RETURN_IF_ERROR(check_angles(p));
  PROLOGUE_RETURN_IF_ERROR(check_positions(p));
  if (p.batch * p.seq_len == 0) return {};
  PROLOGUE_RETURN_IF_ERROR(check_past_table(kName, p.rope.past_table, p.rope.max_position, p.faults));

  RegionChecks regions(kName);
  for (int64_t i = 0; i < p.num_tensors; ++i) {
    const RotaryTensor& t = p.tensors[i];
    PROLOGUE_RETURN_IF_ERROR(regions.read(tensor_region(kX[i], t.x, p, t.num_heads, t.x_strides)));
  }
  PROLOGUE_RETURN_IF_ERROR(add_angles(p, regions));
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
  compute_frequencies(params, frequencies);
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
  compute_frequencies(params, plan.frequencies_);
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
