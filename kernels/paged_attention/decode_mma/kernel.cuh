// Decode on tensor cores. Blocks take equal ranges of the batch's keys (decode_tiles.cuh), in tiles of 64 or 128 keys. A warp takes a
// quarter of each tile, independently of the other warps, through a ring of its own in shared memory, which continues from work item to
// work item. At the end of a work item the warps add up their sums. If several blocks have parts of it, the last of them to arrive adds up
// what all have left in the workspace, in the order of the keys.
//
//   copies.cuh        from the cache to the ring
//   queries.cuh       the rows of q, and which keys they see
//   sums.cuh          q * k, its weights, times v; the end of a work item
//   rows.cuh          rows of the cache as operands, for every type of cache
//   block_scales.cuh  the scales of block-scaled caches
//
// Lane l, g = l / 4, t = l % 4, has these elements of the fragments of mma.m16n8k16:
//   scores of a column tile: keys g and g + 8, packed rows 2t and 2t + 1
//   output of 16 channels:   two channels that depend on g (Values::channel), packed rows 2t and 2t + 1
// The channels may be in any order in the sum q * k, so a lane takes codes as they are in memory: Keys::in_run.
#pragma once

#include <prologue/kernels/paged_attention/decode_mma/copies.cuh>
#include <prologue/kernels/paged_attention/decode_mma/queries.cuh>
#include <prologue/kernels/paged_attention/decode_mma/sums.cuh>

namespace prologue::cuda {

// T is the type of the multiplication: that of the cache if it is a 16-bit type, else float16. kColumns is the number of column tiles of 8
// packed rows each. kKeys is the number of a warp's keys of a tile, 16 or 32. Shared memory has the rings [warp][stage] at its beginning, K
// before V, since copies want lines of 128 bytes; then DecodeMmaKeys [warp][stage]; then DecodeMmaShared.
template <class T, class K, class V, int kHeadDim, int kColumns, int kKeys>
__global__ void __launch_bounds__(kDecodeMmaThreads, kHeadDim > 128 ? 1 : 2)
    decode_mma_kernel(const __grid_constant__ AttentionArgs args) {
  using Copies = DecodeMmaCopies<K, V, kHeadDim, 8 * kColumns, kKeys>;
  using Sums = DecodeMmaSums<T, K, V, kHeadDim, kColumns, kKeys>;
  auto* const all_rings = dynamic_shared<typename Copies::Stage>();
  auto* const all_keys = reinterpret_cast<typename Copies::StageKeys*>(all_rings + kDecodeMmaWarps * args.stages);
  auto& shared = *reinterpret_cast<typename Sums::Shared*>(all_keys + kDecodeMmaWarps * args.stages);
  const PagedAttentionParams& p = args.p;
  const int warp = threadIdx.x / 32;
  if (p.early_signal) let_next_kernel_start();
  // Otherwise it may start when this one waits no more: blocks that come earlier slow down the kernel that is waited for.
  const auto wait = [&] {
    wait_for_previous_kernels();
    if (!p.late_signal) let_next_kernel_start();
  };
  bool waiting = p.past_is_ready;
  if (!waiting) wait();

  typename Copies::Cursor tile;
  constexpr int kTilesOfOneBlock = 2;  // what another block would save is less than what the combination costs
  const TileRange range = find_range(args, shared.find_range, tile, kTilesOfOneBlock);
  if (range.begin >= range.end) {
    // Whoever waits for this kernel waits for those before it, too; that takes one block.
    if (waiting && blockIdx.x == 0 && blockIdx.y == 0) wait_for_previous_kernels();
    return;
  }
  Copies copies(args, range, tile, all_rings + warp * args.stages, all_keys + warp * args.stages);

  typename Sums::Queries q;
  Sums sums;
  if constexpr (Copies::kBlocks) {
    q.block_factor = block_factor_of_all<K>(p.kv.k);
    sums.block_factor = block_factor_of_all<V>(p.kv.v);
  }
  int first_range = 0, last_range = 0;  // that have parts of the work item
  const auto find_queries = [&] {
    q.find(args, tile);
    const int64_t end = tile.first + tile.of_sequence.tiles;
    const int block = static_cast<int>(blockIdx.y);
    first_range = tile.first >= range.begin ? block : static_cast<int>(quotient(tile.first, range.size));
    last_range = end <= range.end ? block : static_cast<int>(quotient(end - 1, range.size));
  };
  const auto load_queries = [&] {
    if (tile.sequence.bad_rows && tile.row_tile == 0 && tile.tile == 0) clear_bad_rows(args, tile.s, tile.kv_head);
    q.load(args, tile.kv_head);
    sums.clear();
  };

  find_queries();
  copies.find_page();
#pragma unroll 1
  for (int stage = 0; stage < copies.stages - 1; ++stage) {
    copies.copy_next(stage, [&] {
      if (!waiting || copies.is_past()) return;
      wait();
      waiting = false;
    });
  }
  if (waiting) wait();
  load_queries();
  if (threadIdx.x == 0) shared.faulty[0] = 0;
  __syncthreads();

  int stage = 0, parity = 0;
#pragma unroll 1
  for (int64_t at = range.begin; at < range.end; ++at) {
    copies.wait_for_oldest();
    copies.convert_scales(stage);
    copies.copy_next(stage == 0 ? copies.stages - 1 : stage - 1, [] {});
    if constexpr (Copies::kBlocks) __syncwarp();
    sums.add(args, tile, q, copies.ring[stage], copies.ring_keys[stage], shared.faulty[parity]);
    if (++stage == copies.stages) stage = 0;
    const bool more = at + 1 < range.end;
    if (!more && p.late_signal) let_next_kernel_start();
    if (!more || tile.tile + 1 == tile.of_sequence.tiles) {
      sums.end_item(args, tile, first_range, last_range, parity, shared);
      parity = 1 - parity;
    }
    if (!more) break;
    tile.advance(args, copies.tile);
    if (tile.tile == 0) find_queries(), load_queries();
  }
}

}  // namespace prologue::cuda
