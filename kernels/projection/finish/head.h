// Which calls an instance with TokenHead (finish/head.cuh) does. Internal, for CUDA.
#pragma once

#include <bit>
#include <string>
#include <utility>

#include <prologue/kernels/attention_prologue/prologue_choice.h>

namespace prologue::cuda {

// Instance: with `vector` and `features`.
template <class Instance>
int32_t lanes_of_token_heads(const Instance& instance, const AttentionPrologueParams& p) {
  return static_cast<int32_t>(std::bit_ceil(static_cast<uint64_t>(units_of_all(p, instance.vector))));
}

template <class Instance>
bool serves_token_heads(const Instance& instance, const AttentionPrologueParams& p) {
  if (p.head_dim > 64 * instance.vector || v_head_dim(p) != p.head_dim || widest_vector(p) < instance.vector) return false;
  const int features = features_of(p, instance.vector);
  if (features < 0 || (features & (kTokenNorm | kAxes)) != 0 || units_of_all(p, instance.vector) > 32) return false;
  if ((instance.features & kMoreSteps) != 0) return true;
  const bool has_lane_without_unit = units_of_all(p, instance.vector) != lanes_of_token_heads(instance, p);
  if (has_lane_without_unit && (instance.features & kLayouts) == 0) return false;
  return (features & ~(kPerToken | kDerived)) == instance.features;
}

template <class Instance>
std::string token_head_name(const Instance& instance) {
  std::string name = str_cat(", heads of ", 64 * instance.vector, " channels");
  constexpr std::pair<int, const char*> kNames[] = {
      {kLayouts, "layouts"}, {kBias, "bias"}, {kNorm, "norm"}, {kGivenScales, "given scales"}, {kMoreSteps, "every step"}};
  for (const auto& [feature, text] : kNames) {
    if ((instance.features & feature) != 0) name += str_cat(", ", text);
  }
  return name;
}

}  // namespace prologue::cuda
