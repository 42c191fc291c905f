// These kernels ship for packed weights, each for all formats: there is a table for each finisher and element type, in the order in which
// they are chosen.
#include <prologue/kernels/projection/registers/head_kernel.cuh>
#include <prologue/kernels/projection/registers/output_kernel.cuh>

namespace prologue::cuda {

namespace {

using HeadInstance = RegistersHeadInstance<PackedArgs<RegistersHeadArgs>>;
using OutputInstance = RegistersOutputInstance<PackedArgs<RegistersArgs>>;

template <class T, int V, int kFeatures, int kTokenTiles>
HeadInstance head() {
  constexpr int kMultipliers = 128 * V;
  constexpr int kAll = kLayouts | kEveryStep | kMostSteps;
  return {V, kFeatures | kLayouts | kEveryStep, kTokenTiles, 0,
          registers_head_kernel<PackedWeights<T>, V, kTokenTiles, kMultipliers, 0, kFeatures | kAll>};
}

template <class T>
std::span<const HeadInstance> heads() {
  static const HeadInstance kInstances[] = {
      head<T, 2, 0, 1>(), head<T, 2, 0, 2>(),        head<T, 2, kDerived, 2>(), head<T, 2, kAxes, 2>(),
      head<T, 4, 0, 2>(), head<T, 4, kDerived, 2>(), head<T, 4, kAxes, 2>(),
  };
  return kInstances;
}

template <class T>
std::span<const OutputInstance> outputs() {
  static const OutputInstance kInstances[] = {{1, registers_output_kernel<PackedWeights<T>, 1>},
                                              {2, registers_output_kernel<PackedWeights<T>, 2>}};
  return kInstances;
}

}  // namespace

std::span<const OutputInstance> packed_registers_outputs(DType type) {
  return of_16_bits(type, outputs<__half>, outputs<__nv_bfloat16>);
}
std::span<const HeadInstance> packed_registers_heads(DType type) { return of_16_bits(type, heads<__half>, heads<__nv_bfloat16>); }

}  // namespace prologue::cuda
