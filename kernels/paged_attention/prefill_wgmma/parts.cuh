// Prefill on Hopper: parts of a tile of rows are added up. For a thread's two rows each part has sums of four numbers (2 of each row) and
// stats {shift 0, shift 1, sum 0, sum 1}: its weights are 2^(score - shift), and a sum is negative if the row has a fault.
#pragma once

#include <prologue/kernels/paged_attention/attention_args.cuh>

namespace prologue::cuda {

template <int kMost>
struct PrefillParts {
  int count;
  float weight[kMost][2];
  float shift[2] = {-INFINITY, -INFINITY};
  float sum[2] = {};
  bool fault[2] = {};

  // `stats` returns those of part i. All are loaded before the first is used.
  template <class Stats>
  __device__ __forceinline__ PrefillParts(int count, const Stats& stats) : count(count) {
    float4 of_part[kMost];
#pragma unroll
    for (int i = 0; i < kMost; ++i) of_part[i] = i < count ? stats(i) : float4{-INFINITY, -INFINITY, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < kMost; ++i) shift[0] = fmaxf(shift[0], of_part[i].x), shift[1] = fmaxf(shift[1], of_part[i].y);
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      weight[i][0] = weight_of(of_part[i].x, shift[0]);
      weight[i][1] = weight_of(of_part[i].y, shift[1]);
      sum[0] = fmaf(weight[i][0], of_part[i].z, sum[0]);
      sum[1] = fmaf(weight[i][1], of_part[i].w, sum[1]);
      fault[0] = fault[0] || of_part[i].z < 0.0f;
      fault[1] = fault[1] || of_part[i].w < 0.0f;
    }
  }

  // `sums` returns those of part i. They are added in the order of the parts, which is that of the keys.
  template <class Sums>
  __device__ __forceinline__ float4 add(const Sums& sums) const {
    float4 of_part[kMost];
#pragma unroll
    for (int i = 0; i < kMost; ++i) of_part[i] = i < count ? sums(i) : float4{};
    float4 all = {};
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      all.x = fmaf(weight[i][0], of_part[i].x, all.x);
      all.y = fmaf(weight[i][0], of_part[i].y, all.y);
      all.z = fmaf(weight[i][1], of_part[i].z, all.z);
      all.w = fmaf(weight[i][1], of_part[i].w, all.w);
    }
    return all;
  }
};

}  // namespace prologue::cuda
