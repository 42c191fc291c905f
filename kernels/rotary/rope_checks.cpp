#include <prologue/kernels/rotary/rope_checks.h>

#include <cmath>

#include <prologue/kernels/rotary/rotary_token.h>

namespace prologue {

namespace {

template <class Enum>
Status check_enum(const char* operation, const char* name, Enum value, Enum last, const char* supported) {
  const auto number = static_cast<int32_t>(value);
  if (number >= 0 && number <= static_cast<int32_t>(last)) return {};
  return unsupported(operation, ": ", name, " is ", number, ": supported are ", supported);
}

}  // namespace

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

Status check_rope_channels(const char* operation, const Rope& rope, int64_t head_dim) {
  PROLOGUE_RETURN_IF_ERROR(check_head_and_rotary_dim(operation, head_dim, rope.style, rope.rotary_dim));
  if (rope.rotary_offset < 0 || rope.rotary_offset % 2 != 0 || rope.rotary_offset > head_dim - rope.rotary_dim) {
    return invalid_argument(operation, ": rotary_offset is ", rope.rotary_offset,
                            ": it must be even and lie in 0..head_dim - rotary_dim, ", head_dim - rope.rotary_dim);
  }
  PROLOGUE_RETURN_IF_ERROR(check_range(operation, "num_blocks", rope.num_blocks, 1, 4));
  if (rope.rotary_dim % (2 * rope.num_blocks) != 0) {
    return invalid_argument(operation, ": num_blocks is ", rope.num_blocks, ": rotary_dim, ", rope.rotary_dim,
                            ", must be that many blocks of even width");
  }
  if (rope.inverse_by_own_sine && !rope.inverse) {
    return invalid_argument(operation, ": inverse_by_own_sine is set, but inverse is not: it says how to take the inverse");
  }
  return {};
}

Status check_rope_angles(const char* operation, const Rope& a, bool rows_are_read) {
  PROLOGUE_RETURN_IF_ERROR(check_enum(operation, "rope.source", a.source, RopeSource::angles_per_token,
                                      "table, per_token, inv_freq, theta, angles and angles_per_token"));
  PROLOGUE_RETURN_IF_ERROR(check_enum(operation, "rope.width", a.width, RopeWidth::full, "half and full"));
  PROLOGUE_RETURN_IF_ERROR(check_past_table(operation, a.past_table, 0, nullptr));
  const bool given = rope_rows_are_given(a.source);
  const bool by_position = a.rotary_dim > 0 && given && !rope_row_is_token(a.source) && rows_are_read;
  PROLOGUE_RETURN_IF_ERROR(check_range(operation, "rope.max_position", a.max_position, by_position ? 1 : 0, kMaxRows));
  if (a.rotary_dim == 0) {
    const char* const given_without = given_without_rotation(a);
    if (given_without == nullptr) return {};
    return invalid_argument(operation, ": rotary_dim is 0, but ", given_without, " is given: set rotary_dim, or leave it out");
  }
  if (given && a.width == RopeWidth::unset) {
    return invalid_argument(operation, ": rope.width is not set: half is a column for each pair of a block, ",
                            a.rotary_dim / (2 * a.num_blocks), ", full one for each channel, ", a.rotary_dim / a.num_blocks,
                            "; set_cos_sin_table needs rope.rotary_dim first");
  }
  if (a.source != RopeSource::theta && !dtype_is_float(a.type)) {
    return unsupported(operation, ": rope.type is ", dtype_text(a.type),
                       ": supported are float32, float16, bfloat16 and float64");
  }
  if (a.source == RopeSource::inv_freq && a.type != DType::f32 && a.type != DType::f64) {
    return unsupported(operation, ": rope.type is ", dtype_name(a.type), ": for inv_freq supported are float32 and float64");
  }
  if (!given && a.width == RopeWidth::full) {
    return invalid_argument(operation, ": rope.width is full, but the angles are computed: they have a column for each pair");
  }
  if (a.source == RopeSource::theta && a.rotary_dim > 2 * kMaxFrequencies * a.num_blocks) {
    return unsupported(operation, ": rotary_dim is ", a.rotary_dim, " in ", a.num_blocks,
                       " blocks: with theta a block has at most ", 2 * kMaxFrequencies,
                       " channels; give inv_freq or a table instead");
  }
  if (a.source == RopeSource::theta && !(std::isfinite(a.theta) && a.theta > 0.0)) {
    return invalid_argument(operation, ": rope.theta is ", a.theta, ": it must be finite and greater than 0");
  }
  if (!std::isfinite(a.attention_factor)) {
    return invalid_argument(operation, ": rope.attention_factor is ", a.attention_factor, ": it must be finite");
  }
  return {};
}

Status check_rope_axes(const char* operation, const Rope& rope) {
  PROLOGUE_RETURN_IF_ERROR(check_range(operation, "rope.num_axes", rope.num_axes, 1, kMaxAxes));
  if (rope.num_axes == 1 || rope.rotary_dim == 0 || rope_row_is_token(rope.source) || rope.pair_axis != nullptr) return {};
  if (rope.num_axes == rope.num_blocks) return {};
  return invalid_argument(operation, ": rope.pair_axis is null: num_axes, ", rope.num_axes, ", must then be num_blocks, ",
                          rope.num_blocks);
}

Status add_rope_angles(const char* operation, const Rope& a, int64_t batch, int64_t seq_len, RegionChecks& regions) {
  if (a.rotary_dim == 0 || a.source == RopeSource::theta) return {};
  const int64_t block_pairs = a.rotary_dim / (2 * a.num_blocks);
  if (a.source == RopeSource::inv_freq) {
    return regions.read(array_region("rope.inv_freq", a.inv_freq, block_pairs, dtype_size(a.type)));
  }
  const int64_t rows = rope_row_is_token(a.source) ? seq_len : a.max_position;
  const int64_t columns = a.width == RopeWidth::full ? 2 * block_pairs : block_pairs;
  const auto read = [&](const char* name, const char* name_of_stride, const RopeColumns& c) -> Status {
    PROLOGUE_RETURN_IF_ERROR(check_stride_set(operation, name_of_stride, c.batch_stride, "batch", batch));
    const bool shared = rows <= 1 || columns <= 1 || c.row_stride <= 0 || c.column_stride <= 0;  // negative: below
    const auto within = [](int64_t inner, int64_t count, int64_t outer) { return (outer - 1) / inner < count - 1; };
    if (!shared && (c.column_stride <= c.row_stride ? within(c.column_stride, columns, c.row_stride)
                                                    : within(c.row_stride, rows, c.column_stride))) {
      return invalid_argument(operation, ": ", name, " has ", columns, " columns ", c.column_stride, " apart and ", rows,
                              " rows ", c.row_stride, " apart: rows must not overlap");
    }
    return regions.read(strided_region(name, c.data, dtype_size(a.type),
                                       {{batch, c.batch_stride}, {rows, c.row_stride}, {1, 0}, {columns, c.column_stride}}));
  };
  if (a.source == RopeSource::angles || a.source == RopeSource::angles_per_token)
    return read("rope.angles", "rope.angles.batch_stride", a.angles);
  PROLOGUE_RETURN_IF_ERROR(read("rope.cos", "rope.cos.batch_stride", a.cos));
  return read("rope.sin", "rope.sin.batch_stride", a.sin);
}

Status add_pair_axis(const Rope& rope, RegionChecks& regions) {
  if (rope.num_axes == 1 || rope.rotary_dim == 0 || rope_row_is_token(rope.source) || rope.pair_axis == nullptr) return {};
  return regions.read(array_region("rope.pair_axis", rope.pair_axis, rope.rotary_dim / 2, 1));
}

}  // namespace prologue
