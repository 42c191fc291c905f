#include <algorithm>

#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/token_ops/backends.h>
#include <prologue/kernels/base/device/cuda_groups.cuh>
#include <prologue/kernels/base/device/cuda_launch.cuh>

namespace prologue::cuda {

namespace {

constexpr int kMaxThreads = 512;
constexpr int kHeldGroups = 4;  // groups of a thread that stay in registers between the sums and the store

// Returns the same sum to every thread of the block, added in an order that depends only on blockDim. `warp_sums` is used by this call
// only.
__device__ inline float block_sum(float value, float (&warp_sums)[kMaxThreads / 32]) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0f;
  for (int warp = 0; warp < static_cast<int>(blockDim.x / 32); ++warp) sum += warp_sums[warp];
  return sum;
}

// Holds a group of weights of either type. They are `missing` if there are none.
template <class T>
struct GroupOfWeights {
  float values[kGroup<T>];
};
template <class T>
__device__ inline GroupOfWeights<T> load_weights(const NormParams& p, const void* weights, float missing, int64_t column,
                                                 bool whole) {
  GroupOfWeights<T> group;
#pragma unroll
  for (int i = 0; i < kGroup<T>; ++i) group.values[i] = missing;
  if (weights == nullptr) return group;
  if (p.weight_type == p.dtype) {
    const Group<T> of_type = load_group(static_cast<const T*>(weights) + column, p.width - column, whole);
#pragma unroll
    for (int i = 0; i < kGroup<T>; ++i) group.values[i] = of_type[i];
  } else {
#pragma unroll
    for (int i = 0; i < kGroup<T>; ++i) {
      if (column + i < p.width) group.values[i] = static_cast<const float*>(weights)[column + i];
    }
  }
  return group;
}

// There is one block per row; a thread owns the groups threadIdx.x, threadIdx.x + blockDim.x, ... of 16 bytes. The block size
// is a function of only the width, so a row's sums have the same order in every batch. PLAIN: an rms norm with a weight of type T and no
// bias, the norm of most models.
template <class T, bool PLAIN>
__global__ void norm_kernel(const __grid_constant__ NormParams p, bool whole) {
  __shared__ float warp_sums[2][kMaxThreads / 32];
  const bool layer = !PLAIN && p.kind == NormKind::layer;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * p.width;
  const T* x = static_cast<const T*>(p.x) + row;
  T* residual = p.residual == nullptr ? nullptr : static_cast<T*>(p.residual) + row;
  const T* normalised = residual == nullptr ? x : residual;
  const T* weight = static_cast<const T*>(p.weight);
  T* out = static_cast<T*>(p.out) + row;
  const int64_t groups = groups_of<T>(p.width);

  Group<T> held[kHeldGroups];
  const int64_t first_not_held = threadIdx.x + static_cast<int64_t>(kHeldGroups) * blockDim.x;
  // Calls work(group, r) for each group of this thread; `r` is what is held of it, or read(group).
  const auto for_each_group = [&](const auto& read, const auto& work) {
#pragma unroll
    for (int k = 0; k < kHeldGroups; ++k) {
      const int64_t group = threadIdx.x + static_cast<int64_t>(k) * blockDim.x;
      if (group < groups) work(group, held[k]);
    }
    for (int64_t group = first_not_held; group < groups; group += blockDim.x) work(group, read(group));
  };
  const auto read_again = [&](int64_t group) {
    const int64_t column = group * kGroup<T>;
    return load_group(normalised + column, p.width - column, whole);
  };

  float sum = 0.0f;  // of the values of a layer norm, of their squares for an rms norm
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
    for (int i = 0; i < kGroup<T>; ++i) sum = layer ? sum + r[i] : fmaf(r[i], r[i], sum);
    return r;
  };
#pragma unroll
  for (int k = 0; k < kHeldGroups; ++k) {
    const int64_t group = threadIdx.x + static_cast<int64_t>(k) * blockDim.x;
    if (group < groups) held[k] = read(group);
  }
  for (int64_t group = first_not_held; group < groups; group += blockDim.x) read(group);

  float mean = 0.0f;
  if (layer) {
    mean = block_sum(sum, warp_sums[0]) / static_cast<float>(p.width);
    sum = 0.0f;
    for_each_group(read_again, [&](int64_t group, const Group<T>& r) {
#pragma unroll
      for (int i = 0; i < kGroup<T>; ++i) {
        const float centred = r[i] - mean;
        if (group * kGroup<T> + i < p.width) sum = fmaf(centred, centred, sum);
      }
    });
  }
  const float inverse = 1.0f / sqrtf(block_sum(sum, warp_sums[1]) / static_cast<float>(p.width) + p.eps);
  for_each_group(read_again, [&](int64_t group, const Group<T>& r) {
    const int64_t column = group * kGroup<T>;
    const int64_t count = p.width - column;
    if constexpr (PLAIN) {
      const Group<T> w = load_group(weight + column, count, whole);
      store_group(out + column, make_group<T>([&](int i) { return r[i] * inverse * w[i]; }), count, whole);
    } else {
      const GroupOfWeights<T> w = load_weights<T>(p, p.weight, 1.0f, column, whole);
      const GroupOfWeights<T> b = load_weights<T>(p, p.bias, 0.0f, column, whole);
      store_group(out + column, make_group<T>([&](int i) { return (r[i] - mean) * inverse * w.values[i] + b.values[i]; }), count,
                  whole);
    }
  });
}

}  // namespace

Status norm(const NormParams& params, const Execution& execution) {
  return with_device_type(params.dtype, [&]<class T>(T) {
    const bool weights_of_type = params.weight_type == params.dtype;
    const bool plain = params.kind == NormKind::rms && params.weight != nullptr && weights_of_type && params.bias == nullptr;
    bool whole = true;
    for (const void* rows : {params.x, static_cast<const void*>(params.residual), static_cast<const void*>(params.out),
                             weights_of_type ? params.weight : nullptr, weights_of_type ? params.bias : nullptr}) {
      whole = whole && groups_are_whole<T>(rows, params.width, params.width);
    }
    const int64_t threads =
        std::clamp<int64_t>(divide_up(groups_of<T>(params.width), 64) * 32, 32, kMaxThreads);  // two groups each
    return launch("norm", plain ? norm_kernel<T, true> : norm_kernel<T, false>,
                  {grid_extent(params.num_tokens), static_cast<unsigned>(threads)}, execution.stream, params, whole);
  });
}

}  // namespace prologue::cuda
