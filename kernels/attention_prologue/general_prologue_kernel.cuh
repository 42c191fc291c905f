// blockIdx.x is the token; threadIdx.x the lane, that is the unit (head_unit.cuh), within a head, lanes being padded to a power
// of two; the rows threadIdx.y of all blockIdx.y walk the heads of q, k and v. A head of more than 32 lanes has a block to
// itself, a norm over the whole token a block for the token.
//
// Everything that attention_prologue.h describes, decided at run time.
#pragma once

#include <cstdint>

#include <prologue/kernels/attention_prologue/query_factor.h>
#include <prologue/kernels/base/angle.h>
#include <prologue/kernels/attention_prologue/prologue_args.cuh>
#include <prologue/kernels/attention_prologue/token_place.cuh>
#include <prologue/kernels/base/head_unit.cuh>

namespace prologue::cuda {

inline constexpr int kMaxLanes = 512;
inline constexpr int kMaxGeneralThreads = 512;

struct GeneralShared {
  float sums[2][kMaxLanes];
  uint8_t codes[kMaxGeneralThreads * 16];  // int4 before two of them share a byte
};

// The lanes of a head, whether in one warp or over several (then the only head in the block).
struct Lanes {
  HeadLanes warp;
  int lane;
  int count;
  GeneralShared* shared;

  __device__ bool wide() const { return count > 32; }
};

__device__ inline Lanes make_lanes(GeneralShared* shared) {
  const int count = static_cast<int>(blockDim.x);
  const int lane = static_cast<int>(threadIdx.x);
  const int thread = static_cast<int>(threadIdx.y) * count + lane;
  return {count > 32 ? HeadLanes{kWholeWarp, 32} : head_lanes(count, thread), lane, count, shared};
}

__device__ inline uint32_t largest_over(const Lanes& lanes, uint32_t x) {
  x = largest_over(lanes.warp, x);
  if (!lanes.wide()) return x;
  uint32_t* of_warps = reinterpret_cast<uint32_t*>(lanes.shared->sums[0]);
  __syncthreads();
  if (lanes.lane % 32 == 0) of_warps[lanes.lane / 32] = x;
  __syncthreads();
  for (int i = 0; i < lanes.count / 32; ++i) x = max(x, of_warps[i]);
  __syncthreads();
  return x;
}

// The sum over a head of terms[0 .. 2V) of each unit, in the order of sum_halves. Vectors in other lanes than that order needs
// are moved first.
template <int V>
__device__ inline float sum_over(const Lanes& lanes, const UnitPlace& place, const HeadLayout& layout, const float* terms) {
  const float a = place.has_a ? tree<V>(terms) : 0.0f;
  const float b = place.has_b ? tree<V>(terms + V) : 0.0f;
  const int half = layout.head_dim / 2 / V;  // vectors
  const bool natural = layout.rotary_dim == layout.head_dim && layout.style == RopeStyle::neox;
  if (!lanes.wide()) {
    if (natural) return sum_halves(lanes.warp, a, b);
    const bool inside = lanes.lane < half;
    const VectorOwner low = owner_of<V>(inside ? lanes.lane * V : 0, layout);
    const VectorOwner high = owner_of<V>(inside ? (lanes.lane + half) * V : 0, layout);
    const float low_a = __shfl_sync(lanes.warp.mask, a, low.unit, lanes.count);
    const float low_b = __shfl_sync(lanes.warp.mask, b, low.unit, lanes.count);
    const float high_a = __shfl_sync(lanes.warp.mask, a, high.unit, lanes.count);
    const float high_b = __shfl_sync(lanes.warp.mask, b, high.unit, lanes.count);
    return sum_halves(lanes.warp, inside ? (low.is_b ? low_b : low_a) : 0.0f, inside ? (high.is_b ? high_b : high_a) : 0.0f);
  }
  auto& sums = lanes.shared->sums;
  __syncthreads();
  if (lanes.lane >= half) sums[0][lanes.lane] = sums[1][lanes.lane] = 0.0f;
  if (place.has_a) sums[place.a / V / half][place.a / V % half] = a;
  if (place.has_b) sums[place.b / V / half][place.b / V % half] = b;
  __syncthreads();
  float low = sums[0][lanes.lane], high = sums[1][lanes.lane];
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    low = add_rounded(low, __shfl_xor_sync(0xffffffffu, low, step));
    high = add_rounded(high, __shfl_xor_sync(0xffffffffu, high, step));
  }
  __syncthreads();
  if (lanes.lane % 32 == 0) sums[0][lanes.lane / 32] = low, sums[1][lanes.lane / 32] = high;
  __syncthreads();
  const int warps = lanes.count / 32, from = lanes.lane % 32 % warps;
  const float total = sum_halves({0xffffffffu, warps}, sums[0][from], sums[1][from]);
  __syncthreads();
  return total;
}

template <class T, int V>
__device__ inline void round_step(UnitValues<V>& values, bool rounds) {
  if (rounds) values = widen<T, V>(narrow<T, V>(values));
}

// Squared deviations from `mean` (0 for rms).
template <int V>
__device__ inline void square_from(const UnitValues<V>& values, float mean, float* squares) {
#pragma unroll
  for (int i = 0; i < 2 * V; ++i) {
    const float deviation = mean == 0.0f ? values.x[i] : add_rounded(values.x[i], -mean);
    squares[i] = multiply_rounded(deviation, deviation);
  }
}

// x -> (x - mean) * factor * (offset + weight) + bias
template <class T, int V>
__device__ inline void apply_norm(UnitValues<V>& values, const TensorExtras& extras, int head, const UnitPlace& place, float mean,
                                  float factor) {
  const int64_t of_head = head * extras.weight_head;
#pragma unroll
  for (int i = 0; i < 2 * V; ++i) {
    if (extras.norm_kind == NormKind::layer) values.x[i] = add_rounded(values.x[i], -mean);
    values.x[i] = multiply_rounded(values.x[i], factor);
  }
  if (extras.weight != nullptr) {
    multiply_weight<T, V>(values, load_unit<false, T, V>(extras.weight + of_head, place), extras.weight_offset);
  }
  if (extras.norm_bias != nullptr) add_bias<T, V>(values, load_unit<false, T, V>(extras.norm_bias + of_head, place));
}

template <class T, int V>
__device__ inline void normalise_head(UnitValues<V>& values, const Lanes& lanes, const TensorExtras& extras, int head,
                                      const UnitPlace& place) {
  float mean = 0.0f;
  if (extras.norm_kind == NormKind::layer) {
    mean = multiply_rounded(sum_over<V>(lanes, place, extras.layout, values.x), extras.inverse_count);
  }
  float squares[2 * V];
  square_from<V>(values, mean, squares);
  const float sum = sum_over<V>(lanes, place, extras.layout, squares);
  apply_norm<T, V>(values, extras, head, place, mean, inverse_root_mean(sum, extras.inverse_count, extras.eps));
}

// The position on the axis of a pair. An axis outside 0..3 counts as 0. If the call has fewer than four axes, place_token() has
// set the others to the position on axis 0.
__device__ inline int64_t position_of_axis(const int64_t* positions, int axis) {
  return axis == 1 ? positions[1] : axis == 2 ? positions[2] : axis == 3 ? positions[3] : positions[0];
}

// cos and sin of a unit's pairs, from the table rows of the positions on its axes.
template <int V>
__device__ inline UnitAngles<V> angles_of_streams(const float* table, int rotary_dim, int pair, const int64_t* positions,
                                                  const uint8_t* pair_axis) {
  UnitAngles<V> angles;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const float* row = table + position_of_axis(positions, pair_axis[pair + i]) * rotary_dim + pair + i;
    angles.cos[i] = row[0];
    angles.sin[i] = row[rotary_dim / 2];
  }
  return angles;
}

template <int V>
__device__ inline UnitAngles<V> angles_of_token(const GeneralArgs& p, const TokenPlace& token, int64_t t, int pair) {
  const PlaceExtras& places = p.places;
  const int rotary_dim = p.layout.rotary_dim;
  UnitAngles<V> angles;
  if (places.source == RopeSource::inv_freq) {
#pragma unroll 1
    for (int i = 0; i < V; ++i) {
      const int64_t position = position_of_axis(token.positions, places.pair_axis == nullptr ? 0 : places.pair_axis[pair + i]);
      const CosSin value = cos_sin_of(static_cast<int32_t>(position), places.inv_freq[pair + i]);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        if (j != i) continue;
        angles.cos[j] = multiply_rounded(value.cos, places.attention_factor);
        angles.sin[j] = multiply_rounded(value.sin, places.attention_factor);
      }
    }
  } else if (places.source == RopeSource::table && places.pair_axis != nullptr) {
    angles = angles_of_streams<V>(p.cos_sin, rotary_dim, pair, token.positions, places.pair_axis);
  } else {
    const int64_t row = places.source == RopeSource::per_token ? t : token.positions[0];
    const float* cos = p.cos_sin + row * rotary_dim + pair;
    angles = load_angles<V>(cos, cos + rotary_dim / 2);
  }
  if (places.inverse != 0) {
#pragma unroll
    for (int i = 0; i < V; ++i) angles.sin[i] = -angles.sin[i];
  }
  return angles;
}

// Which tensor a row of the grid works on, and the head within it.
struct HeadPlace {
  int tensor;
  int head;
};

__device__ inline HeadPlace place_head(const GeneralArgs& p, int row) {
  if (row < p.tensors[0].heads) return {0, row};
  row -= p.tensors[0].heads;
  return row < p.tensors[1].heads ? HeadPlace{1, row} : HeadPlace{2, row - p.tensors[1].heads};
}

// What all heads of a token share.
template <int V>
struct TokenState {
  TokenPlace place;
  UnitAngles<V> angles;
  float query_factor;
  bool scales_query;
  bool rounds;
};

// A head before its norm, or, where the norm comes first, before anything but the bias.
template <class T, int V>
struct HeadState {
  Unit<T, V> raw;
  UnitValues<V> values;
  UnitPlace place;
  bool changed;
};

template <class T, int V>
__device__ inline void turn(HeadState<T, V>& head, const TensorExtras& extras, const TokenState<V>& token) {
  if (extras.turns == 0 || !token.place.rotated) return;
  if (head.place.pair >= 0) {
    rotate<V>(head.values, token.angles, extras.layout.style);
    head.changed = true;
  }
  round_step<T, V>(head.values, token.rounds);
}

template <class T, int V>
__device__ inline HeadState<T, V> begin_head(const GeneralArgs& p, const TokenState<V>& token, int64_t t, const HeadPlace& at,
                                             bool active, int lane) {
  const TensorArgs<int64_t>& tensor = p.tensors[at.tensor];
  const TensorExtras& extras = p.extras[at.tensor];
  HeadState<T, V> head = {};
  head.place = place_unit<V>(lane, extras.layout);
  if (!active) head.place.has_a = head.place.has_b = false;
  head.raw = load_unit<false, T, V>(tensor.in + t * tensor.in_token + at.head * tensor.in_head, head.place);
  head.values = widen<T, V>(head.raw);
  if (extras.bias != nullptr) {
    const char* bias = extras.bias + static_cast<int64_t>(at.head) * extras.layout.head_dim * static_cast<int64_t>(sizeof(T));
    add_bias<T, V>(head.values, load_unit<false, T, V>(bias, head.place));
    round_step<T, V>(head.values, token.rounds);
    head.changed = true;
  }
  if (extras.norm == NormStep::after_rope) turn<T, V>(head, extras, token);
  return head;
}

// `sum`: of the squares of all heads of the token, where the norm is over the token.
template <class T, int V>
__device__ inline void finish_values(HeadState<T, V>& head, const TokenState<V>& token, const Lanes& lanes, const HeadPlace& at,
                                     const TensorExtras& extras, float sum) {
  if (extras.norm != NormStep::none) {
    if (extras.norm_scope == NormScope::head) {
      normalise_head<T, V>(head.values, lanes, extras, at.head, head.place);
    } else {
      apply_norm<T, V>(head.values, extras, at.head, head.place, 0.0f, inverse_root_mean(sum, extras.inverse_count, extras.eps));
    }
    round_step<T, V>(head.values, token.rounds);
    head.changed = true;
  }
  if (extras.norm != NormStep::after_rope) turn<T, V>(head, extras, token);
  if (at.tensor == 0 && token.scales_query) {
    multiply<V>(head.values, token.query_factor);
    round_step<T, V>(head.values, token.rounds);
    head.changed = true;
  }
}

template <class T, int V>
__device__ inline void store_as_dtype(char* to, const HeadState<T, V>& head, bool zero) {
  Unit<T, V> unit = head.changed ? narrow<T, V>(head.values) : head.raw;
  if (zero) unit = {};
  store_unit<false, T, V>(to, head.place, unit);
}

// `rows`: the heads whose lanes are in this block. `reached`: whether this head's slot is to be written; all threads of the block
// must be here.
template <class T, int V>
__device__ inline void store_as_cache(const GeneralArgs& p, const TokenPlace& token, int64_t t, const HeadPlace& at, bool reached,
                                      HeadState<T, V>& head, const Lanes& lanes, bool any_int4) {
  const TensorArgs<int64_t>& tensor = p.tensors[at.tensor];
  const TensorExtras& extras = p.extras[at.tensor];
  const bool is_q = at.tensor == 0;
  const bool zero = !token.guard.position_ok;
  const int64_t page = is_q ? 0 : token.page;
  const int64_t offset = is_q ? t : static_cast<int64_t>(token.offset);
  char* to = tensor.out + page * tensor.out_page + offset * tensor.out_token + at.head * tensor.out_head;
  const UnitPlace& place = head.place;

  uint32_t largest = 0;
  const bool quantised = extras.store >= DType::fp8_e4m3;
  if (extras.scale_from == ScaleFrom::computed) {
    UnitValues<V> present = head.values;
#pragma unroll
    for (int i = 0; i < 2 * V; ++i) {
      if (!(i < V ? place.has_a : place.has_b)) present.x[i] = 0.0f;
    }
    largest = largest_over(lanes, largest_magnitude<V>(present));
  }
  if (reached && !quantised) {
    switch (extras.store) {
      case DType::f32: store_unit<false, float, V>(to, place, narrow<float, V>(zero ? UnitValues<V>{} : head.values)); break;
      case DType::f16: store_unit<false, __half, V>(to, place, narrow<__half, V>(zero ? UnitValues<V>{} : head.values)); break;
      case DType::bf16:
        store_unit<false, __nv_bfloat16, V>(to, place, narrow<__nv_bfloat16, V>(zero ? UnitValues<V>{} : head.values));
        break;
      default: store_as_dtype<T, V>(to, head, zero); break;
    }
  }
  const DType type = extras.store;
  HeadScale scale;
  if (reached && quantised) {
    char* scale_at = extras.scale + page * extras.scale_page + offset * extras.scale_token + at.head * extras.scale_head;
    if (zero) {
      scale = {0.0f, 0.0f};
    } else if (extras.scale_from == ScaleFrom::computed) {
      scale = computed_scale(largest, kv_largest(type));
    } else if (extras.scale_from == ScaleFrom::given) {
      scale = given_scale(*reinterpret_cast<const float*>(extras.scale + at.head * extras.scale_head));
    }
    if (extras.scale_from == ScaleFrom::computed && lanes.lane == 0) *reinterpret_cast<float*>(scale_at) = scale.scale;
    if (type != DType::int4) {
      UnitValues<V> scaled = head.values;
      if (scale.reciprocal == 0.0f) {
        scaled = {};
      } else {
        multiply<V>(scaled, scale.reciprocal);
      }
      store_unit_8<V>(to, place, to_8_bits<V>(scaled, type));
    }
  }
  if (!any_int4) return;
  // Two neighbours share a byte, and may be in different threads.
  const int head_dim = extras.layout.head_dim;
  uint8_t* codes = lanes.shared->codes + static_cast<int>(threadIdx.y) * lanes.count * 2 * V;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < V; ++i) {
    if (place.has_a) codes[place.a + i] = quantize(head.values.x[i], scale.reciprocal, DType::int4);
    if (place.has_b) codes[place.b + i] = quantize(head.values.x[V + i], scale.reciprocal, DType::int4);
  }
  __syncthreads();
  if (reached && extras.store == DType::int4) {
    for (int i = lanes.lane; i < head_dim / 2; i += lanes.count) {
      to[i] = static_cast<char>(codes[2 * i] | codes[2 * i + 1] << 4);
    }
  }
}

// Sums of squares over all heads of q (tensor 0) or k (1) of the token, one head after another.
template <class T, int V>
__device__ inline float token_sum(const GeneralArgs& p, const TokenState<V>& token, int64_t t, int tensor, const Lanes& lanes) {
  const TensorExtras& extras = p.extras[tensor];
  const int heads = p.tensors[tensor].heads, rows = static_cast<int>(blockDim.y), row = static_cast<int>(threadIdx.y);
  float total = 0.0f;
  for (int first = 0; first < heads; first += rows) {
    const HeadPlace at = {tensor, first + row};
    const HeadState<T, V> head = begin_head<T, V>(p, token, t, at, at.head < heads, lanes.lane);
    float squares[2 * V];
    square<V>(head.values, squares);
    const float sum = sum_over<V>(lanes, head.place, extras.layout, squares);
    __syncthreads();
    if (lanes.lane == 0) lanes.shared->sums[1][row] = sum;
    __syncthreads();
    for (int i = 0; i < min(rows, heads - first); ++i) total = add_rounded(total, lanes.shared->sums[1][i]);
    __syncthreads();
  }
  return total;
}

template <class T, int V>
__global__ void __launch_bounds__(kMaxGeneralThreads) general_prologue_kernel(const __grid_constant__ GeneralArgs p) {
  __shared__ GeneralShared shared;
  const Lanes lanes = make_lanes(&shared);
  const int64_t t = blockIdx.x;

  TokenState<V> token;
  token.place = place_token(p, t);
  const TokenGuard& guard = token.place.guard;
  if (guard.padding) return;
  if (guard.fault != FaultCode::none && blockIdx.y == 0 && threadIdx.y == 0 && lanes.lane == 0) report_fault(p, t, guard.fault);
  token.rounds = p.rounds_per_step != 0;
  token.scales_query = p.q_scale.constant != 1.0f || p.q_scale.by_position != PositionScale::none;
  token.query_factor = token.scales_query ? query_factor(p.q_scale, token.place.positions[0]) : 1.0f;
  const int pair = place_unit<V>(lanes.lane, p.layout).pair;
  if (pair >= 0 && p.extras[0].turns + p.extras[1].turns != 0 && guard.position_ok && token.place.rotated) {
    token.angles = angles_of_token<V>(p, token.place, t, pair);
  }

  float sums[2] = {0.0f, 0.0f};
#pragma unroll
  for (int tensor = 0; tensor < 2; ++tensor) {
    const TensorExtras& extras = p.extras[tensor];
    if (extras.norm != NormStep::none && extras.norm_scope == NormScope::token && guard.position_ok) {
      sums[tensor] = token_sum<T, V>(p, token, t, tensor, lanes);
    }
  }

  const bool any_int4 = p.extras[1].store == DType::int4 || p.extras[2].store == DType::int4;
  const int num_rows = p.tensors[0].heads + p.tensors[1].heads + p.tensors[2].heads;
  const int step = static_cast<int>(gridDim.y * blockDim.y);
  for (int first = static_cast<int>(blockIdx.y * blockDim.y); first < num_rows; first += step) {
    const int row = first + static_cast<int>(threadIdx.y);
    const bool active = row < num_rows;
    const HeadPlace at = active ? place_head(p, row) : HeadPlace{0, 0};
    const TensorArgs<int64_t>& tensor = p.tensors[at.tensor];
    const TensorExtras& extras = p.extras[at.tensor];
    HeadState<T, V> head = begin_head<T, V>(p, token, t, at, active, lanes.lane);
    finish_values<T, V>(head, token, lanes, at, extras, sums[at.tensor == 1 ? 1 : 0]);
    if (active && extras.second_out != nullptr) {
      char* to = extras.second_out + t * extras.second_token + at.head * extras.second_head;
      store_as_dtype<T, V>(to, head, !guard.position_ok);
    }
    const bool reached = active && tensor.out != nullptr && (at.tensor == 0 || (guard.slot >= 0 && guard.position_ok));
    store_as_cache<T, V>(p, token.place, t, at, reached, head, lanes, any_int4);
  }
}

}  // namespace prologue::cuda
