#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/base/shared/rotation.h>
#include <prologue/kernels/moe/backends.h>
#include <prologue/kernels/base/device/cuda_groups.cuh>
#include <prologue/kernels/base/device/cuda_launch.cuh>

namespace prologue::cuda {

namespace {

constexpr int kMaxThreads = 256;

// blockIdx.x is the token, blockIdx.y a range of its row. A thread owns one group of 16 bytes of the output.
template <class T>
__global__ void moe_combine_kernel(const __grid_constant__ MoeCombineParams p, bool whole) {
  const int64_t t = blockIdx.x;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kGroup<T>;
  const int64_t count = p.width - column;
  if (count <= 0) return;

  float sums[kGroup<T>] = {};
  for (int64_t r = t * p.top_k; r < (t + 1) * p.top_k; ++r) {
    const float weight = p.expert_weights == nullptr ? 1.0f : p.expert_weights[r];
    const Group<T> terms = load_group(static_cast<const T*>(p.y) + r * p.width + column, count, whole);
#pragma unroll
    for (int i = 0; i < kGroup<T>; ++i) sums[i] = fused_multiply_add(weight, terms[i], sums[i]);
  }
  if (p.shared != nullptr) {
    const Group<T> terms = load_group(static_cast<const T*>(p.shared) + t * p.width + column, count, whole);
#pragma unroll
    for (int i = 0; i < kGroup<T>; ++i) sums[i] = add_rounded(sums[i], terms[i]);
  }
  store_group(static_cast<T*>(p.out) + t * p.width + column, make_group<T>([&](int i) { return sums[i]; }), count, whole);
}

}  // namespace

Status moe_combine(const MoeCombineParams& params, const Execution& execution) {
  return with_device_type(params.dtype, [&]<class T>(T) {
    const bool whole = groups_are_whole<T>(params.y, params.width, params.width) &&
                       groups_are_whole<T>(params.shared, params.width, params.width) &&
                       groups_are_whole<T>(params.out, params.width, params.width);
    const int64_t groups = groups_of<T>(params.width);
    const int64_t threads = groups < kMaxThreads ? round_up(groups, 32) : kMaxThreads;
    const dim3 grid(grid_extent(params.num_tokens), grid_extent(divide_up(groups, threads)));
    return launch("moe_combine", moe_combine_kernel<T>, {grid, static_cast<unsigned>(threads)}, execution.stream, params, whole);
  });
}

}  // namespace prologue::cuda
