// This file makes random rows of quantised weights, as files have them.
#pragma once

#include <cstring>
#include <vector>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/weight_format.h>

#include "tests/support/random.h"

namespace prologue::test {

inline constexpr WeightFormat kWeightFormats[] = {WeightFormat::q8_0, WeightFormat::q4_0, WeightFormat::q4_1, WeightFormat::q5_0,
                                                  WeightFormat::q5_1, WeightFormat::q4_k, WeightFormat::q5_k, WeightFormat::q6_k};

inline void set_half(uint8_t* bytes, float value) {
  const Float16 half = to_float16(value);
  std::memcpy(bytes, &half.bits, sizeof half.bits);
}

// Where a block has its scale, and its minimum (-1: none).
inline int64_t scale_at(WeightFormat format) { return format == WeightFormat::q6_k ? 208 : 0; }
inline int64_t minimum_at(WeightFormat format) {
  return format == WeightFormat::q4_1 || format == WeightFormat::q5_1 || format == WeightFormat::q4_k ||
                 format == WeightFormat::q5_k
             ? 2
             : -1;
}

// Makes blocks with any codes and scales of parts, and scales and minimums of either sign.
inline std::vector<uint8_t> random_blocks(WeightFormat format, int64_t rows, int64_t cols, uint64_t seed) {
  Random random(seed);
  const int64_t bytes = weight_block_bytes(format);
  std::vector<uint8_t> blocks(static_cast<size_t>(rows * (cols / weight_block_elements(format)) * bytes));
  for (uint8_t& byte : blocks) byte = static_cast<uint8_t>(random.bits());
  for (size_t at = 0; at < blocks.size(); at += static_cast<size_t>(bytes)) {
    uint8_t* const block = blocks.data() + at;
    set_half(block + scale_at(format), static_cast<float>(0.01 * random.normal()));
    if (minimum_at(format) >= 0) set_half(block + minimum_at(format), static_cast<float>(0.05 * random.normal()));
  }
  return blocks;
}

}  // namespace prologue::test
