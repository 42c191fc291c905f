// Computes a linear layer with what surrounds it in a decoder, in one launch if there are few tokens, or many and nothing but a gated
// activation:
//
//   x = norm(x)                            (optional)
//   p = x W^T (+ bias)
//   p = act(p), or act(gate) * up          (optional; the rows of W are those of gate, then those of up)
//   y = p, or y = y + p                    (the residual)
//
//   x       [num_tokens, k] dtype, row stride x_stride >= k
//   norm    its weight (and bias) [k]
//   weight  [n, k] dtype, rows contiguous; gated: [2 n, k]; or packed rows (gemm.h)
//   bias    [n], gated [2 n], dtype; null = none
//   y       [num_tokens, n] y_dtype, row stride y_stride >= n; must be n with an activation. y_dtype is dtype, or float32 (for logits), but
//           not with an activation or a residual
//   workspace  projection_workspace_bytes() bytes or more, on the device, aligned to 16; contents undefined
//
// y must not overlap anything else. num_tokens = 0 is a no-op.
//
// Numerics. Separately: those of norm.h, gemm.h, activation.h and add.h, one after another. In one kernel: x = round(x * w), the product is
// accumulated in float32 in an order that depends on the sizes and the number of tokens, multiplied by 1 / sqrt(mean(x^2) + eps), and p is
// rounded to y_dtype where the separate operations store it; the rest is the same. With many tokens the order is that of k. So all differ
// as two orders of one sum do. With batch_invariant they are separate, and gemm.h describes it.
//
// Packed weights on CUDA, in 16 bits, segments of a multiple of 16 rows. One and two tokens, n >= 1024, no f8_e4m3: no weight is rounded,
// and x * w is not rounded to dtype but, each 32 channels by their largest magnitude, to whole numbers below 2^22 times a power of two: off
// by at most 2^-22 of the largest. An infinity among them makes the token's results NaN. Otherwise, up to 16 tokens, no
// weight is rounded: x is multiplied by the codes of each block, which 16 bits hold exactly, and the sum by the block's scale in float32;
// where the format has minimums, the sum of x by (minimum - 128 scale) (float16: 1024). More tokens, up to 64 (128 in two launches), on
// compute capability 9.0, k a multiple of 64, segments of different formats that begin at multiples of 64 rows, the norm's weight in dtype:
// each weight is rounded to dtype (bfloat16 with minimums: off by 2^-8 of it and twice 2^-8 of minimum + c scale, c in the middle of the
// codes), and it is what is multiplied by the norm's weight, and rounded again, not x. Where that cannot be, up to 64 tokens are launches of
// 16 that round no weight. Otherwise gemm.h describes the product.
//
// The operation never allocates, synchronises or throws; on CUDA it can be captured into a graph.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/execution.h>
#include <prologue/kernels/base/norm_kind.h>
#include <prologue/kernels/gemm/gemm.h>
#include <prologue/kernels/token_ops/activation.h>

namespace prologue {

// The norm of whole rows, as norm.h describes it.
struct InputNorm {
  int32_t given = 0;  // 0: there is none
  NormKind kind = NormKind::rms;
  const void* weight = nullptr;      // null = 1
  const void* bias = nullptr;        // null = 0
  DType weight_type = DType::unset;  // of both: dtype (unset means that) or float32
  float eps = 1e-5f;
  uint64_t reserved[2] = {};  // zeros: docs/versioning.md
};

struct OutputActivation {
  int32_t given = 0;  // 0: there is none
  Activation kind = Activation::silu;
  bool gated = true;
  float limit = 7.0f;         // clamped_swiglu only
  float alpha = 1.702f;       // clamped_swiglu only
  uint64_t reserved[2] = {};  // zeros: docs/versioning.md
};

struct ProjectionParams {
  int64_t num_tokens = 0;
  int64_t n = 0;
  int64_t k = 0;
  DType dtype = DType::unset;
  DType y_dtype = DType::unset;  // unset means dtype
  const void* x = nullptr;
  int64_t x_stride = 0;  // must be k if there is a norm
  InputNorm norm;
  const void* weight = nullptr;
  PackedWeight packed = {};  // instead of `weight`
  const void* bias = nullptr;
  OutputActivation activation;
  void* y = nullptr;
  int64_t y_stride = 0;
  int32_t adds = 0;              // y is the residual that p is added to
  bool batch_invariant = false;  // separate operations, whose bits for a token do not depend on the others
  // The launch may begin while the kernels before it in the stream run; they must not write `weight` or norm.weight.
  bool overlaps = false;
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
  uint64_t reserved[8] = {};  // zeros: docs/versioning.md
};

// For calls with these sizes or fewer tokens. Sizes that validate() refuses need none.
PROLOGUE_API int64_t projection_workspace_bytes(const ProjectionParams& params);

PROLOGUE_API Status validate(const ProjectionParams& params, const GemmContext& context, const Execution& execution);
PROLOGUE_API Status projection(const ProjectionParams& params, GemmContext& context, const Execution& execution);

}  // namespace prologue
