// Host code of the finisher of linear layers: what the ways have in common when they choose a kernel for a call and launch it.
#pragma once

#include <cstdint>

#include <prologue/kernels/projection/finish/output.cuh>
#include <prologue/kernels/projection/launch.cuh>

namespace prologue::cuda {

inline bool is_gated(const ProjectionParams& p) { return p.activation.given != 0 && p.activation.gated; }

inline Product product_of(const ProjectionParams& p) {
  return {p.dtype, p.num_tokens, is_gated(p) ? 2 * p.n : p.n, p.k, p.x, p.x_stride, p.norm, p.weight, p.packed};
}

// Says whether a product's kernel can do what follows it.
inline bool can_finish(const ProjectionParams& p) {
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

template <class ProductArgs>
Launch output_launch(void (*kernel)(ProductArgs, OutputArgs), const ProductArgs& product, const ProjectionParams& p) {
  Launch l = launch_of("projection", kernel, product, output_of(p));
  l.overlaps = p.overlaps;
  return l;
}

}  // namespace prologue::cuda
