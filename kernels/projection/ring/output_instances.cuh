// The instances that ship: tables, one per element type (projection_ring_instances_*_cuda.cu).
#pragma once

#include <prologue/kernels/projection/ring/output_launch.h>
#include <prologue/kernels/projection/ring/output_kernel.cuh>
#include <prologue/kernels/projection/ring/by_mma.cuh>
#include <prologue/kernels/projection/ring/by_wgmma.cuh>

namespace prologue::cuda {

template <class T, class By>
RingInstance ring_instance() {
  return {By::kMostRows, By::kMostTokens, By::kBlocksOfSm, By::place, projection_ring_kernel<T, By>};
}

template <class T>
std::span<const RingInstance> ring_instances() {
  static const RingInstance kInstances[] = {
      ring_instance<T, RingByMma<T>>(),        ring_instance<T, RingByWgmma<T, 32>>(),  ring_instance<T, RingByWgmma<T, 64>>(),
      ring_instance<T, RingByWgmma<T, 128>>(), ring_instance<T, RingByWgmma<T, 256>>(),
  };
  return kInstances;
}

}  // namespace prologue::cuda
