#include <algorithm>
#include <optional>

#include <prologue/kernels/base/str_cat.h>
#include <prologue/kernels/projection/policy.h>
#include <prologue/kernels/projection/finish/head_launch.cuh>
#include <prologue/kernels/projection/finish/output_launch.cuh>
#include <prologue/kernels/projection/integer/head_kernel.cuh>
#include <prologue/kernels/projection/integer/output_kernel.cuh>

namespace prologue::cuda {

namespace {

// Says whether the kernels can read the weights: groups of 16 rows, each of one segment, of codes that are whole numbers.
bool is_integer(const PackedWeight& packed) {
  for (int32_t s = 0; s < packed.num_segments; ++s) {
    const PackedRows& rows = packed.segments[s];
    if (rows.rows % kPackedGroupRows != 0 || rows.format == WeightFormat::f8_e4m3) return false;
  }
  return packed.num_segments > 0;
}

bool can_multiply(const Product& p) {
  return p.num_tokens <= kMostIntegerTokens && is_integer(p.packed) && is_readable(p) && device_is_hopper_or_later();
}

// Fills in all but how many tiles a block has, and its ring.
template <class Args>
void fill(PackedArgs<Args>& a, const Product& p) {
  a.x = static_cast<const char*>(p.x);
  a.x_stride = p.x_stride * dtype_size(p.dtype);
  a.num_tokens = static_cast<int32_t>(p.num_tokens);
  a.slices = static_cast<int32_t>(p.k / kPackedSliceChannels);
  fill_segments(a.packed, p.packed);
  a.units_of_tile = Divisor(a.slices >> a.packed.log_unit);
  fill_norm(a, p);
  for (int32_t s = 0; s < p.packed.num_segments; ++s) {
    const auto slice_bytes = static_cast<int32_t>(packed_slice_bytes(p.packed.segments[s].format));
    a.stage_bytes = std::max(a.stage_bytes, slices_of_piece(slice_bytes) * slice_bytes);
  }
}

// Returns the least that a block asks for so that no SM has two of it.
int64_t more_than_half(const DeviceLimits& device) {
  return device.shared_bytes_of_multiprocessor / 2 - kSharedBytesOfSystem + 16;
}

// Returns the shared memory that a block can have.
int64_t room_of(const DeviceLimits& device) { return std::min<int64_t>(kMaxSharedBytes, device.shared_bytes_of_block); }

// Takes as many stages as there is room for up to `bytes_in_flight`, and two at least.
void choose_stages(IntegerArgs& a, int64_t bytes_in_flight, int64_t room) {
  a.stages = static_cast<int32_t>(std::clamp<int64_t>(bytes_in_flight / kIntegerWarps / a.stage_bytes, 2, kMostIntegerStages));
  while (a.stages > 2 && integer_shared_bytes(a) > room) --a.stages;
}

// ---- a linear layer ---------------------------------------------------------------------------------------------------------

// Returns nothing if the kernel cannot do the call. A ring has so many stages, or, with 0, as many as choose_stages() says.
std::optional<Launch> output_with_stages(const ProjectionParams& p, int32_t stages) {
  const auto kernel = integer_output(p.dtype, p.num_tokens);
  const Product product = product_of(p);
  const Result<DeviceLimits> device = current_device();
  if (kernel == nullptr || !device.ok() || !can_finish(p) || !can_multiply(product)) return {};
  PackedArgs<IntegerArgs> a;
  fill(a, product);
  const int64_t groups = p.n / kPackedGroupRows, of_block = divide_up(groups, int64_t{device->multiprocessors});
  a.tiles = static_cast<int32_t>(of_block * (is_gated(p) ? 2 : 1));
  const bool by_memory = policy::integer_blocks_are_apart_by_memory(p.norm.given != 0);
  const int64_t half = more_than_half(*device), room = room_of(*device);
  choose_stages(a, policy::kIntegerBytesInFlight, std::min(room, by_memory ? half : half - 2 * kSharedBytesOfSystem));
  if (stages != 0) a.stages = stages;
  const int64_t shared_bytes = integer_shared_bytes(a);
  if (shared_bytes > room) return {};
  Launch l = output_launch(kernel, a, p);
  l.blocks = divide_up(groups, of_block);
  l.threads = by_memory ? kIntegerThreads : kIntegerThreads + 32;
  l.shared_bytes = by_memory ? std::max(shared_bytes, std::min(half, room)) : shared_bytes;
  return l;
}

std::optional<Launch> choose_output(const ProjectionParams& p) {
  if (p.n < policy::kFewestIntegerRows) return {};
  return output_with_stages(p, 0);
}

std::string output_name(DType type, int64_t num_tokens) {
  return str_cat(dtype_name(type), ", integer, ", num_tokens, " tokens");
}

std::vector<std::string> output_names(DType type) {
  std::vector<std::string> names;
  for (int64_t tokens = 1; integer_output(type, tokens) != nullptr; ++tokens) names.push_back(output_name(type, tokens));
  return names;
}

void possible_outputs(const ProjectionParams& params, std::vector<PossibleLaunch<ProjectionParams>>& list) {
  for (int32_t stages = 2; stages <= kMostIntegerStages; ++stages) {
    if (!output_with_stages(params, stages)) return;
    list.push_back({str_cat(output_name(params.dtype, params.num_tokens), ", ", stages, " stages"), params.num_tokens,
                    [=](const ProjectionParams& p) { return output_with_stages(p, stages); }});
  }
}

// ---- heads ------------------------------------------------------------------------------------------------------------------

std::string head_name(DType type, const IntegerHeadInstance& instance) {
  return str_cat(dtype_name(type), ", integer, heads of ", 64 * instance.vector, " channels, ", instance.num_tokens, " tokens",
                 names_of(instance.features));
}

// Returns nothing if the kernel cannot do the call with so many blocks in a cluster.
std::optional<Launch> heads_with_blocks(const HeadCall& call, const IntegerHeadInstance& instance, int log_blocks) {
  const AttentionPrologueParams& p = call.prologue;
  const Result<DeviceLimits> device = current_device();
  if (!device.ok() || !has_tiles_of_heads(call) || !can_multiply(call.product) ||
      call.product.num_tokens != instance.num_tokens || !serves_whole_heads(instance, p) ||
      (p.head_dim / kPackedGroupRows) % (1 << log_blocks) != 0) {
    return {};
  }
  PackedArgs<IntegerHeadArgs> a;
  fill(a, call.product);
  a.tiles = static_cast<int32_t>((p.head_dim / kPackedGroupRows) >> log_blocks);
  a.log_blocks = log_blocks;
  a.head_dim = static_cast<int32_t>(p.head_dim);
  a.lanes = lanes_of_heads(instance, p);
  const int64_t beside = kArrivalsBytesOfHead + call.product.num_tokens * p.head_dim * 4;
  const int64_t room = room_of(*device) - beside;
  choose_stages(a, policy::kIntegerBytesInFlightOfHeads, room);
  a.arrivals_at = static_cast<int32_t>(round_up(integer_shared_bytes(a), int64_t{16}));
  if (a.arrivals_at > room) return {};
  Launch l = head_launch(instance.kernel, a, call, instance.vector);
  l.blocks = heads_of(call) << log_blocks;
  l.threads = kIntegerThreads + 32;
  l.cluster_blocks = 1 << log_blocks;
  l.shared_bytes = a.arrivals_at + beside;
  return l;
}

std::optional<Launch> choose_heads(const HeadCall& call) {
  const Result<DeviceLimits> device = current_device();
  if (!device.ok()) return {};
  for (const IntegerHeadInstance& instance : integer_heads(call.product.dtype)) {
    for (int log_blocks = 3; log_blocks >= 0; --log_blocks) {
      if (heads_of(call) << log_blocks > device->multiprocessors) continue;
      if (auto launch = heads_with_blocks(call, instance, log_blocks)) return launch;
    }
  }
  return {};
}

std::vector<std::string> head_names(DType type) {
  std::vector<std::string> names;
  for (const auto& instance : integer_heads(type)) names.push_back(head_name(type, instance));
  return names;
}

void possible_heads(const HeadCall& call, std::vector<PossibleLaunch<HeadCall>>& list) {
  for (const IntegerHeadInstance& instance : integer_heads(call.product.dtype)) {
    for (int log_blocks = 0; 1 << log_blocks <= kMaxBlocksOfCluster; ++log_blocks) {
      if (!heads_with_blocks(call, instance, log_blocks)) continue;
      list.push_back({str_cat(head_name(call.product.dtype, instance), ", ", 1 << log_blocks, " blocks"), instance.num_tokens,
                      [=, &instance](const HeadCall& c) { return heads_with_blocks(c, instance, log_blocks); }});
    }
  }
}

}  // namespace

constinit const Way<ProjectionParams> kIntegerOutput = {
    "integer", kMostIntegerTokens, true, true, device_is_hopper_or_later, output_names, possible_outputs, choose_output};

constinit const Way<HeadCall> kIntegerHeads = {"integer",  kMostIntegerTokens, true,        true, device_is_hopper_or_later,
                                               head_names, possible_heads,     choose_heads};

}  // namespace prologue::cuda
