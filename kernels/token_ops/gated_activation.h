// The gate of a gated MLP: out[t, i] = activation(gate[t, i]) * up[t, i].
//
//   gate_up  [num_tokens, 2 * width] dtype, contiguous; each row is gate, then up (one GEMM computes both)
//   out      [num_tokens, width]     dtype, contiguous; must not overlap gate_up
//
//   silu(x)      = x / (1 + exp(-x))
//   gelu_tanh(x) = 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
//
// Numerics: float32 inside, one rounding at the store. num_tokens = 0 is a no-op. Never allocates or synchronises.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/execution.h>

namespace prologue {

enum class Activation : int32_t { silu = 0, gelu_tanh };

struct GatedActivationParams {
  int64_t num_tokens = 0;
  int64_t width = 0;
  DType dtype = DType::unset;
  Activation activation = Activation::silu;
  const void* gate_up = nullptr;
  void* out = nullptr;
};

PROLOGUE_API Status gated_activation(const GatedActivationParams& params, const Execution& execution);

}  // namespace prologue
