#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/token_ops/backends.h>
#include <prologue/kernels/token_ops/scaled_logit.h>
#include <prologue/kernels/base/device/cuda_groups.cuh>
#include <prologue/kernels/base/device/cuda_launch.cuh>

namespace prologue::cuda {

namespace {

constexpr int kThreads = 256;

// The rows are one array; a thread owns one group of 16 bytes.
__global__ void scale_logits_kernel(const __grid_constant__ ScaleLogitsParams p, float factor, bool whole) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kGroup<float>;
  const int64_t count = p.num_rows * p.width - i;
  if (count <= 0) return;
  const Group<float> x = load_group(p.x + i, count, whole);
  store_group(p.out + i, make_group<float>([&](int j) { return scaled_logit(x[j], factor, p.soft_cap); }), count, whole);
}

}  // namespace

Status scale_logits(const ScaleLogitsParams& params, const Execution& execution) {
  const int64_t count = params.num_rows * params.width;
  const float factor = params.soft_cap == 0.0f ? params.scale : params.scale / params.soft_cap;
  const bool whole = groups_are_whole<float>(params.x, 0, count) && groups_are_whole<float>(params.out, 0, count);
  const int64_t blocks = divide_up(groups_of<float>(count), kThreads);
  return launch("scale_logits", scale_logits_kernel, {grid_extent(blocks), kThreads}, execution.stream, params, factor, whole);
}

}  // namespace prologue::cuda
