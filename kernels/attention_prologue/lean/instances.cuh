// Makes an entry of the tables of instances.
#pragma once

#include <cstdint>

#include <prologue/kernels/attention_prologue/lean/families.h>
#include <prologue/kernels/attention_prologue/lean/most_steps_schedule.cuh>
#include <prologue/kernels/attention_prologue/lean/plain_schedule.cuh>
#include <prologue/kernels/attention_prologue/lean/steps_schedule.cuh>

namespace prologue::cuda {

template <class T, int V, int kUnits, int kHints, int kFeatures>
Instance instance(int64_t max_tokens, int threads = 128) {
  Instance instance = {max_tokens, V, kUnits, threads, (kHints & kTokenGroups) != 0, nullptr, nullptr, nullptr};
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
