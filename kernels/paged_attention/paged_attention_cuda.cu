#include <algorithm>
#include <bit>

#include <prologue/kernels/base/cuda_launch.cuh>
#include <prologue/kernels/paged_attention/attention_instances.cuh>
#include <prologue/kernels/paged_attention/decode_kernel.cuh>

namespace prologue::cuda {

namespace {

constexpr int64_t kDecodeMaxRows = 4;  // query rows of a sequence up to which decode_kernel takes the launch
// Packed rows of all blocks of a split launch: they fill 132 multiprocessors. A constant, so that every GPU gives the same bits.
constexpr int64_t kDecodeTargetRows = 132 * kDecodeRowsPerSm;
constexpr int64_t kMinKeysPerSplit = 128;  // below, splitting costs more than it gains
constexpr int64_t kMaxGrid = INT_MAX;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

Status too_large(int64_t blocks) {
  return invalid_argument("paged_attention: num_seqs, max_seqlen_q and the heads need ", blocks, " blocks: a launch has at most ",
                          kMaxGrid);
}

struct CombineInstance {
  int head_dim;
  int tile_rows;
  void (*kernel)(AttentionArgs);
};

constexpr CombineInstance kCombineInstances[] = {
    {256, 4, combine_kernel<256, 4>}, {256, 8, combine_kernel<256, 8>}, {576, 2, combine_kernel<576, 2>}};

// Every head of q, out and the cache lies in whole groups, as the kernels load them: 16 bytes, or 8 codes of a quantised cache.
bool groups_are_whole(const PagedAttentionParams& p) {
  const auto aligned = [](const void* data, int64_t bytes) { return reinterpret_cast<uintptr_t>(data) % bytes == 0; };
  const int64_t group = 16 / dtype_size(p.dtype);
  const int64_t cache_bits = kv_type_bits(p.kv.type);
  const int64_t cache_group = cache_bits == 32 ? 4 : 8;
  const int64_t cache_bytes = cache_group * cache_bits / 8;
  bool whole = aligned(p.q.data, 16) && aligned(p.out.data, 16) && aligned(p.kv.k, cache_bytes) && aligned(p.kv.v, cache_bytes);
  for (const int64_t width : {p.head_dim, p.kv.v_width()}) whole = whole && width % group == 0 && width % cache_group == 0;
  for (const int64_t stride : {p.q.token_stride, p.q.head_stride, p.out.token_stride, p.out.head_stride}) {
    whole = whole && stride % group == 0;
  }
  for (const PageStrides& strides : {p.kv.k_strides, p.kv.v_strides}) {
    for (const int64_t stride : {strides.page, strides.token, strides.head}) whole = whole && stride % cache_group == 0;
  }
  return whole;
}

AttentionArgs make_args(const PagedAttentionParams& params) {
  constexpr float kLog2E = 1.4426950408889634f;
  AttentionArgs args;
  args.p = params;
  args.score_scale = params.soft_cap > 0.0f ? params.scale / params.soft_cap : params.scale * kLog2E;
  args.cap_log2 = params.soft_cap * kLog2E;
  if (params.window > 0) args.window = static_cast<unsigned>(params.window);
  args.group = static_cast<int>(params.num_q_heads / params.kv.num_kv_heads);
  args.v_head_dim = static_cast<int>(params.kv.v_width());
  const uint64_t page_size = static_cast<uint64_t>(params.kv.page_size);
  args.page_shift = std::has_single_bit(page_size) && page_size <= (1u << 30) ? std::countr_zero(page_size) : -1;
  args.whole_groups = groups_are_whole(params);
  return args;
}

int64_t largest_head_dim(const PagedAttentionParams& params) { return std::max(params.head_dim, params.kv.v_width()); }

// Positions that the rows of one sequence see at most.
int64_t max_keys(const PagedAttentionParams& params) {
  return params.window > 0 ? std::min(params.max_seq_len, params.window + params.max_seqlen_q - 1) : params.max_seq_len;
}

// The smallest instance that serves the heads, with as many rows as there are, or the fewest beyond.
const DecodeInstance* find_decode(const PagedAttentionParams& params, int64_t packed_rows) {
  const int64_t head_dim = largest_head_dim(params);
  const int preferred_rows = packed_rows <= 4 ? 4 : 8;
  const DecodeInstance* found = nullptr;
  for (const auto& table : {decode_instances_of_floats(), decode_instances_of_codes(), decode_instances_of_large_heads()}) {
    for (const DecodeInstance& instance : table) {
      if (instance.cache != params.kv.type || instance.head_dim < head_dim) continue;
      if (!instance.any_dtype && kv_type_of(params.dtype) != params.kv.type) continue;
      if (instance.tile_rows == preferred_rows) return &instance;
      if (found == nullptr) found = &instance;
    }
    if (found != nullptr) break;
  }
  return found;
}

Status decode(const PagedAttentionParams& params, AttentionArgs& args, cudaStream_t stream) {
  const int64_t packed_rows = params.max_seqlen_q * args.group;
  const DecodeInstance* instance = find_decode(params, packed_rows);
  if (instance == nullptr) {
    return unsupported("paged_attention: head_dim ", largest_head_dim(params), " is larger than the largest decode kernel");
  }
  const int64_t tile_rows = instance->tile_rows;
  args.row_tiles = static_cast<int>(divide_up(packed_rows, tile_rows));
  const int64_t blocks_per_split = params.num_seqs * params.kv.num_kv_heads * args.row_tiles;
  args.num_splits = static_cast<int>(std::max<int64_t>(
      1, std::min(kDecodeTargetRows / tile_rows / blocks_per_split, divide_up(max_keys(params), kMinKeysPerSplit))));
  const int64_t blocks = blocks_per_split * args.num_splits;
  if (blocks * tile_rows > kMaxGrid) return too_large(blocks * tile_rows);
  args.partial_stats = static_cast<float2*>(params.workspace);
  args.partial_out = reinterpret_cast<float*>(args.partial_stats + blocks * tile_rows);
  PROLOGUE_RETURN_IF_ERROR(
      launch("paged_attention decode", instance->decode, {grid_extent(blocks), kDecodeThreads}, stream, args));
  if (args.num_splits == 1) return {};
  for (const CombineInstance& combine : kCombineInstances) {
    if (combine.tile_rows != tile_rows || combine.head_dim < args.v_head_dim) continue;
    return launch("paged_attention combine", combine.kernel, {grid_extent(blocks_per_split * tile_rows), kCombineThreads}, stream,
                  args);
  }
  return unsupported("paged_attention: head_dim ", args.v_head_dim, " is larger than the largest combine kernel");
}

Status prefill(const PagedAttentionParams& params, AttentionArgs& args, cudaStream_t stream) {
  const auto run = [&](const PrefillInstance& instance) -> Status {
    // Every sequence's last tile may be partial, so there are at most num_seqs more than the rows fill.
    const int64_t tiles_by_rows = params.num_tokens * args.group / instance.rows + params.num_seqs;
    const int64_t tiles_by_length =
        params.num_seqs * divide_up(std::min(params.max_seqlen_q, params.num_tokens) * args.group, instance.rows);
    const int64_t blocks = std::min(tiles_by_rows, tiles_by_length) * params.kv.num_kv_heads;
    if (blocks > kMaxGrid) return too_large(blocks);
    return launch("paged_attention prefill", instance.kernel,
                  {grid_extent(blocks), static_cast<unsigned>(instance.threads), instance.shared_bytes}, stream, args);
  };
  const bool quantized = !kv_type_is_float(params.kv.type);
  if (params.dtype != DType::f32 && args.whole_groups && (quantized || params.kv.type == kv_type_of(params.dtype))) {
    for (const PrefillInstance& instance : prefill_mma_instances()) {
      if (instance.dtype == params.dtype && instance.quantized == quantized && instance.head_dim >= largest_head_dim(params)) {
        return run(instance);
      }
    }
  }
  for (const PrefillInstance& instance : prefill_simple_instances()) {
    if (instance.head_dim >= largest_head_dim(params)) return run(instance);
  }
  return unsupported("paged_attention: head_dim ", largest_head_dim(params), " is larger than the largest prefill kernel");
}

}  // namespace

// A launch with splits has at most kDecodeTargetRows packed rows, whatever its shape.
int64_t paged_attention_workspace_bytes(const PagedAttentionParams& params) {
  if (max_keys(params) <= kMinKeysPerSplit) return 0;
  return kDecodeTargetRows * static_cast<int64_t>(sizeof(float2) + params.kv.v_width() * sizeof(float));
}

Status paged_attention(const PagedAttentionParams& params, const Execution& execution) {
  AttentionArgs args = make_args(params);
  return params.max_seqlen_q <= kDecodeMaxRows ? decode(params, args, execution.stream) : prefill(params, args, execution.stream);
}

}  // namespace prologue::cuda
