// Has the arithmetic of mma and wgmma, compiled with optimisation whatever the kernels are compiled with: it is most of what they do here.
#pragma once

#include <cstdint>

namespace emulator {

// Widens bfloat16 (or float16) numbers, which float32 holds exactly.
void widen(bool bfloat16, const uint16_t* bits, int count, float* numbers);

// Computes d[m, n] += a[m, 16] b[16, n], all dense: each sum in double in the order of k, where every product is exact, and rounded once.
void multiply_matrices(int m, int n, const float* a, const float* b, float* d);

// What a lane has of mma.m16n8k16: rows lane / 4 and lane / 4 + 8 of a and c, column lane / 4 of b.
struct LaneOfMultiplication {
  uint32_t a[4], b[2];
  float c[4];
  bool done;
};
void multiply(bool bfloat16, LaneOfMultiplication* const* lanes);

// The same of mma.m16n8k32 of s8.
struct LaneOfIntegers {
  uint32_t a[4], b[2];
  int32_t c[4];
  bool done;
};
void multiply_integers(LaneOfIntegers* const* lanes);

}  // namespace emulator
