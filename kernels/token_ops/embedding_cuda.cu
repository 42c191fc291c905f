#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/token_ops/backends.h>
#include <prologue/kernels/base/device/cuda_groups.cuh>
#include <prologue/kernels/base/device/cuda_launch.cuh>
#include <prologue/kernels/base/device/instructions.cuh>
#include <prologue/kernels/base/device/packed_values.cuh>

namespace prologue::cuda {

namespace {

constexpr int kMaxThreads = 256;

// blockIdx.x is the token, blockIdx.y a range of its row. A thread owns one group of 16 bytes.
template <class T>
__global__ void embedding_kernel(const __grid_constant__ EmbeddingParams p, bool whole) {
  let_next_kernel_start();
  wait_for_previous_kernels();
  const int64_t token = blockIdx.x;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kGroup<T>;
  const int64_t index = prologue::index_at(p.indices, token);
  const bool found = index >= 0 && index < p.num_rows;
  if (!found && column == 0) cuda::record_fault(p.faults, p.token_faults, token, FaultCode::token_id_out_of_range);
  if (column >= p.width) return;

  Group<T> group = {};
  if (found) group = load_group(static_cast<const T*>(p.table) + index * p.width + column, p.width - column, whole);
  if (p.scale != 1.0f) group = make_group<T>([&, row = group](int i) { return row[i] * p.scale; });
  store_group(static_cast<T*>(p.out) + token * p.width + column, group, p.width - column, whole);
}

constexpr int kPackedWarps = 8;  // of a block

// blockIdx.x is the token. Each warp has a unit of the row; four of its lanes have the row, the others those beside it.
template <class T, class Format>
__device__ void copy_packed_unit(const EmbeddingParams& p, int64_t index, T* out, int unit) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t group_bytes =
      p.width / weight_block_elements(p.table_format) * weight_block_bytes(p.table_format) * kPackedGroupRows;
  const PackedUnitValues<Format> values(static_cast<const char*>(p.table) + index / kPackedGroupRows * group_bytes, unit, lane);
#pragma unroll
  for (int slice = 0; slice < Format::kSlices; ++slice) {
    const PackedSliceValues of_slice = values.slice(slice, lane);
    if (lane / 4 != index % kPackedGroupRows / 2) continue;
    const int64_t column = (int64_t{unit} * Format::kSlices + slice) * kPackedSliceChannels + lane % 4 * 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float value = index % 2 == 0 ? of_slice.values[0][half][i] : of_slice.values[1][half][i];
        out[column + 16 * half + i] = from_float<T>(value * p.scale);
      }
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kPackedWarps * 32) packed_embedding_kernel(const __grid_constant__ EmbeddingParams p) {
  let_next_kernel_start();
  wait_for_previous_kernels();
  const int64_t token = blockIdx.x;
  const int64_t index = prologue::index_at(p.indices, token);
  T* const out = static_cast<T*>(p.out) + token * p.width;
  if (index < 0 || index >= p.num_rows) {
    if (threadIdx.x == 0) cuda::record_fault(p.faults, p.token_faults, token, FaultCode::token_id_out_of_range);
    for (int64_t i = threadIdx.x; i < p.width; i += kPackedWarps * 32) out[i] = from_float<T>(0.0f);
    return;
  }
  with_packed_format(p.table_format, [&]<class Format>(Format) {
    const int units = static_cast<int>(p.width / (Format::kSlices * kPackedSliceChannels));
    for (int unit = static_cast<int>(threadIdx.x / 32); unit < units; unit += kPackedWarps) {
      copy_packed_unit<T, Format>(p, index, out, unit);
    }
  });
}

}  // namespace

Status embedding(const EmbeddingParams& params, const Execution& execution) {
  if (params.table_format != WeightFormat::dense) {
    return with_device_type(params.dtype, [&]<class T>(T) {
      LaunchAttributes attributes(1, params.overlaps);
      const LaunchShape shape = {grid_extent(params.num_tokens), kPackedWarps * 32, 0, attributes.span()};
      return launch("embedding", packed_embedding_kernel<T>, shape, execution.stream, params);
    });
  }
  return with_device_type(params.dtype, [&]<class T>(T) {
    const bool whole = groups_are_whole<T>(params.table, params.width, params.width) &&
                       groups_are_whole<T>(params.out, params.width, params.width);
    const int64_t groups = groups_of<T>(params.width);
    const int64_t threads = groups < kMaxThreads ? round_up(groups, 32) : kMaxThreads;
    const dim3 grid(grid_extent(params.num_tokens), grid_extent(divide_up(groups, threads)));
    LaunchAttributes attributes(1, params.overlaps);
    const LaunchShape shape = {grid, static_cast<unsigned>(threads), 0, attributes.span()};
    return launch("embedding", embedding_kernel<T>, shape, execution.stream, params, whole);
  });
}

}  // namespace prologue::cuda
