#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/token_ops/backends.h>
#include <prologue/kernels/base/device/cuda_groups.cuh>
#include <prologue/kernels/base/device/cuda_launch.cuh>
#include <prologue/kernels/base/device/instructions.cuh>

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

}  // namespace

Status embedding(const EmbeddingParams& params, const Execution& execution) {
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
