#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/gemm/unpack.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>
#include <prologue/kernels/base/device/packed_values.cuh>

namespace prologue::cuda {

namespace {

constexpr int kMostWarps = 8;   // of a block
constexpr int kWarpSlices = 4;  // that a warp makes of each of its 16 rows: 128 channels
constexpr int kWarpChannels = kWarpSlices * kPackedSliceChannels;

struct UnpackArgs {
  const char* data;     // of the first group of 16 rows
  int64_t group_bytes;  // of 16 rows
  WeightFormat format;
  int k;
  int left_out;  // of the first group: rows before the first one that is wanted
  int64_t num_rows;
};

// Stores 32 channels of a row, of which each of four neighbouring lanes has four of the first and four of the last 16. The lanes write
// neighbouring pieces of 16 bytes. All lanes of the warp must call it together.
template <class T>
__device__ void store_slice(T* channels, const float (&values)[2][4], int lane, bool wanted) {
  if constexpr (sizeof(T) == 4) {
    if (!wanted) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      store_bytes<16, false>(channels + 16 * half + lane % 4 * 4, pack<T, 4>(values[half]));
    }
  } else {  // an even lane gives its last four channels to the next lane, and gets the first four of that one
    const Packed<T, 4> first = pack<T, 4>(values[0]), last = pack<T, 4>(values[1]);
    const bool odd = lane % 2 != 0;
    Bytes<16> bytes;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? first.words[i] : last.words[i], 1);
      bytes.words[i] = odd ? other : first.words[i];
      bytes.words[2 + i] = odd ? last.words[i] : other;
    }
    if (wanted) store_bytes<16, false>(channels + lane % 2 * 16 + lane % 4 / 2 * 8, bytes);
  }
}

// The loads of the warp's units are issued first: of all, or of as many as the registers of the other formats have room for. Units beyond the row's
// end are read as its last one, and not stored.
template <class T, class Format>
__device__ void unpack_channels(const UnpackArgs& args, int warp, T* out) {
  constexpr int kUnits = kWarpSlices / Format::kSlices, kUnitChannels = Format::kSlices * kPackedSliceChannels;
  constexpr int kAtOnce = kUnits * Format::kWords > 32 ? kUnits / 2 : kUnits;
  const int lane = static_cast<int>(threadIdx.x % 32), last_unit = args.k / kUnitChannels - 1;
  const char* const group = args.data + blockIdx.y * args.group_bytes;
  const int64_t first_row = int64_t{blockIdx.y} * kPackedGroupRows + lane / 4 * 2 - args.left_out;
  T* const channels = out + first_row * args.k + warp * kWarpChannels;
  const bool wanted[2] = {first_row >= 0 && first_row < args.num_rows, first_row >= -1 && first_row + 1 < args.num_rows};
#pragma unroll
  for (int first = 0; first < kUnits; first += kAtOnce) {
    PackedUnitValues<Format> units[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      units[i] = PackedUnitValues<Format>(group, min(warp * kUnits + first + i, last_unit), lane);
    }
    __syncwarp();  // or the compiler moves some loads to where their values are used, after the wait for others
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (warp * kUnits + first + i > last_unit) return;
#pragma unroll
      for (int slice = 0; slice < Format::kSlices; ++slice) {
        const PackedSliceValues of_slice = units[i].slice(slice, lane);
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          T* const to = channels + row * int64_t{args.k} + (first + i) * kUnitChannels + slice * kPackedSliceChannels;
          store_slice(to, of_slice.values[row], lane, wanted[row]);
        }
      }
    }
  }
}

// blockIdx.y is the group of 16 rows. Each warp makes 128 of their channels.
template <class T>
__global__ void __launch_bounds__(kMostWarps * 32) unpack_rows_kernel(const __grid_constant__ UnpackArgs args, T* out) {
  const int warp = static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) / 32);
  if (warp * kWarpChannels >= args.k) return;
  with_packed_format(args.format, [&]<class Format>(Format) { unpack_channels<T, Format>(args, warp, out); });
}

}  // namespace

Status unpack_rows(const PackedRows& rows, int64_t k, int64_t first_row, int64_t num_rows, DType dtype, void* out,
                   cudaStream_t stream) {
  return with_device_type(dtype, [&]<class T>(T) {
    const int64_t first_group = first_row / kPackedGroupRows;
    const int64_t groups = divide_up(first_row + num_rows, kPackedGroupRows) - first_group;  // 48 MiB of rows of 32: 49152
    const int64_t group_bytes = packed_weight_bytes(rows.format, kPackedGroupRows, k);
    const UnpackArgs args = {static_cast<const char*>(rows.data) + first_group * group_bytes,
                             group_bytes,
                             rows.format,
                             static_cast<int>(k),
                             static_cast<int>(first_row % kPackedGroupRows),
                             num_rows};
    const int64_t warps = divide_up(k, int64_t{kWarpChannels}), blocks = divide_up(warps, int64_t{kMostWarps});
    const dim3 grid(grid_extent(blocks), grid_extent(groups));
    return launch("gemm unpack", unpack_rows_kernel<T>, {grid, static_cast<unsigned>(divide_up(warps, blocks) * 32)}, stream,
                  args, static_cast<T*>(out));
  });
}

}  // namespace prologue::cuda
