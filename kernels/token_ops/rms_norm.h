// RMSNorm over rows, with the residual addition that precedes it in a decoder layer.
//
//   residual given:  residual[t, :] += x[t, :]     (float32 sum, rounded once to dtype; the rounded value is normalised)
//                    r = residual[t, :]
//   otherwise:       r = x[t, :]
//   out[t, i] = r[i] / sqrt(mean_j(r[j]^2) + eps) * weight[i]
//
//   x         [num_tokens, width] dtype, contiguous
//   residual  [num_tokens, width] dtype, contiguous, read and written; null = none; must not overlap x or out
//   weight    [width]             dtype
//   out       [num_tokens, width] dtype, contiguous; may be x itself
//
// Numerics: float32; the sum of the mean has a fixed order that does not depend on the batch; one rounding at the store.
// num_tokens = 0 is a no-op. Never allocates or synchronises.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/execution.h>

namespace prologue {

struct RmsNormParams {
  int64_t num_tokens = 0;
  int64_t width = 0;
  DType dtype = DType::unset;
  const void* x = nullptr;
  void* residual = nullptr;
  const void* weight = nullptr;
  float eps = 1e-5f;
  void* out = nullptr;
};

PROLOGUE_API Status rms_norm(const RmsNormParams& params, const Execution& execution);

}  // namespace prologue
