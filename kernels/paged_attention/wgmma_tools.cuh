// What the kernels with wgmma share.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/device/cuda_types.cuh>
#include <prologue/kernels/base/device/hopper.cuh>

namespace prologue::cuda {

// A place of a ring, and the parity of the phase that fills it.
template <int kPlaces>
struct RingPlace {
  int index = 0;
  unsigned phase = 0;

  __device__ void advance() {
    if (++index < kPlaces) return;
    index = 0;
    phase ^= 1;
  }
};

// Lane t of four neighbours has word t of four chunks; afterwards it has the four words of chunk t.
__device__ inline void transpose_of_four(uint32_t (&words)[4], int t) {
  const auto exchange = [](uint32_t& x, uint32_t& y, bool really) {
    const uint32_t old = x;
    x = really ? y : x;
    y = really ? old : y;
  };
  const auto permute = [&] {  // word i becomes word i ^ t
    exchange(words[0], words[1], (t & 1) != 0);
    exchange(words[2], words[3], (t & 1) != 0);
    exchange(words[0], words[2], (t & 2) != 0);
    exchange(words[1], words[3], (t & 2) != 0);
  };
  permute();
#pragma unroll
  for (int distance = 1; distance < 4; ++distance) words[distance] = __shfl_xor_sync(0xffffffffu, words[distance], distance);
  permute();
}

}  // namespace prologue::cuda
