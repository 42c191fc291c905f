// Multiplies rows by the sigmoid of a gate: out[t, i] = x[t, i] / (1 + exp(-gate[t, i])).
//
//   x     [num_tokens, width] dtype, row stride x_stride
//   gate  [num_tokens, width] dtype, row stride gate_stride
//   out   [num_tokens, width] dtype, row stride out_stride; may be x or gate itself (equal strides), must not overlap them otherwise
//
// Numerics: float32 inside, the product is rounded once. The sigmoid is below 3 ulp off, and 0 below -87. A NaN stays one.
// num_tokens = 0 is a no-op. Never allocates or synchronises.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/execution.h>

namespace prologue {

struct GateParams {
  int64_t num_tokens = 0;
  int64_t width = 0;
  DType dtype = DType::unset;
  const void* x = nullptr;
  int64_t x_stride = 0;
  const void* gate = nullptr;
  int64_t gate_stride = 0;
  void* out = nullptr;
  int64_t out_stride = 0;
  uint64_t reserved[4] = {};  // zeros: docs/versioning.md
};

PROLOGUE_API Status gate(const GateParams& params, const Execution& execution);

}  // namespace prologue
