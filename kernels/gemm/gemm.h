// y = x W^T (+ bias): the only matrix product of the library. W has the layout of model files.
//
//   y[m, n] = sum_k x[m, k] * weight[n, k]  (+ bias[n])
//
//   x       [M, K]  dtype,     row stride x_stride >= K
//   weight  [N, K]  dtype,     rows contiguous (stride K); or packed rows, below
//   bias    [N]     dtype,     null = none
//   y       [M, N]  y_dtype,   row stride y_stride >= N; must not overlap x, weight or bias
//
// Every pointer is aligned to its elements. M = 0 and N = 0 are no-ops; With K = 0 the result is y = bias (0 without a bias).
//
// Numerics: float32 accumulation (no TF32), bias added in float32, one rounding at the store of y. y_dtype is dtype or f32. The
// order of the sum depends on M, so the operation is not batch-invariant, unless:
//   batch_invariant  the bits of a row of y depend only on that row of x, on weight and on bias: not on M, nor on the other rows,
//                    nor on the number of threads. The calls that are compared have equal n, k, types, strides and GPU model, and
//                    addresses of equal alignment to 16 bytes. On the CPU it costs nothing below 64 rows, and from there on 4 to
//                    8 % with float32 and at most 2 % with 16 bits. On CUDA cuBLASLt runs every M with one algorithm, which is
//                    chosen for M = 512 and does not split K, so that small M is slower; if it has none, a simple kernel runs.
//                    An M for which that algorithm is not valid is an error (unsupported); none is known
//
// Packed weights: with packed.num_segments > 0, `weight` is null and the rows of W are those of all segments, each in one of the block
// formats of weight_format.h. All rows together are N; K is a multiple of the blocks of every format, and at most 2^20.
//
// On CUDA each weight is made in float32 as its format defines it and rounded to dtype, some rows at a time, in a part of the
// context's workspace; the product is that of dense weights. (projection.h and qkv_prologue.h have kernels for few tokens, which read packed
// weights; up to 16 tokens some of them round no weight.)
//
// On the CPU x is quantised first (but not for f8_e4m3), as llama.cpp does it, but with a float32 scale:
//   a block of x (32 values; 256 where the weights' blocks have 256) has the scale s = largest magnitude / 127 and the codes
//   round(x / s), to nearest even; the scale is 0 if the largest magnitude is below 2^-100
//   y[m, n] = sum over blocks of s * (what the block of weights is times the codes)  (+ bias[n])
// Products with codes are added as integers, exactly; the sums of blocks are added in float32, in the order of k, with one rounding for
// each product and each sum. (A block of i8, i4_64 or i4_128 is several of these blocks, which have its scale.) The zero point of a block of
// i4_32, i4_64 or i4_128 is subtracted from its codes, exactly. Of nvfp4, the products with 16 codes are multiplied by their scale and added up in
// float32, in the order of k; the block's sum then is multiplied by s * the tensor's scale.
//
// On the CPU f8_e4m3 is multiplied by x in float32: y[m, n] = sum over blocks of (even + odd) * 256 * scale  (+ bias[n]), where `even` is
// the sum of (code / 256) * x over the even k of the block, in their order, and `odd` the same of the odd ones; each product and each sum is
// rounded once.
//
// So an element of y has the same bits for every M, number of threads and instruction set, whatever
// batch_invariant is. A row of x with a NaN or an infinity gives a row of NaN (with f8_e4m3: of NaN and infinities; products and sums that
// float32 cannot hold are infinite there); a block of weights whose scale or minimum is not finite
// gives NaN or infinities in its column only. An x_scale * scale that float32 cannot hold is infinite.
//
// Quantised x: with quantize_x = fp8_e4m3 both sides of the product are float8 (W8A8). The weights must be packed, all segments in f8_e4m3.
// For each segment a row of x is quantised in groups: all its k elements if the segment's `scaling` is `rows`, else each 128 channels:
//   largest = the largest magnitude of the group;  x_scale = largest / 448;  code = e4m3(x * (1 / x_scale))
// Each / and * is rounded to float32. e4m3() rounds to the nearest number of float8_e4m3fn, ties to even, at most 448 in magnitude. If 1 / x_scale
// is not finite (largest is 0, or below 1.75 * 2^-120) the scale and the codes are 0. If an element is NaN or infinite, the scale is NaN, the codes
// are 0, so that the row of y is NaN.
//   y[m, n] = sum over blocks of 128 channels of (sum of code_of_x * code_of_weight) * (x_scale * weight_scale)  (+ bias[n])
// On the CPU the sum of a block is that of f8_e4m3 above, with codes in place of x, and each product and sum is rounded once: the same bits for
// every M, number of threads and instruction set. On CUDA codes and scales of x have the same bits as on the CPU, and cuBLASLt multiplies the
// codes on tensor cores, whose sums lose some bits (docs/numerics.md). That takes compute capability 9.0, cuBLASLt 12.9 or later, rows of y that are
// aligned to 16 bytes, segments that begin at columns that keep this, and, but for `rows`, 4 rows of x or more. Elsewhere, and for the last rows of a
// segment that are no multiple of 16, a simple kernel multiplies, slowly. Of the scales that `scaling` says are equal, CUDA reads one. The codes 0x7f
// and 0xff of a weight are NaN on CUDA, and 480 and -480 on the CPU. On CUDA it cannot be combined with batch_invariant (unsupported).
//
// The operation never throws, allocates or synchronises; on CUDA it can be captured into a graph.
#pragma once

#include <cstdint>
#include <memory>

#include <prologue/kernels/base/dtype.h>
#include <prologue/kernels/base/execution.h>
#include <prologue/kernels/base/weight_format.h>

namespace prologue {

struct GemmParams {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  DType dtype = DType::unset;
  DType y_dtype = DType::unset;
  const void* x = nullptr;
  int64_t x_stride = 0;
  const void* weight = nullptr;
  const void* bias = nullptr;
  void* y = nullptr;
  int64_t y_stride = 0;
  bool batch_invariant = false;     // a row of y has the same bits for every m
  PackedWeight packed = {};         // instead of `weight`
  DType quantize_x = DType::unset;  // fp8_e4m3: x is quantised, too; unset: it is not
  uint64_t reserved[4] = {};        // zeros: docs/versioning.md
};

inline constexpr int64_t kGemmWorkspaceBytes = 100663296;  // 96 MiB

// Holds what a GEMM needs besides its arguments. On CUDA that is the cuBLASLt handle, its workspace, and the cache of chosen algorithms.
// The choice is by heuristic for each (N, K, types, bucket of M), never by timing, so two runs return the same bits. On the CPU: scratch
// memory for transposed weights and quantised rows of x. The caller creates and owns it, one for each thread that runs GEMMs.
class PROLOGUE_API GemmContext {
 public:
  static Result<std::unique_ptr<GemmContext>> create(Device device);
  // Creates a context without memory on the device: on CUDA, call set_workspace before the first GEMM. It is for callers who have an
  // allocator, and for graphs: a graph keeps the address of the workspace that it was captured with, which a context of its own would free.
  static Result<std::unique_ptr<GemmContext>> create_without_workspace(Device device);
  virtual ~GemmContext() = default;
  Device device() const { return device_; }
  // Sets kGemmWorkspaceBytes of device memory for the next GEMMs, aligned to 256; scratch, contents undefined. The CPU uses none.
  void set_workspace(void* workspace) { workspace_ = workspace; }
  bool has_workspace() const { return workspace_ != nullptr; }

 protected:
  explicit GemmContext(Device device) : device_(device) {}
  void* workspace() const { return workspace_; }

 private:
  Device device_;
  void* workspace_ = nullptr;
};

// Makes all checks of gemm(), and runs nothing: for callers who run several operations only if all of them can run.
PROLOGUE_API Status validate(const GemmParams& params, const GemmContext& context, const Execution& execution);
PROLOGUE_API Status gemm(const GemmParams& params, GemmContext& context, const Execution& execution);

}  // namespace prologue
