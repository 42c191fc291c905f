// Computes the activation of an MLP.
//
//   gated:      out[t, g, i] = act(x[t, g, i]) * x[t, g, width + i]    (each group of a row is gate, then up: one GEMM computes both)
//   otherwise:  out[t, g, i] = act(x[t, g, i])
//
//   x    [num_tokens, groups * columns] dtype, row stride x_stride; columns = 2 * width if gated, width otherwise
//   out  [num_tokens, groups * width]   dtype, contiguous; must not overlap x
//
//   silu(x)         = x / (1 + exp(-x))
//   gelu_tanh(x)    = 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
//   gelu(x)         = 0.5 x (1 + erf(x / sqrt(2)))
//   relu(x)         = max(x, 0)
//   relu2(x)        = max(x, 0)^2
//   clamped_swiglu  (GPT-OSS) is always gated:
//                     gate' = min(gate, limit), up' = clamp(up, -limit, limit)
//                     out = (up' + 1) * gate' / (1 + exp(-alpha gate'))
//
// A row has several groups where it holds the results of a token's experts side by side (moe_gemm.h). A NaN stays one.
// Numerics: float32 inside, one rounding at the store. The sum in gelu cancels far below 0: its error is relative to x there.
// 1 / (1 + exp(-z)) is 0 below z = -87, where float32 has no room for it.
// num_tokens = 0 is a no-op. Never allocates or synchronises.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/execution.h>

namespace prologue {

enum class Activation : int32_t { silu = 0, gelu_tanh, gelu, relu, relu2, clamped_swiglu };

struct ActivationParams {
  int64_t num_tokens = 0;
  int64_t groups = 1;
  int64_t width = 0;
  DType dtype = DType::unset;
  Activation kind = Activation::silu;
  bool gated = true;
  const void* x = nullptr;
  int64_t x_stride = 0;
  void* out = nullptr;
  float limit = 7.0f;         // clamped_swiglu only
  float alpha = 1.702f;       // clamped_swiglu only
  uint64_t reserved[4] = {};  // zeros: docs/versioning.md
};

PROLOGUE_API Status activation(const ActivationParams& params, const Execution& execution);

}  // namespace prologue
