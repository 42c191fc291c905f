// The Hadamard transform of a head on the CPU.
#pragma once

#include <cstdint>

namespace prologue::cpu {

// Transforms each block of x[width]: times Sylvester's matrix, then times `factor`, 1 / sqrt(block).
inline void hadamard_transform(float* x, int64_t width, int64_t block, float factor) {
  for (int64_t distance = 1; distance < block; distance *= 2) {
    for (int64_t first = 0; first < width; first += 2 * distance) {
      for (int64_t c = first; c < first + distance; ++c) {
        const float low = x[c], high = x[c + distance];
        x[c] = low + high;
        x[c + distance] = low - high;
      }
    }
  }
  for (int64_t c = 0; c < width; ++c) x[c] *= factor;
}

}  // namespace prologue::cpu
