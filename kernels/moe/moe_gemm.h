// Computes the matrix products of a mixture of experts: each row is multiplied by the weights of its own expert.
//
//   With r = t * top_k + j, e = expert_ids[r] and x_r = x[t] or, with x_per_choice, x[r]:
//   y[r, n] = row_scale[r] * sum_k x_r[k] * weight[e, n, k]  (+ bias[e, n])
//
//   x           [num_tokens, K] dtype, contiguous; with x_per_choice [num_tokens * top_k, K]
//   weight      [num_experts, N, K] dtype, contiguous; or packed rows, below
//   bias        [num_experts, N] dtype, contiguous; null = none
//   expert_ids  [num_tokens, top_k] int32, contiguous, on the device: what moe_route wrote
//   row_scale   [num_tokens * top_k] float32; null = 1. (Llama 4 multiplies what goes into an expert by its weight.)
//   y           [num_tokens * top_k, N] dtype, contiguous; must not overlap anything else
//   workspace   moe_gemm_workspace_bytes() bytes or more, on the device, aligned to 16; contents undefined
//
// The rows of an id outside 0..num_experts-1 become zeros. num_tokens = 0 is a no-op.
//
// Packed weights: with packed.num_segments > 0, `weight` is null and the N rows of each expert are those of all segments, each in one of the
// block formats of weight_format.h. A segment says how many rows of one expert it has, a multiple of 16; its data are those rows of all
// experts, one expert after another: num_experts * packed_weight_bytes(format, rows, K) bytes. K is a multiple of the blocks of every
// format, and at most 2^20. On CUDA x is aligned to 16 bytes.
//
// Numerics: float32 accumulation, scale and bias in float32, one rounding at the store. Packed weights: on the CPU the sum over k is that of
// gemm.h, which quantises x. On CUDA no weight is rounded: of each 32 values of k (or 16, where those have a scale of their own) the products
// of x and the codes are added, multiplied by the scale and added up, and so are those of x and the minimum. (float32 x: each weight is made
// in float32.) The bits of a row of y depend only on that row of x, its scale and its expert: not on num_tokens, nor on what else is in the
// batch, nor on the number of threads.
//
// Nothing is read on the host: which rows an expert has is found out on the device, so the call can be captured in a graph. It never
// allocates or synchronises.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/execution.h>
#include <prologue/kernels/gemm/gemm.h>

namespace prologue {

struct MoeGemmParams {
  int64_t num_tokens = 0;
  int64_t top_k = 0;
  int64_t num_experts = 0;
  int64_t n = 0;
  int64_t k = 0;
  DType dtype = DType::unset;
  bool x_per_choice = false;
  const void* x = nullptr;
  const void* weight = nullptr;
  PackedWeight packed = {};  // instead of `weight`
  const void* bias = nullptr;
  const int32_t* expert_ids = nullptr;
  const float* row_scale = nullptr;
  void* y = nullptr;
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
  uint64_t reserved[4] = {};  // zeros: docs/versioning.md
};

// Returns the bytes for calls with these sizes or fewer tokens. Sizes that validate() refuses need none.
PROLOGUE_API int64_t moe_gemm_workspace_bytes(const MoeGemmParams& params, Device device);

PROLOGUE_API Status validate(const MoeGemmParams& params, const GemmContext& context, const Execution& execution);
PROLOGUE_API Status moe_gemm(const MoeGemmParams& params, GemmContext& context, const Execution& execution);

}  // namespace prologue
