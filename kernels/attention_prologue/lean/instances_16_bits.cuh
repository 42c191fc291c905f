// The table of a 16-bit type (measured: docs/tuning/prologue.md). With few tokens the instructions between the last load and the first
// store limit: narrow accesses spread a head over more lanes. Up to some thousand tokens: small blocks with one head per thread,
// with evict-first cache hints as long as the L2 holds what is written. With more tokens bandwidth limits: a block for each
// token, and a thread uses its cos and sin for two heads.
#pragma once

#include <prologue/kernels/attention_prologue/general/schedule.cuh>
#include <prologue/kernels/attention_prologue/lean/instances.cuh>

namespace prologue::cuda {

template <class T, int V, int kFeatures>
std::span<const Instance> for_all_sizes() {
  constexpr bool kNormed = (kFeatures & kNorm) != 0, kShort = !has_steps(kFeatures & ~kBias);
  constexpr int kNarrow = kShort ? V / 4 : V / 2;
  constexpr int kFew = V == 8 ? 1 : 2, kMany = V == 8 ? 2 : 4;  // heads a thread: about as many bytes, whatever V is
  constexpr int kManyHints = kNormed ? kEvictFirstLoads | kEvictFirstStores : kNoHints;
  constexpr int64_t kOneHead = kNormed ? 2048 : 6144;  // up to here
  static const Instance kInstances[] = {
      instance<T, kNarrow, 1, kEvictFirstLoads, kFeatures>(kShort && V == 8 ? 32 : 4, kShort ? 256 : 128),
      instance<T, V, 1, kNoHints, kFeatures>(64, 64),
      instance<T, V, kFew, kEvictFirstLoads | kEvictFirstStores, kFeatures>(kOneHead, 64),
      instance<T, V, kMany, kManyHints, kFeatures>(6144, 64),
      instance<T, V, kMany, kNoHints, kFeatures>(kAnyTokens, 192),
  };
  return kInstances;
}

// What has every step in it is compiled for two sizes only.
template <class T, int kFeatures>
std::span<const Instance> for_mixtures() {
  static const Instance kInstances[] = {
      instance<T, 8, 1, kEvictFirstLoads, kFeatures>(512, 64),
      instance<T, 8, 2, kNoHints, kFeatures>(kAnyTokens, 192),
  };
  return kInstances;
}

// With few tokens constants are loaded early, with many late.
template <class T, int kFeatures>
std::span<const Instance> for_more_steps() {
  static const Instance kInstances[] = {
      instance<T, 8, 1, kEvictFirstLoads, kFeatures | kMoreSteps>(256, 64),
      instance<T, 8, 1, kEvictFirstLoads | kEvictFirstStores, kFeatures | kMoreSteps>(kAnyTokens, 64),
  };
  return kInstances;
}

template <class T, int kFeatures>
std::span<const Instance> for_token_norms() {
  static const Instance kInstances[] = {
      instance<T, 8, 1, kEvictFirstLoads, kFeatures | kMoreSteps | kTokenNorm>(128, kMaxLanes),
      instance<T, 8, 1, kEvictFirstLoads | kEvictFirstStores, kFeatures | kMoreSteps | kTokenNorm>(kAnyTokens, kMaxLanes),
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
      {type, kAxes, 8, for_all_sizes<T, 8, kAxes>(), nullptr},
      {type, kDerived, 8, for_all_sizes<T, 8, kDerived>(), nullptr},
      {type, kNorm | kGivenScales, 8, for_all_sizes<T, 8, kNorm | kGivenScales>(), nullptr},
      {type, kNorm | kComputedScales, 8, for_all_sizes<T, 8, kNorm | kComputedScales>(), nullptr},
      {type, kNorm | kDerived, 8, for_all_sizes<T, 8, kNorm | kDerived>(), nullptr},
      {type, kGivenScales | kDerived, 8, for_all_sizes<T, 8, kGivenScales | kDerived>(), nullptr},
      {type, kNorm | kGivenScales | kDerived, 8, for_all_sizes<T, 8, kNorm | kGivenScales | kDerived>(), nullptr},
      {type, kBias | kNorm | kGivenScales | kDerived, 8, for_all_sizes<T, 8, kBias | kNorm | kGivenScales | kDerived>(), nullptr},
      {type, kNorm | kAxes, 8, for_all_sizes<T, 8, kNorm | kAxes>(), nullptr},
      {type, kBias | kAxes, 8, for_all_sizes<T, 8, kBias | kAxes>(), nullptr},
      {type, kFourBits, 8, for_all_sizes<T, 8, kFourBits>(), nullptr},
      {type, kAnySteps, 8, for_mixtures<T, kAnySteps>(), nullptr},
      {type, kAnySteps | kAxes, 8, for_mixtures<T, kAnySteps | kAxes>(), nullptr},
      {type, kAnySteps | kDerived, 8, for_mixtures<T, kAnySteps | kDerived>(), nullptr},
      {type, kAnySteps | kLayouts, 8, for_mixtures<T, kAnySteps | kLayouts>(), nullptr},
      {type, kAnySteps | kLayouts | kAxes, 8, for_mixtures<T, kAnySteps | kLayouts | kAxes>(), nullptr},
      {type, kAnySteps | kLayouts | kDerived, 8, for_mixtures<T, kAnySteps | kLayouts | kDerived>(), nullptr},
      {type, kMoreSteps, 8, for_more_steps<T, 0>(), nullptr},
      {type, kMoreSteps | kDerived, 8, for_more_steps<T, kDerived>(), nullptr},
      {type, kMoreSteps | kLayouts, 8, for_more_steps<T, kLayouts>(), nullptr},
      {type, kMoreSteps | kLayouts | kDerived, 8, for_more_steps<T, kLayouts | kDerived>(), nullptr},
      {type, kMoreSteps | kEveryStep, 8, for_more_steps<T, kEveryStep>(), nullptr},
      {type, kMoreSteps | kEveryStep | kDerived, 8, for_more_steps<T, kEveryStep | kDerived>(), nullptr},
      {type, kMoreSteps | kEveryStep | kLayouts, 8, for_more_steps<T, kEveryStep | kLayouts>(), nullptr},
      {type, kMoreSteps | kTokenNorm, 8, for_token_norms<T, 0>(), nullptr},
      {type, kMoreSteps | kTokenNorm | kDerived, 8, for_token_norms<T, kDerived>(), nullptr},
      {type, 0, 8, {}, general_prologue_kernel<T, 8>},
      {type, 0, 4, {}, general_prologue_kernel<T, 4>},
      {type, 0, 2, {}, general_prologue_kernel<T, 2>},
      {type, 0, 1, {}, general_prologue_kernel<T, 1>},
  };
  return kFamilies;
}

}  // namespace prologue::cuda
