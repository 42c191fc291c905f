// The launch of a kernel that pushes. Host code.
#pragma once

#include <algorithm>

#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>

namespace prologue::cuda {

constexpr int kMaxPushThreads = 512;

// A thread for each group, if the grid is large enough. Many small blocks are sent sooner, but blocks of ranks that wait for each other should
// all run at once.
inline LaunchShape push_shape(int64_t groups) {
  constexpr int64_t kThreads = 128, kMaxBlocks = 64;
  const int64_t blocks = std::clamp<int64_t>(divide_up(groups, kThreads), 1, kMaxBlocks);
  const int64_t threads = std::min<int64_t>(round_up(divide_up(groups, blocks), 32), kMaxPushThreads);
  return {grid_extent(blocks), static_cast<unsigned>(threads)};
}

}  // namespace prologue::cuda
