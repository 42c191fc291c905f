// One head on the CPU: widen to float32 (+ bias), turn, round and store. The steps work on a float32 row of their own, so
// that further ones (a norm before or after the rotation, a quantised store) fit between them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/rotation.h>
#include <prologue/kernels/base/views.h>

namespace prologue::cpu {

inline constexpr int64_t kMaxHeadDim = 576;

// Threads for a pass over so many elements: starting a thread costs as much as a few thousand elements.
inline int threads_for(int64_t elements, int num_threads) {
  constexpr int64_t kElementsPerThread = 8192;
  return static_cast<int>(std::clamp<int64_t>(elements / kElementsPerThread, 1, std::max(num_threads, 1)));
}

// One row of the table, and how it is applied; rotary_dim = 0 turns nothing.
struct RotationRow {
  RopeStyle style = RopeStyle::neox;
  int64_t rotary_dim = 0;
  const float* cos = nullptr;
  const float* sin = nullptr;
};

inline RotationRow rotation_row(RopeStyle style, int64_t rotary_dim, const float* cos_sin_cache, int64_t position) {
  if (rotary_dim == 0) return {};
  const float* row = cos_sin_cache + position * rotary_dim;
  return {style, rotary_dim, row, row + rotary_dim / 2};
}

template <class T>
void load_values(const T* x, const T* bias, int64_t count, float* values) {
  for (int64_t i = 0; i < count; ++i) values[i] = to_float(x[i]);
  if (bias == nullptr) return;
  for (int64_t i = 0; i < count; ++i) values[i] = add_rounded(values[i], to_float(bias[i]));
}

inline void rotate_values(float* values, const RotationRow& row) {
  const int64_t half = row.rotary_dim / 2;
  if (row.style == RopeStyle::neox) {
    for (int64_t i = 0; i < half; ++i) rotate_pair(values[i], values[i + half], row.cos[i], row.sin[i]);
  } else {
    for (int64_t i = 0; i < half; ++i) rotate_pair(values[2 * i], values[2 * i + 1], row.cos[i], row.sin[i]);
  }
}

template <class T>
void store_values(const float* values, int64_t count, T* y) {
  for (int64_t i = 0; i < count; ++i) y[i] = from_float<T>(values[i]);
}

// y = rotate(x + bias). Channels that nothing changes are copied bitwise. y may be x.
template <class T>
void transform_head(const T* x, const T* bias, const RotationRow& row, int64_t head_dim, T* y) {
  const int64_t changed = bias != nullptr ? head_dim : row.rotary_dim;
  alignas(64) float values[kMaxHeadDim];
  load_values(x, bias, changed, values);
  rotate_values(values, row);
  if (y != x) std::memcpy(y + changed, x + changed, static_cast<size_t>(head_dim - changed) * sizeof(T));
  store_values(values, changed, y);
}

}  // namespace prologue::cpu
