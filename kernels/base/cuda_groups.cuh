// Rows in groups of 16 bytes: a thread always owns whole groups, so the mapping of elements to threads (and with it the order
// of every sum) does not depend on how a row is aligned; only the instructions that move a group do.
#pragma once

#include <prologue/kernels/base/cuda_types.cuh>

namespace prologue::cuda {

template <class T>
inline constexpr int kGroup = static_cast<int>(16 / sizeof(T));

template <class T>
using Group = Vec<T, kGroup<T>>;

// True where every group of every row is there in full and aligned, so that one instruction moves it.
template <class T>
bool groups_are_whole(const void* rows, int64_t row_stride, int64_t width) {
  return reinterpret_cast<uintptr_t>(rows) % 16 == 0 && row_stride % kGroup<T> == 0 && width % kGroup<T> == 0;
}

template <class T>
constexpr int64_t groups_of(int64_t width) {
  return (width + kGroup<T> - 1) / kGroup<T>;
}

// The group at `from`, of which `count` elements exist; the others are zero.
template <class T>
__device__ inline Group<T> load_group(const T* from, int64_t count, bool whole) {
  if (whole) return *reinterpret_cast<const Group<T>*>(from);
  Group<T> group;
#pragma unroll
  for (int i = 0; i < kGroup<T>; ++i) group.values[i] = i < count ? from[i] : from_float<T>(0.0f);
  return group;
}

template <class T>
__device__ inline void store_group(T* to, const Group<T>& group, int64_t count, bool whole) {
  if (whole) {
    *reinterpret_cast<Group<T>*>(to) = group;
    return;
  }
#pragma unroll
  for (int i = 0; i < kGroup<T>; ++i) {
    if (i < count) to[i] = group.values[i];
  }
}

}  // namespace prologue::cuda
