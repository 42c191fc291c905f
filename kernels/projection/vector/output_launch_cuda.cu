#include <prologue/kernels/projection/backends.h>
#include <prologue/kernels/projection/projection_choice.h>
#include <prologue/kernels/projection/finish/output.h>
#include <prologue/kernels/projection/vector/output_launch.h>
#include <prologue/kernels/projection/vector/choice.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>

namespace prologue::cuda {

std::string vector_instance_name(DType dtype) { return str_cat(dtype_name(dtype), ", vector"); }

VectorLaunch vector_launch_of(const ProjectionParams& p, int64_t rows, int log_ways) {
  VectorLaunch launch;
  VectorArgs& a = launch.args;
  const bool halves = is_gated(p) && 1 << log_ways == kVectorWarps;  // of a warp's rows would be of gate
  if (p.num_tokens != 1 || halves || !can_store(p) || !can_stream(p.dtype, 1, p.k, p.x, p.x_stride, p.norm, p.weight) ||
      !fill_vector(a, p.dtype, p.k, p.x, p.norm, p.weight, rows, log_ways)) {
    return launch;
  }
  const int64_t rows_of_y = is_gated(p) ? rows_of_block(a) / 2 : rows_of_block(a);
  launch.blocks = (p.n + rows_of_y - 1) / rows_of_y;
  launch.kernel = p.dtype == DType::f16 ? projection_vector_kernel<__half> : projection_vector_kernel<__nv_bfloat16>;
  return launch;
}

// Measured in whole layers and steps (bench_projection, generate): as many rows for a warp as leave some blocks, and two turns of them if that
// leaves blocks for all SMs (with four, 1B and 8B are slower); and a large matrix without an activation only if its rows are long. (The output
// projection of 8B takes the places of attention's neighbours, lm_head is as fast.)
constexpr int64_t kEnoughVectorBlocks = 32, kRowsOfTwoTurns = 2 * kVectorRowsAtOnce, kEnoughBlocksOfTurns = 256;

VectorLaunch choose_vector(const ProjectionParams& p) {
  VectorLaunch launch;
  if (!is_gated(p) && p.k <= p.n && !waits_with_its_weights(p.n, p.k)) return launch;
  for (int64_t rows = kRowsOfTwoTurns; rows >= 1; rows /= 2) {
    launch = vector_launch_of(p, rows, fewest_ways(p.dtype, p.k));
    if (launch.blocks >= (rows > kVectorRowsAtOnce ? kEnoughBlocksOfTurns : kEnoughVectorBlocks)) break;
  }
  return launch;
}

Status run(const VectorLaunch& chosen, const ProjectionParams& p, cudaStream_t stream) {
  LaunchAttributes attributes(1, p.overlaps);
  const LaunchShape shape = {grid_extent(chosen.blocks), kVectorThreads, 0, attributes.span()};
  return launch("projection", chosen.kernel, shape, stream, chosen.args, output_of(p));
}

}  // namespace prologue::cuda
