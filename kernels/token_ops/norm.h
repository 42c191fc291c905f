// Computes RMSNorm or LayerNorm over rows, with the residual addition that precedes it in a decoder layer.
//
//   residual given:  residual[t, :] += x[t, :]     (float32 sum, rounded once to dtype; the rounded value is normalised)
//                    r = residual[t, :]
//   otherwise:       r = x[t, :]
//   rms:    out[t, i] = r[i] / sqrt(mean_j(r[j]^2) + eps) * weight[i] + bias[i]
//   layer:  out[t, i] = (r[i] - mean_j(r[j])) / sqrt(mean_j((r[j] - mean)^2) + eps) * weight[i] + bias[i]
//
//   x         [num_tokens, width] dtype, contiguous
//   residual  [num_tokens, width] dtype, contiguous, read and written; null = none; must not overlap x or out
//   weight    [width]             weight_type; null = 1
//   bias      [width]             weight_type; null = 0
//   out       [num_tokens, width] dtype, contiguous; may be x itself
//
// Numerics: float32; the sums of the means have a fixed order that does not depend on the batch; one rounding at the store.
// num_tokens = 0 is a no-op. Never allocates or synchronises.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/execution.h>
#include <prologue/kernels/base/norm_kind.h>

namespace prologue {

struct NormParams {
  int64_t num_tokens = 0;
  int64_t width = 0;
  DType dtype = DType::unset;
  NormKind kind = NormKind::rms;
  const void* x = nullptr;
  void* residual = nullptr;
  const void* weight = nullptr;
  const void* bias = nullptr;
  DType weight_type = DType::unset;  // of weight and bias: dtype (unset means that) or float32
  float eps = 1e-5f;
  void* out = nullptr;
  uint64_t reserved[4] = {};  // zeros: docs/versioning.md
};

PROLOGUE_API Status norm(const NormParams& params, const Execution& execution);

}  // namespace prologue
