// Host code of the finisher of heads: what the ways have in common when they choose a kernel for a call and launch it.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <utility>

#include <prologue/kernels/attention_prologue/prologue_args.h>
#include <prologue/kernels/attention_prologue/prologue_choice.h>
#include <prologue/kernels/base/str_cat.h>
#include <prologue/kernels/projection/policy.h>
#include <prologue/kernels/projection/launch.cuh>

namespace prologue::cuda {

inline int64_t heads_of(const HeadCall& call) { return call.prologue.num_q_heads + 2 * call.prologue.num_kv_heads; }

// Says whether one kernel of few tokens is faster than separate operations, whatever way it is.
inline bool saves_enough(const HeadCall& call) {
  const Product& p = call.product;
  return policy::heads_save_enough(p.num_tokens, heads_of(call) * call.prologue.head_dim * p.k, call.overlaps, p.norm.given != 0);
}

// Instance must have `vector`, the channels of an access, and `features`.
template <class Instance>
int32_t lanes_of_heads(const Instance& instance, const AttentionPrologueParams& p) {
  return static_cast<int32_t>(std::bit_ceil(static_cast<uint64_t>(units_of_all(p, instance.vector))));
}

// Says whether an instance with TokenHead has the steps of the call.
template <class Instance>
bool serves_token_heads(const Instance& instance, const AttentionPrologueParams& p) {
  if (p.head_dim > 64 * instance.vector || v_head_dim(p) != p.head_dim || widest_vector(p) < instance.vector) return false;
  const int features = features_of(p, instance.vector);
  if (features < 0 || (features & (kTokenNorm | kAxes)) != 0 || units_of_all(p, instance.vector) > 32) return false;
  if ((instance.features & kMostSteps) != 0) return true;
  const bool has_lane_without_unit = units_of_all(p, instance.vector) != lanes_of_heads(instance, p);
  if (has_lane_without_unit && (instance.features & kLayouts) == 0) return false;
  return (features & ~(kPerToken | kDerived)) == instance.features;
}

// Says whether an instance in which a warp has whole heads (finish_heads()) has the steps of the call.
template <class Instance>
bool serves_whole_heads(const Instance& instance, const AttentionPrologueParams& p) {
  if (p.head_dim > 64 * instance.vector || widest_vector(p) < instance.vector) return false;
  const int features = features_of(p, instance.vector);
  if (features < 0 || (features & kTokenNorm) != 0 || units_of_all(p, instance.vector) > 32) return false;
  constexpr int kSame = kAxes | kDerived, kAtMost = kLayouts | kEveryStep;
  return (features & kSame) == (instance.features & kSame) && (features & kAtMost & ~instance.features) == 0;
}

// Says whether heads are whole tiles of 16 rows, all of one size.
inline bool has_tiles_of_heads(const HeadCall& call) {
  const AttentionPrologueParams& prologue = call.prologue;
  return !call.batch_invariant && prologue.head_dim % 16 == 0 && v_head_dim(prologue) == prologue.head_dim;
}

// Returns what the name of an instance says of its finisher.
inline std::string names_of(int features) {
  std::string names;
  constexpr std::pair<int, const char*> kNames[] = {
      {kLayouts, "layouts"},      {kBias, "bias"},       {kNorm, "norm"}, {kGivenScales, "given scales"},
      {kMostSteps, "most steps"}, {kDerived, "derived"}, {kAxes, "axes"}, {kEveryStep, "every step"}};
  for (const auto& [feature, text] : kNames) {
    if ((features & feature) != 0) names += str_cat(", ", text);
  }
  return names;
}

template <class Instance>
std::string token_head_name(const Instance& instance) {
  return str_cat(", heads of ", 64 * instance.vector, " channels", names_of(instance.features));
}

// `vector` is the number of channels of an access.
template <class ProductArgs>
Launch head_launch(void (*kernel)(ProductArgs, MostStepsArgs), const ProductArgs& product, const HeadCall& call, int vector) {
  MostStepsArgs finish;
  fill(call.prologue, features_of(call.prologue, vector), finish);
  Launch l = launch_of("qkv_prologue", kernel, product, finish);
  l.overlaps = call.overlaps;
  return l;
}

}  // namespace prologue::cuda
