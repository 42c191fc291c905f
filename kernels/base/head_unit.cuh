// A head on the device is cut into units of 2 V channels, one thread each: V rotary pairs (both halves in one thread, so that
// no value crosses lanes), or two vectors of the channels behind rotary_dim. The steps below work on values in registers,
// whoever produced them: add_bias, rotate, store; a norm or a quantised store is one more function between them.
#pragma once

#include <cstdint>
#include <type_traits>

#include <prologue/kernels/base/rotation.h>
#include <prologue/kernels/base/views.h>
#include <prologue/kernels/base/cuda_types.cuh>

namespace prologue::cuda {

// Where a unit's two vectors lie in the head, and its first pair (negative: behind rotary_dim, not rotated).
struct UnitPlace {
  int a;
  int b;
  int pair;
  bool has_b;  // the channels behind rotary_dim may end with a single vector
};

template <int V>
__device__ inline UnitPlace place_unit(int unit, int head_dim, int rotary_dim, RopeStyle style) {
  const int rotated = rotary_dim / (2 * V);
  if (unit < rotated) {
    if (style == RopeStyle::neox) return {unit * V, rotary_dim / 2 + unit * V, unit * V, true};
    return {2 * unit * V, 2 * unit * V + V, unit * V, true};
  }
  const int a = rotary_dim + 2 * (unit - rotated) * V;
  return {a, a + V, -1, a + V < head_dim};
}

// Units of a head: what place_unit counts to.
constexpr int64_t units_of_head(int64_t head_dim, int64_t rotary_dim, int64_t vector) {
  return rotary_dim / (2 * vector) + (head_dim - rotary_dim + 2 * vector - 1) / (2 * vector);
}

// Loads and stores of one vector. `streaming` marks data that nobody reads again soon: it leaves the L2 first.
template <int kBytes>
using VectorWord =
    std::conditional_t<kBytes == 16, uint4,
                       std::conditional_t<kBytes == 8, uint2, std::conditional_t<kBytes == 4, uint32_t, uint16_t>>>;

template <bool kStreaming, class T, int V>
__device__ inline Vec<T, V> load_vector(const T* from) {
  using Word = VectorWord<V * sizeof(T)>;
  union {
    Word word;
    Vec<T, V> vector;
  } u = {kStreaming ? __ldcs(reinterpret_cast<const Word*>(from)) : *reinterpret_cast<const Word*>(from)};
  return u.vector;
}

template <bool kStreaming, class T, int V>
__device__ inline void store_vector(T* to, const Vec<T, V>& vector) {
  using Word = VectorWord<V * sizeof(T)>;
  const Word word = *reinterpret_cast<const Word*>(&vector);
  if (kStreaming) {
    __stcs(reinterpret_cast<Word*>(to), word);
  } else {
    *reinterpret_cast<Word*>(to) = word;
  }
}

template <class T, int V>
struct Unit {
  Vec<T, V> a;
  Vec<T, V> b;
};

template <bool kStreaming, class T, int V>
__device__ inline Unit<T, V> load_unit(const T* head, const UnitPlace& place) {
  Unit<T, V> unit;
  unit.a = load_vector<kStreaming, T, V>(head + place.a);
  if (place.has_b) unit.b = load_vector<kStreaming, T, V>(head + place.b);
  return unit;
}

template <bool kStreaming, class T, int V>
__device__ inline void store_unit(T* head, const UnitPlace& place, const Unit<T, V>& unit) {
  store_vector<kStreaming, T, V>(head + place.a, unit.a);
  if (place.has_b) store_vector<kStreaming, T, V>(head + place.b, unit.b);
}

// A unit in float32: x[0 .. V) is vector a, x[V .. 2V) vector b.
template <int V>
struct UnitValues {
  float x[2 * V];
};

template <class T, int V>
__device__ inline UnitValues<V> widen(const Unit<T, V>& unit) {
  UnitValues<V> values;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    values.x[i] = to_float(unit.a.values[i]);
    values.x[V + i] = to_float(unit.b.values[i]);
  }
  return values;
}

template <class T, int V>
__device__ inline Unit<T, V> narrow(const UnitValues<V>& values) {
  Unit<T, V> unit;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    unit.a.values[i] = from_float<T>(values.x[i]);
    unit.b.values[i] = from_float<T>(values.x[V + i]);
  }
  return unit;
}

template <class T, int V>
__device__ inline void add_bias(UnitValues<V>& values, const T* bias_head, const UnitPlace& place) {
  Unit<T, V> bias;
  bias.a = load_vector<false, T, V>(bias_head + place.a);
  bias.b = bias.a;
  if (place.has_b) bias.b = load_vector<false, T, V>(bias_head + place.b);
  const UnitValues<V> terms = widen(bias);
#pragma unroll
  for (int i = 0; i < 2 * V; ++i) values.x[i] = add_rounded(values.x[i], terms.x[i]);
}

// cos and sin of a unit's V pairs.
template <int V>
struct UnitAngles {
  float cos[V];
  float sin[V];
};

template <int V>
__device__ inline UnitAngles<V> load_angles(const float* cos_row, const float* sin_row) {
  constexpr int kFloats = V < 4 ? V : 4;
  UnitAngles<V> angles;
#pragma unroll
  for (int i = 0; i < V; i += kFloats) {
    const Vec<float, kFloats> cos = *reinterpret_cast<const Vec<float, kFloats>*>(cos_row + i);
    const Vec<float, kFloats> sin = *reinterpret_cast<const Vec<float, kFloats>*>(sin_row + i);
#pragma unroll
    for (int j = 0; j < kFloats; ++j) {
      angles.cos[i + j] = cos.values[j];
      angles.sin[i + j] = sin.values[j];
    }
  }
  return angles;
}

template <int V>
__device__ inline void rotate(UnitValues<V>& values, const UnitAngles<V>& angles, RopeStyle style) {
  if (style == RopeStyle::neox) {
#pragma unroll
    for (int i = 0; i < V; ++i) rotate_pair(values.x[i], values.x[V + i], angles.cos[i], angles.sin[i]);
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i) rotate_pair(values.x[2 * i], values.x[2 * i + 1], angles.cos[i], angles.sin[i]);
  }
}

}  // namespace prologue::cuda
