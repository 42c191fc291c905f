// These kernels ship: there is a table for each finisher and element type, in the order in which they are chosen.
#include <prologue/kernels/projection/registers/head_kernel.cuh>
#include <prologue/kernels/projection/registers/output_kernel.cuh>

namespace prologue::cuda {

namespace {

using HeadInstance = RegistersHeadInstance<RegistersHeadArgs>;
using OutputInstance = RegistersOutputInstance<RegistersArgs>;

template <class T, int V, int kFeatures, int kTokenTiles, int kFinishers = 0>
HeadInstance head() {
  constexpr int kThreads = 64 * V / 16 * 32;
  constexpr int kMultipliers = kThreads < 256 ? 256 : kThreads;
  return {V, kFeatures, kTokenTiles, kFinishers,
          registers_head_kernel<DenseWeights<T>, V, kTokenTiles, kMultipliers, kFinishers, kFeatures | kMostSteps>};
}

// What most models need (interleaved pairs: Llama and Mistral from GGUF files) is compiled for up to 8 tokens: more have a weight ring.
template <class T>
std::span<const HeadInstance> heads() {
  constexpr int kAll = kLayouts | kEveryStep;
  static const HeadInstance kInstances[] = {
      head<T, 2, 0, 1, 1>(),         head<T, 2, 0, 1>(),
      head<T, 2, kLayouts, 1, 1>(),  head<T, 2, kLayouts, 1>(),
      head<T, 2, kAll, 2>(),         head<T, 2, kAll | kDerived, 2>(),
      head<T, 2, kAll | kAxes, 2>(), head<T, 4, 0, 2>(),
      head<T, 4, kAll, 2>(),         head<T, 4, kAll | kDerived, 2>(),
      head<T, 4, kAll | kAxes, 2>(),
  };
  return kInstances;
}

template <class T>
std::span<const OutputInstance> outputs() {
  static const OutputInstance kInstances[] = {{1, registers_output_kernel<DenseWeights<T>, 1>}};
  return kInstances;
}

}  // namespace

std::span<const OutputInstance> registers_outputs(DType type) {
  return of_16_bits(type, outputs<__half>, outputs<__nv_bfloat16>);
}
std::span<const HeadInstance> registers_heads(DType type) { return of_16_bits(type, heads<__half>, heads<__nv_bfloat16>); }

}  // namespace prologue::cuda
