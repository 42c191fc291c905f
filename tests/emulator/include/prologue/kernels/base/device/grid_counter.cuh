// The operations of kernels/base/device/grid_counter.cuh on the CPU. Blocks of a cooperative launch run together.
#pragma once

#include <cstdint>

namespace prologue::cuda {

inline void fence_global_for_async() {}

inline void count_block(uint32_t* counter) {
  ++*counter;
  emulator::progress();
}

inline void wait_for_blocks(const uint32_t* counter, uint32_t blocks) {
  if (*counter > blocks) emulator::fail("waits for fewer blocks than were counted");
  emulator::wait_until([&] { return *counter >= blocks; });
}

}  // namespace prologue::cuda
