// Decode on tensor cores: how the work of a batch is divided among thread blocks.
//
// The keys of a batch are one list of tiles: sequence by sequence, kv head by kv head, row tile by row tile. The tiles of one (sequence, kv
// head, row tile) are a *work item*. Each block takes a *range* of the list. All ranges are equally long, whatever work items they cover.
//
// If there is much to read, blocks cooperate: the kv heads are divided among gridDim.x *cooperating blocks*, mostly one head each, and all
// of them take the same range, each of the list of its own heads. They read the same keys at the same time, so neighbouring bytes of a page
// are read together, which is faster. Otherwise gridDim.x is 1. blockIdx.y is the range, blockIdx.x the rank among the cooperating blocks.
#pragma once

#include <prologue/kernels/paged_attention/attention_args.cuh>
#include <prologue/kernels/paged_attention/attention_instances.cuh>

namespace prologue::cuda {

// Holds what the list has of one sequence.
struct SequenceTiles {
  int begin = 0;      // the first position that any row sees
  int origin = 0;     // the first position of its tiles
  int row_tiles = 0;  // 0: it has none
  int tiles = 0;      // of a work item

  SequenceTiles() = default;
  __device__ SequenceTiles(const AttentionArgs& args, const Sequence& sequence, int tile_rows, int tile_keys) {
    if (sequence.num_rows == 0) {
      row_tiles = tiles = sequence.bad_rows ? 1 : 0;
      return;
    }
    begin = lowest(args, sequence.limit(0));
    origin = begin / kKeyGroup * kKeyGroup;
    row_tiles = (sequence.num_rows * args.group + tile_rows - 1) / tile_rows;
    tiles = max(1, (sequence.length - origin + tile_keys - 1) / tile_keys);
  }
  __device__ int64_t items(const AttentionArgs& args) const { return int64_t{args.heads_of_block} * row_tiles; }
};

// Returns a / b of non-negative numbers. Mostly both fit in 32 bits, which takes a third of the time.
__device__ inline int64_t quotient(int64_t a, int64_t b) {
  return ((a | b) >> 32) == 0 ? int64_t{static_cast<uint32_t>(a) / static_cast<uint32_t>(b)} : a / b;
}

__device__ inline int quotient(int a, int b) { return static_cast<int>(static_cast<uint32_t>(a) / static_cast<uint32_t>(b)); }

// A cursor points to one tile of the list.
template <int kRows, int kTileKeys>
struct TileCursor {
  int first_head = 0;  // of the block
  int64_t s = 0;
  int64_t first = 0;  // index in the list of the work item's first tile
  Sequence sequence;
  SequenceTiles of_sequence;
  int kv_head = 0;
  int row_tile = 0;
  int tile = 0;  // of the work item

  __device__ void enter(const AttentionArgs& args, int64_t index) {
    s = index;
    sequence = sequence_at(args, s);
    of_sequence = SequenceTiles(args, sequence, kRows, kTileKeys);
  }
  // Takes what lane `lane` of the warp has of its sequence.
  __device__ void of_lane(int lane) {
    const auto take = [&](auto& value) { value = __shfl_sync(0xffffffffu, value, lane); };
    s = lane;
    take(sequence.first_row), take(sequence.num_rows), take(sequence.length);
    sequence.bad_rows = __shfl_sync(0xffffffffu, static_cast<int>(sequence.bad_rows), lane) != 0;
    sequence.too_long = __shfl_sync(0xffffffffu, static_cast<int>(sequence.too_long), lane) != 0;
    sequence.pages = reinterpret_cast<const int32_t*>(__shfl_sync(0xffffffffu, reinterpret_cast<uint64_t>(sequence.pages), lane));
    take(of_sequence.begin), take(of_sequence.origin), take(of_sequence.row_tiles), take(of_sequence.tiles);
  }
  // Moves to index `to` of the list. The first tile of sequence `index` has the index `start`. A work item takes up a multiple of
  // `multiple` list entries.
  __device__ void seek(const AttentionArgs& args, int64_t index, int64_t start, int64_t to, int64_t multiple) {
    enter(args, index);
    const int64_t entries = quotient(of_sequence.tiles + multiple - 1, multiple) * multiple;
    const int64_t item = quotient(to - start, entries);
    tile = static_cast<int>(to - start - item * entries);
    first = to - tile;
    const int head = static_cast<int>(quotient(item, int64_t{of_sequence.row_tiles}));
    kv_head = first_head + head;
    row_tile = static_cast<int>(item - int64_t{head} * of_sequence.row_tiles);
  }
  // Moves to the next tile, which must exist. `ahead` is further on in the same list and may know the next sequence.
  __device__ void advance(const AttentionArgs& args, const TileCursor& ahead) {
    if (++tile < of_sequence.tiles) return;
    tile = 0;
    first += of_sequence.tiles;
    if (++row_tile < of_sequence.row_tiles) return;
    row_tile = 0;
    if (++kv_head < first_head + args.heads_of_block) return;
    kv_head = first_head;
    do {
      if (ahead.s == s + 1) {
        s = ahead.s;
        sequence = ahead.sequence;
        of_sequence = ahead.of_sequence;
      } else {
        enter(args, s + 1);
      }
    } while (of_sequence.row_tiles == 0);
  }
  __device__ void advance(const AttentionArgs& args) { advance(args, *this); }
  __device__ int position() const { return of_sequence.origin + tile * kTileKeys; }
  __device__ int first_packed() const { return row_tile * kRows; }
  __device__ int num_packed(const AttentionArgs& args) const { return sequence.num_rows * args.group; }
};

template <int kThreads>
struct FindRange {  // shared memory of find_range, for a block of kThreads
  int64_t sums[kThreads / 32];
  int64_t s, start;
  int64_t tiles_of_first;  // sequence
  int tiles_of_its_items;
};

// The range of a block has the entries [begin, end) of the list. find_range() returns it, with a cursor at `begin`. Ranges are equally
// long, the last ones shorter or empty. If there are enough blocks, work items begin at multiples of a range's size, so that no block has
// parts of two: the end of a work item costs more than a tile. If there are few sequences and no work item has more than `undivided` tiles,
// no work item is divided.
struct TileRange {
  int64_t size = 0;  // of a range
  int64_t begin = 0;
  int64_t end = 0;
};

// Returns the size of a range if all sequences have the same length. It is up to a sixteenth larger than `size` if ranges then are whole
// numbers of work items, or work items whole numbers of ranges: that leaves fewer parts to add up.
__device__ inline int even_size(int size, int tiles_of_item) {
  const int parts = tiles_of_item / size;
  const int even = parts == 0 ? (size + tiles_of_item - 1) / tiles_of_item * tiles_of_item : (tiles_of_item + parts - 1) / parts;
  return even - size <= size / 16 ? even : size;
}

// Ranges of one sequence, or of up to 32, are found with 32-bit numbers if no sequence has more tiles than this. Tests set it low, so that
// both paths run.
#ifndef PROLOGUE_FEW_TILES
#define PROLOGUE_FEW_TILES (1 << 25)
#endif
inline constexpr int64_t kFewTiles = PROLOGUE_FEW_TILES;

// Returns how many ranges of `size` tiles a work item is divided into.
__device__ inline int ranges_of_item(int tiles_of_item, int size) {
  return size >= tiles_of_item ? 1 : quotient(tiles_of_item - 1, size) + 1;
}

// Returns the range at index `at` of a list whose entries are tiles, or whole ranges. The first entry of the cursor's sequence has the
// index `start`.
template <int kRows, int kTileKeys>
__device__ inline TileRange range_at(TileCursor<kRows, kTileKeys>& cursor, int size, bool whole_ranges, int at, int start,
                                     int entries_of_item, int total) {
  const int tiles = whole_ranges ? size : 1;
  const int row_tiles = cursor.of_sequence.row_tiles;
  const int item = quotient(at - start, entries_of_item);
  const int in_item = at - start - item * entries_of_item;
  const int head = row_tiles == 1 ? item : quotient(item, row_tiles);
  cursor.tile = in_item * tiles;
  cursor.first = (at - in_item) * tiles;
  cursor.kv_head = cursor.first_head + head;
  cursor.row_tile = item - head * row_tiles;
  const int begin = at * tiles;
  const int end = whole_ranges ? static_cast<int>(cursor.first) + cursor.of_sequence.tiles : total;
  return {size, begin, min(begin + size, end)};
}

// Finds the range if the batch has one sequence. Returns false if that has too many tiles for 32 bits.
template <int kRows, int kTileKeys>
__device__ inline bool find_range_of_one(const AttentionArgs& args, TileCursor<kRows, kTileKeys>& cursor, int undivided,
                                         TileRange& range) {
  const int block = static_cast<int>(blockIdx.y), blocks = static_cast<int>(gridDim.y);
  cursor.enter(args, 0);
  const SequenceTiles& of_sequence = cursor.of_sequence;
  if (of_sequence.items(args) * of_sequence.tiles > kFewTiles) return false;
  const int items = args.heads_of_block * of_sequence.row_tiles, total = items * of_sequence.tiles;
  int size = max(args.min_tiles, quotient(total + blocks - 1, blocks));
  if (of_sequence.tiles <= undivided) size = max(size, undivided);
  const int in_item = ranges_of_item(of_sequence.tiles, size), all_ranges = items * in_item;
  const bool whole_ranges = all_ranges <= blocks;
  const int at = whole_ranges ? block : block * size;
  range = {size, 0, 0};
  if (at < (whole_ranges ? all_ranges : total)) {
    range = range_at(cursor, size, whole_ranges, at, 0, whole_ranges ? in_item : of_sequence.tiles, total);
  }
  return true;
}

// Finds the range if the batch has up to 32 sequences: every warp does so on its own, with one lane for each sequence. Returns false if one
// has too many tiles for 32 bits.
template <int kRows, int kTileKeys>
__device__ inline bool find_range_of_few(const AttentionArgs& args, TileCursor<kRows, kTileKeys>& cursor, int undivided,
                                         TileRange& range) {
  constexpr unsigned kAll = 0xffffffffu;
  const int block = static_cast<int>(blockIdx.y), blocks = static_cast<int>(gridDim.y);
  const int lane = threadIdx.x % 32;
  const bool there = lane < args.p.num_seqs;
  TileCursor<kRows, kTileKeys> own;
  if (there) own.enter(args, lane);
  const SequenceTiles& of_sequence = own.of_sequence;
  if (__any_sync(kAll, of_sequence.items(args) * of_sequence.tiles > kFewTiles)) return false;
  const int items = args.heads_of_block * of_sequence.row_tiles, tiles = items * of_sequence.tiles;
  const int total = __reduce_add_sync(kAll, tiles);
  int size = max(args.min_tiles, quotient(total + blocks - 1, blocks));
  const int tiles_of_first = __shfl_sync(kAll, tiles, 0), tiles_of_its_items = __shfl_sync(kAll, of_sequence.tiles, 0);
  if (size >= 16 && __all_sync(kAll, !there || tiles == tiles_of_first)) size = even_size(size, tiles_of_its_items);
  if (!__any_sync(kAll, of_sequence.tiles > undivided)) size = max(size, undivided);
  const auto up_to_here = [&](int value) {
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int other = __shfl_up_sync(kAll, value, offset);
      if (lane >= offset) value += other;
    }
    return value;
  };
  int entries_of_item = ranges_of_item(of_sequence.tiles, size);
  int entries = items * entries_of_item;
  int end = up_to_here(entries);
  const bool whole_ranges = __shfl_sync(kAll, end, 31) <= blocks;
  if (!whole_ranges) {
    entries_of_item = of_sequence.tiles;
    entries = tiles;
    end = up_to_here(tiles);
  }
  const int at = whole_ranges ? block : block * size;
  const unsigned owners = __ballot_sync(kAll, end - entries <= at && at < end);
  range = {size, 0, 0};
  if (owners == 0) return true;
  const int owner = __ffs(static_cast<int>(owners)) - 1;
  own.of_lane(owner);
  own.first_head = cursor.first_head;
  cursor = own;
  range = range_at(cursor, size, whole_ranges, at, __shfl_sync(kAll, end - entries, owner),
                   __shfl_sync(kAll, entries_of_item, owner), total);
  return true;
}

template <int kThreads, int kRows, int kTileKeys>
__device__ inline TileRange find_range(const AttentionArgs& args, FindRange<kThreads>& shared,
                                       TileCursor<kRows, kTileKeys>& cursor, int undivided = 1) {
  const PagedAttentionParams& p = args.p;
  cursor.first_head = static_cast<int>(blockIdx.x) * args.heads_of_block;
  TileRange range;
  if (p.num_seqs == 1) {
    if (find_range_of_one(args, cursor, undivided, range)) return range;
  } else if (p.num_seqs <= 32) {
    if (find_range_of_few(args, cursor, undivided, range)) return range;
  }
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const auto tiles_of = [&](int64_t s) {
    return s < p.num_seqs ? SequenceTiles(args, sequence_at(args, s), kRows, kTileKeys) : SequenceTiles();
  };
  const auto total_of = [&](const SequenceTiles& tiles) { return tiles.items(args) * tiles.tiles; };
  // Returns the sum over this thread and those before it. `total` becomes the sum over all threads.
  const auto running_sum = [&](int64_t value, int64_t& total) {
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int64_t other = __shfl_up_sync(0xffffffffu, value, offset);
      if (lane >= offset) value += other;
    }
    __syncthreads();
    if (lane == 31) shared.sums[warp] = value;
    __syncthreads();
    total = 0;
#pragma unroll
    for (int w = 0; w < kThreads / 32; ++w) {
      if (w < warp) value += shared.sums[w];
      total += shared.sums[w];
    }
    return value;
  };
  const SequenceTiles of_first = tiles_of(threadIdx.x);
  int64_t first_tiles = total_of(of_first);
  if (threadIdx.x == 0) shared.tiles_of_first = first_tiles, shared.tiles_of_its_items = of_first.tiles;
  int64_t own = first_tiles;
  for (int64_t s = threadIdx.x + kThreads; s < p.num_seqs; s += kThreads) own += total_of(tiles_of(s));
  int64_t total;
  int64_t up_to_here = running_sum(own, total);
  range.size = max(int64_t{args.min_tiles}, quotient(total + gridDim.y - 1, gridDim.y));
  if (range.size >= 16 && range.size < 1 << 24 && total == p.num_seqs * shared.tiles_of_first) {
    range.size = even_size(static_cast<int>(range.size), shared.tiles_of_its_items);
  }
  int64_t multiple = 1;
  if (p.num_seqs <= kThreads) {
    const int64_t ranges =
        of_first.items(args) * ranges_of_item(of_first.tiles, static_cast<int>(min(range.size, int64_t{INT_MAX})));
    int64_t all_ranges;
    const int64_t ranges_up_to_here = running_sum(ranges, all_ranges);
    if (all_ranges <= gridDim.y) {
      multiple = range.size;
      first_tiles = ranges * multiple;
      up_to_here = ranges_up_to_here * multiple;
      total = all_ranges * multiple;
    }
  }
  range.begin = blockIdx.y * range.size;
  range.end = min(range.begin + range.size, total);
  if (range.begin >= total) return {range.size, 0, 0};

  int64_t before = 0;
  for (int64_t base = 0;; base += kThreads) {
    const int64_t tiles = base == 0 ? first_tiles : total_of(tiles_of(base + threadIdx.x));
    int64_t of_these = total;
    if (p.num_seqs > kThreads) up_to_here = running_sum(tiles, of_these);
    const int64_t end = before + up_to_here;
    if (end - tiles <= range.begin && range.begin < end) shared.s = base + threadIdx.x, shared.start = end - tiles;
    before += of_these;
    if (range.begin < before) break;
  }
  __syncthreads();
  cursor.seek(args, shared.s, shared.start, range.begin, multiple);
  if (multiple > 1) range.end = min(range.end, cursor.first + cursor.of_sequence.tiles);
  return range;
}

}  // namespace prologue::cuda
