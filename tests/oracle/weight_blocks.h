// This file has values of GGUF's quantised blocks, one at a time, in float64: from the description of the formats.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/weight_format.h>

namespace prologue::test::oracle {

// value = scale * code - minimum.
struct WeightValue {
  double scale;
  int code;
  double minimum;

  double value() const { return scale * code - minimum; }
};

// Returns value i of a row of blocks.
WeightValue weight_value(WeightFormat format, const uint8_t* row, int64_t i);

}  // namespace prologue::test::oracle
