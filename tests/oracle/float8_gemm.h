// Rows of x as GemmParams::quantize_x quantises them, from its description, with tables of float8_e4m3fn (quantize.h).
#pragma once

#include <cstdint>
#include <vector>

namespace prologue::test::oracle {

struct Float8Row {
  std::vector<double> numbers;  // that the codes stand for
  std::vector<double> scales;   // one for each element
};

// `x` are float32 numbers; `group` of them have one scale.
Float8Row quantized_to_e4m3(const std::vector<double>& x, int64_t group);

}  // namespace prologue::test::oracle
