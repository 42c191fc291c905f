// Declares the instances that ship: tables, one per element type (instances_*_cuda.cu), which are searched in order.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include <prologue/kernels/attention_prologue/prologue_args.h>
#include <prologue/kernels/attention_prologue/lean/most_steps_schedule.cuh>
#include <prologue/kernels/attention_prologue/lean/plain_schedule.cuh>
#include <prologue/kernels/attention_prologue/lean/steps_schedule.cuh>

namespace prologue::cuda {

struct Instance {
  int64_t max_tokens;
  int vector;                // channels in one access
  int units;                 // heads per thread
  int threads;               // of a block, at most
  void (*plain)(PlainArgs);  // one of the three
  void (*lean)(LeanArgs);
  void (*more)(MostStepsArgs);
};

// Holds what a call, or a plan, chooses: the instances of one set of features, for more and more tokens; or the general kernel.
struct Family {
  DType dtype;
  int features;
  int vector;  // the widest of its instances, among them the last
  std::span<const Instance> instances;
  void (*general)(GeneralArgs);
};

std::span<const Family> float32_families();
std::span<const Family> float16_families();
std::span<const Family> bfloat16_families();

inline constexpr int64_t kAnyTokens = std::numeric_limits<int64_t>::max();

template <class T, int V, int kUnits, int kHints, int kFeatures>
Instance instance(int64_t max_tokens, int threads = 128) {
  Instance instance = {max_tokens, V, kUnits, threads, nullptr, nullptr, nullptr};
  if constexpr ((kFeatures & kMostSteps) != 0) {
    static_assert(kUnits == 1);
    instance.more = most_steps_prologue_kernel<T, V, kHints, kFeatures>;
  } else if constexpr (has_steps(kFeatures)) {
    instance.lean = steps_prologue_kernel<T, V, kUnits, kHints, kFeatures>;
  } else {
    instance.plain = plain_prologue_kernel<T, V, kUnits, kHints, kFeatures>;
  }
  return instance;
}

}  // namespace prologue::cuda
