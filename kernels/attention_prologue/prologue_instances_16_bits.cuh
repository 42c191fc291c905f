// The table of a 16-bit type (measured: docs/tuning-log.md). One to a few tokens are a matter of instructions between the last
// load and the first store: narrow accesses spread a head over a warp. Up to some thousand, small blocks of a head per thread,
// with streaming hints as long as the L2 holds what is written. Beyond, a matter of bandwidth: a block for a token, and a thread
// keeps its cos and sin for two heads.
#pragma once

#include <prologue/kernels/attention_prologue/general_prologue_kernel.cuh>
#include <prologue/kernels/attention_prologue/prologue_instances.cuh>

namespace prologue::cuda {

template <class T, int V, int kFeatures>
std::span<const Instance> for_all_sizes() {
  static const Instance kInstances[] = {
      instance<T, (V > 4 ? V / 4 : 1), 1, kStreamLoads, kFeatures>(4, 256),
      instance<T, V, 1, kStreamNothing, kFeatures>(64, 64),
      instance<T, V, 1, kStreamLoads, kFeatures>(512, 64),
      instance<T, V, 1, kStreamLoads | kStreamStores, kFeatures>(6144, 64),
      instance<T, V, 2, kStreamNothing, kFeatures>(kAnyTokens, 192),
  };
  return kInstances;
}

// What has every step in it is compiled for two sizes only.
template <class T, int kFeatures>
std::span<const Instance> for_mixtures() {
  static const Instance kInstances[] = {
      instance<T, 8, 1, kStreamLoads, kFeatures>(512, 64),
      instance<T, 8, 2, kStreamNothing, kFeatures>(kAnyTokens, 192),
  };
  return kInstances;
}

template <class T>
std::span<const Family> families_of_16_bits(DType type) {
  static const Family kFamilies[] = {
      {type, 0, 8, for_all_sizes<T, 8, 0>(), nullptr},
      {type, kPerToken, 8, for_all_sizes<T, 8, kPerToken>(), nullptr},
      {type, kLayouts, 8, for_all_sizes<T, 8, kLayouts>(), nullptr},
      {type, kLayouts, 4, for_all_sizes<T, 4, kLayouts>(), nullptr},
      {type, kBias, 8, for_all_sizes<T, 8, kBias>(), nullptr},
      {type, kBias | kLayouts, 8, for_all_sizes<T, 8, kBias | kLayouts>(), nullptr},
      {type, kNorm, 8, for_all_sizes<T, 8, kNorm>(), nullptr},
      {type, kBias | kNorm, 8, for_all_sizes<T, 8, kBias | kNorm>(), nullptr},
      {type, kGivenScales, 8, for_all_sizes<T, 8, kGivenScales>(), nullptr},
      {type, kComputedScales, 8, for_all_sizes<T, 8, kComputedScales>(), nullptr},
      {type, kStreams, 8, for_all_sizes<T, 8, kStreams>(), nullptr},
      {type, kDerived, 8, for_all_sizes<T, 8, kDerived>(), nullptr},
      {type, kAnySteps, 8, for_mixtures<T, kAnySteps>(), nullptr},
      {type, kAnySteps | kStreams, 8, for_mixtures<T, kAnySteps | kStreams>(), nullptr},
      {type, kAnySteps | kDerived, 8, for_mixtures<T, kAnySteps | kDerived>(), nullptr},
      {type, 0, 8, {}, general_prologue_kernel<T, 8>},
      {type, 0, 4, {}, general_prologue_kernel<T, 4>},
      {type, 0, 2, {}, general_prologue_kernel<T, 2>},
      {type, 0, 1, {}, general_prologue_kernel<T, 1>},
  };
  return kFamilies;
}

}  // namespace prologue::cuda
