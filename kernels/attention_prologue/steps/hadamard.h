// Has what belongs to the Hadamard transform of Q and K: the check of its block, for the fused operation and the stage, and its factor.
#pragma once

#include <cmath>
#include <cstdint>

#include <prologue/kernels/base/status.h>

namespace prologue {

inline constexpr int64_t kMaxHadamardBlock = 512;

inline Status check_hadamard_block(const char* operation, const char* name, int64_t block, int64_t head_dim) {
  const bool power_of_two = block >= 2 && block <= kMaxHadamardBlock && (block & (block - 1)) == 0;
  if (power_of_two && head_dim % block == 0) return {};
  return invalid_argument(operation, ": ", name, " is ", block, ": it must be a power of two in 2..", kMaxHadamardBlock,
                          " that divides head_dim, ", head_dim);
}

// Returns 1 / sqrt(block), rounded to float32. (The square root and the quotient are rounded, which gives the same for powers of two.)
inline float hadamard_factor(int64_t block) { return block == 0 ? 1.0f : 1.0f / std::sqrt(static_cast<float>(block)); }

}  // namespace prologue
