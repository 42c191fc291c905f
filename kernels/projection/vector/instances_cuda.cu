// These kernels ship: there is a table for each finisher and element type, in the order in which they are chosen.
#include <prologue/kernels/projection/vector/head_kernel.cuh>
#include <prologue/kernels/projection/vector/output_kernel.cuh>

namespace prologue::cuda {

namespace {

template <class T, int V, int kFeatures, bool kSeveralPasses = false>
VectorHeadInstance head() {
  return {V, kFeatures, kSeveralPasses, vector_head_kernel<DenseWeights<T>, V, kFeatures, kSeveralPasses>};
}

template <class T>
std::span<const VectorHeadInstance> heads() {
  constexpr int kEvery = kMostSteps | kLayouts | kEveryStep;
  static const VectorHeadInstance kInstances[] = {
      head<T, 2, 0>(),
      head<T, 2, kLayouts>(),
      head<T, 2, kBias>(),
      head<T, 2, kNorm>(),
      head<T, 2, kGivenScales>(),
      head<T, 2, kEvery>(),
      head<T, 4, kNorm>(),
      head<T, 4, kEvery>(),
      head<T, 2, 0, true>(),
      head<T, 2, kLayouts, true>(),
      head<T, 2, kNorm, true>(),
      head<T, 2, kEvery, true>(),
      head<T, 4, kEvery, true>(),
  };
  return kInstances;
}

template <class T>
std::span<const VectorOutputInstance> outputs() {
  static const VectorOutputInstance kInstances[] = {{vector_output_kernel<DenseWeights<T>>}};
  return kInstances;
}

}  // namespace

std::span<const VectorOutputInstance> vector_outputs(DType type) {
  return of_16_bits(type, outputs<__half>, outputs<__nv_bfloat16>);
}
std::span<const VectorHeadInstance> vector_heads(DType type) { return of_16_bits(type, heads<__half>, heads<__nv_bfloat16>); }

}  // namespace prologue::cuda
