// Decode on tensor cores: the list of tiles that blocks share out.
//
// Where there is much to read, blocks come in *teams*. A team's blocks share the kv heads among them, mostly one each, and go through the same
// keys at the same time, so that what lies side by side in a page is read together: the memory is faster so. Otherwise a team is one
// block. blockIdx.y is the team, blockIdx.x the place in it.
// The keys of a batch are one list of tiles for each block of a team: sequence by sequence, kv head by kv head, tile of rows by tile of rows
// (such a piece is a *unit*). Every team takes an equal share of the list, whatever units it lies in.
#pragma once

#include <prologue/kernels/paged_attention/attention_args.cuh>

namespace prologue::cuda {

inline constexpr int kKeyGroup = 16;  // tiles start at multiples of it

// A sequence's part of the list.
struct SequenceTiles {
  int begin = 0;      // the first position that any row sees
  int origin = 0;     // the first position of its tiles
  int row_tiles = 0;  // 0: it has none
  int tiles = 0;      // of a unit

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
  __device__ int64_t units(const AttentionArgs& args) const { return int64_t{args.heads_of_block} * row_tiles; }
};

// a / b of numbers that are not negative: mostly both have 32 bits, and then it takes a third of the time.
__device__ inline int64_t quotient(int64_t a, int64_t b) {
  return ((a | b) >> 32) == 0 ? int64_t{static_cast<uint32_t>(a) / static_cast<uint32_t>(b)} : a / b;
}

__device__ inline int quotient(int a, int b) { return static_cast<int>(static_cast<uint32_t>(a) / static_cast<uint32_t>(b)); }

// A tile of the list.
template <int kRows, int kTileKeys>
struct TileCursor {
  int first_head = 0;  // of the block
  int64_t s = 0;
  int64_t first = 0;  // place in the list of the unit's first tile
  Sequence sequence;
  SequenceTiles of_sequence;
  int kv_head = 0;
  int row_tile = 0;
  int tile = 0;  // of the unit

  __device__ void enter(const AttentionArgs& args, int64_t index) {
    s = index;
    sequence = sequence_at(args, s);
    of_sequence = SequenceTiles(args, sequence, kRows, kTileKeys);
  }
  // What lane `lane` of the warp has of its sequence.
  __device__ void of_lane(int lane) {
    const auto take = [&](auto& value) { value = __shfl_sync(0xffffffffu, value, lane); };
    s = lane;
    take(sequence.first_row), take(sequence.num_rows), take(sequence.length);
    sequence.bad_rows = __shfl_sync(0xffffffffu, static_cast<int>(sequence.bad_rows), lane) != 0;
    sequence.too_long = __shfl_sync(0xffffffffu, static_cast<int>(sequence.too_long), lane) != 0;
    sequence.pages = reinterpret_cast<const int32_t*>(__shfl_sync(0xffffffffu, reinterpret_cast<uint64_t>(sequence.pages), lane));
    take(of_sequence.begin), take(of_sequence.origin), take(of_sequence.row_tiles), take(of_sequence.tiles);
  }
  // To place `to` of the list from the beginning of sequence `index`, whose first tile has the place `start`. Units take up
  // multiples of `multiple` places.
  __device__ void seek(const AttentionArgs& args, int64_t index, int64_t start, int64_t to, int64_t multiple) {
    enter(args, index);
    const int64_t places = quotient(of_sequence.tiles + multiple - 1, multiple) * multiple;
    const int64_t unit = quotient(to - start, places);
    tile = static_cast<int>(to - start - unit * places);
    first = to - tile;
    const int head = static_cast<int>(quotient(unit, int64_t{of_sequence.row_tiles}));
    kv_head = first_head + head;
    row_tile = static_cast<int>(unit - int64_t{head} * of_sequence.row_tiles);
  }
  // To the next tile. There must be one. `ahead`, further on in the same list, may know the next sequence.
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
struct FindShare {  // shared memory of find_share, for a block of kThreads
  int64_t sums[kThreads / 32];
  int64_t s, start;
  int64_t tiles_of_first;  // sequence
  int tiles_of_its_units;
};

// The share of this block's team: places [begin, end) of the list, and a cursor at `begin`. Shares are equal, the last ones smaller or empty.
// Where there are teams enough, units begin at multiples of a share's size, so that no block has parts of two: the ends of units
// cost more than tiles do. Where no unit of few sequences has more than `undivided` tiles, each is one block's.
struct Share {
  int64_t size = 0;  // of a share
  int64_t begin = 0;
  int64_t end = 0;
};

// The size of shares of sequences that are equally long: up to a sixteenth larger, if shares then are whole numbers of units, or units are
// whole numbers of shares, so that there are fewer parts of units to add up.
__device__ inline int even_size(int size, int tiles_of_unit) {
  const int parts = tiles_of_unit / size;
  const int even = parts == 0 ? (size + tiles_of_unit - 1) / tiles_of_unit * tiles_of_unit : (tiles_of_unit + parts - 1) / parts;
  return even - size <= size / 16 ? even : size;
}

// The share of one sequence, or of up to 32, is found in 32 bits, if none has more tiles than this. Tests have few, so that both ways run.
#ifndef PROLOGUE_FEW_TILES
#define PROLOGUE_FEW_TILES (1 << 25)
#endif
inline constexpr int64_t kFewTiles = PROLOGUE_FEW_TILES;

// How many shares of so many tiles a unit is divided into.
__device__ inline int shares_of_unit(int tiles_of_unit, int size) {
  return size >= tiles_of_unit ? 1 : quotient(tiles_of_unit - 1, size) + 1;
}

// The share at place `at` of a list whose places are tiles, or whole shares; the sequence of the cursor begins at place `start`.
template <int kRows, int kTileKeys>
__device__ inline Share share_at(TileCursor<kRows, kTileKeys>& cursor, int size, bool whole_shares, int at, int start,
                                 int places_of_unit, int total) {
  const int tiles = whole_shares ? size : 1;
  const int row_tiles = cursor.of_sequence.row_tiles;
  const int unit = quotient(at - start, places_of_unit);
  const int of_unit = at - start - unit * places_of_unit;
  const int head = row_tiles == 1 ? unit : quotient(unit, row_tiles);
  cursor.tile = of_unit * tiles;
  cursor.first = (at - of_unit) * tiles;
  cursor.kv_head = cursor.first_head + head;
  cursor.row_tile = unit - head * row_tiles;
  const int begin = at * tiles;
  const int end = whole_shares ? static_cast<int>(cursor.first) + cursor.of_sequence.tiles : total;
  return {size, begin, min(begin + size, end)};
}

// False: it has too many tiles.
template <int kRows, int kTileKeys>
__device__ inline bool find_share_of_one(const AttentionArgs& args, TileCursor<kRows, kTileKeys>& cursor, int undivided,
                                         Share& share) {
  const int block = static_cast<int>(blockIdx.y), blocks = static_cast<int>(gridDim.y);
  cursor.enter(args, 0);
  const SequenceTiles& of_sequence = cursor.of_sequence;
  if (of_sequence.units(args) * of_sequence.tiles > kFewTiles) return false;
  const int units = args.heads_of_block * of_sequence.row_tiles, total = units * of_sequence.tiles;
  int size = max(args.min_tiles, quotient(total + blocks - 1, blocks));
  if (of_sequence.tiles <= undivided) size = max(size, undivided);
  const int of_unit = shares_of_unit(of_sequence.tiles, size), all_shares = units * of_unit;
  const bool whole_shares = all_shares <= blocks;
  const int at = whole_shares ? block : block * size;
  share = {size, 0, 0};
  if (at < (whole_shares ? all_shares : total)) {
    share = share_at(cursor, size, whole_shares, at, 0, whole_shares ? of_unit : of_sequence.tiles, total);
  }
  return true;
}

// Every warp by itself, a lane for each sequence. False: as above.
template <int kRows, int kTileKeys>
__device__ inline bool find_share_of_few(const AttentionArgs& args, TileCursor<kRows, kTileKeys>& cursor, int undivided,
                                         Share& share) {
  constexpr unsigned kAll = 0xffffffffu;
  const int block = static_cast<int>(blockIdx.y), blocks = static_cast<int>(gridDim.y);
  const int lane = threadIdx.x % 32;
  const bool there = lane < args.p.num_seqs;
  TileCursor<kRows, kTileKeys> own;
  if (there) own.enter(args, lane);
  const SequenceTiles& of_sequence = own.of_sequence;
  if (__any_sync(kAll, of_sequence.units(args) * of_sequence.tiles > kFewTiles)) return false;
  const int units = args.heads_of_block * of_sequence.row_tiles, tiles = units * of_sequence.tiles;
  const int total = __reduce_add_sync(kAll, tiles);
  int size = max(args.min_tiles, quotient(total + blocks - 1, blocks));
  const int tiles_of_first = __shfl_sync(kAll, tiles, 0), tiles_of_its_units = __shfl_sync(kAll, of_sequence.tiles, 0);
  if (size >= 16 && __all_sync(kAll, !there || tiles == tiles_of_first)) size = even_size(size, tiles_of_its_units);
  if (!__any_sync(kAll, of_sequence.tiles > undivided)) size = max(size, undivided);
  const auto up_to_here = [&](int value) {
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int other = __shfl_up_sync(kAll, value, offset);
      if (lane >= offset) value += other;
    }
    return value;
  };
  int places_of_unit = shares_of_unit(of_sequence.tiles, size);
  int places = units * places_of_unit;
  int end = up_to_here(places);
  const bool whole_shares = __shfl_sync(kAll, end, 31) <= blocks;
  if (!whole_shares) {
    places_of_unit = of_sequence.tiles;
    places = tiles;
    end = up_to_here(tiles);
  }
  const int at = whole_shares ? block : block * size;
  const unsigned owners = __ballot_sync(kAll, end - places <= at && at < end);
  share = {size, 0, 0};
  if (owners == 0) return true;
  const int owner = __ffs(static_cast<int>(owners)) - 1;
  own.of_lane(owner);
  own.first_head = cursor.first_head;
  cursor = own;
  share = share_at(cursor, size, whole_shares, at, __shfl_sync(kAll, end - places, owner),
                   __shfl_sync(kAll, places_of_unit, owner), total);
  return true;
}

template <int kThreads, int kRows, int kTileKeys>
__device__ inline Share find_share(const AttentionArgs& args, FindShare<kThreads>& shared, TileCursor<kRows, kTileKeys>& cursor,
                                   int undivided = 1) {
  const PagedAttentionParams& p = args.p;
  cursor.first_head = static_cast<int>(blockIdx.x) * args.heads_of_block;
  Share share;
  if (p.num_seqs == 1) {
    if (find_share_of_one(args, cursor, undivided, share)) return share;
  } else if (p.num_seqs <= 32) {
    if (find_share_of_few(args, cursor, undivided, share)) return share;
  }
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const auto tiles_of = [&](int64_t s) {
    return s < p.num_seqs ? SequenceTiles(args, sequence_at(args, s), kRows, kTileKeys) : SequenceTiles();
  };
  const auto total_of = [&](const SequenceTiles& tiles) { return tiles.units(args) * tiles.tiles; };
  // The sum over the threads before this one and this one; `total`: over all.
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
  if (threadIdx.x == 0) shared.tiles_of_first = first_tiles, shared.tiles_of_its_units = of_first.tiles;
  int64_t own = first_tiles;
  for (int64_t s = threadIdx.x + kThreads; s < p.num_seqs; s += kThreads) own += total_of(tiles_of(s));
  int64_t total;
  int64_t up_to_here = running_sum(own, total);
  share.size = max(int64_t{args.min_tiles}, quotient(total + gridDim.y - 1, gridDim.y));
  if (share.size >= 16 && share.size < 1 << 24 && total == p.num_seqs * shared.tiles_of_first) {
    share.size = even_size(static_cast<int>(share.size), shared.tiles_of_its_units);
  }
  int64_t multiple = 1;
  if (p.num_seqs <= kThreads) {
    const int64_t shares =
        of_first.units(args) * shares_of_unit(of_first.tiles, static_cast<int>(min(share.size, int64_t{INT_MAX})));
    int64_t all_shares;
    const int64_t shares_up_to_here = running_sum(shares, all_shares);
    if (all_shares <= gridDim.y) {
      multiple = share.size;
      first_tiles = shares * multiple;
      up_to_here = shares_up_to_here * multiple;
      total = all_shares * multiple;
    }
  }
  share.begin = blockIdx.y * share.size;
  share.end = min(share.begin + share.size, total);
  if (share.begin >= total) return {share.size, 0, 0};

  int64_t before = 0;
  for (int64_t base = 0;; base += kThreads) {
    const int64_t tiles = base == 0 ? first_tiles : total_of(tiles_of(base + threadIdx.x));
    int64_t of_these = total;
    if (p.num_seqs > kThreads) up_to_here = running_sum(tiles, of_these);
    const int64_t end = before + up_to_here;
    if (end - tiles <= share.begin && share.begin < end) shared.s = base + threadIdx.x, shared.start = end - tiles;
    before += of_these;
    if (share.begin < before) break;
  }
  __syncthreads();
  cursor.seek(args, shared.s, shared.start, share.begin, multiple);
  if (multiple > 1) share.end = min(share.end, cursor.first + cursor.of_sequence.tiles);
  return share;
}

}  // namespace prologue::cuda
