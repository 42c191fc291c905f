#include <cuda_fp8.h>

#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/base/shared/quantize.h>
#include <prologue/kernels/gemm/float8.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>
#include <prologue/kernels/base/device/cuda_types.cuh>

namespace prologue::cuda {

namespace {

constexpr int kBlock = static_cast<int>(kFloat8Block);
constexpr int kGroupRows = static_cast<int>(kPackedGroupRows);

// ---------------------------------------------------------------------------------------------------------------------
// x

constexpr int kQuantizeThreads = 256;
constexpr int kChunk = 8;                     // channels that a thread loads at once
constexpr int kGroupLanes = kBlock / kChunk;  // that have a group of 128

template <class T>
__device__ void load_chunk(const T* x, bool aligned, float (&values)[kChunk]) {
  constexpr int kOfVector = 16 / static_cast<int>(sizeof(T));
  if (aligned) {
#pragma unroll
    for (int first = 0; first < kChunk; first += kOfVector) {
      const auto loaded = *reinterpret_cast<const Vec<T, kOfVector>*>(x + first);
#pragma unroll
      for (int i = 0; i < kOfVector; ++i) values[first + i] = to_float(loaded.values[i]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) values[i] = to_float(x[i]);
  }
}

__device__ uint32_t largest_magnitude(const float (&values)[kChunk]) {
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) largest = max(largest, magnitude_bits(values[i]));
  return largest;
}

// Codes of e4m3 have the bits of quantize() in shared/quantize.h: the instruction rounds to nearest even and saturates.
__device__ void store_codes(const float (&values)[kChunk], float reciprocal, uint8_t* codes) {
  Vec<uint16_t, kChunk / 2> pairs = {};
  if (reciprocal != 0.0f) {
#pragma unroll
    for (int i = 0; i < kChunk; i += 2) {
      const float2 scaled = make_float2(multiply_rounded(values[i], reciprocal), multiply_rounded(values[i + 1], reciprocal));
      pairs.values[i / 2] = __nv_cvt_float2_to_fp8x2(scaled, __NV_SATFINITE, __NV_E4M3);
    }
  }
  *reinterpret_cast<Vec<uint16_t, kChunk / 2>*>(codes) = pairs;
}

// A block has a row. A thread has 8 neighbouring channels at a time, and 16 threads a group of 128.
template <class T>
__global__ void __launch_bounds__(kQuantizeThreads) quantize_x_kernel(const __grid_constant__ QuantizeXParams p) {
  const int64_t row = blockIdx.x;
  const T* const x = static_cast<const T*>(p.x) + row * p.x_stride;
  uint8_t* const codes = p.codes + row * p.k;
  const bool aligned = (reinterpret_cast<uintptr_t>(p.x) | static_cast<uintptr_t>(p.x_stride * sizeof(T))) % 16 == 0;
  const int chunks = static_cast<int>(p.k / kChunk), thread = static_cast<int>(threadIdx.x);
  const int64_t rows_of_scales = p.last_scales != nullptr ? p.m / 4 * 4 : p.m, in_last = row - (p.m - 4);
  float values[kChunk];
  if (!p.whole_rows) {
    for (int first = 0; first < chunks; first += kQuantizeThreads) {
      const int chunk = first + thread;
      const bool valid = chunk < chunks;
      uint32_t largest = 0;
      if (valid) {
        load_chunk(x + chunk * kChunk, aligned, values);
        largest = largest_magnitude(values);
      }
#pragma unroll
      for (int lanes = kGroupLanes / 2; lanes > 0; lanes /= 2)
        largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, lanes));
      if (!valid) continue;
      const HeadScale scale = computed_scale(largest, kv_largest(DType::fp8_e4m3));
      store_codes(values, scale.reciprocal, codes + chunk * kChunk);
      if (thread % kGroupLanes != 0) continue;
      const int64_t group = chunk / kGroupLanes;
      if (row < rows_of_scales) p.scales[group * rows_of_scales + row] = scale.scale;
      if (p.last_scales != nullptr && in_last >= 0) p.last_scales[group * 4 + in_last] = scale.scale;
    }
    return;
  }
  __shared__ uint32_t largest_of_warps[kQuantizeThreads / 32];
  uint32_t largest = 0;
  for (int chunk = thread; chunk < chunks; chunk += kQuantizeThreads) {
    load_chunk(x + chunk * kChunk, aligned, values);
    largest = max(largest, largest_magnitude(values));
  }
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, lanes));
  if (thread % 32 == 0) largest_of_warps[thread / 32] = largest;
  __syncthreads();
  for (int warp = 0; warp < kQuantizeThreads / 32; ++warp) largest = max(largest, largest_of_warps[warp]);
  const HeadScale scale = computed_scale(largest, kv_largest(DType::fp8_e4m3));
  for (int chunk = thread; chunk < chunks; chunk += kQuantizeThreads) {  // most of the row is in the L1 cache
    load_chunk(x + chunk * kChunk, aligned, values);
    store_codes(values, scale.reciprocal, codes + chunk * kChunk);
  }
  if (thread != 0) return;
  p.scales[row] = scale.scale;
  if (p.last_scales != nullptr && in_last >= 0) p.last_scales[in_last] = scale.scale;
}

// ---------------------------------------------------------------------------------------------------------------------
// Weights

constexpr int kMostWarps = 8;  // of a block

struct UnpackFloat8Args {
  const unsigned char* data;  // of the first group of 16 rows
  int64_t group_bytes;
  WeightScaling scaling;
  int64_t k;
  int64_t num_rows;
  int64_t scale_stride;  // of WeightScaling::blocks
};

// blockIdx.y is the group of 16 rows. A warp has a block of 128 channels of them: a lane loads 4 channels of 4 rows at a time, and stores 16
// channels of each of these rows. Loads and stores of the warp are whole sectors.
__global__ void __launch_bounds__(kMostWarps * 32)
    unpack_float8_kernel(const __grid_constant__ UnpackFloat8Args args, uint8_t* codes, float* scales) {
  const int64_t blocks = args.k / kBlock;
  const int64_t block = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (block >= blocks) return;
  const int lane = static_cast<int>(threadIdx.x % 32), four_rows = lane % 4, sixteen = lane / 4;
  const int64_t first_row = int64_t{blockIdx.y} * kGroupRows;
  const unsigned char* const of_block = args.data + blockIdx.y * args.group_bytes + block * (kGroupRows * (4 + kBlock));
  const unsigned char* const packed = of_block + kGroupRows * 4 + sixteen * (4 * kGroupRows * 4) + four_rows * 16;
  Vec<uint32_t, 4> words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = *reinterpret_cast<const Vec<uint32_t, 4>*>(packed + i * kGroupRows * 4);
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int64_t row = first_row + 4 * four_rows + r;
    if (row >= args.num_rows) break;
    const Vec<uint32_t, 4> of_row = {{words[0].values[r], words[1].values[r], words[2].values[r], words[3].values[r]}};
    *reinterpret_cast<Vec<uint32_t, 4>*>(codes + row * args.k + block * kBlock + sixteen * 16) = of_row;
  }
  const int64_t row = first_row + lane;
  if (lane >= kGroupRows || row >= args.num_rows) return;
  const float scale = reinterpret_cast<const float*>(of_block)[lane];
  switch (args.scaling) {
    case WeightScaling::rows:
      if (block == 0) scales[row] = scale;
      return;
    case WeightScaling::squares: {
      if (row % kBlock != 0) return;
      const int64_t stride = (blocks + 3) / 4 * 4;
      float* const of_squares = scales + row / kBlock * stride;
      of_squares[block] = scale;
      for (int64_t i = blocks; block == blocks - 1 && i < stride; ++i) of_squares[i] = 0.0f;
      return;
    }
    case WeightScaling::blocks: scales[block * args.scale_stride + row] = scale; return;
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// The product of what cuBLASLt does not take

constexpr int kPlainTile = 64;
constexpr int kPlainDepth = 16;
constexpr int kPlainThreads = 256;

__device__ float x_scale_of(const Float8Product& p, int64_t row, int64_t block) {
  return p.x_scales[p.scaling == WeightScaling::rows ? row : block * p.m + row];
}

__device__ float weight_scale_of(const Float8Product& p, int64_t column, int64_t block) {
  switch (p.scaling) {
    case WeightScaling::rows: return p.weight_scales[column];
    case WeightScaling::squares: return p.weight_scales[column / kBlock * ((p.k / kBlock + 3) / 4 * 4) + block];
    default: return p.weight_scales[block * p.n + column];
  }
}

// A block has 64 x 64 of y; thread (i, j) of 16 x 16 has the rows i + 16 a and the columns j + 16 b of it.
__global__ void __launch_bounds__(kPlainThreads) plain_float8_kernel(const __grid_constant__ Float8Product p) {
  __shared__ float x[kPlainDepth][kPlainTile + 1];
  __shared__ float weight[kPlainDepth][kPlainTile + 1];
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kPlainTile;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * kPlainTile;
  const int i = threadIdx.x / 16;
  const int j = threadIdx.x % 16;
  float total[4][4] = {};
  for (int64_t first = 0; first < p.k; first += kBlock) {
    float sum[4][4] = {};
    for (int part = 0; part < kBlock; part += kPlainDepth) {
      for (int e = threadIdx.x; e < kPlainTile * kPlainDepth; e += kPlainThreads) {
        const int line = e / kPlainDepth;
        const int64_t k = first + part + e % kPlainDepth, row = first_row + line, column = first_column + line;
        x[e % kPlainDepth][line] = row < p.m ? from_fp8_e4m3(p.x[row * p.k + k]) : 0.0f;
        weight[e % kPlainDepth][line] = column < p.n ? from_fp8_e4m3(p.weight[column * p.k + k]) : 0.0f;
      }
      __syncthreads();
      for (int k = 0; k < kPlainDepth; ++k) {
#pragma unroll
        for (int a = 0; a < 4; ++a) {
#pragma unroll
          for (int b = 0; b < 4; ++b) sum[a][b] = fmaf(x[k][i + 16 * a], weight[k][j + 16 * b], sum[a][b]);
        }
      }
      __syncthreads();
    }
#pragma unroll
    for (int a = 0; a < 4; ++a) {
      const float x_scale = x_scale_of(p, min(first_row + i + 16 * a, p.m - 1), first / kBlock);
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        const float weight_scale = weight_scale_of(p, min(first_column + j + 16 * b, p.n - 1), first / kBlock);
        total[a][b] = fmaf(sum[a][b], x_scale * weight_scale, total[a][b]);
      }
    }
  }
#pragma unroll
  for (int a = 0; a < 4; ++a) {
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const int64_t row = first_row + i + 16 * a;
      const int64_t column = first_column + j + 16 * b;
      if (row >= p.m || column >= p.n) continue;
      const float bias = p.bias == nullptr ? 0.0f : load_element(p.dtype, p.bias, column);
      store_element(p.y_dtype, p.y, row * p.y_stride + column, p.bias == nullptr ? total[a][b] : total[a][b] + bias);
    }
  }
}

}  // namespace

Status quantize_x(const QuantizeXParams& params, cudaStream_t stream) {
  return with_device_type(params.dtype, [&]<class T>(T) {
    return launch("gemm quantize_x", quantize_x_kernel<T>, {grid_extent(params.m), kQuantizeThreads}, stream, params);
  });
}

Status unpack_float8(const PackedRows& rows, WeightScaling scaling, int64_t k, int64_t first_row, int64_t num_rows,
                     uint8_t* codes, float* scales, int64_t scale_stride, cudaStream_t stream) {
  const int64_t group_bytes = packed_weight_bytes(rows.format, kPackedGroupRows, k);
  const UnpackFloat8Args args = {static_cast<const unsigned char*>(rows.data) + first_row / kPackedGroupRows * group_bytes,
                                 group_bytes,
                                 scaling,
                                 k,
                                 num_rows,
                                 scale_stride};
  const int64_t warps = k / kFloat8Block, blocks = divide_up(warps, int64_t{kMostWarps});
  const dim3 grid(grid_extent(blocks), grid_extent(divide_up(num_rows, kPackedGroupRows)));
  return launch("gemm unpack_float8", unpack_float8_kernel, {grid, static_cast<unsigned>(divide_up(warps, blocks) * 32)}, stream,
                args, codes, scales);
}

Status multiply_float8_plainly(const Float8Product& product, cudaStream_t stream) {
  const dim3 grid(grid_extent(divide_up(product.n, kPlainTile)), grid_extent(divide_up(product.m, kPlainTile)));
  return launch("gemm plain_float8", plain_float8_kernel, {grid, kPlainThreads}, stream, product);
}

}  // namespace prologue::cuda
