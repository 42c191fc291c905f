// These kernels ship: there are tables for each element type (ring/instances_*_cuda.cu). The first that has enough rows serves a call, so
// those of few rows come first: rows that a block does not have are multiplied, too.
#pragma once

#include <prologue/kernels/projection/ring/by_mma.cuh>
#include <prologue/kernels/projection/ring/by_wgmma.cuh>
#include <prologue/kernels/projection/ring/head_pairs_kernel.cuh>
#include <prologue/kernels/projection/ring/output_kernel.cuh>

namespace prologue::cuda {

template <class By>
RingOutputInstance ring_output() {
  return {By::kMostRows, By::kMostTokens, By::kBlocksOfSm, By::lay_out, By::W::encode, ring_output_kernel<By>};
}

template <class T>
std::span<const RingOutputInstance> ring_outputs() {
  using W = DenseWeights<T>;
  static const RingOutputInstance kInstances[] = {
      ring_output<RingByMma<W>>(),        ring_output<RingByWgmma<W, 32>>(),  ring_output<RingByWgmma<W, 64>>(),
      ring_output<RingByWgmma<W, 128>>(), ring_output<RingByWgmma<W, 256>>(),
  };
  return kInstances;
}

template <int V, class By, int kFeatures>
RingHeadInstance ring_head_pairs() {
  return {true,
          V,
          kFeatures,
          By::kFewestRows,
          By::kMostRows,
          By::kMostTokens,
          By::lay_out,
          By::W::encode,
          ring_head_pairs_kernel<V, By, kFeatures>};
}

template <int V, class By, int kFeatures>
RingHeadInstance ring_head() {
  return {false,
          V,
          kFeatures,
          By::kFewestRows,
          By::kMostRows,
          By::kMostTokens,
          By::lay_out,
          By::W::encode,
          ring_head_kernel<V, By, kFeatures>};
}

template <class T>
std::span<const RingHeadInstance> ring_heads() {
  using W = DenseWeights<T>;
  using Few = RingByMma<W>;
  using Few48 = RingByMma<W, 48>;  // 8B
  using Few64 = RingByMma<W, 64>;  // Qwen3 8B
  using More32 = RingByWgmma<W, 32>;
  using More48 = RingByWgmma<W, 48>;
  using More64 = RingByWgmma<W, 64>;
  constexpr int kEvery = kMostSteps | kLayouts | kEveryStep;
  static const RingHeadInstance kInstances[] = {
      ring_head_pairs<2, Few48, 0>(),      ring_head_pairs<2, Few48, kLayouts>(),
      ring_head_pairs<2, Few48, kBias>(),  ring_head_pairs<2, Few48, kGivenScales>(),
      ring_head_pairs<2, Few, 0>(),        ring_head_pairs<2, Few, kLayouts>(),
      ring_head_pairs<2, Few, kBias>(),    ring_head_pairs<2, Few, kGivenScales>(),
      ring_head_pairs<2, More32, 0>(),     ring_head_pairs<2, More32, kLayouts>(),
      ring_head_pairs<2, More32, kBias>(), ring_head_pairs<2, More32, kGivenScales>(),
      ring_head_pairs<2, More48, 0>(),     ring_head_pairs<2, More48, kLayouts>(),
      ring_head_pairs<2, More48, kBias>(), ring_head_pairs<2, More48, kGivenScales>(),
      ring_head_pairs<2, More64, 0>(),     ring_head_pairs<2, More64, kLayouts>(),
      ring_head_pairs<2, More64, kBias>(), ring_head_pairs<2, More64, kGivenScales>(),
      ring_head<2, Few64, kNorm>(),        ring_head<2, Few64, kEvery>(),
      ring_head<4, Few64, kEvery>(),       ring_head<2, Few, kNorm>(),
      ring_head<2, Few, kEvery>(),         ring_head<4, Few, kEvery>(),
      ring_head<2, More64, kNorm>(),       ring_head<2, More64, kEvery>(),
      ring_head<4, More64, kEvery>(),
  };
  return kInstances;
}

}  // namespace prologue::cuda
