// What is behind projection(). Internal.
//   run_validated   runs a call that validate() accepts; checks nothing
//   run_separately  the same, with one launch for each of its operations
#pragma once

#include <prologue/kernels/projection/projection.h>

namespace prologue {

PROLOGUE_API Status run_validated(const ProjectionParams& params, GemmContext& context, const Execution& execution);
PROLOGUE_API Status run_separately(const ProjectionParams& params, GemmContext& context, const Execution& execution);

// Steps of up to so many tokens of most models are faster with projections in one kernel, on this device; 0: none are.
PROLOGUE_API int64_t most_tokens_of_one_projection(Device device);

// Whether such a matrix, of [n, k], may begin beside attention (overlaps) in every step. Attention of few tokens keeps few SMs busy, and long.
// Small blocks of a large matrix that start beside it gather on the other SMs, and those of the launches after it find places there only:
// measured, such a layer was 14 % slower. At one token it is 1 to 2 % faster if they start when the keys have been read, and from
// tokens_of_rings() on, too: weights pass through rings then, whose blocks have an SM each (docs/tuning/launches.md).
constexpr bool may_begin_beside_attention(int64_t n, int64_t k) { return n * k <= int64_t{1} << 20; }

// The fewest tokens that [n, k] weights (n: of gate and of up together) are multiplied by in a ring. For fewer, weights through registers are
// faster where the blocks of a ring have few rows, and where rows are short. Measured in whole layers (bench_projection).
constexpr int64_t tokens_of_rings(int64_t n, int64_t k) { return k >= 4096 && n >= 3200 ? 2 : k >= 2048 ? 8 : 9; }

// Whether such a matrix is multiplied by one token in a kernel whose blocks hold all of it before there is an x (vector/output_launch_cuda.cu).
constexpr bool waits_with_its_weights(int64_t n, int64_t k) { return n * k <= int64_t{8} << 20; }

namespace cuda {
int64_t most_tokens_of_one_projection();
// Whether one kernel can do the call.
bool projection_is_one_kernel(const ProjectionParams& params);
// By that kernel.
PROLOGUE_API Status projection(const ProjectionParams& params, const Execution& execution);
}  // namespace cuda

}  // namespace prologue
