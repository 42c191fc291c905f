#include <prologue/kernels/token_ops/backends.h>
#include <prologue/kernels/token_ops/gather_cos_sin_row.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>

namespace prologue::cuda {

namespace {

constexpr int kThreads = 128;

// blockIdx.x is the token; its pairs are divided over the threads of a block.
__global__ void __launch_bounds__(kThreads) gather_cos_sin_kernel(const __grid_constant__ GatherCosSinParams p) {
  const int64_t t = blockIdx.x;
  const bool identity = gathers_identity(p, t);
  for (int64_t i = threadIdx.x; i < p.rotary_dim / 2; i += kThreads) gather_pair(p, t, i, identity);
}

}  // namespace

Status gather_cos_sin(const GatherCosSinParams& params, const Execution& execution) {
  return launch("gather_cos_sin", gather_cos_sin_kernel, {dim3(static_cast<unsigned>(params.num_tokens)), dim3(kThreads)},
                execution.stream, params);
}

}  // namespace prologue::cuda
