// These kernels ship, each for all formats of packed weights: there are tables for each element type (unpacking/instances_*_cuda.cu). The
// first that has enough tokens serves a call.
#pragma once

#include <prologue/kernels/projection/unpacking/output_kernel.cuh>

namespace prologue::cuda {

template <class T>
std::span<const UnpackingOutputInstance> unpacking_outputs() {
  using W = PackedWeights<T>;
  static const UnpackingOutputInstance kInstances[] = {
      {16, unpacking_output_kernel<W, 16>}, {32, unpacking_output_kernel<W, 32>}, {64, unpacking_output_kernel<W, 64>}};
  return kInstances;
}

}  // namespace prologue::cuda
