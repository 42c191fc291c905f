// These kernels ship, each for all formats of packed weights that are whole numbers.
#include <prologue/kernels/projection/integer/head_kernel.cuh>
#include <prologue/kernels/projection/integer/output_kernel.cuh>
#include <prologue/kernels/projection/weights/dense.cuh>

namespace prologue::cuda {

namespace {

template <class T>
IntegerOutputKernel output(int64_t num_tokens) {
  return num_tokens == 1 ? integer_output_kernel<T, 1> : integer_output_kernel<T, 2>;
}

// Heads of other sizes, and those whose positions have axes or are derived, go through registers.
template <class T, int kTokens>
IntegerHeadInstance head() {
  constexpr int kFeatures = kLayouts | kEveryStep;
  return {2, kFeatures, kTokens, integer_head_kernel<T, 2, kTokens, kFeatures | kMostSteps>};
}

template <class T>
std::span<const IntegerHeadInstance> heads() {
  static const IntegerHeadInstance kInstances[] = {head<T, 1>(), head<T, 2>()};
  return kInstances;
}

}  // namespace

std::span<const IntegerHeadInstance> integer_heads(DType type) { return of_16_bits(type, heads<__half>, heads<__nv_bfloat16>); }

IntegerOutputKernel integer_output(DType type, int64_t num_tokens) {
  if (num_tokens < 1 || num_tokens > kMostIntegerTokens) return nullptr;
  return type == DType::f16 ? output<__half>(num_tokens) : type == DType::bf16 ? output<__nv_bfloat16>(num_tokens) : nullptr;
}

}  // namespace prologue::cuda
