// What the operations on packed weights (weight_format.h) share. Internal.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/weight_format.h>

namespace prologue {

inline constexpr WeightFormat kLastWeightFormat = WeightFormat::nvfp4;

// CUDA reads the pieces of two rows at once.
inline constexpr int64_t kPackedDataAlignment = 16;

inline Status check_packed_alignment(const char* operation, const void* data, Device device) {
  if (device != Device::cuda || reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(kPackedDataAlignment) == 0) return {};
  return invalid_argument(operation, ": packed rows are at ", data, ": on CUDA they must be aligned to ", kPackedDataAlignment,
                          " bytes");
}

inline constexpr int64_t kMaxPackedK = int64_t{1} << 20;

// Checks the formats, shapes and alignment of packed weights [n, k], and that `weight` is null beside them. No segments: nothing is checked.
PROLOGUE_API Status check_packed_weight(const char* operation, const PackedWeight& packed, const void* weight, int64_t n,
                                        int64_t k, Device device);

inline constexpr int64_t kMaxBlockElements = 256;

// Sets out[weight_block_elements(format)] to a block of a row of `packed`, which has `cols` columns: each value in float32 as the format's
// reference computes it.
void unpack_block(WeightFormat format, const void* packed, int64_t cols, int64_t row, int64_t block, float* out);

}  // namespace prologue
