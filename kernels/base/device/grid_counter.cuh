// Blocks of one launch that wait for each other: a counter in global memory, zero at first. All of them must run at the same time (a
// cooperative launch).
// The tests' emulator of CUDA (tests/emulator) has this file once more, for the CPU.
#pragma once

#include <cstdint>

namespace prologue::cuda {

// What this thread has written to global memory is seen by TMA of other blocks, once they are told. Then a barrier of the block.
__device__ inline void fence_global_for_async() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}

// By one thread, behind a barrier of its block: what the block has written is seen by those that wait.
__device__ inline void count_block(uint32_t* counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}

// By one thread. What the blocks wrote before they were counted is seen by this thread, by TMA that it starts, and by those that it tells.
__device__ inline void wait_for_blocks(const uint32_t* counter, uint32_t blocks) {
  uint32_t counted;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(counted) : "l"(counter) : "memory");
  } while (counted < blocks);
  fence_global_for_async();
}

}  // namespace prologue::cuda
