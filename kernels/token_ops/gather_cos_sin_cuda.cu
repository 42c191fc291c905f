#include <prologue/kernels/token_ops/gather_cos_sin.h>
#include <prologue/kernels/base/cuda_launch.cuh>

namespace prologue::cuda {

Status gather_cos_sin(const GatherCosSinParams& params, const Execution& execution);

namespace {

constexpr int kThreads = 128;

// blockIdx.x = token; the threads of a block share its pairs.
__global__ void __launch_bounds__(kThreads) gather_cos_sin_kernel(const __grid_constant__ GatherCosSinParams p) {
  const int64_t t = blockIdx.x;
  const int64_t half = p.rotary_dim / 2;
  float* out = p.out + t * p.rotary_dim;
  for (int64_t i = threadIdx.x; i < half; i += kThreads) {
    int64_t axis = p.pair_axis == nullptr ? 0 : p.pair_axis[i];
    if (axis >= p.num_axes) axis = 0;
    const int64_t position = prologue::index_at(p.positions, axis * p.position_axis_stride + t);
    const bool inside = position >= 0 && position < p.max_position;
    out[i] = inside ? p.cos_sin[position * p.rotary_dim + i] : 0.0f;
    out[half + i] = inside ? p.cos_sin[position * p.rotary_dim + half + i] : 0.0f;
  }
}

}  // namespace

Status gather_cos_sin(const GatherCosSinParams& params, const Execution& execution) {
  return launch("gather_cos_sin", gather_cos_sin_kernel, {dim3(static_cast<unsigned>(params.num_tokens)), dim3(kThreads)},
                execution.stream, params);
}

}  // namespace prologue::cuda
