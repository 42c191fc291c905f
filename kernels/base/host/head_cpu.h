// This file finds heads on the CPU, and stores finished ones.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/host/convert_cpu.h>
#include <prologue/kernels/base/rope.h>
#include <prologue/kernels/base/shared/rotation.h>
#include <prologue/kernels/base/views.h>

namespace prologue::cpu {

// Returns the number of threads for a pass over this many elements: starting a thread costs as much as a few thousand elements.
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

// Holds a head that is ready to be stored: its values in float32, and its source. Channels outside [begin, end) are unchanged from
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

}  // namespace prologue::cpu
