#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/token_ops/activation_math.h>
#include <prologue/kernels/token_ops/backends.h>
#include <prologue/kernels/base/device/cuda_groups.cuh>
#include <prologue/kernels/base/device/cuda_launch.cuh>

namespace prologue::cuda {

namespace {

constexpr int kMaxThreads = 256;

// blockIdx.x is the token, blockIdx.y a range of a group's row, blockIdx.z the group. A thread owns one group of 16 bytes of the output.
template <class T, Activation KIND, bool GATED>
__global__ void activation_kernel(const __grid_constant__ ActivationParams p, bool whole) {
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kGroup<T>;
  if (column >= p.width) return;

  const int64_t columns = GATED ? 2 * p.width : p.width;
  const T* x = static_cast<const T*>(p.x) + blockIdx.x * p.x_stride + blockIdx.z * columns;
  const int64_t count = p.width - column;
  const Group<T> values = load_group(x + column, count, whole);
  Group<T> out;
  if constexpr (GATED) {
    const Group<T> up = load_group(x + p.width + column, count, whole);
    out = make_group<T>([&](int i) { return activate_gated<KIND>(values[i], up[i], p.limit, p.alpha); });
  } else {
    out = make_group<T>([&](int i) { return activate<KIND>(values[i]); });
  }
  const int64_t row = static_cast<int64_t>(blockIdx.x) * p.groups + blockIdx.z;
  store_group(static_cast<T*>(p.out) + row * p.width + column, out, count, whole);
}

}  // namespace

Status activation(const ActivationParams& params, const Execution& execution) {
  return with_device_type(params.dtype, [&]<class T>(T) {
    const bool whole = groups_are_whole<T>(params.x, params.x_stride, params.width) &&
                       groups_are_whole<T>(params.out, params.width, params.width);
    const int64_t groups = groups_of<T>(params.width);
    const int64_t threads = groups < kMaxThreads ? round_up(groups, 32) : kMaxThreads;
    const dim3 grid(grid_extent(params.num_tokens), grid_extent(divide_up(groups, threads)), grid_extent(params.groups));
    const auto run = [&](auto* kernel) {
      return launch("activation", kernel, {grid, static_cast<unsigned>(threads)}, execution.stream, params, whole);
    };
    return with_activation(params.kind, [&](auto kind) {
      constexpr Activation kKind = decltype(kind)::value;
      if constexpr (kKind != Activation::clamped_swiglu) {
        if (!params.gated) return run(activation_kernel<T, kKind, false>);
      }
      return run(activation_kernel<T, kKind, true>);
    });
  });
}

}  // namespace prologue::cuda
