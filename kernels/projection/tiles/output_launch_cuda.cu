#include <prologue/kernels/projection/tiles/launch.h>
#include <prologue/kernels/projection/finish/output.h>
#include <prologue/kernels/projection/tiles/output_launch.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>
#include <prologue/kernels/base/device/hopper_code.cuh>
#include <prologue/kernels/projection/tiles/output_kernel.cuh>

namespace prologue::cuda {

namespace {

int64_t multiprocessors() {
  return hopper_multiprocessors([] { return projection_tiles_kernel<__nv_bfloat16>; }, kTileThreads, kTileRegisters);
}

TileSizes sizes_of(const ProjectionParams& p) { return {p.num_tokens, p.n, p.k, true}; }

bool can_tile(const ProjectionParams& p) {
  constexpr int64_t kChannels = 8;  // that are stored at once
  return can_store(p) && is_gated(p) && p.norm.given == 0 && p.bias == nullptr && p.adds == 0 && p.k % 8 == 0 &&
         p.x_stride % 8 == 0 && is_aligned(p.x, 16) && is_aligned(p.weight, 16) && p.y_stride % kChannels == 0 &&
         is_aligned(p.y, 16) && (p.dtype == DType::f16 || p.dtype == DType::bf16) && multiprocessors() >= kTileBlocks;
}

}  // namespace

std::string tiles_instance_name(DType dtype) { return str_cat(dtype_name(dtype), ", tiles"); }

TilesLaunch tiles_launch_of(const ProjectionParams& p) {
  TilesLaunch launch;
  if (!can_tile(p)) return launch;
  launch.blocks = share_out_tiles(launch.args, sizes_of(p), p.x, p.x_stride, p.weight, kGatedColumns, multiprocessors());
  if (launch.blocks == 0) return launch;
  launch.shared_bytes = sizeof(TileShared<__nv_bfloat16, kGatedColumns>);
  launch.kernel = p.dtype == DType::f16 ? projection_tiles_kernel<__half> : projection_tiles_kernel<__nv_bfloat16>;
  return launch;
}

TilesLaunch choose_tiles(const ProjectionParams& p) {
  if (!is_gated(p) || !is_large_enough(sizes_of(p))) return {};
  const TilesLaunch launch = tiles_launch_of(p);
  const bool faster = launch.kernel != nullptr && rounds_of_tiles(launch.args, kGatedColumns, multiprocessors()) <=
                                                      rounds_of_separate_kernels(sizes_of(p), multiprocessors());
  return faster ? launch : TilesLaunch();
}

Status run(const TilesLaunch& chosen, const ProjectionParams& p, cudaStream_t stream) {
  LaunchAttributes attributes(kTileBlocks, p.overlaps);
  const LaunchShape shape = {grid_extent(chosen.blocks), kTileThreads, static_cast<size_t>(chosen.shared_bytes),
                             attributes.span()};
  return launch("projection", chosen.kernel, shape, stream, chosen.args, output_of(p));
}

}  // namespace prologue::cuda
