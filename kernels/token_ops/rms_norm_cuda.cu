#include <algorithm>

#include <prologue/kernels/token_ops/backends.h>
#include <prologue/kernels/base/device/cuda_groups.cuh>
#include <prologue/kernels/base/device/cuda_launch.cuh>

namespace prologue::cuda {

namespace {

constexpr int kMaxThreads = 512;
constexpr int kHeldGroups = 4;  // groups of a thread that stay in registers between the sum and the store

// The same for every thread, added in an order that depends only on blockDim.
__device__ inline float block_sum(float value) {
  __shared__ float warp_sums[kMaxThreads / 32];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0f;
  for (int warp = 0; warp < static_cast<int>(blockDim.x / 32); ++warp) sum += warp_sums[warp];
  return sum;
}

// One block per row; a thread owns the groups threadIdx.x, threadIdx.x + blockDim.x, ... of 16 bytes. The block size is a
// function of only the width, so a row's sum has the same order in every batch.
template <class T>
__global__ void rms_norm_kernel(const __grid_constant__ RmsNormParams p, bool whole) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * p.width;
  const T* x = static_cast<const T*>(p.x) + row;
  T* residual = p.residual == nullptr ? nullptr : static_cast<T*>(p.residual) + row;
  const T* normalised = residual == nullptr ? x : residual;
  const T* weight = static_cast<const T*>(p.weight);
  T* out = static_cast<T*>(p.out) + row;
  const int64_t groups = groups_of<T>(p.width);

  float sum = 0.0f;
  const auto read = [&](int64_t group) {
    const int64_t column = group * kGroup<T>;
    const int64_t count = p.width - column;
    Group<T> r = load_group(x + column, count, whole);
    if (residual != nullptr) {
      const Group<T> before = load_group(residual + column, count, whole);
      r = make_group<T>([&, added = r](int i) { return before[i] + added[i]; });
      store_group(residual + column, r, count, whole);
    }
#pragma unroll
    for (int i = 0; i < kGroup<T>; ++i) sum = fmaf(r[i], r[i], sum);
    return r;
  };
  Group<T> held[kHeldGroups];
#pragma unroll
  for (int k = 0; k < kHeldGroups; ++k) {
    const int64_t group = threadIdx.x + static_cast<int64_t>(k) * blockDim.x;
    if (group < groups) held[k] = read(group);
  }
  const int64_t first_not_held = threadIdx.x + static_cast<int64_t>(kHeldGroups) * blockDim.x;
  for (int64_t group = first_not_held; group < groups; group += blockDim.x) read(group);

  const float inverse = 1.0f / sqrtf(block_sum(sum) / static_cast<float>(p.width) + p.eps);
  const auto write = [&](int64_t group, const Group<T>& r) {
    const int64_t column = group * kGroup<T>;
    const int64_t count = p.width - column;
    const Group<T> w = load_group(weight + column, count, whole);
    store_group(out + column, make_group<T>([&](int i) { return r[i] * inverse * w[i]; }), count, whole);
  };
#pragma unroll
  for (int k = 0; k < kHeldGroups; ++k) {
    const int64_t group = threadIdx.x + static_cast<int64_t>(k) * blockDim.x;
    if (group < groups) write(group, held[k]);
  }
  for (int64_t group = first_not_held; group < groups; group += blockDim.x) {
    const int64_t column = group * kGroup<T>;
    write(group, load_group(normalised + column, p.width - column, whole));
  }
}

}  // namespace

Status rms_norm(const RmsNormParams& params, const Execution& execution) {
  return with_device_type(params.dtype, [&]<class T>(T) {
    bool whole = true;
    for (const void* rows :
         {params.x, static_cast<const void*>(params.residual), params.weight, static_cast<const void*>(params.out)}) {
      whole = whole && groups_are_whole<T>(rows, params.width, params.width);
    }
    const int64_t threads = std::clamp<int64_t>((groups_of<T>(params.width) + 63) / 64 * 32, 32, kMaxThreads);  // two groups each
    return launch("rms_norm", rms_norm_kernel<T>, {grid_extent(params.num_tokens), static_cast<unsigned>(threads)},
                  execution.stream, params, whole);
  });
}

}  // namespace prologue::cuda
