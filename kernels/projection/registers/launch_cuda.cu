#include <algorithm>
#include <bit>
#include <span>
#include <type_traits>

#include <prologue/kernels/base/str_cat.h>
#include <prologue/kernels/projection/policy.h>
#include <prologue/kernels/projection/finish/head_launch.cuh>
#include <prologue/kernels/projection/finish/output_launch.cuh>
#include <prologue/kernels/projection/registers/head_kernel.cuh>
#include <prologue/kernels/projection/registers/output_kernel.cuh>

namespace prologue::cuda {

namespace {

bool is_packed(const Product& p) { return p.packed.num_segments > 0; }

// Whether the kernels can read packed weights: groups of 16 rows, each of one segment.
bool has_whole_groups(const PackedWeight& packed) {
  for (int32_t s = 0; s < packed.num_segments; ++s) {
    const PackedRows& rows = packed.segments[s];
    if (rows.rows % kPackedGroupRows != 0) return false;
  }
  return true;
}

bool can_multiply(const Product& p) {
  return p.num_tokens <= kMostRegistersTokens && p.k % kSliceChannels == 0 && is_readable(p) && has_whole_groups(p.packed) &&
         device_is_hopper_or_later();
}

// Says where the weights are; log_unit is as in PackedSegments.
void fill_weights(RegistersArgs& a, const Product& p) { a.weight = static_cast<const char*>(p.weight); }

template <class Args>
void fill_weights(PackedArgs<Args>& a, const Product& p) {
  fill_segments(a.packed, p.packed);
}

int log_unit_of(const RegistersArgs&) { return 0; }
template <class Args>
int log_unit_of(const PackedArgs<Args>& a) {
  return a.packed.log_unit;
}

int64_t all_shared_bytes_of(const RegistersArgs& a) { return shared_bytes_of(a); }
template <class Args>
int64_t all_shared_bytes_of(const PackedArgs<Args>& a) {
  return packed_rings_at(a) + int64_t{a.row_tiles << a.log_splits} * static_cast<int64_t>(sizeof(PackedRing));
}

// `row_tiles` counts the tiles of 16 rows of each cluster, `blocks` its blocks.
template <class Args>
void fill(Args& a, const Product& p, int64_t row_tiles, int64_t blocks) {
  a.x = static_cast<const char*>(p.x);
  fill_weights(a, p);
  a.x_stride = p.x_stride * dtype_size(p.dtype);
  a.num_tokens = static_cast<int32_t>(p.num_tokens);
  a.slices = static_cast<int32_t>(p.k / kSliceChannels);
  fill_norm(a, p);
  a.row_tiles = static_cast<int32_t>(row_tiles);
  a.blocks = static_cast<int32_t>(blocks);
  a.log_blocks = std::countr_zero(static_cast<unsigned>(a.blocks));
  a.log_splits = std::bit_width(static_cast<unsigned>(std::max<int64_t>(1, 8 / row_tiles))) - 1;
  const int32_t slices_of_block = divide_up(a.slices >> log_unit_of(a), a.blocks) << log_unit_of(a);
  a.x_row_bytes = (slices_of_block | 1) * kXSliceBytes;
  constexpr int32_t kChunksOfWarp = 32, kChunksOfSlice = kXSliceBytes / 16;
  const int32_t warps = a.row_tiles << a.log_splits, chunks = slices_of_block * kChunksOfSlice;
  while (kChunksOfWarp << a.log_staging_warps < chunks && a.num_tokens << (a.log_staging_warps + 1) <= warps)
    ++a.log_staging_warps;
}

template <class Args>
bool fits(const Args& a, int token_tiles) {
  return a.num_tokens <= 8 * token_tiles && a.slices >> log_unit_of(a) >= a.blocks && all_shared_bytes_of(a) <= kMaxSharedBytes;
}

// A kernel's arguments and the number of clusters, and what they say of the launch.
template <class Args>
struct Division {
  Args args;
  int64_t clusters = 0;

  int64_t blocks() const { return clusters * args.blocks; }
  policy::RegistersDivision sizes() const { return {blocks(), args.slices >> (args.log_blocks + args.log_splits)}; }
  void shape(Launch& l, int finishers) const {
    l.blocks = blocks();
    l.threads = (32 * args.row_tiles << args.log_splits) + 32 * finishers;
    l.cluster_blocks = args.blocks;
    l.shared_bytes = all_shared_bytes_of(args);
  }
};

// Makes the division with the most blocks in a cluster: large matrices are then many small pieces, which keep all SMs busy to the end.
// `divide(blocks)` makes one, or nothing if it does not fit.
template <class Divide>
auto with_most_blocks(const Divide& divide) {
  for (int64_t blocks = kMaxBlocksOfCluster; blocks > 1; blocks /= 2) {
    if (const auto division = divide(blocks)) return division;
  }
  return divide(1);
}

// ---- a linear layer ---------------------------------------------------------------------------------------------------------

// The kernels with such arguments.
template <class Args>
std::span<const RegistersOutputInstance<Args>> outputs_of(DType type) {
  if constexpr (std::is_same_v<Args, RegistersArgs>)
    return registers_outputs(type);
  else
    return packed_registers_outputs(type);
}

template <class Args>
std::string output_name(DType type, const RegistersOutputInstance<Args>& instance) {
  const char* const packed = std::is_same_v<Args, RegistersArgs> ? "" : ", packed";
  return str_cat(dtype_name(type), ", registers", packed, ", ", 8 * instance.token_tiles, " tokens");
}

template <class Args>
std::optional<Division<Args>> divide_output(const ProjectionParams& p, const RegistersOutputInstance<Args>& instance,
                                            int64_t row_tiles, int64_t blocks) {
  const int64_t all = p.n / 16 * (is_gated(p) ? 2 : 1);
  Division<Args> division;
  row_tiles = std::min(row_tiles, all);
  fill(division.args, product_of(p), row_tiles, blocks);
  division.clusters = divide_up(all, row_tiles);
  division.args.signals_early = policy::registers_signal_early(division.blocks()) ? 1 : 0;
  if (!fits(division.args, instance.token_tiles)) return {};
  return division;
}

// Packed weights are few long blocks. Those that start while the kernel before is running would gather on the SMs that have room: each asks for
// so much shared memory that an SM has no more of them than its share. Clusters of more than two need room beyond that to be placed at once,
// which is worth it where each takes longer, from two tokens on.
int64_t shared_bytes_of_share(int64_t num_tokens, int64_t blocks, int64_t blocks_of_cluster) {
  const Result<DeviceLimits> device = current_device();
  if (!device.ok()) return 0;
  const int64_t share = divide_up(blocks, int64_t{device->multiprocessors}) + (num_tokens > 1 && blocks_of_cluster > 2 ? 1 : 0);
  const int64_t bytes = device->shared_bytes_of_multiprocessor / (share + 1) - kSharedBytesOfSystem + 16;
  return share < kPackedBlocksOfSm ? std::min<int64_t>(bytes, device->shared_bytes_of_block) : 0;
}

template <class Args>
Launch output_of_division(const ProjectionParams& p, const RegistersOutputInstance<Args>& instance,
                          const Division<Args>& division) {
  Launch l = output_launch(instance.kernel, division.args, p);
  division.shape(l, 0);
  if constexpr (!std::is_same_v<Args, RegistersArgs>)
    l.shared_bytes = std::max(l.shared_bytes, shared_bytes_of_share(p.num_tokens, l.blocks, l.cluster_blocks));
  return l;
}

// Returns the instance for so many tokens, or null.
template <class Args>
const RegistersOutputInstance<Args>* output_for(const ProjectionParams& p) {
  for (const auto& each : outputs_of<Args>(p.dtype)) {
    if (p.num_tokens <= 8 * each.token_tiles) return &each;
  }
  return nullptr;
}

std::optional<Launch> choose_dense_output(const ProjectionParams& p) {
  const auto* const instance = output_for<RegistersArgs>(p);
  if (instance == nullptr) return {};
  std::optional<Division<RegistersArgs>> best;
  for (int64_t row_tiles = policy::kMostRowTiles; row_tiles >= policy::kFewestRowTiles; row_tiles /= 2) {
    const auto divide = [&](int64_t blocks) { return divide_output(p, *instance, row_tiles, blocks); };
    auto division = with_most_blocks(divide);
    while (division && policy::has_too_many_blocks(division->sizes()) && division->args.blocks > 1) {
      const auto fewer = divide(division->args.blocks / 2);
      if (!fewer) break;
      division = fewer;
    }
    if (!division) break;
    if (best && policy::is_divided_too_finely(division->sizes())) break;
    best = division;
    if (policy::is_divided_enough(division->sizes())) break;
  }
  if (!best) return {};
  return output_of_division(p, *instance, *best);
}

std::optional<Launch> choose_packed_output(const ProjectionParams& p) {
  using Args = PackedArgs<RegistersArgs>;
  const auto* const instance = output_for<Args>(p);
  if (instance == nullptr) return {};
  std::optional<Division<Args>> best;
  double least = 0.0;
  for (int64_t row_tiles = policy::kMostRowTiles; row_tiles >= policy::kFewestRowTiles; row_tiles /= 2) {
    for (int64_t blocks = 1; blocks <= kMaxBlocksOfCluster; blocks *= 2) {
      const auto division = divide_output(p, *instance, row_tiles, blocks);
      if (!division) continue;
      const Args& a = division->args;
      const int64_t room = kSharedBytesOfSm / (all_shared_bytes_of(a) + kSharedBytesOfSystem);
      const double cost =
          policy::cost_of_packed_output({p.num_tokens, division->blocks(), blocks, std::min<int64_t>(room, kPackedBlocksOfSm),
                                         a.slices >> a.log_blocks, division->sizes().slices_of_warp});
      if (!best || cost < least) best = division, least = cost;
    }
  }
  if (!best) return {};
  return output_of_division(p, *instance, *best);
}

std::optional<Launch> choose_output(const ProjectionParams& p) {
  const Product product = product_of(p);
  if (!can_finish(p) || !can_multiply(product)) return {};
  return is_packed(product) ? choose_packed_output(p) : choose_dense_output(p);
}

std::vector<std::string> output_names(DType type) {
  std::vector<std::string> names;
  for (const auto& instance : registers_outputs(type)) names.push_back(output_name(type, instance));
  for (const auto& instance : packed_registers_outputs(type)) names.push_back(output_name(type, instance));
  return names;
}

template <class Args>
void possible_outputs_with(const ProjectionParams& params, std::vector<PossibleLaunch<ProjectionParams>>& list) {
  for (const RegistersOutputInstance<Args>& instance : outputs_of<Args>(params.dtype)) {
    for (int64_t row_tiles = policy::kMostRowTiles; row_tiles >= policy::kFewestRowTiles; row_tiles /= 2) {
      for (int64_t blocks = 1; blocks <= kMaxBlocksOfCluster; blocks *= 2) {
        if (!divide_output(params, instance, row_tiles, blocks)) continue;
        list.push_back({str_cat(output_name(params.dtype, instance), ", ", row_tiles, " x ", blocks), 8 * instance.token_tiles,
                        [=, &instance](const ProjectionParams& p) -> std::optional<Launch> {
                          const auto division = divide_output(p, instance, row_tiles, blocks);
                          if (!division) return {};
                          return output_of_division(p, instance, *division);
                        }});
      }
    }
  }
}

void possible_outputs(const ProjectionParams& params, std::vector<PossibleLaunch<ProjectionParams>>& list) {
  const Product product = product_of(params);
  if (!can_finish(params) || !can_multiply(product)) return;
  is_packed(product) ? possible_outputs_with<PackedArgs<RegistersArgs>>(params, list)
                     : possible_outputs_with<RegistersArgs>(params, list);
}

// ---- heads ------------------------------------------------------------------------------------------------------------------

template <class Args>
std::span<const RegistersHeadInstance<Args>> heads_with(DType type) {
  if constexpr (std::is_same_v<Args, RegistersHeadArgs>)
    return registers_heads(type);
  else
    return packed_registers_heads(type);
}

template <class Args>
std::string head_name(DType type, const RegistersHeadInstance<Args>& instance) {
  const char* const packed = std::is_same_v<Args, RegistersHeadArgs> ? "" : ", packed";
  return str_cat(dtype_name(type), ", registers", packed, ", heads of ", 64 * instance.vector, " channels, ",
                 8 * instance.token_tiles, " tokens", instance.finishers != 0 ? ", finishers" : "", names_of(instance.features));
}

template <class Args>
bool serves(const RegistersHeadInstance<Args>& instance, const AttentionPrologueParams& p) {
  return p.num_tokens <= 8 * instance.token_tiles && serves_whole_heads(instance, p);
}

// A cluster of one block has no finisher: registers/head_kernel.cuh says why.
template <class Args>
int64_t fewest_blocks(const RegistersHeadInstance<Args>& instance) {
  return instance.finishers == 0 ? 1 : 2;
}

template <class Args>
std::optional<Division<Args>> divide_heads(const HeadCall& call, const RegistersHeadInstance<Args>& instance, int64_t blocks) {
  Division<Args> division;
  fill(division.args, call.product, call.prologue.head_dim / 16, blocks);
  division.args.lanes = lanes_of_heads(instance, call.prologue);
  division.clusters = heads_of(call);
  if (!fits(division.args, instance.token_tiles)) return {};
  return division;
}

template <class Args>
Launch heads_of_division(const HeadCall& call, const RegistersHeadInstance<Args>& instance, const Division<Args>& division) {
  Launch l = head_launch(instance.kernel, division.args, call, instance.vector);
  division.shape(l, instance.finishers);
  return l;
}

template <class Args>
std::optional<Launch> choose_heads_with(const HeadCall& call) {
  for (const RegistersHeadInstance<Args>& instance : heads_with<Args>(call.product.dtype)) {
    if (!serves(instance, call.prologue)) continue;
    const auto division = with_most_blocks([&](int64_t blocks) {
      const auto divided = divide_heads(call, instance, blocks);
      const bool is_too_many = is_packed(call.product) && blocks > 1 && divided && !policy::packed_heads_fit(divided->blocks());
      return is_too_many ? std::nullopt : divided;
    });
    if (!division || division->args.blocks < fewest_blocks(instance)) continue;
    if (instance.finishers != 0 && !policy::finishing_warps_fit(division->blocks())) continue;
    if (!is_packed(call.product) && !policy::registers_heads_are_worth_it(division->sizes())) return {};
    return heads_of_division(call, instance, *division);
  }
  return {};
}

std::optional<Launch> choose_heads(const HeadCall& call) {
  if (!has_tiles_of_heads(call) || !can_multiply(call.product)) return {};
  if (!is_packed(call.product) && !saves_enough(call)) return {};  // separate operations would make packed weights dense first
  return is_packed(call.product) ? choose_heads_with<PackedArgs<RegistersHeadArgs>>(call)
                                 : choose_heads_with<RegistersHeadArgs>(call);
}

std::vector<std::string> head_names(DType type) {
  std::vector<std::string> names;
  for (const auto& instance : registers_heads(type)) names.push_back(head_name(type, instance));
  for (const auto& instance : packed_registers_heads(type)) names.push_back(head_name(type, instance));
  return names;
}

template <class Args>
void possible_heads_with(const HeadCall& call, std::vector<PossibleLaunch<HeadCall>>& list) {
  for (const RegistersHeadInstance<Args>& instance : heads_with<Args>(call.product.dtype)) {
    if (!serves(instance, call.prologue)) continue;
    for (int64_t blocks = fewest_blocks(instance); blocks <= kMaxBlocksOfCluster; blocks *= 2) {
      if (!divide_heads(call, instance, blocks)) continue;
      list.push_back({str_cat(head_name(call.product.dtype, instance), ", ", blocks, " blocks"), 8 * instance.token_tiles,
                      [=, &instance](const HeadCall& c) -> std::optional<Launch> {
                        const auto division = divide_heads(c, instance, blocks);
                        if (!division) return {};
                        return heads_of_division(c, instance, *division);
                      }});
    }
  }
}

void possible_heads(const HeadCall& call, std::vector<PossibleLaunch<HeadCall>>& list) {
  if (!has_tiles_of_heads(call) || !can_multiply(call.product)) return;
  is_packed(call.product) ? possible_heads_with<PackedArgs<RegistersHeadArgs>>(call, list)
                          : possible_heads_with<RegistersHeadArgs>(call, list);
}

}  // namespace

constinit const Way<ProjectionParams> kRegistersOutput = {
    "registers", kMostRegistersTokens, true, true, device_is_hopper_or_later, output_names, possible_outputs, choose_output};
constinit const Way<HeadCall> kRegistersHeads = {"registers", kMostRegistersTokens, true,        true, device_is_hopper_or_later,
                                                 head_names,  possible_heads,       choose_heads};

}  // namespace prologue::cuda
