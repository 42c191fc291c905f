#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/gemm/unpack.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>
#include <prologue/kernels/base/device/packed_values.cuh>

namespace prologue::cuda {

namespace {

constexpr int kWarps = 8;  // of a block

// Each warp has a unit of the 16 rows of a group. Rows of it outside [first_row, first_row + num_rows) are left out.
template <class T, class Format>
__device__ void unpack_unit(const PackedRows& rows, int64_t k, int64_t group, int unit, int64_t first_row, int64_t num_rows,
                            T* out) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t group_bytes = k / weight_block_elements(rows.format) * weight_block_bytes(rows.format) * kPackedGroupRows;
  PackedUnitValues<Format> values(static_cast<const char*>(rows.data) + group * group_bytes, unit, lane);
#pragma unroll
  for (int slice = 0; slice < Format::kSlices; ++slice) {
    const PackedSliceValues of_slice = values.slice(slice, lane);
    const int64_t column = (int64_t{unit} * Format::kSlices + slice) * kPackedSliceChannels + lane % 4 * 4;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int64_t to = group * kPackedGroupRows + lane / 4 * 2 + row - first_row;
      if (to < 0 || to >= num_rows) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        store_bytes<4 * static_cast<int>(sizeof(T)), false>(out + to * k + column + 16 * half,
                                                            pack<T, 4>(of_slice.values[row][half]));
      }
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kWarps * 32)
    unpack_rows_kernel(const __grid_constant__ PackedRows rows, int64_t k, int64_t first_row, int64_t num_rows, T* out) {
  const int64_t group = first_row / kPackedGroupRows + blockIdx.y;
  const int unit = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x / 32);
  with_packed_format(rows.format, [&]<class Format>(Format) {
    if (unit < k / (Format::kSlices * kPackedSliceChannels))
      unpack_unit<T, Format>(rows, k, group, unit, first_row, num_rows, out);
  });
}

// A unit is half of a block of 256 channels, and otherwise a slice.
int64_t units_of_row(WeightFormat format, int64_t k) {
  constexpr int64_t kBlock = 256;
  return k / (weight_block_elements(format) == kBlock ? kBlock / 2 : int64_t{kPackedSliceChannels});
}

}  // namespace

Status unpack_rows(const PackedRows& rows, int64_t k, int64_t first_row, int64_t num_rows, DType dtype, void* out,
                   cudaStream_t stream) {
  return with_device_type(dtype, [&]<class T>(T) {
    const int64_t groups = divide_up(first_row + num_rows, kPackedGroupRows) - first_row / kPackedGroupRows;
    const dim3 grid(grid_extent(divide_up(units_of_row(rows.format, k), int64_t{kWarps})), grid_extent(groups));
    return launch("gemm unpack", unpack_rows_kernel<T>, {grid, kWarps * 32}, stream, rows, k, first_row, num_rows,
                  static_cast<T*>(out));
  });
}

}  // namespace prologue::cuda
