#include <algorithm>
#include <optional>

#include <prologue/kernels/base/str_cat.h>
#include <prologue/kernels/projection/policy.h>
#include <prologue/kernels/base/device/hopper_code.cuh>
#include <prologue/kernels/projection/finish/output_launch.cuh>
#include <prologue/kernels/projection/unpacking/output_kernel.cuh>
#include <prologue/kernels/projection/weights/dense.cuh>

namespace prologue::cuda {

namespace {

constexpr int kMostLogTiles = 2;

std::span<const UnpackingOutputInstance> output_instances(DType type) {
  return of_16_bits(type, float16_unpacking_outputs, bfloat16_unpacking_outputs);
}

// There is code for sm_90a only.
bool runs_here() {
  return hopper_multiprocessors([] { return bfloat16_unpacking_outputs().front().kernel; }, kUnpackingThreads, 0) > 0;
}

bool has_one_format(const PackedWeight& packed) {
  for (int32_t s = 1; s < packed.num_segments; ++s) {
    if (packed.segments[s].format != packed.segments[0].format) return false;
  }
  return true;
}

// Says whether groups of 16 rows are of one segment, and tiles of one format, where the rows of gate and of up begin with a tile each.
bool has_whole_tiles(const ProjectionParams& p) {
  const bool one_format = has_one_format(p.packed);
  int64_t begin = 0;
  for (int32_t s = 0; s < p.packed.num_segments; begin += p.packed.segments[s++].rows) {
    if (p.packed.segments[s].rows % kPackedGroupRows != 0) return false;
    if (!one_format && begin % p.n % kUnpackingTileRows != 0) return false;
  }
  return true;
}

bool can_run(const ProjectionParams& p) {
  const Product product = product_of(p);
  return p.packed.num_segments > 0 && p.num_tokens <= kMostUnpackingTokens && p.k % kUnpackingBoxChannels == 0 && can_finish(p) &&
         is_readable(product) && has_whole_tiles(p) && runs_here();
}

// Says how a launch is divided: tiles of 64 rows, and the blocks that divide k.
struct Division {
  int log_tiles;
  int log_k_blocks;
};

// A kernel's arguments, the blocks of its launch and their shared memory.
struct Divided {
  PackedArgs<UnpackingArgs> args;
  int64_t blocks;
  int64_t shared_bytes;
};

// Returns nothing if the kernel cannot do the call so.
std::optional<Divided> divide(const ProjectionParams& p, const UnpackingOutputInstance& instance, const Division& division) {
  const bool shares_tile = is_gated(p) && division.log_tiles == 0;  // half of a tile is gate's, half up's
  if (p.num_tokens > instance.most_tokens || (shares_tile && !has_one_format(p.packed))) return {};
  const Product product = product_of(p);
  Divided d;
  PackedArgs<UnpackingArgs>& a = d.args;
  a.num_tokens = static_cast<int32_t>(p.num_tokens);
  a.x_rows = static_cast<int32_t>(round_up(p.num_tokens, 8));
  a.slices = static_cast<int32_t>(p.k / kPackedSliceChannels);
  fill_segments(a.packed, p.packed);
  fill_norm(a, product);
  a.log_tiles = division.log_tiles;
  a.log_k_blocks = division.log_k_blocks;
  // A warpgroup has half of a large block of a stage, or two slices, at least.
  const int32_t whole = std::max(4, 1 << a.packed.log_unit), of_warpgroup = whole / 2;
  a.stage_slices = std::max(whole, of_warpgroup << log_splits_of(a));
  for (int32_t s = 0; s < p.packed.num_segments; ++s) {
    const int64_t bytes = a.stage_slices * packed_slice_bytes(p.packed.segments[s].format);
    a.group_bytes = std::max(a.group_bytes, static_cast<int32_t>(bytes));
  }
  const int64_t halves = is_gated(p) ? 2 : 1, rows = (int64_t{kUnpackingTileRows} << a.log_tiles) / halves;
  const int64_t stages = divide_up(a.slices, a.stage_slices), k_blocks = int64_t{1} << a.log_k_blocks;
  if ((k_blocks - 1) * divide_up(stages, k_blocks) >= stages) return {};  // a block has none
  d.shared_bytes = lay_out_unpacking(a, instance.most_tokens, kMaxSharedBytes, policy::kUnpackingBytesInFlight);
  d.blocks = divide_up(p.n, rows) << a.log_k_blocks;
  if (a.stages < 1 || d.shared_bytes > kMaxSharedBytes) return {};
  return d;
}

std::optional<Launch> output_of_division(const ProjectionParams& p, const UnpackingOutputInstance& instance,
                                         const Division& division) {
  auto d = divide(p, instance, division);
  if (!d) return {};
  const int64_t boxes = boxes_of_stage(d->args);
  if (!encode_map(d->args.x, p.x, kUnpackingBoxChannels,
                  {{p.num_tokens, p.x_stride, d->args.x_rows}, {p.k / kUnpackingBoxChannels, kUnpackingBoxChannels, boxes}})) {
    return {};
  }
  Launch l = output_launch(instance.kernel, d->args, p);
  l.blocks = d->blocks;
  l.threads = kUnpackingThreads;
  l.cluster_blocks = 1 << division.log_k_blocks;
  l.shared_bytes = d->shared_bytes;
  return l;
}

// Calls visit() for every division.
template <class Visit>
void for_each_division(const Visit& visit) {
  for (int log_tiles = kMostLogTiles; log_tiles >= 0; --log_tiles) {
    for (int log_k_blocks = 0; 1 << log_k_blocks <= kMaxBlocksOfCluster; ++log_k_blocks) visit(Division{log_tiles, log_k_blocks});
  }
}

std::optional<Launch> choose_output(const ProjectionParams& p) {
  if (!can_run(p) || p.num_tokens < policy::tokens_of_unpacking(p.k)) return {};
  const auto instances = output_instances(p.dtype);
  const auto instance =
      std::find_if(instances.begin(), instances.end(), [&](const auto& each) { return p.num_tokens <= each.most_tokens; });
  if (instance == instances.end()) return {};
  std::optional<Division> best;
  double least = 0.0;
  for_each_division([&](const Division& division) {
    const auto d = divide(p, *instance, division);
    if (!d) return;
    const auto& a = d->args;
    const int64_t slices_of_warp = divide_up(int64_t{a.slices} >> a.log_k_blocks, int64_t{1} << log_splits_of(a));
    const double cost = policy::cost_of_unpacking({p.num_tokens, d->blocks, int64_t{1} << a.log_k_blocks, slices_of_warp});
    if (!best || cost < least) best = division, least = cost;
  });
  return best ? output_of_division(p, *instance, *best) : std::nullopt;
}

std::string output_name(DType type, const UnpackingOutputInstance& instance) {
  return str_cat(dtype_name(type), ", unpacking, ", instance.most_tokens, " tokens");
}

std::vector<std::string> output_names(DType type) {
  std::vector<std::string> names;
  for (const auto& instance : output_instances(type)) names.push_back(output_name(type, instance));
  return names;
}

void possible_outputs(const ProjectionParams& params, std::vector<PossibleLaunch<ProjectionParams>>& list) {
  if (!can_run(params)) return;
  for (const UnpackingOutputInstance& instance : output_instances(params.dtype)) {
    for_each_division([&](const Division& division) {
      if (!divide(params, instance, division)) return;
      list.push_back(
          {str_cat(output_name(params.dtype, instance), ", ", 1 << division.log_tiles, " x ", 1 << division.log_k_blocks),
           instance.most_tokens,
           [=, &instance](const ProjectionParams& p) { return output_of_division(p, instance, division); }});
    });
  }
}

}  // namespace

constinit const Way<ProjectionParams> kUnpackingOutput = {"unpacking",  kMostUnpackingTokens, true,         true, runs_here,
                                                          output_names, possible_outputs,     choose_output};

}  // namespace prologue::cuda
