#include "tests/support/placed_rotary.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

namespace prologue::test {

namespace {

template <class F>
auto with_int_type(DType type, F&& f) {
  switch (type) {
    case DType::int8: return f(int8_t{});
    case DType::int16: return f(int16_t{});
    case DType::int32: return f(int32_t{});
    case DType::int64: return f(int64_t{});
    case DType::uint8: return f(uint8_t{});
    case DType::uint16: return f(uint16_t{});
    case DType::uint32: return f(uint32_t{});
    default: break;
  }
  return f(uint64_t{});
}

// Returns `value`, or the value of the type that is nearest to it.
int64_t fit(int64_t value, DType type) {
  return with_int_type(type, [&](auto t) {
    using Stored = decltype(t);
    if (sizeof(Stored) == 8 && std::numeric_limits<Stored>::min() == 0) return value < 0 ? INT64_MAX : value;
    return std::clamp(value, static_cast<int64_t>(std::numeric_limits<Stored>::min()),
                      static_cast<int64_t>(std::numeric_limits<Stored>::max()));
  });
}

}  // namespace

template <class T>
PlacedRotary<T>::PlacedRotary(Backend backend, const RotaryCase& c) : c_(c), random_(c.seed), arena_(backend) {
  make_tensors();
  make_angles();
  make_positions();
  RotaryParams& p = params_;
  p.batch = c.batch, p.seq_len = c.seq_len, p.head_dim = c.head_dim, p.dtype = c.dtype;
  p.rope.style = c.style, p.rope.rotary_dim = c.rotary_dim, p.rope.rotary_offset = c.rotary_offset;
  p.rope.num_blocks = c.num_blocks;
  p.rope.inverse = c.inverse, p.rope.inverse_by_own_sine = c.inverse_by_own_sine, p.tail = c.tail;
  if (c.faults) p.faults = faults_ = arena_.inout(std::vector<FaultRecord>(1));
  if (c.token_faults)
    p.token_faults = token_faults_ = arena_.inout(std::vector<uint8_t>(static_cast<size_t>(c.batch * c.seq_len), 0));
  oracle::RotaryInput& in = in_;
  in.batch = c.batch, in.seq_len = c.seq_len, in.head_dim = c.head_dim;
  in.rotary_dim = c.rotary_dim, in.rotary_offset = c.rotary_offset, in.num_blocks = c.num_blocks;
  in.interleaved = c.style == RopeStyle::interleaved, in.inverse = c.inverse;
  in.inverse_by_own_sine = c.inverse_by_own_sine;
  in.tail = static_cast<oracle::Tail>(c.tail);
}

template <class T>
Status PlacedRotary<T>::run() {
  return arena_.run([&](const Execution& execution) {
    if (!c_.plan) return rotary(params_, execution);
    RotaryParams largest = params_;
    PROLOGUE_ASSIGN_OR_RETURN(const RotaryPlan plan, RotaryPlan::create(largest, execution));
    return plan.run(params_, execution);
  });
}

// Returns the strides of a layout, and the elements from the first to past the last.
template <class T>
int64_t PlacedRotary<T>::lay_out(const RotaryLayout& layout, int64_t num_heads, RotaryStrides& strides) const {
  const int64_t counts[4] = {c_.batch, c_.seq_len, num_heads, c_.head_dim};
  int64_t* const of[4] = {&strides.batch, &strides.token, &strides.head, &strides.channel};
  int64_t extent = 1;
  for (int i = 3; i >= 0; --i) {
    const auto dim = static_cast<size_t>(layout.order[static_cast<size_t>(i)]);
    *of[dim] = extent + layout.holes[dim];
    extent = counts[dim] <= 0 ? 0 : *of[dim] * counts[dim];
  }
  return extent;
}

template <class T>
void PlacedRotary<T>::make_tensors() {
  params_.num_tensors = static_cast<int64_t>(c_.tensors.size());
  const int64_t misalign = c_.misalign * static_cast<int64_t>(sizeof(T));
  for (size_t i = 0; i < c_.tensors.size(); ++i) {
    const RotaryCaseTensor& t = c_.tensors[i];
    RotaryTensor& tensor = params_.tensors[i];
    tensor.num_heads = t.num_heads;
    tensor.rotate = t.rotate;
    const int64_t x_size = lay_out(t.x, t.num_heads, tensor.x_strides);
    std::vector<T> x = poisoned<T>(x_size);
    oracle::RotaryInput::Tensor logical{t.num_heads, t.rotate, {}};
    const RotaryStrides& xs = tensor.x_strides;
    for (int64_t b = 0; b < c_.batch; ++b) {
      for (int64_t s = 0; s < c_.seq_len; ++s) {
        for (int64_t h = 0; h < t.num_heads; ++h) {
          for (int64_t d = 0; d < c_.head_dim; ++d) {
            const T value = from_double<T>(random_.normal());
            x[static_cast<size_t>(b * xs.batch + s * xs.token + h * xs.head + d * xs.channel)] = value;
            logical.x.push_back(to_double(value));
          }
        }
      }
    }
    in_.tensors.push_back(std::move(logical));
    if (t.in_place) {
      tensor.y_strides = tensor.x_strides;
      y_.push_back(arena_.inout(x, misalign));
      tensor.x = y_.back();
      before_.push_back(std::move(x));
    } else {
      const int64_t y_size = lay_out(t.y, t.num_heads, tensor.y_strides);
      tensor.x = arena_.input(x, misalign);
      y_.push_back(arena_.template output<T>(y_size, misalign));
      before_.push_back(poisoned<T>(y_size));
    }
    tensor.y = y_.back();
  }
}

// Makes a table in memory, holes poisoned, and its logical values.
template <class T>
void PlacedRotary<T>::make_table(const std::function<double(int64_t row, int64_t column)>& value, RopeColumns& columns,
                                 oracle::Table& logical) {
  const int64_t pairs = c_.rotary_dim / (2 * c_.num_blocks), batches = c_.table_per_batch ? c_.batch : 1;
  logical.columns = c_.width == RopeWidth::full ? 2 * pairs : pairs;
  logical.rows = c_.per_token ? c_.seq_len : c_.max_position;
  logical.per_batch = c_.table_per_batch;
  columns.column_stride = c_.column_stride;
  columns.row_stride = logical.columns * c_.column_stride + c_.table_holes;
  columns.batch_stride = c_.table_per_batch ? logical.rows * columns.row_stride : 0;
  with_float_type(c_.type, [&](auto type) {
    using Stored = decltype(type);
    std::vector<Stored> stored = poisoned<Stored>(batches * logical.rows * columns.row_stride);
    for (int64_t b = 0; b < batches; ++b) {
      for (int64_t r = 0; r < logical.rows; ++r) {
        for (int64_t column = 0; column < logical.columns; ++column) {
          // In full width every channel has a value of its own, so that taking the wrong column shows.
          const Stored x = from_double<Stored>(value(r + 3 * b, column));
          stored[static_cast<size_t>((b * logical.rows + r) * columns.row_stride + column * c_.column_stride)] = x;
          logical.values.push_back(to_double(x));
        }
      }
    }
    columns.data = arena_.input(stored, c_.misalign * static_cast<int64_t>(sizeof(Stored)));
  });
}

template <class T>
void PlacedRotary<T>::make_angles() {
  Rope& a = params_.rope;
  a.source = c_.source, a.type = c_.type, a.width = c_.width;
  if (c_.per_token) a.source = c_.source == RopeSource::angles ? RopeSource::angles_per_token : RopeSource::per_token;
  a.attention_factor = c_.attention_factor;
  const bool rows = (c_.source == RopeSource::table || c_.source == RopeSource::angles) && !c_.per_token;
  a.max_position = rows || c_.bounded ? c_.max_position : 0;
  in_.source = c_.source == RopeSource::angles     ? oracle::AngleSource::angles
               : c_.source == RopeSource::inv_freq ? oracle::AngleSource::inv_freq
               : c_.source == RopeSource::theta    ? oracle::AngleSource::theta
                                                   : oracle::AngleSource::cos_sin;
  in_.full = c_.width == RopeWidth::full, in_.per_token = c_.per_token;
  a.past_table = c_.past_table;
  in_.identity_past_table = c_.past_table == PastTable::identity;
  in_.max_position = a.max_position, in_.factor = c_.attention_factor;
  if (c_.rotary_dim == 0) return;
  const int64_t pairs = c_.rotary_dim / (2 * c_.num_blocks);
  const auto frequency = [&](int64_t column) {
    return std::pow(100.0, -static_cast<double>(column) / static_cast<double>(pairs));
  };
  const auto angle = [&](int64_t row, int64_t column) { return static_cast<double>(row) * frequency(column); };
  switch (c_.source) {
    case RopeSource::per_token:
    case RopeSource::angles_per_token: break;
    case RopeSource::table:
      make_table([&](int64_t r, int64_t i) { return std::cos(angle(r, i)); }, a.cos, in_.cos);
      make_table([&](int64_t r, int64_t i) { return std::sin(angle(r, i)); }, a.sin, in_.sin);
      break;
    case RopeSource::angles: make_table(angle, a.angles, in_.angles); break;
    case RopeSource::inv_freq:
      with_float_type(c_.type, [&](auto type) {
        using Stored = decltype(type);
        std::vector<Stored> stored;
        for (int64_t i = 0; i < pairs; ++i) {
          stored.push_back(from_double<Stored>(frequency(i)));
          in_.inv_freq.push_back(to_double(stored.back()));
        }
        a.inv_freq = arena_.input(stored);
      });
      break;
    case RopeSource::theta: a.theta = in_.theta = 10000.0; break;
  }
}

template <class T>
IndexView PlacedRotary<T>::place_integers(const std::vector<int64_t>& values) {
  return with_int_type(c_.ids_type, [&](auto t) {
    using Stored = decltype(t);
    std::vector<Stored> stored;
    for (const int64_t value : values)
      stored.push_back(value == INT64_MAX ? static_cast<Stored>(~Stored{}) : static_cast<Stored>(value));
    return index_view(arena_.input(stored));
  });
}

template <class T>
void PlacedRotary<T>::make_positions() {
  // Without a bound, what uint64 makes of a negative number is a position like any other, and its angle is NaN.
  const bool damage = c_.bad_ids && (c_.bounded || c_.ids_type != DType::uint64);
  params_.rope.num_axes = in_.num_axes = c_.num_axes;
  if (c_.num_axes > 1 && c_.pair_axis) {
    std::vector<uint8_t> axes;
    for (int64_t i = 0; i < c_.rotary_dim / 2; ++i) {
      axes.push_back(static_cast<uint8_t>(random_.integer(0, 9) == 0 ? random_.integer(c_.num_axes, 255)
                                                                     : random_.integer(0, c_.num_axes - 1)));
      in_.pair_axis.push_back(axes.back());
    }
    params_.rope.pair_axis = arena_.input(axes);
  }
  if (c_.ids != IdsKind::none) return make_ids(damage);
  params_.positions.offset = in_.offset = c_.offset;
  params_.positions.max_seqlen = in_.max_seqlen = c_.max_seqlen;
  if (c_.num_seqs > 0) make_sequences();
  if (c_.offsets) make_offsets(damage);
}

template <class T>
void PlacedRotary<T>::make_ids(bool damage) {
  RotaryPositions& p = params_.positions;
  const int64_t batches = c_.ids == IdsKind::per_batch ? c_.batch : 1;
  std::vector<int64_t> stored, logical(static_cast<size_t>(c_.num_axes * c_.batch * c_.seq_len));
  p.token_stride = c_.ids_token_stride;
  p.batch_stride = c_.ids == IdsKind::per_batch ? c_.seq_len * p.token_stride + 1 : 0;
  p.axis_stride = batches * (c_.seq_len * p.token_stride + 1);
  stored.assign(static_cast<size_t>(c_.num_axes * p.axis_stride), fit(-9, c_.ids_type));
  for (int64_t axis = 0; axis < c_.num_axes; ++axis) {
    for (int64_t b = 0; b < batches; ++b) {
      for (int64_t s = 0; s < c_.seq_len; ++s) {
        int64_t id = random_.integer(0, c_.max_position - 1);
        if (damage && random_.integer(0, 9) == 0) {
          const int64_t bad[] = {-1, -1000000000000, c_.max_position, int64_t{1} << 32, int64_t{1} << 40, 0};
          id = bad[random_.integer(0, 5)];
          if (!c_.bounded && id > 0) id = 1;  // nothing is too large then
        }
        id = fit(id, c_.ids_type);
        stored[static_cast<size_t>(axis * p.axis_stride + b * p.batch_stride + s * p.token_stride)] = id;
        for (int64_t each = b; each < c_.batch; each += batches) {
          logical[static_cast<size_t>((axis * c_.batch + each) * c_.seq_len + s)] = id;
        }
      }
    }
  }
  p.ids = place_integers(stored);
  in_.ids = std::move(logical);
}

template <class T>
void PlacedRotary<T>::make_sequences() {
  RotaryPositions& p = params_.positions;
  in_.cu_seqlens.push_back(0);
  for (int64_t n = 0; n < c_.num_seqs; ++n) {
    const int64_t left = c_.seq_len - in_.cu_seqlens.back();
    in_.cu_seqlens.push_back(in_.cu_seqlens.back() + random_.integer(0, std::min<int64_t>(left, 5)));
  }
  if (c_.extremes && c_.ids_type != DType::uint64) in_.cu_seqlens.front() = fit(INT64_MIN + random_.integer(0, 3), c_.ids_type);
  p.num_seqs = c_.num_seqs;
  p.cu_seqlens = place_integers(in_.cu_seqlens);
}

template <class T>
void PlacedRotary<T>::make_offsets(bool damage) {
  RotaryPositions& p = params_.positions;
  const int64_t count = c_.num_seqs > 0 ? c_.num_seqs : c_.batch;
  p.offsets_stride = c_.one_offset ? 0 : 2;
  std::vector<int64_t> stored(static_cast<size_t>(std::max<int64_t>(count * 2, 1)));
  for (int64_t& value : stored) value = fit(damage && random_.integer(0, 5) == 0 ? -3 : random_.integer(0, 6), c_.ids_type);
  const int64_t far[] = {INT64_MIN, INT64_MIN + 5, -1, INT64_MAX - 1, INT64_MAX - 7};
  for (int64_t& value : stored) {
    if (c_.extremes) value = fit(far[random_.integer(0, 4)], c_.ids_type);
  }
  for (int64_t n = 0; n < count; ++n) in_.offsets.push_back(stored[static_cast<size_t>(n * p.offsets_stride)]);
  p.offsets = place_integers(stored);
}

template class PlacedRotary<float>;
template class PlacedRotary<Float16>;
template class PlacedRotary<BFloat16>;
template class PlacedRotary<double>;

}  // namespace prologue::test
