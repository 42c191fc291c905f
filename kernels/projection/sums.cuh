// Sums, and the size of clusters, that the kernels of few tokens have in common.
#pragma once

#include <prologue/kernels/base/device/head_unit.cuh>

namespace prologue::cuda {

inline constexpr int kMaxBlocksOfCluster = 8;  // that every device has

// If the operands of a product of 16 x 16 by 16 x 8 have the same rows, one lane holds each row's product with itself. This returns it in
// that lane, and 0 in the others. `even` and `odd` are the results of the first operand's row lane / 4, or lane / 4 + 8.
__device__ inline float of_own_column(float even, float odd) {
  const int lane = threadIdx.x % 32;
  const float own = (lane & 4) != 0 ? odd : even;
  return lane % 4 == lane / 8 ? own : 0.0f;
}

// Adds to `values` what is at `from`, then what is `stride` floats further on, kTimes in all.
template <int kTimes, int kCount>
__device__ inline void add_up(const float* from, int stride, float (&values)[kCount]) {
  Bytes<kCount * 4> loaded[kTimes];
#pragma unroll
  for (int i = 0; i < kTimes; ++i) loaded[i] = load_bytes<kCount * 4, false>(from + i * stride);
#pragma unroll
  for (const Bytes<kCount * 4>& of_part : loaded) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] += element<float, kCount>(of_part, i);
  }
}

// The same `count` times, with kAtOnce loads without a branch between them; a loop of unknown length has a branch after each.
template <int kAtOnce, int kCount>
__device__ inline void add_up(const float* from, int stride, int count, float (&values)[kCount]) {
  asm("" : "+r"(stride));  // a register, in place of what it was computed from
#pragma unroll 1
  for (; count >= kAtOnce; count -= kAtOnce, from += kAtOnce * stride) add_up<kAtOnce>(from, stride, values);
#pragma unroll 1
  for (; count > 0; --count, from += stride) add_up<1>(from, stride, values);
}

}  // namespace prologue::cuda
