#include <algorithm>

#include <prologue/kernels/base/str_cat.h>
#include <prologue/kernels/paged_attention/attention_families.h>
#include <prologue/kernels/paged_attention/attention_launch.h>
#include <prologue/kernels/paged_attention/decode_tiles_launch.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>

namespace prologue::cuda {

namespace {

constexpr int64_t kMaxBlocks = 2 * kMultiprocessors;
static_assert(kMaxBlocks <= kPagedAttentionCounters);

constexpr InstanceTable<DecodeMmaInstance> kTables[] = {decode_mma_instances_of_floats, decode_mma_instances_of_codes,
                                                        decode_mma_instances_of_zero_points, decode_mma_instances_of_blocks};

std::string name_of(const DecodeMmaInstance& instance) {
  return str_cat("decode mma cache=", dtype_name(instance.k),
                 instance.k == instance.v ? "" : str_cat(",", dtype_name(instance.v)), instance.blocks ? " blocks" : "",
                 " head_dim=", instance.head_dim, " rows=", instance.tile_rows);
}

size_t smallest_shared_bytes(const DecodeMmaInstance& instance) { return instance.shared_bytes + 2 * instance.stage_bytes; }

// Whether K and V consist of whole chunks of 16 bytes.
bool chunks_are_whole(const PagedKvView& kv, int64_t head_dim) {
  bool whole = true;
  const auto check = [&](const PagedHeads& side, int64_t width) {
    whole = whole && reinterpret_cast<uintptr_t>(side.data) % 16 == 0;
    for (const int64_t elements : {width, side.strides.page, side.strides.token, side.strides.head}) {
      whole = whole && elements * dtype_bits(side.format.type) % 128 == 0;
    }
  };
  check(kv.k, head_dim);
  check(kv.v, v_head_dim(kv));
  return whole;
}

bool serves(const DecodeMmaInstance& instance, const PagedAttentionParams& params) {
  const DType k = params.kv.k.format.type;
  if (instance.k != k || instance.v != params.kv.v.format.type || instance.head_dim < largest_head_dim(params)) return false;
  const bool dtype_fits = dtype_is_quantized(k) ? params.dtype != DType::f32 : params.dtype == k;
  const bool blocks_fit =
      instance.blocks == is_block_scaled(params.kv.k.format) && instance.blocks == is_block_scaled(params.kv.v.format);
  return dtype_fits && blocks_fit && groups_are_whole(params) && chunks_are_whole(params.kv, params.head_dim);
}

int preferred_rows(const PagedAttentionParams& params) { return max_packed_rows(params) <= 8 ? 8 : 16; }

// Returns the smallest instance that serves the heads, has as many rows as there are, and fits the GPU.
const DecodeMmaInstance* choose(const PagedAttentionParams& params, size_t shared_bytes) {
  const int rows = preferred_rows(params);
  return first_instance(kTables, [&](const DecodeMmaInstance& instance) {
    return instance.tile_rows == rows && smallest_shared_bytes(instance) <= shared_bytes && serves(instance, params);
  });
}

int64_t workspace_bytes(const PagedAttentionParams& params) {
  return DecodeTilesParts(kMaxBlocks, preferred_rows(params), v_head_dim(params.kv)).bytes;
}

// Finds the largest number of stages with which blocks_per_sm blocks run at a time. It is at least two.
Status choose_stages(const DecodeMmaInstance& instance, int& stages) {
  PROLOGUE_ASSIGN_OR_RETURN(const DeviceLimits device, current_device());
  constexpr int kReserved = 1024;  // of a block, by the driver
  const int bytes =
      std::min(device.shared_bytes_of_block, device.shared_bytes_of_multiprocessor / instance.blocks_per_sm - kReserved);
  stages = (bytes - static_cast<int>(instance.shared_bytes)) / static_cast<int>(instance.stage_bytes);
  stages = std::clamp(stages, 2, kMaxDecodeMmaStages);
  return {};
}

Status launch_decode(const DecodeMmaInstance& instance, const PagedAttentionParams& params, cudaStream_t stream) {
  AttentionArgs args = make_args(params);
  PROLOGUE_RETURN_IF_ERROR(choose_stages(instance, args.stages));
  dim3 grid;
  bool may_overlap = false;
  PROLOGUE_RETURN_IF_ERROR(prepare(
      params, {instance.tile_rows, instance.tile_keys, kMinKeysPerBlock, kMultiprocessors * instance.blocks_per_sm, kMaxBlocks},
      stream, args, grid, may_overlap));
  const size_t shared_bytes = instance.shared_bytes + static_cast<size_t>(args.stages) * instance.stage_bytes;
  LaunchAttributes attributes(1, may_overlap);
  return launch("paged_attention decode", instance.kernel, {grid, kDecodeMmaThreads, shared_bytes, attributes.span()}, stream,
                args);
}

std::optional<Status> run(const DecodeMmaInstance& instance, const PagedAttentionParams& params, int64_t, cudaStream_t stream) {
  return launch_decode(instance, params, stream);
}

}  // namespace

constinit const AttentionFamily<DecodeMmaInstance> kDecodeMmaFamily = {false,  kTables, name_of,         smallest_shared_bytes,
                                                                       serves, choose,  workspace_bytes, run};

}  // namespace prologue::cuda
