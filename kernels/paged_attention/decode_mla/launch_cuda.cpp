#include <algorithm>

#include <prologue/kernels/base/str_cat.h>
#include <prologue/kernels/paged_attention/attention_families.h>
#include <prologue/kernels/paged_attention/attention_launch.h>
#include <prologue/kernels/paged_attention/decode_tiles_launch.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>
#include <prologue/kernels/base/device/tensor_map.cuh>

namespace prologue::cuda {

namespace {

constexpr int64_t kMaxBlocks = kMultiprocessors;
constexpr int64_t kMinKeysToAddUp = 256;  // of a block, if one block adds up the parts of a work item, which are large
constexpr int64_t kMaxParts = 4;          // of a work item: if there may be more, a second launch adds them up
static_assert(kMaxBlocks * sizeof(ItemBlocks) <= kPagedAttentionCounters * sizeof(uint32_t));

constexpr InstanceTable<DecodeMlaInstance> kTables[] = {decode_mla_instances};

std::string name_of(const DecodeMlaInstance& instance) {
  return str_cat("decode mla cache=", dtype_name(instance.dtype), " head_dim=", kMlaHeadDim, " rows=", kDecodeMlaRows);
}

size_t shared_bytes_of(const DecodeMlaInstance& instance) { return instance.shared_bytes; }

bool has_shape(const DecodeMlaInstance& instance, const PagedAttentionParams& params) {
  const PagedKvView& kv = params.kv;
  if (instance.dtype != params.dtype || kv.k.format.type != params.dtype || kv.v.format.type != params.dtype) return false;
  return kv.num_kv_heads == 1 && params.head_dim == kMlaHeadDim && v_head_dim(kv) == kMlaValueDim;
}

// V must be the first channels of K, and 16 keys in one page of whole groups of 8 slots, which TMA counts.
bool serves(const DecodeMlaInstance& instance, const PagedAttentionParams& params) {
  const PagedKvView& kv = params.kv;
  const PageStrides &k = kv.k.strides, &v = kv.v.strides;
  if (!has_shape(instance, params)) return false;
  if (kv.k.data != kv.v.data || k.page != v.page || k.token != v.token || !groups_are_whole(params)) return false;
  if (kv.page_size % kDecodeMlaBoxSlots != 0 || params.ring_size % kDecodeMlaBoxSlots != 0 || !(params.scale > 0.0f))
    return false;
  return kv.num_pages <= INT_MAX && kv.page_size <= INT_MAX && k.page < kMaxBoxStride && k.token < kMaxBoxStride / 8;
}

const DecodeMlaInstance* choose(const PagedAttentionParams& params, size_t) {
  return first_instance(kTables, [&](const DecodeMlaInstance& instance) { return serves(instance, params); });
}

int64_t workspace_bytes(const PagedAttentionParams& params) {
  const bool may_run = first_instance(kTables, [&](const auto& instance) { return has_shape(instance, params); }) != nullptr;
  return may_run ? DecodeTilesParts(kMaxBlocks, kDecodeMlaRows, kMlaValueDim).bytes : 0;
}

// Returns false for strides that the driver does not take.
bool encode_cache(const PagedAttentionParams& params, CUtensorMap& map) {
  const PagedKvView& kv = params.kv;
  const PageStrides& strides = kv.k.strides;
  constexpr int64_t kGroup = 8;
  return encode_map(map, kv.k.data, 64,
                    {{kGroup, strides.token, kGroup},
                     {kMlaHeadDim / 64, 64, kMlaHeadDim / 64},
                     {kv.page_size / kGroup, kGroup * strides.token, kDecodeMlaBoxSlots / kGroup},
                     {kv.num_pages, strides.page, 1}});
}

Status launch_decode(const DecodeMlaInstance& instance, const PagedAttentionParams& params, const CUtensorMap& map,
                     cudaStream_t stream) {
  AttentionArgs args = make_args(params);
  const int64_t packed_rows = max_packed_rows(params);
  args.row_tiles = static_cast<int>(divide_up(packed_rows, kDecodeMlaRows));
  const int64_t items = params.num_seqs * args.row_tiles;
  const int64_t ranges_of_item = divide_up(max_keys(params), kMinKeysPerBlock);
  const bool combine = std::min(kMaxBlocks / items, ranges_of_item) > kMaxParts;
  dim3 grid;
  bool may_overlap = false;
  const int64_t min_keys = combine ? kMinKeysPerBlock : kMinKeysToAddUp;
  PROLOGUE_RETURN_IF_ERROR(prepare(params, {kDecodeMlaRows, kDecodeMlaKeys, min_keys, kMaxBlocks, kMaxBlocks, !combine}, stream,
                                   args, grid, may_overlap));
  if (combine) args.item_blocks = static_cast<ItemBlocks*>(params.workspace);  // instead of counters
  LaunchAttributes attributes(1, may_overlap);
  PROLOGUE_RETURN_IF_ERROR(launch("paged_attention decode", instance.kernel,
                                  {grid, kDecodeMlaThreads, instance.shared_bytes, attributes.span()}, stream, args, map));
  if (!combine) return {};
  const auto rows = static_cast<unsigned>(std::min<int64_t>(packed_rows, kDecodeMlaRows));
  return launch("paged_attention combine", mla_combine(), {{grid_extent(items), rows}, kMlaCombineThreads, 0, attributes.span()},
                stream, args);
}

std::optional<Status> run(const DecodeMlaInstance& instance, const PagedAttentionParams& params, int64_t, cudaStream_t stream) {
  CUtensorMap map;
  if (!encode_cache(params, map)) return std::nullopt;
  return launch_decode(instance, params, map, stream);
}

}  // namespace

constinit const AttentionFamily<DecodeMlaInstance> kDecodeMlaFamily = {true,   kTables, name_of,         shared_bytes_of,
                                                                       serves, choose,  workspace_bytes, run};

}  // namespace prologue::cuda
