// This file moves rows in groups of 16 bytes. A thread always owns whole groups, so the mapping of elements to threads (and with it the
// order of every sum) does not depend on how a row is aligned; only the instructions that move a group do.
#pragma once

#include <type_traits>

#include <prologue/kernels/base/device/cuda_types.cuh>

namespace prologue::cuda {

template <class T>
inline constexpr int kGroup = static_cast<int>(16 / sizeof(T));

// Returns two elements in memory order, each rounded once.
__device__ inline uint32_t pack(__half2 pair) { return *reinterpret_cast<const uint32_t*>(&pair); }
__device__ inline uint32_t pack(__nv_bfloat162 pair) { return *reinterpret_cast<const uint32_t*>(&pair); }
template <class T>
__device__ inline uint32_t pack(float low, float high) {
  if constexpr (std::is_same_v<T, __half>)
    return pack(__floats2half2_rn(low, high));
  else
    return pack(__floats2bfloat162_rn(low, high));
}

// Holds kGroup<T> consecutive elements. They stay in 32-bit words until they are used: 16-bit values in registers of their own would have
// to be unpacked where they arrive, and every load would be waited for.
template <class T>
struct alignas(16) Group {
  uint32_t words[4];

  __device__ float operator[](int i) const {
    if constexpr (std::is_same_v<T, float>) {
      return __uint_as_float(words[i]);
    } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      return __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000u);
    } else {
      const __half2 pair = *reinterpret_cast<const __half2*>(&words[i / 2]);
      return i % 2 == 0 ? __low2float(pair) : __high2float(pair);
    }
  }
};

// Returns a group whose element i is f(i), rounded once.
template <class T, class F>
__device__ inline Group<T> make_group(const F& f) {
  Group<T> group;
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    if constexpr (std::is_same_v<T, float>)
      group.words[word] = __float_as_uint(f(word));
    else
      group.words[word] = pack<T>(f(2 * word), f(2 * word + 1));
  }
  return group;
}

// Returns true if every group of every row exists in full and is aligned, so that one instruction moves it.
template <class T>
bool groups_are_whole(const void* rows, int64_t row_stride, int64_t width) {
  return reinterpret_cast<uintptr_t>(rows) % 16 == 0 && row_stride % kGroup<T> == 0 && width % kGroup<T> == 0;
}

template <class T>
constexpr int64_t groups_of(int64_t width) {
  return (width + kGroup<T> - 1) / kGroup<T>;
}

// RawElement has the size of T but not its type, for copies.
template <class T>
using ElementBits = std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>;

// Loads the group at `from`, of which `count` elements exist; the others become zero. With `whole` it exists in full or (count <= 0) not at
// all.
template <class T>
__device__ inline Group<T> load_group(const T* from, int64_t count, bool whole) {
  Group<T> group = {};
  if (whole) {
    if (count > 0) group = *reinterpret_cast<const Group<T>*>(from);
  } else {
    constexpr int kPerWord = kGroup<T> / 4;
#pragma unroll
    for (int i = 0; i < kGroup<T>; ++i) {
      if (i < count)
        group.words[i / kPerWord] |= uint32_t{reinterpret_cast<const ElementBits<T>*>(from)[i]} << (i % kPerWord * 16);
    }
  }
  return group;
}

template <class T>
__device__ inline void store_group(T* to, const Group<T>& group, int64_t count, bool whole) {
  if (whole) {
    if (count > 0) *reinterpret_cast<Group<T>*>(to) = group;
  } else {
    constexpr int kPerWord = kGroup<T> / 4;
#pragma unroll
    for (int i = 0; i < kGroup<T>; ++i) {
      if (i < count)
        reinterpret_cast<ElementBits<T>*>(to)[i] = static_cast<ElementBits<T>>(group.words[i / kPerWord] >> (i % kPerWord * 16));
    }
  }
}

}  // namespace prologue::cuda
