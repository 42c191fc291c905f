// Does the last step on the logits of some models: a factor (Cohere's logit_scale), a soft cap (Gemma 2), or both.
//
//   soft_cap > 0:  out[r, i] = soft_cap * tanh(x[r, i] * (scale / soft_cap))
//   soft_cap = 0:  out[r, i] = x[r, i] * scale
//
//   x    [num_rows, width] float32, contiguous
//   out  [num_rows, width] float32, contiguous; may be x itself, must not overlap it otherwise
//
// Numerics: float32; CUDA and CPUs with a fused multiply-add return the same bits. num_rows = 0 is a no-op. Never allocates or
// synchronises.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/execution.h>

namespace prologue {

struct ScaleLogitsParams {
  int64_t num_rows = 0;
  int64_t width = 0;
  const float* x = nullptr;
  float* out = nullptr;
  float scale = 1.0f;
  float soft_cap = 0.0f;
  uint64_t reserved[4] = {};  // zeros: docs/versioning.md
};

PROLOGUE_API Status scale_logits(const ScaleLogitsParams& params, const Execution& execution);

}  // namespace prologue
