#include <algorithm>

#include <prologue/kernels/base/str_cat.h>
#include <prologue/kernels/paged_attention/attention_families.h>
#include <prologue/kernels/paged_attention/attention_launch.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>
#include <prologue/kernels/paged_attention/decode/combine_kernel.cuh>
#include <prologue/kernels/paged_attention/decode/kernel.cuh>

namespace prologue::cuda {

namespace {

constexpr int64_t kTargetRows = kMultiprocessors * kDecodeRowsPerSm;  // of all blocks of a split launch
constexpr int64_t kMinKeysPerSplit = 128;                             // below, splitting costs more than it gains

constexpr InstanceTable<DecodeInstance> kTables[] = {decode_instances_of_floats, decode_instances_of_large_heads,
                                                     decode_instances_of_any_formats, decode_instances_of_blocks};

struct CombineInstance {
  int head_dim;
  int tile_rows;
  void (*kernel)(AttentionArgs);
};

constexpr CombineInstance kCombineInstances[] = {
    {256, 4, combine_kernel<256, 4>}, {256, 8, combine_kernel<256, 8>}, {576, 2, combine_kernel<576, 2>}};

std::string name_of(const DecodeInstance& instance) {
  return str_cat("decode cache=", instance.blocks ? "blocks" : instance.cache == DType::unset ? "any" : dtype_name(instance.cache),
                 " head_dim=", instance.head_dim, " rows=", instance.tile_rows);
}

size_t no_dynamic_bytes(const DecodeInstance&) { return 0; }

bool serves(const DecodeInstance& instance, const PagedAttentionParams& params) {
  const PagedKvView& kv = params.kv;
  if (instance.head_dim < largest_head_dim(params) || instance.blocks != has_block_scales(kv)) return false;
  return instance.cache == DType::unset || (instance.cache == kv.k.format.type && one_format(kv));
}

// Returns the smallest instance that serves the heads and has as many rows as there are, or the fewest beyond.
const DecodeInstance* choose(const PagedAttentionParams& params, size_t) {
  const int preferred_rows = max_packed_rows(params) <= 4 ? 4 : 8;
  const DecodeInstance* found = nullptr;
  for (const InstanceTable<DecodeInstance> table : kTables) {
    for (const DecodeInstance& instance : table()) {
      if (!serves(instance, params)) continue;
      if (instance.tile_rows == preferred_rows) return &instance;
      if (found == nullptr) found = &instance;
    }
    if (found != nullptr) break;
  }
  return found;
}

// A launch with splits has at most kTargetRows packed rows.
int64_t workspace_bytes(const PagedAttentionParams& params) {
  return kTargetRows * static_cast<int64_t>(sizeof(float2) + static_cast<size_t>(v_head_dim(params.kv)) * sizeof(float));
}

Status launch_decode(const DecodeInstance& instance, const PagedAttentionParams& params, cudaStream_t stream) {
  const int64_t packed_rows = max_packed_rows(params);
  if (packed_rows > kMaxPackedRows) return too_large(packed_rows);
  AttentionArgs args = make_args(params);
  const int64_t tile_rows = instance.tile_rows;
  args.row_tiles = static_cast<int>(divide_up(packed_rows, tile_rows));
  const int64_t blocks_per_split = params.num_seqs * params.kv.num_kv_heads * args.row_tiles;
  args.num_splits = static_cast<int>(
      std::max<int64_t>(1, std::min(kTargetRows / tile_rows / blocks_per_split, divide_up(max_keys(params), kMinKeysPerSplit))));
  const int64_t blocks = blocks_per_split * args.num_splits;
  if (blocks * tile_rows > kMaxGrid) return too_large(blocks * tile_rows);
  args.partial_stats = static_cast<float2*>(params.workspace);
  args.partial_out = reinterpret_cast<float*>(args.partial_stats + blocks * tile_rows);
  PROLOGUE_RETURN_IF_ERROR(
      launch("paged_attention decode", instance.decode, {grid_extent(blocks), kDecodeThreads}, stream, args));
  if (args.num_splits == 1) return {};
  for (const CombineInstance& combine : kCombineInstances) {
    if (combine.tile_rows != tile_rows || combine.head_dim < args.v_head_dim) continue;
    return launch("paged_attention combine", combine.kernel, {grid_extent(blocks_per_split * tile_rows), kCombineThreads}, stream,
                  args);
  }
  return unsupported("paged_attention: head_dim ", args.v_head_dim, " is larger than the largest combine kernel");
}

std::optional<Status> run(const DecodeInstance& instance, const PagedAttentionParams& params, int64_t, cudaStream_t stream) {
  return launch_decode(instance, params, stream);
}

}  // namespace

constinit const AttentionFamily<DecodeInstance> kDecodeFamily = {false,  kTables, name_of,         no_dynamic_bytes,
                                                                 serves, choose,  workspace_bytes, run};

}  // namespace prologue::cuda
