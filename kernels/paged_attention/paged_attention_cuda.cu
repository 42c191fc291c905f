#include <algorithm>
#include <bit>

#include <prologue/kernels/base/cuda_launch.cuh>
#include <prologue/kernels/paged_attention/paged_attention_kernel.cuh>

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

struct DecodeInstance {
  DType dtype;
  int head_dim;   // the largest it serves
  int tile_rows;  // packed rows of a block
  void (*decode)(AttentionArgs);
  void (*combine)(AttentionArgs);
};

template <class T, int kHeadDim, int kRows>
constexpr DecodeInstance decode_instance(DType dtype) {
  return {dtype, kHeadDim, kRows, decode_kernel<T, kHeadDim, kRows>, combine_kernel<T, kRows>};
}

constexpr DecodeInstance kDecodeInstances[] = {
    decode_instance<__nv_bfloat16, 64, 4>(DType::bf16),  decode_instance<__nv_bfloat16, 64, 8>(DType::bf16),
    decode_instance<__nv_bfloat16, 128, 4>(DType::bf16), decode_instance<__nv_bfloat16, 128, 8>(DType::bf16),
    decode_instance<__nv_bfloat16, 256, 4>(DType::bf16), decode_instance<__nv_bfloat16, 256, 8>(DType::bf16),
    decode_instance<__half, 64, 4>(DType::f16),          decode_instance<__half, 64, 8>(DType::f16),
    decode_instance<__half, 128, 4>(DType::f16),         decode_instance<__half, 128, 8>(DType::f16),
    decode_instance<__half, 256, 4>(DType::f16),         decode_instance<__half, 256, 8>(DType::f16),
    decode_instance<float, 64, 4>(DType::f32),           decode_instance<float, 64, 8>(DType::f32),
    decode_instance<float, 128, 4>(DType::f32),          decode_instance<float, 128, 8>(DType::f32),
    decode_instance<float, 256, 4>(DType::f32),          decode_instance<float, 256, 8>(DType::f32),
};

struct PrefillInstance {
  DType dtype;
  int head_dim;
  void (*kernel)(AttentionArgs);
  int threads;
  size_t shared_bytes;
};

template <class T, int kHeadDim>
constexpr PrefillInstance mma_instance(DType dtype) {
  using Tile = MmaTile<T, kHeadDim>;
  return {dtype, kHeadDim, prefill_mma_kernel<T, kHeadDim>, Tile::kThreads, sizeof(Tile)};
}

template <int kHeadDim>
constexpr PrefillInstance simple_instance() {
  using Tile = SimpleTile<kHeadDim>;
  return {DType::f32, kHeadDim, prefill_simple_kernel<kHeadDim>, Tile::kThreads, sizeof(Tile)};
}

constexpr PrefillInstance kMmaInstances[] = {
    mma_instance<__nv_bfloat16, 64>(DType::bf16),  mma_instance<__nv_bfloat16, 96>(DType::bf16),
    mma_instance<__nv_bfloat16, 128>(DType::bf16), mma_instance<__nv_bfloat16, 256>(DType::bf16),
    mma_instance<__half, 64>(DType::f16),          mma_instance<__half, 96>(DType::f16),
    mma_instance<__half, 128>(DType::f16),         mma_instance<__half, 256>(DType::f16),
};

constexpr PrefillInstance kSimpleInstances[] = {simple_instance<64>(), simple_instance<128>(), simple_instance<256>()};

AttentionArgs make_args(const PagedAttentionParams& params) {
  AttentionArgs args;
  args.p = params;
  args.scale_log2 = params.scale * 1.4426950408889634f;
  args.group = static_cast<int>(params.num_q_heads / params.kv.num_kv_heads);
  const uint64_t page_size = static_cast<uint64_t>(params.kv.page_size);
  args.page_shift = std::has_single_bit(page_size) && page_size <= (1u << 30) ? std::countr_zero(page_size) : -1;
  const int64_t group = 16 / dtype_size(params.dtype);
  bool whole = params.head_dim % group == 0;
  for (const void* data : {params.q.data, static_cast<const void*>(params.kv.k), static_cast<const void*>(params.kv.v),
                           static_cast<const void*>(params.out.data)}) {
    whole = whole && reinterpret_cast<uintptr_t>(data) % 16 == 0;
  }
  for (const int64_t stride : {params.q.token_stride, params.q.head_stride, params.out.token_stride, params.out.head_stride,
                               params.kv.k_strides.page, params.kv.k_strides.token, params.kv.k_strides.head,
                               params.kv.v_strides.page, params.kv.v_strides.token, params.kv.v_strides.head}) {
    whole = whole && stride % group == 0;
  }
  args.whole_groups = whole;
  return args;
}

Status decode(const PagedAttentionParams& params, AttentionArgs& args, cudaStream_t stream) {
  const int64_t packed_rows = params.max_seqlen_q * args.group;
  const int tile_rows = packed_rows <= 4 ? 4 : 8;
  for (const DecodeInstance& instance : kDecodeInstances) {
    if (instance.dtype != params.dtype || instance.head_dim < params.head_dim || instance.tile_rows != tile_rows) continue;
    args.row_tiles = static_cast<int>(divide_up(packed_rows, tile_rows));
    const int64_t blocks_per_split = params.num_seqs * params.kv.num_kv_heads * args.row_tiles;
    args.num_splits = static_cast<int>(std::max<int64_t>(
        1, std::min(kDecodeTargetRows / tile_rows / blocks_per_split, divide_up(params.max_seq_len, kMinKeysPerSplit))));
    const int64_t blocks = blocks_per_split * args.num_splits;
    if (blocks * tile_rows > kMaxGrid) return too_large(blocks * tile_rows);
    args.partial_stats = static_cast<float2*>(params.workspace);
    args.partial_out = reinterpret_cast<float*>(args.partial_stats + blocks * tile_rows);
    PROLOGUE_RETURN_IF_ERROR(
        launch("paged_attention decode", instance.decode, {grid_extent(blocks), kDecodeThreads}, stream, args));
    if (args.num_splits == 1) return {};
    return launch("paged_attention combine", instance.combine, {grid_extent(blocks_per_split * tile_rows), kCombineThreads},
                  stream, args);
  }
  return unsupported("paged_attention: head_dim ", params.head_dim, " is larger than the largest decode kernel");
}

Status prefill(const PagedAttentionParams& params, AttentionArgs& args, cudaStream_t stream) {
  const auto run = [&](const PrefillInstance& instance) -> Status {
    // Every sequence's last tile may be partial, so there are at most num_seqs more than the rows fill.
    const int64_t tiles_by_rows = params.num_tokens * args.group / kTileRows + params.num_seqs;
    const int64_t tiles_by_length =
        params.num_seqs * divide_up(std::min(params.max_seqlen_q, params.num_tokens) * args.group, kTileRows);
    const int64_t blocks = std::min(tiles_by_rows, tiles_by_length) * params.kv.num_kv_heads;
    if (blocks > kMaxGrid) return too_large(blocks);
    return launch("paged_attention prefill", instance.kernel,
                  {grid_extent(blocks), static_cast<unsigned>(instance.threads), instance.shared_bytes}, stream, args);
  };
  if (params.dtype != DType::f32 && args.whole_groups) {
    for (const PrefillInstance& instance : kMmaInstances) {
      if (instance.dtype == params.dtype && instance.head_dim >= params.head_dim) return run(instance);
    }
  }
  for (const PrefillInstance& instance : kSimpleInstances) {
    if (instance.head_dim >= params.head_dim) return run(instance);
  }
  return unsupported("paged_attention: head_dim ", params.head_dim, " is larger than the largest prefill kernel");
}

}  // namespace

// A launch with splits has at most kDecodeTargetRows packed rows, whatever its shape.
int64_t paged_attention_workspace_bytes(const PagedAttentionParams& params) {
  if (params.max_seq_len <= kMinKeysPerSplit) return 0;
  return kDecodeTargetRows * static_cast<int64_t>(sizeof(float2) + params.head_dim * sizeof(float));
}

Status paged_attention(const PagedAttentionParams& params, const Execution& execution) {
  AttentionArgs args = make_args(params);
  return params.max_seqlen_q <= kDecodeMaxRows ? decode(params, args, execution.stream) : prefill(params, args, execution.stream);
}

}  // namespace prologue::cuda
