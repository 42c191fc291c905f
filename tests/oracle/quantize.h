// This file has quantised elements from their definition: tables of all values, and the nearest one (ties to the even code).
#pragma once

#include <cstdint>
#include <vector>

namespace prologue::test::oracle {

enum class Quantized { e4m3, e5m2, int8, int4, uint4, e2m1 };

// Returns the values of the non-negative codes, in order.
const std::vector<double>& code_values(Quantized type);

double largest_value(Quantized type);

// Returns the value that x becomes: nearest, ties to the even code, saturated.
double nearest_value(double x, Quantized type);

// Returns the value that a stored code stands for (NaN where it is one); int4, uint4 and e2m1: the low four bits.
double value_of_code(uint8_t code, Quantized type);

}  // namespace prologue::test::oracle
