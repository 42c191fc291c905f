// What follows the product in a linear layer, on the host: the kernel's arguments for it. Internal, for CUDA.
#pragma once

#include <prologue/kernels/projection/projection.h>
#include <prologue/kernels/projection/projection_choice.h>
#include <prologue/kernels/projection/finish/output.cuh>

namespace prologue::cuda {

inline bool is_gated(const ProjectionParams& p) { return p.activation.given != 0 && p.activation.gated; }

// Whether it can be done in the product's kernel.
inline bool can_store(const ProjectionParams& p) {
  const int64_t y_bytes = kRowsAtOnce * dtype_size(resolve_dtype(p.y_dtype, p.dtype));  // that are stored at once
  return !p.batch_invariant && p.n % 16 == 0 && p.n <= INT32_MAX / 4 && p.y_stride % kRowsAtOnce == 0 &&
         is_aligned(p.y, y_bytes) && is_aligned(p.bias, 8);
}

inline OutputArgs output_of(const ProjectionParams& p) {
  OutputArgs o;
  o.bias = static_cast<const char*>(p.bias);
  o.y = static_cast<char*>(p.y);
  o.y_stride = p.y_stride * dtype_size(resolve_dtype(p.y_dtype, p.dtype));
  o.float_y = resolve_dtype(p.y_dtype, p.dtype) == DType::f32 ? 1 : 0;
  o.n = static_cast<int32_t>(p.n);
  o.activates = p.activation.given != 0 ? 1 : 0;
  o.gated = is_gated(p) ? 1 : 0;
  o.adds = p.adds != 0 ? 1 : 0;
  o.by_8 = p.y_stride % 8 == 0 && is_aligned(p.y, 16) && is_aligned(p.bias, 16) ? 1 : 0;
  o.kind = p.activation.kind;
  o.limit = p.activation.limit;
  o.alpha = p.activation.alpha;
  return o;
}

}  // namespace prologue::cuda
