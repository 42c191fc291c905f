// The instances that ship: tables, one per element type (qkv_ring_instances_*_cuda.cu).
#pragma once

#include <prologue/kernels/qkv_prologue/qkv_ring.h>
#include <prologue/kernels/projection/ring_by_mma.cuh>
#include <prologue/kernels/projection/ring_by_wgmma.cuh>
#include <prologue/kernels/qkv_prologue/qkv_pairs_kernel.cuh>

namespace prologue::cuda {

template <class T, int V, class By, int kFeatures>
QkvRingInstance qkv_pairs_instance() {
  return {true, V, kFeatures, By::kMostRows, By::kMostTokens, By::place, qkv_pairs_kernel<T, V, By, kFeatures>};
}

template <class T, int V, class By, int kFeatures>
QkvRingInstance qkv_ring_instance() {
  return {false, V, kFeatures, By::kMostRows, By::kMostTokens, By::place, qkv_ring_kernel<T, V, By, kFeatures>};
}

template <class T>
std::span<const QkvRingInstance> qkv_ring_table() {
  using Few = RingByMma<T>;
  using More = RingByWgmma<T, 64>;
  constexpr int kEvery = kMoreSteps | kLayouts | kEveryStep;
  static const QkvRingInstance kInstances[] = {
      qkv_pairs_instance<T, 2, Few, 0>(),      qkv_pairs_instance<T, 2, Few, kLayouts>(),
      qkv_pairs_instance<T, 2, Few, kBias>(),  qkv_pairs_instance<T, 2, Few, kGivenScales>(),
      qkv_pairs_instance<T, 2, More, 0>(),     qkv_pairs_instance<T, 2, More, kLayouts>(),
      qkv_pairs_instance<T, 2, More, kBias>(), qkv_pairs_instance<T, 2, More, kGivenScales>(),
      qkv_ring_instance<T, 2, Few, kNorm>(),   qkv_ring_instance<T, 2, Few, kEvery>(),
      qkv_ring_instance<T, 4, Few, kEvery>(),  qkv_ring_instance<T, 2, More, kNorm>(),
      qkv_ring_instance<T, 2, More, kEvery>(), qkv_ring_instance<T, 4, More, kEvery>(),
  };
  return kInstances;
}

}  // namespace prologue::cuda
