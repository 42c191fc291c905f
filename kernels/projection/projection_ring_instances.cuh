#pragma once

#include <prologue/kernels/projection/projection_ring.h>
#include <prologue/kernels/projection/projection_ring_kernel.cuh>

namespace prologue::cuda {

template <class T, int kRows>
RingInstance ring_instance() {
  return {kRows, RingShape<kRows>::kBoxes, RingShape<kRows>::place, projection_ring_kernel<T, kRows>};
}

template <class T>
std::span<const RingInstance> ring_instances() {
  static const RingInstance kInstances[] = {
      ring_instance<T, 16>(), ring_instance<T, 32>(), ring_instance<T, 64>(), ring_instance<T, 128>(), ring_instance<T, 256>(),
  };
  return kInstances;
}

}  // namespace prologue::cuda
