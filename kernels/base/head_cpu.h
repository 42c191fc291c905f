// One head on the CPU, as a row of float32 values. The steps run on it one after another: load (+ bias), rotate, round, store.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <prologue/kernels/base/convert_cpu.h>
#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/rotation.h>
#include <prologue/kernels/base/rope.h>
#include <prologue/kernels/base/views.h>

namespace prologue::cpu {

inline constexpr int64_t kMaxHeadDim = 576;

// The number of threads for a pass over this many elements: starting a thread costs as much as a few thousand elements.
inline int threads_for(int64_t elements, int num_threads) {
  constexpr int64_t kElementsPerThread = 8192;
  return static_cast<int>(std::clamp<int64_t>(elements / kElementsPerThread, 1, std::max(num_threads, 1)));
}

template <class T>
const T* head_at(const HeadsView& view, int64_t token, int64_t head) {
  return static_cast<const T*>(view.data) + token * view.token_stride + head * view.head_stride;
}
template <class T>
T* head_at(const MutableHeadsView& view, int64_t token, int64_t head) {
  return static_cast<T*>(view.data) + token * view.token_stride + head * view.head_stride;
}

// cos and sin of one token's pairs, and the channels that they rotate; rotary_dim = 0: none.
struct RotationRow {
  RopeStyle style = RopeStyle::neox;
  int64_t rotary_dim = 0;
  int64_t rotary_offset = 0;
  const float* cos = nullptr;
  const float* sin = nullptr;
};

inline RotationRow rotation_row(RopeStyle style, int64_t rotary_dim, const float* cos_sin_cache, int64_t position) {
  if (rotary_dim == 0) return {};
  const float* row = cos_sin_cache + position * rotary_dim;
  return {style, rotary_dim, 0, row, row + rotary_dim / 2};
}

template <class T>
void load_values(const T* x, const T* bias, int64_t count, float* values) {
  widen(x, count, values);
  if (bias == nullptr) return;
  for (int64_t i = 0; i < count; ++i) values[i] = add_rounded(values[i], to_float(bias[i]));
}

inline void rotate_values(float* values, const RotationRow& row) {
  float* x = values + row.rotary_offset;
  const int64_t half = row.rotary_dim / 2;
  if (row.style == RopeStyle::neox) {
    for (int64_t i = 0; i < half; ++i) rotate_pair(x[i], x[i + half], row.cos[i], row.sin[i]);
  } else {
    for (int64_t i = 0; i < half; ++i) rotate_pair(x[2 * i], x[2 * i + 1], row.cos[i], row.sin[i]);
  }
}

// Rounds the values as if they were stored as T and loaded again.
template <class T>
void round_values(float* values, int64_t count) {
  T rounded[kMaxHeadDim];
  narrow(values, count, rounded);
  widen(rounded, count, values);
}
template <>
inline void round_values<float>(float*, int64_t) {}

// A head that is ready to be stored: its values in float32, and its source. Channels outside [begin, end) are unchanged from
// `source`. They are copied bitwise if they are stored in the same type.
template <class T>
struct FinishedHead {
  const float* values = nullptr;
  int64_t width = 0;
  const T* source = nullptr;
  int64_t begin = 0;
  int64_t end = 0;
};

// y may be the source.
template <class T>
void store_head(const FinishedHead<T>& head, T* y) {
  const auto copy = [&](int64_t first, int64_t last) {
    if (y != head.source) std::memcpy(y + first, head.source + first, static_cast<size_t>(last - first) * sizeof(T));
  };
  copy(0, head.begin);
  copy(head.end, head.width);
  narrow(head.values + head.begin, head.end - head.begin, y + head.begin);
}

// y = rotate(x). y may be x.
template <class T>
void rotate_head(const T* x, const RotationRow& row, int64_t head_dim, T* y) {
  alignas(64) float values[kMaxHeadDim];
  load_values<T>(x, nullptr, head_dim, values);
  rotate_values(values, row);
  store_head<T>({values, head_dim, x, row.rotary_offset, row.rotary_offset + row.rotary_dim}, y);
}

}  // namespace prologue::cpu
