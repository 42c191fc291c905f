#include <prologue/kernels/attention_prologue/lean/instances_16_bits.cuh>

namespace prologue::cuda {

std::span<const Family> bfloat16_families() { return families_of_16_bits<__nv_bfloat16>(DType::bf16); }

}  // namespace prologue::cuda
