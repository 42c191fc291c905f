// This file computes a unit (head_unit.cuh) in the arithmetic of its type: float32, or float64 for float64.
#pragma once

#include <cstdint>
#include <type_traits>

#include <prologue/kernels/rotary/rotary_token.h>
#include <prologue/kernels/base/device/head_unit.cuh>

namespace prologue::cuda {

// A block has at most so many threads: for a head of 1024 channels, two per thread, or more with wider vectors.
template <int V>
inline constexpr int kMaxRotaryThreads = V == 1 ? kMaxRotaryPairs : 288;

template <class T>
using RotaryArithmetic = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T, int V>
__device__ inline RotaryArithmetic<T> rotary_element(const Packed<T, V>& packed, int i) {
  if constexpr (std::is_same_v<T, double>) {
    return __hiloint2double(static_cast<int>(packed.words[2 * i + 1]), static_cast<int>(packed.words[2 * i]));
  } else {
    return element<T, V>(packed, i);
  }
}

template <class T, int V>
__device__ inline Packed<T, V> rotary_pack(const RotaryArithmetic<T>* values) {
  if constexpr (std::is_same_v<T, double>) {
    Packed<T, V> packed;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      packed.words[2 * i] = static_cast<uint32_t>(__double2loint(values[i]));
      packed.words[2 * i + 1] = static_cast<uint32_t>(__double2hiint(values[i]));
    }
    return packed;
  } else {
    return pack<T, V>(values);
  }
}

// Rotates the V pairs of a unit; `rotation(i)` is that of pair i.
template <class T, int V, class Rotation>
__device__ inline void rotate_unit(Unit<T, V>& unit, RopeStyle style, const Rotation& rotation) {
  using A = RotaryArithmetic<T>;
  A values[2 * V];
#pragma unroll
  for (int i = 0; i < V; ++i) {
    values[i] = rotary_element<T, V>(unit.a, i);
    values[V + i] = rotary_element<T, V>(unit.b, i);
  }
  rotate<V>(values, style, rotation);
  unit.a = rotary_pack<T, V>(values);
  unit.b = rotary_pack<T, V>(values + V);
}

}  // namespace prologue::cuda
