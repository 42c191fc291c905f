// This file has the kernels of moe_gemm for packed weights (packed_weight.cuh). A warp multiplies 16 rows of one segment of an expert, a group, by
// the rows of x of a tile, straight from registers.
//
// The products of 16-bit types are added in the same order whatever the tile is: the units of a row are divided into four parts, each is added
// up in the order of k, and then the parts are, one after another.
#pragma once

#include <prologue/kernels/base/device/packed_values.cuh>
#include <prologue/kernels/base/device/packed_weight.cuh>
#include <prologue/kernels/moe/moe_gemm_kernel.cuh>

namespace prologue::cuda {

inline constexpr int kPackedExpertWarps = 4;
inline constexpr int kPartsOfK = kPackedExpertWarps;  // with few rows a warp has one

// The 16 rows from first_n on of an expert.
struct ExpertGroup {
  const char* data = nullptr;
  WeightFormat format = WeightFormat::dense;
};

__device__ inline ExpertGroup expert_group(const MoeGemmParams& p, int32_t expert, int64_t first_n) {
  const PackedRows* segment = p.packed.segments;
  int64_t begin = 0;
  while (first_n >= begin + segment->rows) begin += segment++->rows;
  const int64_t row_bytes = p.k / weight_block_elements(segment->format) * weight_block_bytes(segment->format);
  return {static_cast<const char*>(segment->data) + (expert * segment->rows + first_n - begin) * row_bytes, segment->format};
}

// Returns a lane's channels of a slice of 32, in the places that those of the weights have (ChannelOrder::as_packed).
template <class T>
__device__ inline uint4 load_x_slice(const T* slice, int lane) {
  static_assert(sizeof(T) == 2);
  const uint2 first = *reinterpret_cast<const uint2*>(slice + lane % 4 * 4);
  const uint2 last = *reinterpret_cast<const uint2*>(slice + 16 + lane % 4 * 4);
  return {__byte_perm(first.x, first.y, 0x5410), __byte_perm(first.x, first.y, 0x7632), __byte_perm(last.x, last.y, 0x5410),
          __byte_perm(last.x, last.y, 0x7632)};
}

// Adds to the sums of each 8 rows of x their products with part `part` of k of a group. `x` are rows lane / 4 of each 8.
template <class T, class Format, int X_TILES>
__device__ void multiply_part(float (&sums)[X_TILES][4], const char* group, int part, int64_t k, const T* const (&x)[X_TILES],
                              int lane) {
  constexpr int kUnitChannels = Format::kSlices * kPackedSliceChannels;
  constexpr int kAhead = Format::kSlices > 1 ? 2 : X_TILES == 1 ? 8 : 4;  // units whose loads are in flight together
  const int units = static_cast<int>(k / kUnitChannels), end = units * (part + 1) / kPartsOfK;
#pragma unroll 1
  for (int first = units * part / kPartsOfK; first < end; first += kAhead) {
    uint32_t words[kAhead][Format::kWords];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      Format::template load<ChannelOrder::as_packed>(words[i], group, min(first + i, end - 1), lane);
    }
    // With few rows the loads of x are in flight with those of the weights; with more there are not enough registers.
    uint4 values[X_TILES == 1 ? kAhead * Format::kSlices : 1];
    if constexpr (X_TILES == 1) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
#pragma unroll
        for (int slice = 0; slice < Format::kSlices; ++slice) {
          const T* const unit = x[0] + min(first + i, end - 1) * kUnitChannels;
          values[i * Format::kSlices + slice] = load_x_slice(unit + slice * kPackedSliceChannels, lane);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int unit = first + i;
      if (unit >= end) continue;
      const PackedScales own = PackedSlice<T, Format>::own_scales(words[i], unit % 2);
#pragma unroll
      for (int slice = 0; slice < Format::kSlices; ++slice) {
        const PackedSlice<T, Format> operands(words[i], slice, lane, unit % 2, own);
#pragma unroll
        for (int t = 0; t < X_TILES; ++t) {
          if constexpr (X_TILES == 1) {
            operands.multiply(sums[t], values[i * Format::kSlices + slice]);
          } else {
            operands.multiply(sums[t], load_x_slice(x[t] + unit * kUnitChannels + slice * kPackedSliceChannels, lane));
          }
        }
      }
    }
  }
}

// A lane has the sums of weight rows 2 (lane / 4) and 2 (lane / 4) + 1, each of two rows of x.
template <class T>
__device__ inline void store_packed_sums(const MoeRows& rows, int64_t first_n, int first_i, const float (&sums)[4]) {
  const int lane = static_cast<int>(threadIdx.x % 32), n = lane / 4 * 2, i = lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < 4; ++j) rows.store<T>(first_i + i + j % 2, first_n + n + j / 2, sums[j]);
}

// blockIdx.x is a tile of up to 8 rows, blockIdx.y a group, of which each warp has a part of k: with few rows memory is the limit.
template <class T>
__global__ void __launch_bounds__(32 * kPackedExpertWarps)
    moe_packed_few_rows_kernel(const __grid_constant__ MoeGemmParams p, MoeTiles tiles) {
  __shared__ float4 of_parts[kPartsOfK - 1][32];
  const MoeRows rows(p, tiles, static_cast<int>(blockIdx.x));
  const int lane = static_cast<int>(threadIdx.x % 32), part = static_cast<int>(threadIdx.x / 32);
  const int64_t first_n = static_cast<int64_t>(blockIdx.y) * kPackedGroupRows;
  if (rows.tile.count == 0) return;

  float sums[1][4] = {};
  if (rows.has_expert()) {
    const T* const x[1] = {rows.x<T>(lane / 4)};
    const ExpertGroup group = expert_group(p, rows.tile.expert, first_n);
    with_packed_format(group.format,
                       [&]<class Format>(Format) { multiply_part<T, Format>(sums, group.data, part, p.k, x, lane); });
  }
  if (part > 0) of_parts[part - 1][lane] = {sums[0][0], sums[0][1], sums[0][2], sums[0][3]};
  __syncthreads();
  if (part > 0) return;
#pragma unroll
  for (int i = 0; i < kPartsOfK - 1; ++i) {
    const float4 other = of_parts[i][lane];
    sums[0][0] = add_rounded(sums[0][0], other.x), sums[0][1] = add_rounded(sums[0][1], other.y);
    sums[0][2] = add_rounded(sums[0][2], other.z), sums[0][3] = add_rounded(sums[0][3], other.w);
  }
  store_packed_sums<T>(rows, first_n, 0, sums[0]);
}

// blockIdx.x is a tile of up to 8 * X_TILES rows; each warp has a group and all of k.
template <class T, int X_TILES>
__global__ void __launch_bounds__(32 * kPackedExpertWarps)
    moe_packed_kernel(const __grid_constant__ MoeGemmParams p, MoeTiles tiles) {
  const MoeRows rows(p, tiles, static_cast<int>(blockIdx.x));
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int64_t first_n = (static_cast<int64_t>(blockIdx.y) * kPackedExpertWarps + warp) * kPackedGroupRows;
  if (rows.tile.count == 0 || first_n >= p.n) return;

  float sums[X_TILES][4] = {};
  if (rows.has_expert()) {
    const T* x[X_TILES];
#pragma unroll
    for (int t = 0; t < X_TILES; ++t) x[t] = rows.x<T>(8 * t + lane / 4);
    const ExpertGroup group = expert_group(p, rows.tile.expert, first_n);
    with_packed_format(group.format, [&]<class Format>(Format) {
      multiply_part<T, Format>(sums, group.data, 0, p.k, x, lane);
#pragma unroll 1
      for (int part = 1; part < kPartsOfK; ++part) {
        float of_part[X_TILES][4] = {};
        multiply_part<T, Format>(of_part, group.data, part, p.k, x, lane);
#pragma unroll
        for (int t = 0; t < X_TILES; ++t) {
#pragma unroll
          for (int j = 0; j < 4; ++j) sums[t][j] = add_rounded(sums[t][j], of_part[t][j]);
        }
      }
    });
  }
#pragma unroll
  for (int t = 0; t < X_TILES; ++t) store_packed_sums<T>(rows, first_n, 8 * t, sums[t]);
}

// float32: simple, for tests and small models. blockIdx.x is a tile of up to 8 rows; each warp has a group.
__global__ void __launch_bounds__(32 * kPackedExpertWarps)
    moe_packed_float_kernel(const __grid_constant__ MoeGemmParams p, MoeTiles tiles) {
  const MoeRows rows(p, tiles, static_cast<int>(blockIdx.x));
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int64_t first_n = (static_cast<int64_t>(blockIdx.y) * kPackedExpertWarps + warp) * kPackedGroupRows;
  if (rows.tile.count == 0 || first_n >= p.n) return;

  float sums[2][kFloatX] = {};
  if (rows.has_expert()) {
    const float* x[kFloatX];
#pragma unroll
    for (int t = 0; t < kFloatX; ++t) x[t] = rows.x<float>(t) + lane % 4 * 4;
    const ExpertGroup group = expert_group(p, rows.tile.expert, first_n);
    with_packed_format(group.format, [&]<class Format>(Format) {
      constexpr int kUnitChannels = Format::kSlices * kPackedSliceChannels;
#pragma unroll 1
      for (int unit = 0; unit < static_cast<int>(p.k / kUnitChannels); ++unit) {
        const PackedUnitValues<Format> weights(group.data, unit, lane);
#pragma unroll
        for (int slice = 0; slice < Format::kSlices; ++slice) {
          const PackedSliceValues of_slice = weights.slice(slice, lane);
          const int channel = unit * kUnitChannels + slice * kPackedSliceChannels;
#pragma unroll
          for (int t = 0; t < kFloatX; ++t) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const float4 four = *reinterpret_cast<const float4*>(x[t] + channel + 16 * half);
              const float values[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
              for (int i = 0; i < 4; ++i) {
                sums[0][t] = __fmaf_rn(values[i], of_slice.values[0][half][i], sums[0][t]);
                sums[1][t] = __fmaf_rn(values[i], of_slice.values[1][half][i], sums[1][t]);
              }
            }
          }
        }
      }
    });
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
#pragma unroll
    for (int t = 0; t < kFloatX; ++t) {
      float sum = sums[row][t];
      sum = add_rounded(sum, __shfl_xor_sync(0xffffffffu, sum, 1));
      sum = add_rounded(sum, __shfl_xor_sync(0xffffffffu, sum, 2));
      if (lane % 4 == t % 4) rows.store<float>(t, first_n + lane / 4 * 2 + row, sum);
    }
  }
}

}  // namespace prologue::cuda
