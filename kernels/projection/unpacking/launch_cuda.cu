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

std::span<const UnpackingOutputInstance> output_instances(DType type) {
  return of_16_bits(type, float16_unpacking_outputs, bfloat16_unpacking_outputs);
}

// There is code for sm_90a only.
bool runs_here() {
  return hopper_multiprocessors([] { return bfloat16_unpacking_outputs().front().kernel; }, kUnpackingThreadsWithNorm, 0) > 0;
}

bool has_one_format(const PackedWeight& packed) {
  for (int32_t s = 1; s < packed.num_segments; ++s) {
    if (packed.segments[s].format != packed.segments[0].format) return false;
  }
  return true;
}

// Says whether the codes of all rows have 8 bits.
bool has_codes_of_8_bits(const PackedWeight& packed) {
  return std::all_of(packed.segments, packed.segments + packed.num_segments, [](const PackedRows& rows) {
    return rows.format == WeightFormat::q8_0 || rows.format == WeightFormat::i8 || rows.format == WeightFormat::f8_e4m3;
  });
}

// Says whether groups of 16 rows are of one segment, and so many groups of one format, from the first of gate's and of up's rows on.
bool has_whole_groups(const ProjectionParams& p, int groups_of_format) {
  const bool one_format = has_one_format(p.packed);
  int64_t begin = 0;
  for (int32_t s = 0; s < p.packed.num_segments; begin += p.packed.segments[s++].rows) {
    if (p.packed.segments[s].rows % kPackedGroupRows != 0) return false;
    if (!one_format && begin % p.n % (groups_of_format * kPackedGroupRows) != 0) return false;
  }
  return true;
}

bool can_run(const ProjectionParams& p) {
  const Product product = product_of(p);
  return p.packed.num_segments > 0 && p.num_tokens <= kMostUnpackingTokens && p.k % kUnpackingBoxChannels == 0 && can_finish(p) &&
         is_readable(product) && has_whole_groups(p, 1) && runs_here();
}

// Says how a launch is divided: groups of 16 rows of a block, and the blocks that divide k.
struct Division {
  int groups;
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
  const int halves = is_gated(p) ? 2 : 1;
  if (p.num_tokens > instance.most_tokens || division.groups % instance.groups_of_format != 0 || division.groups % halves != 0)
    return {};
  if (!has_whole_groups(p, instance.groups_of_format)) return {};
  const bool shares_tile = division.groups / halves % instance.groups_of_format != 0;  // of gate and up
  if (shares_tile && !has_one_format(p.packed)) return {};
  const Product product = product_of(p);
  Divided d;
  PackedArgs<UnpackingArgs>& a = d.args;
  a.num_tokens = static_cast<int32_t>(p.num_tokens);
  a.x_rows = static_cast<int32_t>(round_up(p.num_tokens, 8));
  a.slices = static_cast<int32_t>(p.k / kPackedSliceChannels);
  fill_segments(a.packed, p.packed);
  fill_norm(a, product);
  if (instance.rounds && a.norm_weight != nullptr && a.float_norm_weight != 0)
    return {};  // weights are multiplied by one of their type
  a.groups = division.groups;
  while (division.groups << (a.log_splits + 1) <= kUnpackingWarps) ++a.log_splits;
  a.log_k_blocks = division.log_k_blocks;
  // A warp has half of a large block of a stage, or two slices, at least.
  const int32_t whole = std::max(4, 1 << a.packed.log_unit), of_warp = whole / 2;
  a.stage_slices = std::max(whole, of_warp << a.log_splits);
  for (int32_t s = 0; s < p.packed.num_segments; ++s) {
    const int64_t bytes = a.stage_slices * packed_slice_bytes(p.packed.segments[s].format);
    a.group_bytes = std::max(a.group_bytes, static_cast<int32_t>(bytes));
  }
  const int64_t rows = int64_t{division.groups} / halves * kPackedGroupRows;
  const int64_t stages = divide_up(a.slices, a.stage_slices), k_blocks = int64_t{1} << a.log_k_blocks;
  if ((k_blocks - 1) * divide_up(stages, k_blocks) >= stages) return {};  // a block has none
  const int64_t bytes_in_flight = instance.rounds ? policy::kRoundedBytesInFlight : policy::kCodesBytesInFlight;
  d.shared_bytes = lay_out_unpacking(a, instance.most_tokens, kMaxSharedBytes, bytes_in_flight);
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
  l.threads = p.norm.given != 0 ? kUnpackingThreadsWithNorm : kUnpackingThreads;
  l.cluster_blocks = 1 << division.log_k_blocks;
  l.shared_bytes = d->shared_bytes;
  return l;
}

// Calls visit() for every division.
template <class Visit>
void for_each_division(const Visit& visit) {
  for (int groups = kUnpackingWarps; groups >= 1; --groups) {
    for (int log_k_blocks = 0; 1 << log_k_blocks <= kMaxBlocksOfCluster; ++log_k_blocks) visit(Division{groups, log_k_blocks});
  }
}

std::optional<Launch> choose_output(const ProjectionParams& p) {
  if (!can_run(p) || p.num_tokens < policy::tokens_of_unpacking(product_of(p).n, p.k, has_codes_of_8_bits(p.packed))) return {};
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
    const int64_t stages = divide_up(divide_up(a.slices, a.stage_slices), int64_t{1} << a.log_k_blocks);
    const int64_t slices_of_warp = stages * (a.stage_slices >> a.log_splits);
    const double cost =
        policy::cost_of_unpacking({p.num_tokens, d->blocks, int64_t{1} << a.log_k_blocks, slices_of_warp, unpacking_warps(a)});
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
      list.push_back({str_cat(output_name(params.dtype, instance), ", ", division.groups, " x ", 1 << division.log_k_blocks),
                      instance.most_tokens,
                      [=, &instance](const ProjectionParams& p) { return output_of_division(p, instance, division); }});
    });
  }
}

}  // namespace

constinit const Way<ProjectionParams> kUnpackingOutput = {"unpacking",  kMostUnpackingTokens, true,         true, runs_here,
                                                          output_names, possible_outputs,     choose_output};

}  // namespace prologue::cuda
