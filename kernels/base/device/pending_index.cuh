// This file loads entries of index arrays, which kernels start to load first and use last, and their offsets.
#pragma once

#include <cstdint>

namespace prologue::cuda {

// Multiplies 32 x 32 -> 64 bits with one instruction.
__device__ inline uint64_t wide_product(uint32_t x, uint32_t y) { return static_cast<uint64_t>(x) * y; }

// Holds an entry of an index array that is being loaded. Nothing uses it before value(), so a kernel's other loads are issued meanwhile. (A
// branch between int32 and int64 would have to wait for the load.)
struct PendingIndex {
  uint32_t low;
  uint32_t high;  // of an int32 the same word again: its sign is that of the index either way

  __device__ int64_t value(uint32_t step) const {
    return step == 8 ? static_cast<int64_t>(static_cast<uint64_t>(high) << 32 | low)
                     : static_cast<int64_t>(static_cast<int32_t>(low));
  }
  __device__ bool negative() const { return static_cast<int32_t>(high) < 0; }
  // Called for an index that is not negative. (There is no short circuit: a branch here would wait for the load.)
  __device__ bool at_least(uint32_t limit, uint32_t step) const { return (low >= limit) | ((step == 8) & (high != 0)); }
};

__device__ inline uint32_t load_low(const char* values, uint32_t step, uint64_t i) {
  return *reinterpret_cast<const uint32_t*>(values + i * step);
}
__device__ inline uint32_t load_high(const char* values, uint32_t step, uint64_t i) {
  return *reinterpret_cast<const uint32_t*>(values + i * step + (step >> 1 & 4));
}
__device__ inline PendingIndex load_index(const char* values, uint32_t step, uint64_t i) {
  return {load_low(values, step, i), load_high(values, step, i)};
}

}  // namespace prologue::cuda
