// Converts packed weights (weight_format.h) to floats. Internal.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/weight_format.h>

namespace prologue {

inline constexpr int64_t kMaxBlockElements = 256;

// Sets out[weight_block_elements(format)] to a block of a row of `packed`, which has `cols` columns: each value in float32 as the format's
// reference computes it.
void unpack_block(WeightFormat format, const void* packed, int64_t cols, int64_t row, int64_t block, float* out);

}  // namespace prologue
