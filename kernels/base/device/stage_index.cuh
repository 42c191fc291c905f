// A ring is an array of stages in shared memory that some threads fill and others empty.
#pragma once

namespace prologue::cuda {

// Points to a stage of a ring, and has the parity of the phase that fills it.
template <int kCount>
struct StageIndex {
  int index = 0;
  unsigned phase = 0;

  __device__ void advance() {
    if (++index < kCount) return;
    index = 0;
    phase ^= 1;
  }
};

}  // namespace prologue::cuda
