#include <algorithm>

#include <prologue/kernels/projection/backends.h>
#include <prologue/kernels/projection/instances.h>
#include <prologue/kernels/projection/projection_choice.h>
#include <prologue/kernels/projection/finish/output.h>
#include <prologue/kernels/projection/ring/output_launch.h>
#include <prologue/kernels/projection/tiles/output_launch.h>
#include <prologue/kernels/projection/vector/output_launch.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>
#include <prologue/kernels/projection/registers/output_kernel.cuh>

namespace prologue::cuda {

namespace {

constexpr const char* kName = "projection";

struct Instance {
  int token_tiles;
  void (*kernel)(ProjectionArgs, OutputArgs);
};

template <class T, int kTokenTiles>
Instance instance() {
  return {kTokenTiles, projection_kernel<T, kTokenTiles>};
}

template <class T>
std::span<const Instance> instances_of_type() {
  static const Instance kInstances[] = {instance<T, 1>()};
  return kInstances;
}

std::span<const Instance> instances_of(DType type) {
  if (type == DType::f16) return instances_of_type<__half>();
  if (type == DType::bf16) return instances_of_type<__nv_bfloat16>();
  return {};
}

// Small launches let the next one start before they multiply: it finds places everywhere.
constexpr int64_t kFewBlocks = 132;

// A launch with so many tiles of rows and blocks in a cluster.
struct Launch {
  const Instance* instance = nullptr;
  ProjectionArgs args;
  int64_t clusters = 0;
};

Launch launch_of(const ProjectionParams& p, const Instance& instance, int64_t tiles, int64_t blocks) {
  Launch launch = {&instance, {}, 0};
  fill_input(launch.args, p.dtype, p.num_tokens, p.k, p.x, p.x_stride, p.norm, p.weight);
  const int64_t all = p.n / 16 * (is_gated(p) ? 2 : 1);
  tiles = std::min(tiles, all);
  share_out_rows(launch.args, tiles, blocks);
  launch.clusters = (all + tiles - 1) / tiles;
  launch.args.early = launch.clusters * blocks <= kFewBlocks ? 1 : 0;
  return launch;
}

bool can_project(const ProjectionParams& p) {
  return can_store(p) && can_stream(p.dtype, p.num_tokens, p.k, p.x, p.x_stride, p.norm, p.weight);
}

// As many blocks in a cluster as there can be, and the fewer rows for a cluster the fewer clusters there are, and the longer the rows, until
// there are kEnoughBlocks and no warp has more than kMostUnits of k. But none has less than kLeastUnits, nor less than kFewUnits where there
// are kManyBlocks (lm_head of a small model): what blocks send each other would take longer than what they read. Measured in a whole layer
// (bench_projection): what other blocks do around a launch decides as much as the launch by itself.
constexpr int64_t kMostTiles = 8, kFewestTiles = 2, kLeastUnits = 2, kMostUnits = 16, kEnoughBlocks = 256;
constexpr int64_t kFewUnits = 8, kManyBlocks = 768;

int64_t units_of_warp(const ProjectionArgs& a) { return a.units >> (a.log_blocks + a.log_parts); }
int64_t blocks_of(const Launch& launch) { return launch.clusters * launch.args.blocks; }

// No instance: it is not possible.
Launch choose(const ProjectionParams& p) {
  if (!can_project(p)) return {};
  const Instance& instance = instances_of(p.dtype).front();
  Launch best;
  for (int64_t tiles = kMostTiles; tiles >= kFewestTiles; tiles /= 2) {
    Launch launch = with_most_blocks([&](int64_t blocks) { return launch_of(p, instance, tiles, blocks); });
    while (launch.instance != nullptr && units_of_warp(launch.args) < kFewUnits && blocks_of(launch) >= 2 * kManyBlocks) {
      const Launch fewer = launch_of(p, instance, tiles, launch.args.blocks / 2);
      if (launch.args.blocks == 1 || !fits(fewer)) break;
      launch = fewer;
    }
    if (launch.instance == nullptr) break;
    if (best.instance != nullptr && units_of_warp(launch.args) < kLeastUnits) break;
    best = launch;
    if (blocks_of(launch) >= kEnoughBlocks && units_of_warp(launch.args) <= kMostUnits) break;
  }
  return best;
}

Status run(const Launch& chosen, const ProjectionParams& p, cudaStream_t stream) {
  const ProjectionArgs& a = chosen.args;
  LaunchAttributes attributes(a.blocks, p.overlaps);
  const LaunchShape shape = {grid_extent(chosen.clusters * a.blocks), static_cast<unsigned>(threads_of(a)),
                             static_cast<size_t>(shared_bytes_of(a)), attributes.span()};
  return launch(kName, chosen.instance->kernel, shape, stream, a, output_of(p));
}

std::string instance_name(DType dtype, const Instance& instance) {
  return str_cat(dtype_name(dtype), ", ", 8 * instance.token_tiles, " tokens");
}

}  // namespace

int64_t most_tokens_of_one_projection() {
  if (has_ring()) return kMostRingTokens;
  return device_is_hopper_or_later() ? 8 * instances_of(DType::bf16).front().token_tiles : 0;
}

bool projection_is_one_kernel(const ProjectionParams& params) {
  return choose_vector(params).kernel != nullptr || choose_ring(params).instance != nullptr ||
         choose(params).instance != nullptr || choose_tiles(params).kernel != nullptr;
}

Status projection(const ProjectionParams& params, const Execution& execution) {
  const VectorLaunch vector = choose_vector(params);
  if (vector.kernel != nullptr) return run(vector, params, execution.stream);
  const RingLaunch ring = choose_ring(params);
  if (ring.instance != nullptr) return run(ring, params, execution.stream);
  const Launch chosen = choose(params);
  if (chosen.instance != nullptr) return run(chosen, params, execution.stream);
  const TilesLaunch tiles = choose_tiles(params);
  if (tiles.kernel == nullptr) return unsupported(kName, ": no single CUDA kernel for this call");
  return run(tiles, params, execution.stream);
}

bool chooses_one_kernel(const ProjectionParams& params) { return projection_is_one_kernel(params); }

std::vector<KernelInstance<ProjectionParams>> vector_instances_of(const ProjectionParams& params) {
  std::vector<KernelInstance<ProjectionParams>> list;
  for (int64_t rows = 1; rows <= kMostVectorRows; rows *= 2) {
    for (int log_ways = 0; 1 << log_ways <= kVectorWarps; ++log_ways) {
      if (vector_launch_of(params, rows, log_ways).kernel == nullptr) continue;
      list.push_back({str_cat(vector_instance_name(params.dtype), ", ", rows, " x ", 1 << log_ways), 1,
                      [rows, log_ways](const ProjectionParams& p, cudaStream_t stream) {
                        return run(vector_launch_of(p, rows, log_ways), p, stream);
                      }});
    }
  }
  return list;
}

std::vector<KernelInstance<ProjectionParams>> instances_of(const ProjectionParams& params) {
  std::vector<KernelInstance<ProjectionParams>> list;
  if (can_ring(params)) {
    for (const RingInstance& instance : ring_instances_of(params.dtype)) {
      for (const int64_t rows :
           {8, 24, 56, 96, 128, 200, 256}) {  // each number of warps that share a stage's channels, whole and not
        for (const int log_sharers : {0, 1, 2}) {
          if (ring_launch_of(params, instance, rows, log_sharers).instance == nullptr) continue;
          list.push_back({str_cat(ring_instance_name(params.dtype, instance), ", ", rows, " x ", 1 << log_sharers),
                          instance.most_tokens, [&instance, rows, log_sharers](const ProjectionParams& p, cudaStream_t stream) {
                            return run(ring_launch_of(p, instance, rows, log_sharers), p, stream);
                          }});
        }
      }
    }
  }
  if (tiles_launch_of(params).kernel != nullptr) {
    list.push_back({str_cat(tiles_instance_name(params.dtype), ", ", kGatedColumns), 0,
                    [](const ProjectionParams& p, cudaStream_t stream) { return run(tiles_launch_of(p), p, stream); }});
  }
  if (!can_project(params)) return list;
  for (const Instance& instance : instances_of(params.dtype)) {
    for (int64_t tiles = kMostTiles; tiles >= kFewestTiles; tiles /= 2) {
      for (int64_t blocks = 1; blocks <= kMaxBlocksOfCluster; blocks *= 2) {
        if (!fits(launch_of(params, instance, tiles, blocks))) continue;
        list.push_back({str_cat(instance_name(params.dtype, instance), ", ", tiles, " x ", blocks), 8 * instance.token_tiles,
                        [&instance, tiles, blocks](const ProjectionParams& p, cudaStream_t stream) {
                          return run(launch_of(p, instance, tiles, blocks), p, stream);
                        }});
      }
    }
  }
  return list;
}

std::vector<std::string> projection_instances(DType dtype) {
  std::vector<std::string> names;
  for (const RingInstance& instance : ring_instances_of(dtype)) names.push_back(ring_instance_name(dtype, instance));
  for (const Instance& instance : instances_of(dtype)) names.push_back(instance_name(dtype, instance));
  names.push_back(tiles_instance_name(dtype));
  return names;
}

}  // namespace prologue::cuda
