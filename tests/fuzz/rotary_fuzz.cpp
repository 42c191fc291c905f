// Calls kernels/rotary/rotary.h with any struct, directly or through a plan.
#include <prologue/kernels/rotary/rotary.h>

#include "tests/fuzz/operation.h"

using namespace prologue;
using namespace prologue::fuzz;

namespace {

constexpr const char* kX[] = {"tensors[0].x", "tensors[1].x", "tensors[2].x", "tensors[3].x"};
constexpr const char* kY[] = {"tensors[0].y", "tensors[1].y", "tensors[2].y", "tensors[3].y"};

Extent extent_of(const RotaryParams& p, int64_t num_heads, const RotaryStrides& s) {
  const int64_t size = dtype_size(p.dtype);
  return {size,
          size,
          {{p.batch, times(s.batch, size)},
           {p.seq_len, times(s.token, size)},
           {num_heads, times(s.head, size)},
           {p.head_dim, times(s.channel, size)}}};
}

RotaryStrides decode_strides(Choices& choices, const RotaryParams& p, int64_t num_heads) {
  const int64_t channel = choices.chance(4) ? choices.stride(1) : 1;
  const int64_t head = choices.stride(times(p.head_dim, channel));
  switch (choices.integer(0, 2)) {
    case 0: {  // batch-major
      const int64_t token = choices.stride(times(num_heads, head));
      return {choices.stride(times(p.seq_len, token)), token, head, channel};
    }
    case 1: {  // sequence-major
      const int64_t batch = choices.stride(times(num_heads, head));
      return {batch, choices.stride(times(p.batch, batch)), head, channel};
    }
    default: {  // head-major
      const int64_t token = times(p.head_dim, channel), of_head = choices.stride(times(p.seq_len, token));
      return {choices.stride(times(num_heads, of_head)), token, of_head, channel};
    }
  }
}

// Makes tables of few rows, so that positions past them are met as well.
void decode_angles(Choices& choices, MemoryMap& map, RotaryParams& p) {
  Rope& a = p.rope;
  a.source = choices.enumerator(RopeSource::angles_per_token);
  const bool given = rope_rows_are_given(a.source), per_token = rope_row_is_token(a.source);
  a.type = a.source == RopeSource::inv_freq ? choices.chance(2) ? DType::f32 : DType::f64 : float_type(choices);
  a.width = choices.hostile()            ? choices.enumerator(RopeWidth::full)
            : given && choices.chance(2) ? RopeWidth::full
                                         : RopeWidth::half;
  a.max_position = given && !per_token ? choices.size(1, 9) : choices.size(0, 9);
  if (p.rope.rotary_dim != 0 && a.source == RopeSource::theta) a.theta = static_cast<double>(choices.real(10000.0f));
  a.past_table = choices.enumerator(PastTable::identity);
  a.attention_factor = static_cast<double>(choices.real(1.0f));
  const int64_t size = dtype_is_float(a.type) ? dtype_size(a.type) : 4;
  const int64_t w = p.rope.num_blocks > 0 ? p.rope.rotary_dim / p.rope.num_blocks : 0;
  if (p.rope.rotary_dim == 0) return;
  if (a.source == RopeSource::inv_freq) map.array("inv_freq", a.inv_freq, dense(w / 2, size), Use::read, a.type);
  if (!given) return;
  const int64_t num_rows = per_token ? p.seq_len : a.max_position, columns = a.width == RopeWidth::full ? w : w / 2;
  const auto table = [&](const char* name, RopeColumns& c) {
    c.column_stride = choices.chance(4) ? choices.stride(1) : 1;
    c.row_stride = choices.stride(times(columns, c.column_stride));
    c.batch_stride = choices.chance(3) ? choices.stride(times(num_rows, c.row_stride)) : 0;
    map.array(name, c.data,
              {size,
               size,
               {{p.batch, times(c.batch_stride, size)},
                {num_rows, times(c.row_stride, size)},
                {1, 0},
                {columns, times(c.column_stride, size)}}},
              Use::read, a.type);
  };
  if (a.source == RopeSource::angles || a.source == RopeSource::angles_per_token) return table("angles", a.angles);
  table("cos", a.cos);
  table("sin", a.sin);
}

void decode_positions(Choices& choices, MemoryMap& map, RotaryParams& p) {
  RotaryPositions& q = p.positions;
  p.rope.num_axes = rope_row_is_token(p.rope.source) || choices.chance(2) ? 1 : choices.size(1, 4);
  if (p.rope.num_axes > 1 && p.rope.rotary_dim > 0) {
    const Extent axes = dense(p.rope.rotary_dim / 2, 1);
    if (p.rope.num_axes != p.rope.num_blocks) {
      map.array("pair_axis", p.rope.pair_axis, axes, Use::read);
    } else if (choices.chance(2)) {  // otherwise each block takes the axis of its own number
      map.optional("pair_axis", p.rope.pair_axis, axes, Use::read);
    }
  }
  const bool given = choices.chance(2);
  if (given) {
    q.ids.type = integer_type(choices);
    const int64_t size = dtype_is_integer(q.ids.type) ? dtype_size(q.ids.type) : 4;
    q.token_stride = choices.chance(4) ? choices.stride(1) : 1;
    q.batch_stride = choices.chance(3) ? 0 : choices.stride(times(p.seq_len, q.token_stride));
    q.axis_stride = choices.stride(times(p.batch, times(p.seq_len, q.token_stride)));
    map.optional("ids", q.ids.data,
                 {size,
                  size,
                  {{1, 0},
                   {p.rope.num_axes, times(q.axis_stride, size)},
                   {p.batch, times(q.batch_stride, size)},
                   {p.seq_len, times(q.token_stride, size)}}},
                 Use::read);
    return;
  }
  q.offset = choices.chance(2) ? 0 : choices.size(-2, 5);
  q.max_seqlen = choices.chance(2) ? 0 : choices.size(1, 6);
  const bool packed = p.batch == 1 && choices.chance(2);
  if (packed) {
    q.num_seqs = choices.size(1, 3);
    q.cu_seqlens.type = integer_type(choices);
    const int64_t size = dtype_is_integer(q.cu_seqlens.type) ? dtype_size(q.cu_seqlens.type) : 4;
    map.never_null(map.optional("cu_seqlens", q.cu_seqlens.data, dense(plus(q.num_seqs, 1), size), Use::read));
  }
  if (choices.chance(2) && (!packed || q.num_seqs >= 1)) {
    q.offsets.type = integer_type(choices);
    const int64_t size = dtype_is_integer(q.offsets.type) ? dtype_size(q.offsets.type) : 4;
    q.offsets_stride = choices.chance(3) ? 0 : choices.stride(1);
    map.optional("offsets", q.offsets.data, {size, size, {{packed ? q.num_seqs : p.batch, times(q.offsets_stride, size)}}},
                 Use::read);
  }
}

int64_t read_int(const IndexView& view, int64_t i) {
  const char* at = static_cast<const char*>(view.data) + i * dtype_size(view.type);
  const auto as = [&](auto value) {
    std::memcpy(&value, at, sizeof value);
    return saturated(value);
  };
  switch (view.type) {
    case DType::int8: return as(int8_t{});
    case DType::int16: return as(int16_t{});
    case DType::int32: return as(int32_t{});
    case DType::int64: return as(int64_t{});
    case DType::uint8: return as(uint8_t{});
    case DType::uint16: return as(uint16_t{});
    case DType::uint32: return as(uint32_t{});
    default: return as(uint64_t{});
  }
  return 0;
}

void fill(const IndexView& view, int64_t i, int64_t value) {
  if (present(view.data) && dtype_is_integer(view.type)) set_index(view.data, dtype_size(view.type), i, value);
}

void fill_positions(Choices& choices, const RotaryParams& p) {
  const RotaryPositions& q = p.positions;
  for (int64_t axis = 0; present(q.ids.data) && axis < p.rope.num_axes; ++axis)
    for (int64_t b = 0; b < p.batch; ++b)
      for (int64_t s = 0; s < p.seq_len; ++s)
        fill(q.ids, axis * q.axis_stride + b * q.batch_stride + s * q.token_stride,
             index_value(choices, choices.chance(8) ? -1 : 0, 9));
  int64_t at = 0;
  for (int64_t n = 0; present(q.cu_seqlens.data) && n <= q.num_seqs; ++n) {
    fill(q.cu_seqlens, n, choices.hostile() ? choices.absurd() : at);
    at = std::min(p.seq_len, at + choices.integer(0, 5));
  }
  const int64_t count = q.cu_seqlens.data != nullptr ? q.num_seqs : p.batch;
  for (int64_t n = 0; present(q.offsets.data) && n < count; ++n)
    fill(q.offsets, n * q.offsets_stride, index_value(choices, -1, 5));
}

// Permits rows of tokens that are not padding, and of the head what the tail leaves.
void permit(MemoryMap& map, const RotaryParams& p) {
  const RotaryPositions& q = p.positions;
  map.permit(p.faults, 0, sizeof(FaultRecord));
  const int64_t size = dtype_size(p.dtype);
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t s = 0; s < p.seq_len; ++s) {
      bool padding = q.ids.data == nullptr && q.cu_seqlens.data != nullptr && s >= read_int(q.cu_seqlens, q.num_seqs);
      for (int64_t axis = 0; q.ids.data != nullptr && axis < p.rope.num_axes; ++axis)
        padding = padding || read_int(q.ids, axis * q.axis_stride + b * q.batch_stride + s * q.token_stride) < 0;
      if (padding) continue;
      if (p.token_faults != nullptr) map.permit(p.token_faults, b * p.seq_len + s, 1);
      for (int64_t i = 0; i < p.num_tensors; ++i) {
        const RotaryTensor& t = p.tensors[i];
        const RotaryStrides& y = t.y_strides;
        const bool part = t.rotate && p.tail == RotaryTail::leave;
        const int64_t begin = part ? p.rope.rotary_offset : 0, end = part ? begin + p.rope.rotary_dim : p.head_dim;
        for (int64_t h = 0; h < t.num_heads; ++h)
          for (int64_t d = begin; d < end; ++d)
            map.permit(t.y, (b * y.batch + s * y.token + h * y.head + d * y.channel) * size, size);
      }
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Tally tally("rotary");
  Choices choices(data, size);
  MemoryMap map(choices);
  RotaryParams p;
  p.batch = choices.chance(2) ? 1 : choices.size(0, 3);
  p.seq_len = choices.size(0, 5);
  p.head_dim = choices.head_dim();
  p.dtype = float_type(choices);
  p.num_tensors = choices.size(1, 4);
  p.rope.style = choices.enumerator(RopeStyle::interleaved);
  p.rope.num_blocks = choices.chance(2) ? 1 : choices.size(1, 4);
  const int64_t unit = p.rope.num_blocks >= 1 && p.rope.num_blocks <= 4 ? 2 * p.rope.num_blocks : 2;
  const auto part = [&](int64_t high, int64_t of) {
    return high < of || high > kMaxHeadDim ? choices.size(0, 0) : choices.size(0, high / of) / of * of;
  };
  p.rope.rotary_dim =
      choices.chance(2) && p.head_dim > 0 && !choices.hostile() ? p.head_dim / unit * unit : part(p.head_dim, unit);
  p.rope.rotary_offset = choices.chance(2) ? 0 : part(plus(p.head_dim, -std::max<int64_t>(p.rope.rotary_dim, 0)), 2);
  p.rope.inverse = choices.chance(3);
  p.tail = choices.enumerator(RotaryTail::zero);
  for (int64_t i = 0; i < std::min<int64_t>(p.num_tensors, 4); ++i) {
    RotaryTensor& t = p.tensors[i];
    t.num_heads = choices.size(1, 3);
    t.rotate = !choices.chance(6);
    t.x_strides = decode_strides(choices, p, t.num_heads);
    const bool same = choices.chance(2);
    t.y_strides = same ? t.x_strides : decode_strides(choices, p, t.num_heads);
    const int x = map.array(kX[i], t.x, extent_of(p, t.num_heads, t.x_strides), Use::read, p.dtype);
    map.in_place(map.array(kY[i], t.y, extent_of(p, t.num_heads, t.y_strides), Use::write), x, same && choices.chance(2));
  }
  decode_angles(choices, map, p);
  decode_positions(choices, map, p);
  if (!choices.chance(8)) map.optional("faults", p.faults, dense(1, sizeof(FaultRecord)), Use::write);
  if (choices.chance(2)) map.optional("token_faults", p.token_faults, dense(times(p.batch, p.seq_len), 1), Use::write);
  if (!map.allocate()) return 0;
  fill_positions(choices, p);

  map.freeze();
  const Execution where = execution(choices);
  Status status;
  if (choices.chance(4)) {
    Result<RotaryPlan> plan = RotaryPlan::create(p, where);
    status = plan.status();
    if (plan.ok()) {
      p.seq_len = choices.integer(0, p.seq_len);
      permit(map, p);
      status = plan->run(p, where);
    }
  } else {
    if (validate(p).ok()) permit(map, p);
    status = rotary(p, where);
  }
  if (times(p.batch, p.seq_len) == 0) map.forgive();
  map.check(status);
  tally.count(status.ok());
  return 0;
}
