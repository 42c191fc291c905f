#include <algorithm>

#include <prologue/kernels/paged_attention/attention_launch.h>
#include <prologue/kernels/paged_attention/decode_tiles_launch.h>
#include <prologue/kernels/base/device/cuda_launch.cuh>

namespace prologue::cuda {

namespace {

// Returns the most tiles that a work item has.
int64_t max_tiles(const PagedAttentionParams& params, int64_t tile_keys) {
  return divide_up(max_keys(params) + kKeyGroup - 1, tile_keys);
}

// Returns how many kv heads each cooperating block takes: the fewest with which at most a sixteenth of the blocks is left over.
int64_t heads_of_block(int64_t num_kv_heads, int64_t max_blocks) {
  const auto blocks_with = [&](int64_t heads) {
    const int64_t cooperating = num_kv_heads / heads;
    return num_kv_heads % heads != 0 || cooperating > max_blocks ? 0 : max_blocks / cooperating * cooperating;
  };
  int64_t best = 1;
  for (int64_t heads = 1; heads <= num_kv_heads && blocks_with(best) < max_blocks - max_blocks / 16; ++heads) {
    if (blocks_with(heads) > blocks_with(best)) best = heads;
  }
  return best;
}

}  // namespace

bool items_have_several_tiles(const PagedAttentionParams& params) { return max_tiles(params, kDecodeMmaWarps * kKeyGroup) > 1; }

Status prepare(const PagedAttentionParams& params, const DecodeTilesLaunch& shape, cudaStream_t stream, AttentionArgs& args,
               dim3& grid, bool& may_overlap) {
  const int64_t packed_rows = max_packed_rows(params);
  if (packed_rows > kMaxPackedRows) return too_large(packed_rows);
  args.min_tiles = static_cast<int>(divide_up(shape.min_keys, shape.tile_keys));
  const int64_t tiles = max_tiles(params, shape.tile_keys);
  const int64_t heads = params.kv.num_kv_heads;
  const int64_t items_of_head = params.num_seqs * divide_up(packed_rows, shape.tile_rows);
  // If ranges are short, a block that goes to another sequence for each head loses more than cooperation gains.
  const bool cooperate = items_of_head * heads * tiles >= kLongRange * shape.max_blocks;
  args.heads_of_block = static_cast<int>(cooperate ? heads_of_block(heads, shape.max_blocks) : heads);
  const int64_t cooperating = heads / args.heads_of_block;
  const int64_t ranges = items_of_head * args.heads_of_block * divide_up(tiles, args.min_tiles);
  grid = dim3(grid_extent(cooperating), grid_extent(std::min(shape.max_blocks / cooperating, ranges)));
  may_overlap = device_is_hopper_or_later();
  if (tiles > 1) {
    const DecodeTilesParts parts(shape.part_blocks, shape.tile_rows, args.v_head_dim);
    auto* const workspace = static_cast<unsigned char*>(params.workspace);
    args.partial_out = reinterpret_cast<float*>(workspace + parts.counters_bytes);
    args.partial_stats = reinterpret_cast<float2*>(args.partial_out + parts.rows * args.v_head_dim);
    args.counters = params.counters;
    if (args.counters == nullptr && shape.counts) {
      args.counters = reinterpret_cast<uint32_t*>(workspace);
      PROLOGUE_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(args.counters, 0, static_cast<size_t>(parts.counters_bytes), stream));
      may_overlap = false;  // what comes before it is no kernel
    }
  }
  args.p.past_is_ready = params.past_is_ready && may_overlap;
  return {};
}

}  // namespace prologue::cuda
