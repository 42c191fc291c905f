// Computes the weighted sum of the results of a token's experts:
//
//   out[t, :] = sum_j expert_weights[t, j] * y[t, j, :]  (+ shared[t, :])
//
//   y               [num_tokens, top_k, width] dtype, contiguous
//   expert_weights  [num_tokens, top_k]        float32, contiguous; null = 1
//   shared          [num_tokens, width]        dtype, contiguous: what an expert that all tokens have computes; null = none
//   out             [num_tokens, width]        dtype, contiguous; may be shared itself, must not overlap the others
//
// Numerics: float32, in the order of j, then shared; each product and sum is rounded (a fused multiply-add rounds once), and the result
// once more at the store. The CPU and CUDA return the same bits. num_tokens = 0 is a no-op. Never allocates or synchronises.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/execution.h>

namespace prologue {

struct MoeCombineParams {
  int64_t num_tokens = 0;
  int64_t top_k = 0;
  int64_t width = 0;
  DType dtype = DType::unset;
  const void* y = nullptr;
  const float* expert_weights = nullptr;
  const void* shared = nullptr;
  void* out = nullptr;
  uint64_t reserved[4] = {};  // zeros: docs/versioning.md
};

PROLOGUE_API Status moe_combine(const MoeCombineParams& params, const Execution& execution);

}  // namespace prologue
