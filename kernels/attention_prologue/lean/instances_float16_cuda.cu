#include <prologue/kernels/attention_prologue/lean/instances_16_bits.cuh>

namespace prologue::cuda {

std::span<const Family> float16_families() { return families_of_16_bits<__half>(DType::f16); }

}  // namespace prologue::cuda
