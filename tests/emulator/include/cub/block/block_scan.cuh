#pragma once

#include <cuda_runtime.h>

namespace cub {

enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_RAKING_MEMOIZE, BLOCK_SCAN_WARP_SCANS };

template <class T, int kThreads, BlockScanAlgorithm = BLOCK_SCAN_RAKING>
class BlockScan {
 public:
  struct TempStorage {
    T values[kThreads];
  };
  explicit BlockScan(TempStorage& storage) : storage_(storage) {}
  void ExclusiveSum(T value, T& before, T& total) {
    storage_.values[emulator::thread->number] = value;
    __syncthreads();
    before = total = T{};
    for (int i = 0; i < kThreads; ++i) {
      if (i == emulator::thread->number) before = total;
      total += storage_.values[i];
    }
  }

 private:
  TempStorage& storage_;
};

}  // namespace cub
