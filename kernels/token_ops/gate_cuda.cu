#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/base/shared/sigmoid.h>
#include <prologue/kernels/token_ops/backends.h>
#include <prologue/kernels/base/device/cuda_groups.cuh>
#include <prologue/kernels/base/device/cuda_launch.cuh>

namespace prologue::cuda {

namespace {

constexpr int kMaxThreads = 256;

// blockIdx.x is the token, blockIdx.y a range of its row. A thread owns one group of 16 bytes.
template <class T>
__global__ void gate_kernel(const __grid_constant__ GateParams p, bool whole) {
  const int64_t token = blockIdx.x;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kGroup<T>;
  if (column >= p.width) return;

  const int64_t count = p.width - column;
  const Group<T> x = load_group(static_cast<const T*>(p.x) + token * p.x_stride + column, count, whole);
  const Group<T> gate = load_group(static_cast<const T*>(p.gate) + token * p.gate_stride + column, count, whole);
  const Group<T> out = make_group<T>([&](int i) { return x[i] * sigmoid_f32(gate[i]); });
  store_group(static_cast<T*>(p.out) + token * p.out_stride + column, out, count, whole);
}

}  // namespace

Status gate(const GateParams& params, const Execution& execution) {
  return with_device_type(params.dtype, [&]<class T>(T) {
    const bool whole = groups_are_whole<T>(params.x, params.x_stride, params.width) &&
                       groups_are_whole<T>(params.gate, params.gate_stride, params.width) &&
                       groups_are_whole<T>(params.out, params.out_stride, params.width);
    const int64_t groups = groups_of<T>(params.width);
    const int64_t threads = groups < kMaxThreads ? round_up(groups, 32) : kMaxThreads;
    const dim3 grid(grid_extent(params.num_tokens), grid_extent(divide_up(groups, threads)));
    return launch("gate", gate_kernel<T>, {grid, static_cast<unsigned>(threads)}, execution.stream, params, whole);
  });
}

}  // namespace prologue::cuda
