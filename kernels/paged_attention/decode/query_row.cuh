// This file has a row of q in registers, and sums of products over the lanes that have parts of it.
#pragma once

#include <prologue/kernels/paged_attention/attention_args.cuh>
#include <prologue/kernels/paged_attention/cache_codes.cuh>

namespace prologue::cuda {

// Adds values[i] over kLanes lanes and distributes the totals: lane l gets those from l * N / kLanes on (with more lanes than values,
// neighbours get the same one). This takes half the shuffles of adding each value separately, and later steps run once per value.
template <int kLanes, int N, int kSize>
__device__ inline void add_and_deal(float (&values)[kSize], int lane) {
  if constexpr (kLanes > 1) {
    constexpr int kOffset = kLanes / 2;
    constexpr int kKept = N > 1 ? N / 2 : 1;
    const bool upper = (lane & kOffset) != 0;
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      const float kept = N > 1 && upper ? values[i + N - kKept] : values[i];
      const float sent = N > 1 && !upper ? values[i + N - kKept] : values[i];
      values[i] = kept + __shfl_xor_sync(0xffffffffu, sent, kOffset);
    }
    add_and_deal<kOffset, kKept>(values, lane);
  }
}

// Holds a row of q as floats, whatever its type in memory is.
template <int kChannels>
class QueryRow {
 public:
  __device__ float operator[](int c) const { return values_[c]; }

  __device__ void load(const PagedAttentionParams& p, int64_t offset, int64_t count, bool whole) {
    switch (p.dtype) {
      case DType::f16: return load_as<__half>(p.q.data, offset, count, whole);
      case DType::bf16: return load_as<__nv_bfloat16>(p.q.data, offset, count, whole);
      case DType::f32: return load_as<float>(p.q.data, offset, count, whole);
    }
  }

 private:
  template <class T>
  __device__ void load_as(const void* data, int64_t offset, int64_t count, bool whole) {
    constexpr int kVector = kGroup<T> < kChannels ? kGroup<T> : kChannels;
#pragma unroll
    for (int i = 0; i < kChannels; i += kVector) {
      const T* from = static_cast<const T*>(data) + offset + i;
      Vec<T, kVector> vector = {};
      if (whole) {
        if (i < count) vector = *reinterpret_cast<const Vec<T, kVector>*>(from);
      } else {
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          if (i + j < count) vector.values[j] = from[j];
        }
      }
#pragma unroll
      for (int j = 0; j < kVector; ++j) values_[i + j] = to_float(vector.values[j]);
    }
  }

  float values_[kChannels];
};

}  // namespace prologue::cuda
