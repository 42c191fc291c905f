// These kernels ship, each for all formats of packed weights that are whole numbers.
#include <prologue/kernels/projection/integer/output_kernel.cuh>

namespace prologue::cuda {

IntegerOutputKernel integer_output(DType type) {
  if (type == DType::f16) return integer_output_kernel<__half>;
  return type == DType::bf16 ? integer_output_kernel<__nv_bfloat16> : nullptr;
}

}  // namespace prologue::cuda
