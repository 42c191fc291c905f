// Decode on tensor cores, the combination of partial sums. If several blocks work on one work item (decode_tiles.cuh), each stores its
// partial sums (a *part*) in the workspace. The block that arrives last, or a second launch, adds up the parts in the order of the keys.
#pragma once

#include <prologue/kernels/base/device/cuda_groups.cuh>
#include <prologue/kernels/paged_attention/attention_args.cuh>

namespace prologue::cuda {

// Returns where the block with this range stores its part of a work item that begins in first_range. A block has at most two such work
// items, its first and its last. Each of several cooperating blocks has a part of its own.
__device__ inline int part_of(int first_range, int range) { return 2 * range + (range == first_range ? 1 : 0); }

// Stores four neighbouring channels of a row of `out`.
__device__ inline void store_four(DType type, void* out, int64_t offset, const float (&values)[4]) {
  uint2 words;
  if (type == DType::bf16) {
    words = {pack<__nv_bfloat16>(values[0], values[1]), pack<__nv_bfloat16>(values[2], values[3])};
  } else {
    words = {pack<__half>(values[0], values[1]), pack<__half>(values[2], values[3])};
  }
  *reinterpret_cast<uint2*>(static_cast<uint16_t*>(out) + offset) = words;
}

// Holds the sums of four channels of a row over some parts of a work item.
struct PartSums {
  float maximum = -INFINITY;
  float sum = 0.0f;
  bool fault = false;
  float values[4] = {};
};

// Adds the parts of the ranges `begin` to `last` of the work item that begins in first_range. No blocks cooperate here.
template <int kRows>
__device__ inline void add_parts(const AttentionArgs& args, int first_range, int begin, int last, int row, int d,
                                 PartSums& sums) {
  constexpr int kAtOnce = 8;  // parts whose loads are in flight together
  for (int first = begin; first <= last; first += kAtOnce) {
    float2 stats[kAtOnce];
    float4 parts[kAtOnce];
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const bool there = first + n <= last;
      const int64_t at = int64_t{part_of(first_range, there ? first + n : first)} * kRows + row;
      stats[n] = there ? __ldcg(&args.partial_stats[at]) : float2{-INFINITY, 0.0f};
      parts[n] = there ? __ldcg(reinterpret_cast<const float4*>(&args.partial_out[at * args.v_head_dim + d])) : float4{};
    }
    float both = sums.maximum;
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) both = fmaxf(both, stats[n].x);
    const float old_weight = weight_of(sums.maximum, both);
    sums.maximum = both;
    sums.sum *= old_weight;
#pragma unroll
    for (float& value : sums.values) value *= old_weight;
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const float weight = weight_of(stats[n].x, both);
      sums.fault = sums.fault || stats[n].y < 0.0f;
      sums.sum = fmaf(weight, stats[n].y, sums.sum);
      sums.values[0] = fmaf(weight, parts[n].x, sums.values[0]);
      sums.values[1] = fmaf(weight, parts[n].y, sums.values[1]);
      sums.values[2] = fmaf(weight, parts[n].z, sums.values[2]);
      sums.values[3] = fmaf(weight, parts[n].w, sums.values[3]);
    }
  }
}

// Holds a row of a work item. A warp adds it up from the parts of the ranges first_range to last_range: each lane has four channels of a
// part, and with heads of up to 64 channels each half of the warp has a part. One lane has a part's maximum and its sum.
template <int kRows, int kHeadDim>
struct RowOfParts {
  static constexpr int kLanes = kHeadDim <= 64 ? 16 : 32;  // of a part
  static constexpr int kFours = (kHeadDim + 127) / 128;    // of a lane: the second one 128 channels further on
  float maximum = -INFINITY;
  float sum = 0.0f;
  bool fault = false;
  float values[kFours][4] = {};

  __device__ RowOfParts(const AttentionArgs& args, int first_range, int last_range, int row) {
    constexpr int kAtOnce = 32 / kLanes;
    constexpr int kLoads = 128 / (kFours * kRows);  // in flight together: what registers allow
    const int lane = threadIdx.x % 32;
    const int d = lane % kLanes * 4;
    const auto row_of = [&](int range) {
      return (part_of(first_range, range) * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x)) * kRows + row;
    };
#pragma unroll 1
    for (int first = first_range; first <= last_range; first += 32) {
      const int count = min(32, last_range + 1 - first);
      const float2 stats = lane < count ? __ldcg(&args.partial_stats[row_of(first + lane)]) : float2{-INFINITY, 0.0f};
      float4 parts[kLoads][kFours];
      const auto load = [&](int begin) {
#pragma unroll
        for (int n = 0; n < kLoads; ++n) {
          const int i = begin + n * kAtOnce + lane / kLanes;
          const float* const from = args.partial_out + row_of(first + i) * args.v_head_dim + d;
#pragma unroll
          for (int four = 0; four < kFours; ++four) {
            const bool there = i < count && d + four * 128 < args.v_head_dim;
            parts[n][four] = there ? __ldcg(reinterpret_cast<const float4*>(from + four * 128)) : float4{};
          }
        }
      };
      load(0);
      float both = fmaxf(maximum, stats.x);
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) both = fmaxf(both, __shfl_xor_sync(0xffffffffu, both, offset));
      const float old_weight = weight_of(maximum, both);
      const float weight = weight_of(stats.x, both);
      float more = weight * stats.y;
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) more += __shfl_xor_sync(0xffffffffu, more, offset);
      maximum = both;
      sum = fmaf(sum, old_weight, more);
      fault = fault || __any_sync(0xffffffffu, stats.y < 0.0f);
#pragma unroll
      for (auto& four : values) {
        for (float& value : four) value *= old_weight;
      }
#pragma unroll 1
      for (int begin = 0;;) {
#pragma unroll
        for (int n = 0; n < kLoads; ++n) {
          const float of_part = __shfl_sync(0xffffffffu, weight, begin + n * kAtOnce + lane / kLanes);
#pragma unroll
          for (int four = 0; four < kFours; ++four) {
            values[four][0] = fmaf(of_part, parts[n][four].x, values[four][0]);
            values[four][1] = fmaf(of_part, parts[n][four].y, values[four][1]);
            values[four][2] = fmaf(of_part, parts[n][four].z, values[four][2]);
            values[four][3] = fmaf(of_part, parts[n][four].w, values[four][3]);
          }
        }
        begin += kLoads * kAtOnce;
        if (begin >= count) break;
        load(begin);
      }
    }
    if constexpr (kAtOnce > 1) {
#pragma unroll
      for (auto& four : values) {
        for (float& value : four) value += __shfl_xor_sync(0xffffffffu, value, kLanes);
      }
    }
  }
};

}  // namespace prologue::cuda
