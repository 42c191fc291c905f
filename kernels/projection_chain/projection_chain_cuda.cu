#include <algorithm>
#include <array>
#include <bit>

#include <prologue/kernels/attention_prologue/backends.h>
#include <prologue/kernels/projection/projection_output.h>
#include <prologue/kernels/projection/projection_ring.h>
#include <prologue/kernels/projection_chain/backends.h>
#include <prologue/kernels/projection_chain/chain_workspace.h>
#include <prologue/kernels/projection_chain/projection_chain_kernel.cuh>
#include <prologue/kernels/qkv_prologue/backends.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>
#include <prologue/kernels/base/device/tensor_map.cuh>

namespace prologue::cuda {

namespace {

constexpr const char* kName = "projection_chain";

struct Instance {
  int token_tiles;
  void (*kernel)(ChainArgs);
};

template <class T, int kTokenTiles>
Instance instance() {
  return {kTokenTiles, projection_chain_kernel<T, kTokenTiles>};
}

template <class T>
std::span<const Instance> instances_of_type() {
  static const Instance kInstances[] = {instance<T, 1>(), instance<T, 2>()};
  return kInstances;
}

std::span<const Instance> instances_of(DType type) {
  if (type == DType::f16) return instances_of_type<__half>();
  if (type == DType::bf16) return instances_of_type<__nv_bfloat16>();
  return {};
}

// The projections of a call as they are: those given.
struct Projections {
  std::array<ProjectionParams, kMostPhases> list;
  int64_t count = 0;
};

Projections projections_of(const ProjectionChainParams& p) {
  Projections all;
  for (int64_t i = 0; i < p.num_projections; ++i) all.list[static_cast<size_t>(all.count++)] = p.projections[i];
  return all;
}

int64_t halves_of(const ProjectionParams& p) { return is_gated(p) ? 2 : 1; }

// A slot has as many boxes of 64 channels as this holds, or one; and no more than kMostBoxes.
constexpr int64_t kSlotBytes = 32 * 1024, kChainShared = 113 * 1024, kMostBoxes = 32;
// Sums of a phase are shared out among so many warps that they take no more than this, if there are rows for it.
constexpr int64_t kEnoughSums = 40 * 1024;

int64_t sums_bytes(const Phase& p, int64_t num_tokens) {
  return (kChainWarps >> p.log_groups) * num_tokens * rows_of_sums(p) * 4;
}

bool fill_phase(ChainArgs& a, int64_t index, const ProjectionParams& of, const void* x, int64_t x_stride, int64_t blocks) {
  Phase& p = a.phases[index];
  const int64_t halves = halves_of(of), rows = ((of.n + blocks - 1) / blocks + 7) / 8 * 8;
  constexpr int64_t kMostRows = 256;  // of a box
  if (rows > kMostRows || halves * rows > kMostRows) return false;
  p.output = output_of(of);
  p.k = static_cast<int32_t>(of.k);
  p.rows = static_cast<int32_t>(halves * rows);
  p.box_rows = static_cast<int32_t>(rows);
  p.blocks = static_cast<int32_t>((of.n + rows - 1) / rows);
  p.lanes = static_cast<int32_t>(std::bit_ceil(static_cast<uint64_t>(rows / kRowsAtOnce)));
  p.eps = of.norm.eps;
  p.inverse_width = 1.0f / static_cast<float>(of.k);
  p.boxes = 1;
  const int64_t box_bytes = SlotLayout(p, static_cast<int>(of.num_tokens)).bytes(), blocks_of_k = of.k / kSlotBoxChannels;
  p.boxes = static_cast<int32_t>(std::clamp<int64_t>(kSlotBytes / box_bytes, 1, std::min(blocks_of_k, kMostBoxes)));
  if (p.boxes > 1) p.boxes &= ~1;
  const int64_t tiles = (p.rows + 15) / 16;
  for (p.log_groups = 0;; ++p.log_groups) {
    const int64_t groups = int64_t{1} << p.log_groups, parts = kChainWarps / groups;
    p.tiles = static_cast<int32_t>(std::bit_ceil(static_cast<uint64_t>((tiles + groups - 1) / groups)));
    if (groups == kChainWarps && p.tiles > kMostTilesOfWarp) return false;
    if (p.tiles > kMostTilesOfWarp) continue;
    if (groups == kChainWarps || groups * 2 > tiles) break;
    if (parts <= p.boxes * 4 && sums_bytes(p, of.num_tokens) <= kEnoughSums) break;
  }
  return encode_map(a.weight[index], of.weight, kSlotBoxChannels,
                    {{of.n, of.k, p.box_rows}, {halves, of.n * of.k, halves}, {blocks_of_k, kSlotBoxChannels, p.boxes}},
                    CU_TENSOR_MAP_L2_PROMOTION_L2_128B) &&
         encode_map(a.x[index], x, kSlotBoxChannels,
                    {{of.num_tokens, x_stride, of.num_tokens}, {blocks_of_k, kSlotBoxChannels, p.boxes}});
}

struct Launch {
  const Instance* instance = nullptr;  // null: it is not possible
  ChainArgs args;
  int64_t blocks = 0;
  int64_t shared_bytes = 0;
};

Launch launch_of(const ProjectionChainParams& p) {
  Launch launch;
  const Projections all = projections_of(p);
  if (p.counters == nullptr || all.count == 0) return launch;
  const int64_t num_tokens = all.list[0].num_tokens, multiprocessors = ring_multiprocessors();
  const Instance* instance = nullptr;
  for (const Instance& each : instances_of(all.list[0].dtype)) {
    if (instance == nullptr && num_tokens <= 8 * each.token_tiles) instance = &each;
  }
  if (instance == nullptr || multiprocessors == 0) return launch;
  ChainArgs& a = launch.args;
  a.num_phases = static_cast<int32_t>(all.count);
  a.num_tokens = static_cast<int32_t>(num_tokens);
  a.counters = p.counters;
  int64_t sums = 0, slot = 0;
  WorkspaceParts parts(p.workspace);
  for (int64_t i = 0; i < all.count; ++i) {
    const ProjectionParams& each = all.list[static_cast<size_t>(i)];
    Phase& phase = a.phases[i];
    const void* x = each.x;
    int64_t x_stride = each.x_stride;
    if (each.norm.given != 0) {  // the phase before makes what the norm needs
      if (i == 0 || each.x != all.list[static_cast<size_t>(i - 1)].y) return launch;
      Phase& before = a.phases[i - 1];
      if (before.lanes > 32) return launch;
      const NormBuffers buffers = take_norm_buffers(parts, num_tokens, each.k, dtype_size(each.dtype));
      before.next_weight = static_cast<const char*>(each.norm.weight);
      before.float_weights = resolve_dtype(each.norm.weight_type, each.dtype) == DType::f32 ? 1 : 0;
      before.next_x = static_cast<char*>(buffers.x);
      before.next_squares = static_cast<float*>(buffers.squares);
      phase.squares = before.next_squares;
      phase.squares_blocks = before.blocks;
      x = buffers.x;
      x_stride = each.k;
    }
    if (!can_ring(each) || !fill_phase(a, i, each, x, x_stride, multiprocessors)) return launch;
    slot = std::max<int64_t>(slot, SlotLayout(phase, a.num_tokens).bytes());
    sums = std::max(sums, sums_bytes(phase, num_tokens));
    launch.blocks = std::max<int64_t>(launch.blocks, phase.blocks);
  }
  a.slot_bytes = static_cast<int32_t>((slot + 1023) / 1024 * 1024);
  const int64_t tail = sizeof(ChainTail), beyond = 128 * kSlotRowBytes;  // rows that there are not are read, too
  sums = std::max((sums + 15) / 16 * 16, beyond);
  a.slots = static_cast<int32_t>(std::min<int64_t>((kChainShared - tail - sums) / a.slot_bytes, kMostSlots));
  if (a.slots < 2) return launch;
  a.sums_at = a.slots * a.slot_bytes;
  a.tail_at = static_cast<int32_t>(a.sums_at + sums);
  launch.shared_bytes = a.tail_at + tail;
  launch.instance = instance;
  return launch;
}

}  // namespace

bool projection_chain_is_one_kernel(const ProjectionChainParams& params) { return launch_of(params).instance != nullptr; }

Status projection_chain(const ProjectionChainParams& params, const Execution& execution) {
  const Launch chosen = launch_of(params);
  if (chosen.instance == nullptr) return unsupported(kName, ": no single CUDA kernel for this call");
  cudaLaunchAttribute attributes[2] = {};
  size_t count = 1;
  attributes[0].id = cudaLaunchAttributeCooperative, attributes[0].val.cooperative = 1;
  if (params.overlaps) attributes[count++] = programmatic_edge();
  const LaunchShape shape = {grid_extent(chosen.blocks), kChainThreads, static_cast<size_t>(chosen.shared_bytes), {attributes, count}};
  PROLOGUE_RETURN_IF_ERROR(launch(kName, chosen.instance->kernel, shape, execution.stream, chosen.args));
  return {};
}

}  // namespace prologue::cuda
