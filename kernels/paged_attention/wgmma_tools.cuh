// This file has what all kernels with wgmma use.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/device/cuda_types.cuh>
#include <prologue/kernels/base/device/hopper.cuh>
#include <prologue/kernels/base/device/stage_index.cuh>

namespace prologue::cuda {

// Lane t of four neighbours has word t of four chunks; afterwards it has the four words of chunk t.
__device__ inline void transpose_of_four(uint32_t (&words)[4], int t) {
  // The upper lane gives the first of two words for the lower lane's second.
  const auto exchange = [&](uint32_t& x, uint32_t& y, int distance) {
    const bool upper = (t & distance) != 0;
    const uint32_t other = __shfl_xor_sync(0xffffffffu, upper ? x : y, distance);
    (upper ? x : y) = other;
  };
  exchange(words[0], words[1], 1);
  exchange(words[2], words[3], 1);
  exchange(words[0], words[2], 2);
  exchange(words[1], words[3], 2);
}

}  // namespace prologue::cuda
