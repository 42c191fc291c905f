#include <prologue/kernels/base/shared/exp.h>
#include <prologue/kernels/token_ops/backends.h>
#include <prologue/kernels/base/device/cuda_groups.cuh>
#include <prologue/kernels/base/device/cuda_launch.cuh>

namespace prologue::cuda {

namespace {

constexpr int kMaxThreads = 256;

__device__ inline float activate(Activation activation, float x) {
  if (activation == Activation::silu) return x / (1.0f + exp_f32(-x));
  constexpr float kTwoSqrt2OverPi = 1.5957691216f;  // 1 + tanh(y) = 2 / (1 + exp(-2 y)), which does not cancel
  return x / (1.0f + exp_f32(-kTwoSqrt2OverPi * (x + 0.044715f * x * x * x)));
}

// blockIdx.x = token, blockIdx.y = a stretch of its row; a thread owns one group of 16 bytes of the output.
template <class T>
__global__ void gated_activation_kernel(const __grid_constant__ GatedActivationParams p, bool whole) {
  const int64_t token = blockIdx.x;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kGroup<T>;
  if (column >= p.width) return;

  const T* gate_row = static_cast<const T*>(p.gate_up) + token * 2 * p.width;
  const int64_t count = p.width - column;
  const Group<T> gate = load_group(gate_row + column, count, whole);
  const Group<T> up = load_group(gate_row + p.width + column, count, whole);
  const Group<T> out = make_group<T>([&](int i) { return activate(p.activation, gate[i]) * up[i]; });
  store_group(static_cast<T*>(p.out) + token * p.width + column, out, count, whole);
}

}  // namespace

Status gated_activation(const GatedActivationParams& params, const Execution& execution) {
  return with_device_type(params.dtype, [&]<class T>(T) {
    const bool whole = groups_are_whole<T>(params.gate_up, params.width, params.width) &&
                       groups_are_whole<T>(params.out, params.width, params.width);
    const int64_t groups = groups_of<T>(params.width);
    const int64_t threads = groups < kMaxThreads ? (groups + 31) / 32 * 32 : kMaxThreads;
    const dim3 grid(grid_extent(params.num_tokens), grid_extent((groups + threads - 1) / threads));
    return launch("gated_activation", gated_activation_kernel<T>, {grid, static_cast<unsigned>(threads)}, execution.stream,
                  params, whole);
  });
}

}  // namespace prologue::cuda
