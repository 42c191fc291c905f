#include <algorithm>
#include <optional>

#include <prologue/kernels/base/str_cat.h>
#include <prologue/kernels/projection/policy.h>
#include <prologue/kernels/projection/finish/output_launch.cuh>
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
void fill(PackedArgs<IntegerArgs>& a, const Product& p) {
  a.x = static_cast<const char*>(p.x);
  a.x_stride = p.x_stride * dtype_size(p.dtype);
  a.num_tokens = static_cast<int32_t>(p.num_tokens);
  a.slices = static_cast<int32_t>(p.k / kPackedSliceChannels);
  fill_segments(a.packed, p.packed);
  fill_norm(a, p);
  for (int32_t s = 0; s < p.packed.num_segments; ++s) {
    const WeightFormat format = p.packed.segments[s].format;
    const auto slice_bytes = static_cast<int32_t>(weight_block_bytes(format) * kPackedGroupRows * kPackedSliceChannels /
                                                  weight_block_elements(format));
    a.stage_bytes = std::max(a.stage_bytes, slices_of_piece(slice_bytes) * slice_bytes);
  }
}

// ---- a linear layer ---------------------------------------------------------------------------------------------------------

// Returns nothing if the kernel cannot do the call with so many stages.
std::optional<Launch> output_with_stages(const ProjectionParams& p, int32_t stages) {
  const auto kernel = integer_output(p.dtype);
  const Product product = product_of(p);
  const Result<DeviceLimits> device = current_device();
  if (kernel == nullptr || !device.ok() || !can_finish(p) || !can_multiply(product)) return {};
  PackedArgs<IntegerArgs> a;
  fill(a, product);
  const int64_t groups = p.n / kPackedGroupRows, of_block = divide_up(groups, int64_t{device->multiprocessors});
  a.tiles = static_cast<int32_t>(of_block * (is_gated(p) ? 2 : 1));
  a.stages = stages;
  const int64_t shared_bytes = integer_shared_bytes(a);
  if (shared_bytes > kMaxSharedBytes) return {};
  Launch l = output_launch(kernel, a, p);
  l.blocks = divide_up(groups, of_block);
  l.threads = kIntegerThreads;
  l.shared_bytes = shared_bytes;
  return l;
}

std::optional<Launch> choose_output(const ProjectionParams& p) {
  if (p.n < policy::kFewestIntegerRows) return {};
  const Product product = product_of(p);
  if (!can_multiply(product)) return {};
  PackedArgs<IntegerArgs> a;
  fill(a, product);
  for (auto stages = static_cast<int32_t>(
           std::clamp<int64_t>(policy::kIntegerBytesInFlight / kIntegerWarps / a.stage_bytes, 2, kMostIntegerStages));
       stages >= 2; --stages) {
    if (auto launch = output_with_stages(p, stages)) return launch;
  }
  return {};
}

std::string output_name(DType type) { return str_cat(dtype_name(type), ", integer"); }

std::vector<std::string> output_names(DType type) {
  if (integer_output(type) == nullptr) return {};
  return {output_name(type)};
}

void possible_outputs(const ProjectionParams& params, std::vector<PossibleLaunch<ProjectionParams>>& list) {
  for (int32_t stages = 2; stages <= kMostIntegerStages; ++stages) {
    if (!output_with_stages(params, stages)) return;
    list.push_back({str_cat(output_name(params.dtype), ", ", stages, " stages"), kMostIntegerTokens,
                    [=](const ProjectionParams& p) { return output_with_stages(p, stages); }});
  }
}

}  // namespace

constinit const Way<ProjectionParams> kIntegerOutput = {
    "integer", kMostIntegerTokens, true, true, device_is_hopper_or_later, output_names, possible_outputs, choose_output};

}  // namespace prologue::cuda
