// Adds two arrays of rows: out[t, :] = a[t, :] + b[t, :].
//
//   a    [num_tokens, width] dtype, row stride a_stride
//   b    [num_tokens, width] dtype, row stride b_stride
//   out  [num_tokens, width] dtype, row stride out_stride; may be a or b itself (equal strides), must not overlap them otherwise
//
// Numerics: the sum is rounded once. num_tokens = 0 is a no-op. Never allocates or synchronises.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/execution.h>

namespace prologue {

struct AddParams {
  int64_t num_tokens = 0;
  int64_t width = 0;
  DType dtype = DType::unset;
  const void* a = nullptr;
  int64_t a_stride = 0;
  const void* b = nullptr;
  int64_t b_stride = 0;
  void* out = nullptr;
  int64_t out_stride = 0;
  uint64_t reserved[4] = {};  // zeros: docs/versioning.md
};

PROLOGUE_API Status add(const AddParams& params, const Execution& execution);

}  // namespace prologue
