// The instances that ship: tables, one per element type (qkv_ring_instances_*_cuda.cu).
#pragma once

#include <prologue/kernels/projection/ring/head_launch.h>
#include <prologue/kernels/projection/ring/by_mma.cuh>
#include <prologue/kernels/projection/ring/by_wgmma.cuh>
#include <prologue/kernels/projection/ring/head_pairs_kernel.cuh>

namespace prologue::cuda {

template <class T, int V, class By, int kFeatures>
QkvRingInstance qkv_pairs_instance() {
  return {true, V, kFeatures, By::kFewestRows, By::kMostRows, By::kMostTokens, By::place, qkv_pairs_kernel<T, V, By, kFeatures>};
}

template <class T, int V, class By, int kFeatures>
QkvRingInstance qkv_ring_instance() {
  return {false, V, kFeatures, By::kFewestRows, By::kMostRows, By::kMostTokens, By::place, qkv_ring_kernel<T, V, By, kFeatures>};
}

// The first that has enough rows serves a call, so those of few rows come first: rows that a block has not got are multiplied, too.
template <class T>
std::span<const QkvRingInstance> qkv_ring_table() {
  using Few = RingByMma<T>;
  using Few48 = RingByMma<T, 48>;  // 8B
  using Few64 = RingByMma<T, 64>;  // Qwen3 8B
  using More32 = RingByWgmma<T, 32>;
  using More48 = RingByWgmma<T, 48>;
  using More64 = RingByWgmma<T, 64>;
  constexpr int kEvery = kMoreSteps | kLayouts | kEveryStep;
  static const QkvRingInstance kInstances[] = {
      qkv_pairs_instance<T, 2, Few48, 0>(),      qkv_pairs_instance<T, 2, Few48, kLayouts>(),
      qkv_pairs_instance<T, 2, Few48, kBias>(),  qkv_pairs_instance<T, 2, Few48, kGivenScales>(),
      qkv_pairs_instance<T, 2, Few, 0>(),        qkv_pairs_instance<T, 2, Few, kLayouts>(),
      qkv_pairs_instance<T, 2, Few, kBias>(),    qkv_pairs_instance<T, 2, Few, kGivenScales>(),
      qkv_pairs_instance<T, 2, More32, 0>(),     qkv_pairs_instance<T, 2, More32, kLayouts>(),
      qkv_pairs_instance<T, 2, More32, kBias>(), qkv_pairs_instance<T, 2, More32, kGivenScales>(),
      qkv_pairs_instance<T, 2, More48, 0>(),     qkv_pairs_instance<T, 2, More48, kLayouts>(),
      qkv_pairs_instance<T, 2, More48, kBias>(), qkv_pairs_instance<T, 2, More48, kGivenScales>(),
      qkv_pairs_instance<T, 2, More64, 0>(),     qkv_pairs_instance<T, 2, More64, kLayouts>(),
      qkv_pairs_instance<T, 2, More64, kBias>(), qkv_pairs_instance<T, 2, More64, kGivenScales>(),
      qkv_ring_instance<T, 2, Few64, kNorm>(),   qkv_ring_instance<T, 2, Few64, kEvery>(),
      qkv_ring_instance<T, 4, Few64, kEvery>(),  qkv_ring_instance<T, 2, Few, kNorm>(),
      qkv_ring_instance<T, 2, Few, kEvery>(),    qkv_ring_instance<T, 4, Few, kEvery>(),
      qkv_ring_instance<T, 2, More64, kNorm>(),  qkv_ring_instance<T, 2, More64, kEvery>(),
      qkv_ring_instance<T, 4, More64, kEvery>(),
  };
  return kInstances;
}

}  // namespace prologue::cuda
