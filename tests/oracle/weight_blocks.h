// This file has values of quantised blocks, one at a time, in float64: from the descriptions of GGUF's formats, of float8_e4m3fn and of
// groups of 4-bit codes with a zero point.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/weight_format.h>

namespace prologue::test::oracle {

// value = scale * code - minimum.
struct WeightValue {
  double scale;
  double code;  // an integer, or a number of float8_e4m3fn or of E2M1
  double minimum;

  double value() const { return scale * code - minimum; }
};

// Returns value i of a row of blocks.
WeightValue weight_value(WeightFormat format, const uint8_t* row, int64_t i);

}  // namespace prologue::test::oracle
