// What the operations that project have in common where one kernel does them: which calls it can do, and how it shares out the work.
// Internal, for CUDA.
#pragma once

#include <algorithm>
#include <bit>
#include <span>

#include <prologue/kernels/projection/projection.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>
#include <prologue/kernels/projection/registers/product.cuh>

namespace prologue::cuda {

// Of compute capability 9.0: an SM's, and what the system takes of it for each block.
inline constexpr int64_t kSharedBytesOfSm = 228 * 1024, kSharedBytesOfSystem = 1024;
inline constexpr int64_t kMaxSharedBytes = kSharedBytesOfSm - kSharedBytesOfSystem;

inline bool is_aligned(const void* data, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes) == 0;
}

// x [num_tokens, k] with row stride x_stride, in elements of 16 bits.
inline bool can_stream(DType dtype, int64_t num_tokens, int64_t k, const void* x, int64_t x_stride, const InputNorm& norm,
                       const void* weight) {
  if ((dtype != DType::f16 && dtype != DType::bf16) || num_tokens > kMaxStreamedTokens || k % kUnitOfK != 0) return false;
  if (!device_is_hopper_or_later() || x_stride % 8 != 0 || !is_aligned(x, 16) || !is_aligned(weight, 16)) return false;
  return norm.given == 0 || (norm.kind == NormKind::rms && norm.bias == nullptr && is_aligned(norm.weight, 16));
}

// `tiles`: of 16 rows, of each cluster; `blocks`: of each cluster.
inline void share_out_rows(ProjectionArgs& a, int64_t tiles, int64_t blocks) {
  a.tiles = static_cast<int32_t>(tiles);
  a.blocks = static_cast<int32_t>(blocks);
  a.log_blocks = std::countr_zero(static_cast<unsigned>(a.blocks));
  a.log_parts = std::bit_width(static_cast<unsigned>(std::max<int64_t>(1, 8 / tiles))) - 1;
  a.row_bytes = ((a.units + a.blocks - 1) / a.blocks | 1) * kUnitBytes;
  constexpr int32_t kChunksOfWarp = 32, kChunksOfUnit = kUnitBytes / 16;
  const int32_t warps = a.tiles << a.log_parts, chunks = (a.units + a.blocks - 1) / a.blocks * kChunksOfUnit;
  while (kChunksOfWarp << a.log_stagers < chunks && a.num_tokens << (a.log_stagers + 1) <= warps) ++a.log_stagers;
}

inline void fill_input(ProjectionArgs& a, DType dtype, int64_t num_tokens, int64_t k, const void* x, int64_t x_stride,
                       const InputNorm& norm, const void* weight) {
  a.x = static_cast<const char*>(x);
  a.weight = static_cast<const char*>(weight);
  a.norm_weight = static_cast<const char*>(norm.given != 0 ? norm.weight : nullptr);
  a.x_stride = x_stride * dtype_size(dtype);
  a.num_tokens = static_cast<int32_t>(num_tokens);
  a.units = static_cast<int32_t>(k / kUnitOfK);
  a.float_weights = resolve_dtype(norm.weight_type, dtype) == DType::f32 ? 1 : 0;
  a.normed = norm.given != 0 ? 1 : 0;
  a.eps = norm.eps;
  a.inverse_width = 1.0f / static_cast<float>(k);
}

// Whether a launch is possible. A Launch has an instance, its arguments and its number of clusters.
template <class Launch>
bool fits(const Launch& launch) {
  return launch.args.num_tokens <= 8 * launch.instance->token_tiles && launch.args.units >= launch.args.blocks &&
         shared_bytes_of(launch.args) <= kMaxSharedBytes;
}

// The launch with the most blocks in a cluster: large matrices are then many small pieces, which keep all SMs busy to the end. No instance:
// none is possible. `launch_of(blocks)` makes one.
template <class LaunchOf>
auto with_most_blocks(const LaunchOf& launch_of) {
  for (int64_t blocks = kMaxBlocksOfCluster; blocks >= 1; blocks /= 2) {
    if (const auto launch = launch_of(blocks); fits(launch)) return launch;
  }
  return decltype(launch_of(1))();
}

inline int threads_of(const ProjectionArgs& a) { return 32 * a.tiles << a.log_parts; }

}  // namespace prologue::cuda
