// This file finds the tiles of packed rows of a prefill launch, and the sequence that each of them belongs to.
#pragma once

#include <prologue/kernels/paged_attention/attention_args.cuh>

namespace prologue::cuda {

// Describes the tile of packed rows that a prefill block works on.
struct RowTile {
  Sequence sequence;
  int64_t sequence_index = 0;
  int first_packed = 0;
  int num_packed = 0;   // of the whole sequence
  int first_limit = 0;  // the tile's first row attends to positions below this
  int last_limit = 0;   // and its last row
};

// Returns how many tiles sequence s needs for its rows; it needs one if there are only rows to clear. `tile_rows` is an int or a Divisor.
template <class TileRows>
__device__ inline int row_tiles_of(const AttentionArgs& args, int64_t s, TileRows tile_rows) {
  if (s >= args.p.num_seqs) return 0;
  const QueryRows rows = query_rows_of(args.p, s);
  const int tiles = (rows.count * args.group + tile_rows - 1) / tile_rows;
  return has_bad_rows(rows, s) ? max(tiles, 1) : tiles;
}

// Finds tile `index` of the launch, called by every thread of a warp. Tiles are assigned to the sequences in order, so a running sum over
// cu_seqlens_q within the warp finds the tile's sequence. Returns false if there are not so many tiles. The tiles of 32 sequences are
// counted in an int: a tile has 64 rows or more, and there are fewer than 2^31 rows.
template <class TileRows>
__device__ inline bool find_tile(const AttentionArgs& args, int index, TileRows tile_rows, RowTile& tile) {
  const PagedAttentionParams& p = args.p;
  const int lane = threadIdx.x % 32;
  for (int64_t base = args.first_seq; base < p.num_seqs; base += 32) {
    int running = row_tiles_of(args, base + lane, tile_rows);
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, running, offset);
      if (lane >= offset) running += other;
    }
    const unsigned after = __ballot_sync(0xffffffffu, index < running);
    if (after == 0) {
      index -= __shfl_sync(0xffffffffu, running, 31);
      continue;
    }
    const int owner = __ffs(static_cast<int>(after)) - 1;
    // The last tiles of a sequence have the most keys: they run first.
    const int tile_of_owner = __shfl_sync(0xffffffffu, running, owner) - 1 - index;
    tile.sequence_index = base + owner;
    tile.sequence = sequence_at(args, tile.sequence_index);
    tile.num_packed = tile.sequence.num_rows * args.group;
    tile.first_packed = tile_of_owner * tile_rows;
    if (tile.num_packed == 0) return true;
    tile.first_limit = tile.sequence.limit(tile.first_packed / args.group);
    tile.last_limit = tile.sequence.limit((min(tile.first_packed + tile_rows, tile.num_packed) - 1) / args.group);
    return true;
  }
  return false;
}

}  // namespace prologue::cuda
