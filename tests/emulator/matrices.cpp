#include "matrices.h"

#include <algorithm>

#include <prologue/kernels/base/dtype.h>

namespace emulator {

void widen(bool bfloat16, const uint16_t* bits, int count, float* numbers) {
  if (bfloat16) {
    for (int i = 0; i < count; ++i) numbers[i] = prologue::to_float(prologue::BFloat16{bits[i]});
  } else {
    for (int i = 0; i < count; ++i) numbers[i] = prologue::to_float(prologue::Float16{bits[i]});
  }
}

void multiply_matrices(int m, int n, const float* a, const float* b, float* d) {
  constexpr int kDepth = 16, kColumns = 8;  // n is a multiple of 8: the sums of 8 columns stay in registers
  for (int row = 0; row < m; ++row) {
    for (int first = 0; first < n; first += kColumns) {
      double sums[kColumns];
      for (int i = 0; i < kColumns; ++i) sums[i] = d[row * n + first + i];
      for (int k = 0; k < kDepth; ++k) {
        const double factor = a[row * kDepth + k];
        const float* const line = b + k * n + first;
        for (int i = 0; i < kColumns; ++i) sums[i] += factor * static_cast<double>(line[i]);
      }
      for (int i = 0; i < kColumns; ++i) d[row * n + first + i] = static_cast<float>(sums[i]);
    }
  }
}

void multiply(bool bfloat16, LaneOfMultiplication* const* lanes) {
  uint16_t bits_a[16 * 16], bits_b[16 * 8];
  float a[16 * 16], b[16 * 8], c[16 * 8];
  const auto place_of_sum = [](int lane, int i) { return (lane / 4 + i / 2 * 8) * 8 + 2 * (lane % 4) + i % 2; };
  for (int lane = 0; lane < 32; ++lane) {
    const LaneOfMultiplication& theirs = *lanes[lane];
    for (int i = 0; i < 4; ++i) {  // the odd registers of a are 8 rows further, the last two 8 columns
      uint16_t* const pair = bits_a + (lane / 4 + i % 2 * 8) * 16 + 2 * (lane % 4) + i / 2 * 8;
      pair[0] = static_cast<uint16_t>(theirs.a[i]), pair[1] = static_cast<uint16_t>(theirs.a[i] >> 16);
      c[place_of_sum(lane, i)] = theirs.c[i];
    }
    for (int i = 0; i < 2; ++i) {
      uint16_t* const pair = bits_b + (2 * (lane % 4) + i * 8) * 8 + lane / 4;
      pair[0] = static_cast<uint16_t>(theirs.b[i]), pair[8] = static_cast<uint16_t>(theirs.b[i] >> 16);
    }
  }
  widen(bfloat16, bits_a, 16 * 16, a);
  widen(bfloat16, bits_b, 16 * 8, b);
  multiply_matrices(16, 8, a, b, c);
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) lanes[lane]->c[i] = c[place_of_sum(lane, i)];
  }
}

void multiply_integers(LaneOfIntegers* const* lanes) {
  int8_t a[16][32], b[32][8];
  for (int lane = 0; lane < 32; ++lane) {
    const LaneOfIntegers& theirs = *lanes[lane];
    const auto byte_of = [](uint32_t word, int i) { return static_cast<int8_t>(word >> (8 * i)); };
    for (int byte = 0; byte < 4; ++byte) {
      const int k = lane % 4 * 4 + byte;
      for (int i = 0; i < 4; ++i) a[lane / 4 + i % 2 * 8][k + i / 2 * 16] = byte_of(theirs.a[i], byte);
      for (int i = 0; i < 2; ++i) b[k + i * 16][lane / 4] = byte_of(theirs.b[i], byte);
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      for (int k = 0; k < 32; ++k) lanes[lane]->c[i] += a[row][k] * b[k][column];
    }
  }
}

}  // namespace emulator
