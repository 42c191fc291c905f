// The launches of kernels that push, and of those that read and write the other ranks' memory. Host code.
#pragma once

#include <algorithm>

#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/collective/peers.h>
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

constexpr int kDirectThreads = 512;

// The same on all ranks, for the same number of groups that a rank has at most. A multiprocessor runs one block at least.
inline LaunchShape direct_shape(int64_t groups, int64_t multiprocessors, size_t shared_bytes) {
  const int64_t most = std::min<int64_t>(kMaxDirectBlocks, multiprocessors);
  return {grid_extent(std::clamp<int64_t>(divide_up(groups, kDirectThreads), 1, most)), kDirectThreads, shared_bytes};
}

}  // namespace prologue::cuda
