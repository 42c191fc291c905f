// Makes the table of a 16-bit type. An instance or a family is here if it was measured to be more than 2 % faster than the next one that
// can do the same (benchmarks/results/2026-11-28-h200-levels.md). With few tokens the instructions between the last load and the first
// store limit: narrow accesses spread a head over more lanes. Up to some thousand tokens, blocks are small and have one head per thread; from
// 65 tokens on with evict-first cache hints. (With fewer they cost 10 to 20 % where the same arrays are used again and again, which a run
// of one instance after the other hides.) With more tokens bandwidth limits: each token has a block, and a thread uses its cos and sin for
// two heads.
#pragma once

#include <vector>

#include <prologue/kernels/attention_prologue/general/schedule.cuh>
#include <prologue/kernels/attention_prologue/lean/instances.cuh>

namespace prologue::cuda {

template <class T, int kFeatures>
Family all_sizes(DType type) {
  constexpr bool kNormed = (kFeatures & kNorm) != 0, kShort = !has_steps(kFeatures & ~kBias);
  constexpr int kNarrow = kShort ? 2 : 4;  // channels
  constexpr bool kAxesAndStep = (kFeatures & kAxes) != 0 && kFeatures != kAxes;
  constexpr int kCommon = kFeatures & ~(kGivenScales | kDerived);
  constexpr bool kFewHeads = kCommon == 0 || kCommon == kNorm || kFeatures == kBias || kFeatures == (kBias | kNorm);
  constexpr bool kEarlyTwoHeads = !has_steps(kFeatures) || kFeatures == kNorm || kFeatures == (kBias | kNorm);
  static const std::vector<Instance> kInstances = [] {
    std::vector<Instance> list;
    if constexpr (!kAxesAndStep) {
      list.push_back(instance<T, kNarrow, 1, kEvictFirstLoads, kFeatures>(kShort ? 32 : 16, kShort ? 256 : 128));
    }
    list.push_back(instance<T, 8, 1, kNoHints, kFeatures>(kAxesAndStep && kNormed ? 256 : 64, 64));
    if constexpr (kFewHeads) {
      list.push_back(
          instance<T, 8, 1, kEvictFirstLoads | kEvictFirstStores | kTokenGroups, kFeatures>(kAnyTokens, kMaxRowsOfGroup));
    }
    if constexpr (!(kAxesAndStep && kNormed)) {
      list.push_back(instance<T, 8, 1, kEvictFirstLoads | kEvictFirstStores, kFeatures>(kEarlyTwoHeads ? 2048 : 6144, 64));
    }
    list.push_back(instance<T, 8, 2, kNoHints, kFeatures>(kAnyTokens, 192));
    return list;
  }();
  return {type, kFeatures, 8, kInstances, nullptr};
}

// Has vectors of 4 channels: twice as many heads a thread are about as many bytes.
template <class T, int kFeatures>
Family vectors_of_4(DType type) {
  static const Instance kInstances[] = {
      instance<T, 4, 1, kNoHints, kFeatures>(512, 64),
      instance<T, 4, 4, kNoHints, kFeatures>(kAnyTokens, 192),
  };
  return {type, kFeatures, 4, kInstances, nullptr};
}

// Two heads a thread are slower where a thread decides for each of them which channels are rotated, or by which axis.
template <class T, int kFeatures>
Family common_steps(DType type) {
  constexpr bool kTwoHeads = (kFeatures & kAxes) == 0 && (kFeatures & (kLayouts | kDerived)) != kLayouts;
  static const std::vector<Instance> kInstances = [] {
    std::vector<Instance> list = {
        instance<T, 8, 1, kEvictFirstLoads, kFeatures | kCommonSteps>(kTwoHeads ? 256 : kAnyTokens, 64)};
    if constexpr (kTwoHeads) list.push_back(instance<T, 8, 2, kNoHints, kFeatures | kCommonSteps>(kAnyTokens, 192));
    return list;
  }();
  return {type, kFeatures | kCommonSteps, 8, kInstances, nullptr};
}

// With few tokens constants are loaded early, with many late; with every step there is no register left for the former.
template <class T, int kFeatures>
Family most_steps(DType type) {
  constexpr int64_t kFew = (kFeatures & (kLayouts | kDerived)) == kLayouts ? 256 : 128;
  static const std::vector<Instance> kInstances = [] {
    std::vector<Instance> list;
    if constexpr (kFeatures != kEveryStep) list.push_back(instance<T, 8, 1, kEvictFirstLoads, kFeatures | kMostSteps>(kFew, 64));
    list.push_back(instance<T, 8, 1, kEvictFirstLoads | kEvictFirstStores, kFeatures | kMostSteps>(kAnyTokens, 64));
    return list;
  }();
  return {type, kFeatures | kMostSteps, 8, kInstances, nullptr};
}

template <class T, int kFeatures>
Family token_norms(DType type) {
  static const Instance kInstances[] = {
      instance<T, 8, 1, kEvictFirstLoads, kFeatures | kMostSteps | kTokenNorm>(128, kMaxLanes),
      instance<T, 8, 1, kEvictFirstLoads | kEvictFirstStores, kFeatures | kMostSteps | kTokenNorm>(kAnyTokens, kMaxLanes),
  };
  return {type, kFeatures | kMostSteps | kTokenNorm, 8, kInstances, nullptr};
}

template <class T>
std::span<const Family> families_of_16_bits(DType type) {
  static const Family kFamilies[] = {
      all_sizes<T, 0>(type),
      all_sizes<T, kPerToken>(type),
      all_sizes<T, kLayouts>(type),
      vectors_of_4<T, kLayouts>(type),
      all_sizes<T, kBias>(type),
      all_sizes<T, kBias | kLayouts>(type),
      all_sizes<T, kNorm>(type),
      all_sizes<T, kBias | kNorm>(type),
      all_sizes<T, kGivenScales>(type),
      all_sizes<T, kComputedScales>(type),
      all_sizes<T, kAxes>(type),
      all_sizes<T, kDerived>(type),
      all_sizes<T, kNorm | kGivenScales>(type),
      all_sizes<T, kNorm | kComputedScales>(type),
      all_sizes<T, kNorm | kDerived>(type),
      all_sizes<T, kGivenScales | kDerived>(type),
      all_sizes<T, kNorm | kGivenScales | kDerived>(type),
      all_sizes<T, kBias | kNorm | kGivenScales | kDerived>(type),
      all_sizes<T, kNorm | kAxes>(type),
      all_sizes<T, kBias | kAxes>(type),
      all_sizes<T, kFourBits>(type),
      common_steps<T, 0>(type),
      common_steps<T, kAxes>(type),
      common_steps<T, kDerived>(type),
      common_steps<T, kLayouts>(type),
      common_steps<T, kLayouts | kAxes>(type),
      common_steps<T, kLayouts | kDerived>(type),
      most_steps<T, 0>(type),
      most_steps<T, kDerived>(type),
      most_steps<T, kLayouts>(type),
      most_steps<T, kLayouts | kDerived>(type),
      most_steps<T, kEveryStep>(type),
      most_steps<T, kEveryStep | kDerived>(type),
      most_steps<T, kEveryStep | kLayouts>(type),
      token_norms<T, 0>(type),
      token_norms<T, kDerived>(type),
      {type, 0, 8, {}, general_prologue_kernel<T, 8>},
      {type, 0, 4, {}, general_prologue_kernel<T, 4>},
      {type, 0, 2, {}, general_prologue_kernel<T, 2>},
      {type, 0, 1, {}, general_prologue_kernel<T, 1>},
  };
  return kFamilies;
}

}  // namespace prologue::cuda
