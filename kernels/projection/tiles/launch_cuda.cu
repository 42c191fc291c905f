#include <algorithm>
#include <bit>

#include <prologue/kernels/base/str_cat.h>
#include <prologue/kernels/projection/policy.h>
#include <prologue/kernels/base/device/hopper_code.cuh>
#include <prologue/kernels/base/device/tensor_map.cuh>
#include <prologue/kernels/projection/finish/head_launch.cuh>
#include <prologue/kernels/projection/finish/output_launch.cuh>
#include <prologue/kernels/projection/tiles/head_kernel.cuh>
#include <prologue/kernels/projection/tiles/output_kernel.cuh>

namespace prologue::cuda {

namespace {

std::span<const TilesOutputInstance> output_instances(DType type) {
  return of_16_bits(type, float16_tiles_outputs, bfloat16_tiles_outputs);
}
std::span<const TilesHeadInstance> head_instances(DType type) {
  return of_16_bits(type, float16_tiles_heads, bfloat16_tiles_heads);
}

// Returns the SMs of the current device if it can run the kernels, else 0.
int64_t output_sms() {
  return hopper_multiprocessors([] { return bfloat16_tiles_outputs().front().kernel; }, kTileThreads, kTileRegisters);
}
int64_t head_sms() {
  return hopper_multiprocessors([] { return bfloat16_tiles_heads().front().kernel; }, kTileThreads, kTileRegisters);
}
bool runs_outputs() { return output_sms() >= kTileBlocks; }
bool runs_heads() { return head_sms() >= kTileBlocks; }

// The norm is an operation of its own.
bool can_multiply(const Product& p) { return p.norm.given == 0 && p.k % 8 == 0 && is_readable(p); }

policy::PromptSizes sizes_of(const Product& p) { return {p.num_tokens, p.n, p.k}; }

policy::TilesDivision division_of(const TilesArgs& a, int64_t tile_columns, int64_t sms) {
  return {tile_columns, a.stages_of_k, a.whole, a.count > a.whole, sms / kTileBlocks};
}

// Fills in the division into tiles of so many columns. Returns the blocks of the launch, or 0 if there are too many tiles, or if the driver
// does not take the addresses or strides.
int64_t divide(TilesArgs& a, const Product& p, bool gated, int64_t tile_columns, EncodeWeights encode, int64_t sms) {
  a.num_tokens = static_cast<int32_t>(p.num_tokens);
  a.gated = gated ? 1 : 0;
  a.stages_of_k = static_cast<int32_t>(divide_up(p.k, kTileChannels));
  a.pairs = static_cast<int32_t>(divide_up(p.num_tokens, kTileBlocks * kTileTokens));
  a.columns = static_cast<int32_t>(divide_up(p.n, tile_columns));
  const int64_t tiles = int64_t{a.pairs} * a.columns, clusters = std::min(2 * tiles, sms / kTileBlocks);
  if (tiles > INT32_MAX / 4) return 0;  // kernels count them in 32 bits
  const int64_t last = tiles % clusters, divided = may_divide_tiles(tile_columns) && 2 * last <= clusters ? last : 0;
  a.whole = static_cast<int32_t>(tiles - divided);
  a.count = static_cast<int32_t>(tiles + divided);
  const int64_t halves = gated ? 2 : 1, rows = p.n / halves;
  const bool encoded =
      encode_map(a.x, p.x, p.k, {{p.num_tokens, p.x_stride, kTileTokens / 2}, {1, p.x_stride * p.num_tokens, 1}}) &&
      encode(a.weight, p.weight, p.k, {{rows, p.k, tile_box_rows(tile_columns)}, {halves, rows * p.k, 1}},
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
  return encoded ? kTileBlocks * std::min(clusters, int64_t{a.count}) : 0;
}

void shape(Launch& l, int64_t blocks, int shared_bytes) {
  l.blocks = blocks;
  l.threads = kTileThreads;
  l.cluster_blocks = kTileBlocks;
  l.shared_bytes = shared_bytes;
}

// ---- a linear layer: gate and up with their activation ----------------------------------------------------------------------

struct OutputTiles {
  TilesArgs args;
  int64_t blocks = 0;
};

// Calls with a gated activation, and neither norm nor bias nor residual.
std::optional<OutputTiles> tiles_of(const ProjectionParams& p) {
  constexpr int64_t kChannels = 8;  // that are stored at once
  const Product product = product_of(p);
  OutputTiles tiles;
  if (!can_finish(p) || !is_gated(p) || p.bias != nullptr || p.adds != 0 || p.y_stride % kChannels != 0 || !is_aligned(p.y, 16) ||
      !can_multiply(product) || !runs_outputs()) {
    return {};
  }
  tiles.blocks = divide(tiles.args, product, true, kGatedColumns, output_instances(p.dtype).front().encode, output_sms());
  if (tiles.blocks == 0) return {};
  return tiles;
}

Launch output_of_tiles(const ProjectionParams& p, const OutputTiles& tiles) {
  const TilesOutputInstance& instance = output_instances(p.dtype).front();
  Launch l = output_launch(instance.kernel, tiles.args, p);
  shape(l, tiles.blocks, instance.shared_bytes);
  return l;
}

std::optional<Launch> choose_output(const ProjectionParams& p) {
  const policy::PromptSizes sizes = sizes_of(product_of(p));
  if (!is_gated(p) || !policy::is_large_enough(sizes)) return {};
  const auto tiles = tiles_of(p);
  if (!tiles || !policy::tiles_are_worth_it(sizes, division_of(tiles->args, kGatedColumns, output_sms()), output_sms()))
    return {};
  return output_of_tiles(p, *tiles);
}

std::string output_name(DType type) { return str_cat(dtype_name(type), ", tiles"); }

std::vector<std::string> output_names(DType type) {
  return output_instances(type).empty() ? std::vector<std::string>() : std::vector{output_name(type)};
}

void possible_outputs(const ProjectionParams& params, std::vector<PossibleLaunch<ProjectionParams>>& list) {
  if (!tiles_of(params)) return;
  list.push_back(
      {str_cat(output_name(params.dtype), ", ", kGatedColumns), 0, [](const ProjectionParams& p) -> std::optional<Launch> {
         const auto tiles = tiles_of(p);
         if (!tiles) return {};
         return output_of_tiles(p, *tiles);
       }});
}

// ---- heads ------------------------------------------------------------------------------------------------------------------

std::string head_name(DType type, const TilesHeadInstance& instance) {
  return str_cat(dtype_name(type), ", tiles of ", kTileTokens, " x ", instance.columns,
                 instance.heads_at_once > 1 ? str_cat(", ", instance.heads_at_once, " heads") : "", names_of(instance.features));
}

// Returns two if tiles have parts of 64 columns, and a head 128 channels.
int parts_of_head(const TilesHeadInstance& instance, const AttentionPrologueParams& p) {
  return instance.columns == kColumnsInParts && p.head_dim == 2 * kPartColumns ? 2 : 1;
}

// Says whether no step but the rotation needs more than a channel, and the pairs are those of halves or neighbours.
bool may_divide_heads(const TilesHeadInstance& instance, const AttentionPrologueParams& p) {
  if ((instance.features & kNorm) != 0) return false;
  return (instance.features & kLayouts) == 0 || (p.rope.style == RopeStyle::interleaved && p.rope.rotary_dim == p.head_dim);
}

bool serves(const TilesHeadInstance& instance, const AttentionPrologueParams& p) {
  const int parts = parts_of_head(instance, p);
  if (!std::has_single_bit(static_cast<uint64_t>(p.head_dim))) return false;
  if (parts > 1 && !may_divide_heads(instance, p)) return false;
  if (instance.columns % (p.head_dim / parts) != 0 || v_head_dim(p) != p.head_dim || widest_vector(p) < kTilesVector)
    return false;
  const int features = features_of(p, kTilesVector);
  if (features < 0 || (features & (kTokenNorm | kAxes)) != 0 || units_of_all(p, kTilesVector) > 32) return false;
  if ((instance.features & kMostSteps) != 0) return (features & (kLayouts | kEveryStep) & ~instance.features) == 0;
  if ((features & ~(kPerToken | kDerived)) != instance.features) return false;
  if (instance.columns == kColumnsInParts) return true;  // those at once are of any tensor
  return p.num_q_heads % instance.heads_at_once == 0 && p.num_kv_heads % instance.heads_at_once == 0 &&
         instance.columns / p.head_dim % instance.heads_at_once == 0;
}

bool can_run(const HeadCall& call) { return !call.batch_invariant && can_multiply(call.product) && runs_heads(); }

struct HeadTiles {
  const TilesHeadInstance* instance = nullptr;
  TilesHeadArgs args;
  int64_t blocks = 0;
};

std::optional<HeadTiles> tiles_of(const HeadCall& call, const TilesHeadInstance& instance) {
  const AttentionPrologueParams& prologue = call.prologue;
  if (!can_run(call) || !serves(instance, prologue)) return {};
  HeadTiles tiles;
  tiles.instance = &instance;
  TilesHeadArgs& a = tiles.args;
  a.parts = parts_of_head(instance, prologue);
  a.heads = static_cast<int32_t>(heads_of(call) * a.parts);
  a.columns_of_head = static_cast<int32_t>(prologue.head_dim) / a.parts;
  a.heads_of_tile = instance.columns / a.columns_of_head;
  a.lanes = static_cast<int32_t>(std::bit_ceil(static_cast<uint64_t>(units_of_all(prologue, kTilesVector)))) / a.parts;
  if (a.parts > 1 && (instance.features & kLayouts) == 0) {
    a.swapped_quarters = 1;
    a.part_shift = a.second_shift = kPartColumns / 2;
  } else if (a.parts > 1) {
    a.part_shift = kPartColumns;
  }
  tiles.blocks = divide(a, call.product, false, instance.columns, instance.encode, head_sms());
  if (tiles.blocks == 0) return {};
  return tiles;
}

Launch heads_of_tiles(const HeadCall& call, const HeadTiles& tiles) {
  Launch l = head_launch(tiles.instance->kernel, tiles.args, call, kTilesVector);
  shape(l, tiles.blocks, tiles.instance->shared_bytes);
  return l;
}

std::optional<Launch> choose_heads(const HeadCall& call) {
  const policy::PromptSizes sizes = sizes_of(call.product);
  if (!policy::is_large_enough(sizes) || !can_run(call)) return {};
  std::optional<HeadTiles> best;
  double least = policy::waves_of_separate_kernels(sizes, head_sms());
  int columns = 0;
  for (const TilesHeadInstance& instance : head_instances(call.product.dtype)) {
    if (instance.columns == columns || !serves(instance, call.prologue)) continue;
    columns = instance.columns;  // the first of them is the fastest
    auto tiles = tiles_of(call, instance);
    if (!tiles) continue;
    const double waves = policy::waves_of_tiles(division_of(tiles->args, instance.columns, head_sms()));
    if (waves <= least) best = std::move(tiles), least = waves;
  }
  if (!best) return {};
  return heads_of_tiles(call, *best);
}

std::vector<std::string> head_names(DType type) {
  std::vector<std::string> names;
  for (const TilesHeadInstance& instance : head_instances(type)) names.push_back(head_name(type, instance));
  return names;
}

void possible_heads(const HeadCall& call, std::vector<PossibleLaunch<HeadCall>>& list) {
  for (const TilesHeadInstance& instance : head_instances(call.product.dtype)) {
    if (!tiles_of(call, instance)) continue;
    list.push_back({head_name(call.product.dtype, instance), 0, [&instance](const HeadCall& c) -> std::optional<Launch> {
                      const auto tiles = tiles_of(c, instance);
                      if (!tiles) return {};
                      return heads_of_tiles(c, *tiles);
                    }});
  }
}

}  // namespace

constinit const Way<ProjectionParams> kTilesOutput = {"tiles",      0, false, false, runs_outputs, output_names, possible_outputs,
                                                      choose_output};
constinit const Way<HeadCall> kTilesHeads = {"tiles", 0, false, false, runs_heads, head_names, possible_heads, choose_heads};

}  // namespace prologue::cuda
