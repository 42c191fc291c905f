// These kernels ship: there are tables for each element type (tiles/instances_*_cuda.cu). Of those with as many columns the first is the
// fastest.
#pragma once

#include <prologue/kernels/projection/tiles/head_kernel.cuh>
#include <prologue/kernels/projection/tiles/output_kernel.cuh>

namespace prologue::cuda {

template <class T>
std::span<const TilesOutputInstance> tiles_outputs() {
  static const TilesOutputInstance kInstances[] = {{kGatedColumns,
                                                    static_cast<int>(sizeof(TileShared<DenseWeights<T>, kGatedColumns>)),
                                                    DenseWeights<T>::encode, tiles_output_kernel<DenseWeights<T>>}};
  return kInstances;
}

template <class T, int kColumns, int kFeatures, int kAtOnce = 1>
TilesHeadInstance tiles_head() {
  using W = DenseWeights<T>;
  return {kColumns,  kFeatures,
          kAtOnce,   static_cast<int>(sizeof(TilesHeadShared<W, kColumns>)),
          W::encode, tiles_head_kernel<W, kColumns, kFeatures, kAtOnce>};
}

template <class T>
std::span<const TilesHeadInstance> tiles_heads() {
  static const TilesHeadInstance kInstances[] = {
      tiles_head<T, 256, 0, 2>(),
      tiles_head<T, 256, kLayouts, 2>(),
      tiles_head<T, 256, kBias, 2>(),
      tiles_head<T, 256, kNorm, 2>(),
      tiles_head<T, 256, kGivenScales, 2>(),
      tiles_head<T, 256, 0>(),
      tiles_head<T, 256, kLayouts>(),
      tiles_head<T, 256, kBias>(),
      tiles_head<T, 256, kNorm>(),
      tiles_head<T, 256, kMostSteps>(),
      tiles_head<T, 256, kMostSteps | kLayouts | kEveryStep>(),
      tiles_head<T, 192, 0, 3>(),
      tiles_head<T, 192, kLayouts, 3>(),
      tiles_head<T, 192, kBias, 3>(),
      tiles_head<T, 192, kNorm, 3>(),
      tiles_head<T, 192, kGivenScales, 3>(),
      tiles_head<T, 128, 0>(),
      tiles_head<T, 128, kLayouts>(),
      tiles_head<T, 128, kBias>(),
      tiles_head<T, 128, kNorm>(),
      tiles_head<T, 128, kGivenScales>(),
      tiles_head<T, 128, kMostSteps>(),
      tiles_head<T, 128, kMostSteps | kLayouts | kEveryStep>(),
  };
  return kInstances;
}

}  // namespace prologue::cuda
