#include <prologue/kernels/attention_prologue/steps/hadamard.h>

#include <cmath>

namespace prologue {

Status check_hadamard_block(const char* operation, const char* name, int64_t block, int64_t head_dim) {
  const bool power_of_two = block >= 2 && block <= kMaxHadamardBlock && (block & (block - 1)) == 0;
  if (power_of_two && head_dim % block == 0) return {};
  return invalid_argument(operation, ": ", name, " is ", block, ": it must be a power of two in 2..", kMaxHadamardBlock,
                          " that divides head_dim, ", head_dim);
}

float hadamard_factor(int64_t block) { return block == 0 ? 1.0f : 1.0f / std::sqrt(static_cast<float>(block)); }

}  // namespace prologue
