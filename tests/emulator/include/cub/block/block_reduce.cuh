// Reduces one thread after another, in the order of their numbers. As in CUB, thread 0 has the result.
#pragma once

#include <cuda_runtime.h>

namespace cub {

template <class T, int kThreads>
class BlockReduce {
 public:
  struct TempStorage {
    T values[kThreads];
  };
  explicit BlockReduce(TempStorage& storage) : storage_(storage) {}
  template <class Combine>
  T Reduce(const T& value, const Combine& combine) {
    storage_.values[emulator::thread->number] = value;
    __syncthreads();
    T result = value;
    if (emulator::thread->number == 0) {
      for (int i = 1; i < kThreads; ++i) result = combine(result, storage_.values[i]);
    }
    return result;
  }

 private:
  TempStorage& storage_;
};

}  // namespace cub
