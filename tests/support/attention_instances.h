// This file pins a call of paged attention to each of the kernels that can run it.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <prologue/kernels/paged_attention/paged_attention.h>

#include "tests/support/arena.h"

#ifdef PROLOGUE_HAS_CUDA
#include <cuda_runtime_api.h>

#include <prologue/kernels/paged_attention/instances.h>
#endif

namespace prologue::test {

struct NamedCall {
  std::string name;
  Arena::Operation run;
};

// Returns the call in every kernel that can serve it and that has the shared memory for it here.
inline std::vector<NamedCall> calls_of(const PagedAttentionParams& p, Device device) {
  if (device == Device::cpu) return {{"cpu", [&p](const Execution& execution) { return paged_attention(p, execution); }}};
  std::vector<NamedCall> calls;
#ifdef PROLOGUE_HAS_CUDA
  int current = 0, shared_bytes = 0;
  EXPECT_EQ(cudaGetDevice(&current), cudaSuccess);
  EXPECT_EQ(cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, current), cudaSuccess);
  for (const cuda::AttentionInstance& instance : cuda::instances_of(p)) {
    if (instance.shared_bytes > shared_bytes || (instance.wgmma && !cuda::runs_wgmma())) continue;
    calls.push_back({instance.name, [&p, instance](const Execution& execution) { return instance.launch(p, execution.stream); }});
  }
#endif
  return calls;
}

}  // namespace prologue::test
