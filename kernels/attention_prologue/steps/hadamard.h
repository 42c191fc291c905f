// Has what belongs to the Hadamard transform of Q and K: the check of its block, for the fused operation and the stage, and its factor.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/status.h>

namespace prologue {

inline constexpr int64_t kMaxHadamardBlock = 512;

PROLOGUE_API Status check_hadamard_block(const char* operation, const char* name, int64_t block, int64_t head_dim);

// Returns 1 / sqrt(block), rounded to float32. (The square root and the quotient are rounded, which gives the same for powers of two.)
float hadamard_factor(int64_t block);

}  // namespace prologue
