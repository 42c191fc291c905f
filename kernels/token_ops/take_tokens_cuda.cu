#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/token_ops/backends.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>

namespace prologue::cuda {

namespace {

constexpr int kThreads = 256;

// There is a thread per token.
__global__ void __launch_bounds__(kThreads) take_tokens_kernel(const __grid_constant__ TakeTokensParams p) {
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (t >= p.num_tokens) return;
  const int32_t from = p.from[t];
  if (from >= 0) p.token_ids[t] = from < p.num_sampled ? p.tokens[from] : -1;
}

}  // namespace

Status take_tokens(const TakeTokensParams& params, const Execution& execution) {
  const int64_t blocks = divide_up(params.num_tokens, kThreads);
  return launch("take_tokens", take_tokens_kernel, {grid_extent(blocks), kThreads}, execution.stream, params);
}

}  // namespace prologue::cuda
