// Decode on tensor cores: where several blocks share a unit (decode_tiles.cuh), each leaves its part of the sums in the workspace, and the
// last of them to arrive, or a second launch, adds up the parts in the order of the keys.
#pragma once

#include <prologue/kernels/base/device/cuda_groups.cuh>
#include <prologue/kernels/paged_attention/attention_args.cuh>

namespace prologue::cuda {

// Where a share's block leaves its part of a unit that begins in first_share: it has two such units at most, its first and its last.
// In a team each block has a place of its own there.
__device__ inline int part_of(int first_share, int share) { return 2 * share + (share == first_share ? 1 : 0); }

// Four neighbouring channels of a row of `out`.
__device__ inline void store_four(DType type, void* out, int64_t offset, const float (&values)[4]) {
  uint2 words;
  if (type == DType::bf16) {
    words = {pack<__nv_bfloat16>(values[0], values[1]), pack<__nv_bfloat16>(values[2], values[3])};
  } else {
    words = {pack<__half>(values[0], values[1]), pack<__half>(values[2], values[3])};
  }
  *reinterpret_cast<uint2*>(static_cast<uint16_t*>(out) + offset) = words;
}

// The sums of four channels of a row over parts of a unit.
struct PartSums {
  float maximum = -INFINITY;
  float sum = 0.0f;
  bool fault = false;
  float values[4] = {};
};

// Adds the parts that shares begin to last have of the unit that begins in first_share. Teams are of one block.
template <int kRows>
__device__ inline void add_parts(const AttentionArgs& args, int first_share, int begin, int last, int row, int d,
                                 PartSums& sums) {
  constexpr int kAtOnce = 8;  // parts whose loads are in flight together
  for (int first = begin; first <= last; first += kAtOnce) {
    float2 stats[kAtOnce];
    float4 parts[kAtOnce];
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const bool there = first + n <= last;
      const int64_t at = int64_t{part_of(first_share, there ? first + n : first)} * kRows + row;
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

// A row of a unit, added up by a warp from the parts that shares first_share to last_share have of it: a lane has four channels of a
// part, and in heads of up to 64 channels half a warp has a part. The maximum of a part and its sum are one lane's.
template <int kRows, int kHeadDim>
struct RowOfParts {
  static constexpr int kLanes = kHeadDim <= 64 ? 16 : 32;  // of a part
  static constexpr int kFours = (kHeadDim + 127) / 128;    // of a lane: the second one 128 channels further on
  float maximum = -INFINITY;
  float sum = 0.0f;
  bool fault = false;
  float values[kFours][4] = {};

  __device__ RowOfParts(const AttentionArgs& args, int first_share, int last_share, int row) {
    constexpr int kAtOnce = 32 / kLanes;
    constexpr int kLoads = 128 / (kFours * kRows);  // in flight together: what registers allow
    const int lane = threadIdx.x % 32;
    const int d = lane % kLanes * 4;
    const auto row_of = [&](int share) {
      return (part_of(first_share, share) * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x)) * kRows + row;
    };
#pragma unroll 1
    for (int first = first_share; first <= last_share; first += 32) {
      const int count = min(32, last_share + 1 - first);
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
