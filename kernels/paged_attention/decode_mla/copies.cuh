// The producer of decode_mla_kernel is a warp. It finds the work, and loads its keys by TMA.
#pragma once

#include <prologue/kernels/paged_attention/decode_mla/work.cuh>

namespace prologue::cuda {

// Each lane has 16 keys and their page. The page is -1, which is outside of the tensor, if no row of the work item needs them, or if there
// is no such page.
struct MlaBox {
  int page = -1;
  int slot = 0;
  bool bad = false;  // needed, and there is no such page
};

__device__ inline MlaBox mla_box_at(const AttentionArgs& args, const MlaWork& work, int position) {
  MlaBox box;
  if (max(position, work.first_key) < min(position + kDecodeMlaBoxSlots, work.key_limit)) {
    const int logical_slot = logical_slot_of(args, position);
    const CacheSlot slot = cache_slot(args, work.sequence.pages[page_index(args, logical_slot)], logical_slot);
    box.page = static_cast<int>(slot.page);
    box.slot = static_cast<int>(slot.offset);
    box.bad = slot.page < 0;
  }
  return box;
}

template <class T>
__device__ inline void produce_mla(const AttentionArgs& args, const CUtensorMap& map, MlaShared<T>& shared,
                                   const TileRange& range, TileCursor<kDecodeMlaRows, kDecodeMlaKeys>& cursor) {
  using Shared = MlaShared<T>;
  constexpr int kBoxes = Shared::kKeys / kDecodeMlaBoxSlots;  // of a tile
  constexpr int kTilesAtOnce = 32 / kBoxes;                   // whose pages a warp knows
  const int lane = threadIdx.x % 32;
  bool waiting = args.p.past_is_ready;  // for the previous kernels
  StageIndex<2> work_at, at;

  for (int64_t next = range.begin;; work_at.advance()) {
    MlaWork& work = shared.work[work_at.index];
    const int tiles = static_cast<int>(min(range.end - next, int64_t{cursor.of_sequence.tiles - cursor.tile}));
    shared.work_empty[work_at.index].wait(work_at.phase ^ 1);
    if (lane == 0) {
      work = MlaWork();
      if (next < range.end) {
        work.sequence = cursor.sequence;
        work.sequence_index = cursor.s;
        work.tiles = tiles;
        work.position = cursor.position();
        work.first_packed = cursor.first_packed();
        work.rows = min(Shared::kRows, cursor.num_packed(args) - work.first_packed);
        if (work.rows > 0) {
          work.first_key = lowest(args, cursor.sequence.limit(work.first_packed / args.group));
          work.key_limit = cursor.sequence.limit((work.first_packed + work.rows - 1) / args.group);
        }
        work.first_block = static_cast<int>(quotient(cursor.first, range.size));
        work.last_block = static_cast<int>(quotient(cursor.first + cursor.of_sequence.tiles - 1, range.size));
        work.begins = cursor.tile == 0;
      }
      shared.work_full[work_at.index].arrive();
    }
    __syncwarp();
    if (next >= range.end) return;

    MlaBox box;
    for (int tile = 0; tile < tiles; ++tile, at.advance()) {
      if (tile % kTilesAtOnce == 0) box = mla_box_at(args, work, work.position + (tile * kBoxes + lane) * kDecodeMlaBoxSlots);
      const bool of_tile = lane / kBoxes == tile % kTilesAtOnce;
      const int position = work.position + tile * Shared::kKeys;
      for (unsigned left = __ballot_sync(0xffffffffu, of_tile && box.bad); left != 0; left &= left - 1) {
        const int first = position + (__ffs(static_cast<int>(left)) - 1) % kBoxes * kDecodeMlaBoxSlots;
#pragma unroll 1
        for (int row = lane; row < work.rows; row += 32) {
          const int limit = work.sequence.limit((work.first_packed + row) / args.group);
          const bool sees = max(first, lowest(args, limit)) < min(first + kDecodeMlaBoxSlots, limit);
          if (sees) atomicOr(&work.faulty[row / 32], 1u << (row % 32));
        }
      }
      if (waiting && position + Shared::kKeys > work.sequence.length - work.sequence.num_rows) {
        wait_for_previous_kernels();
        waiting = false;
      }
      shared.k_empty[at.index].wait(at.phase ^ 1);
      __syncwarp();  // the faulty rows are known before the keys are there
      if (lane == 0) shared.k_full[at.index].arrive_and_expect(Shared::kStageBytes);
      __syncwarp();
      if (of_tile) {
        load_box(&shared.k[at.index][lane % kBoxes * (kDecodeMlaBoxSlots / 8) * Shared::kGroupBytes], map,
                 shared.k_full[at.index], 0, 0, 0, box.slot / 8, box.page);
      }
    }
    next += tiles;
    if (next < range.end) {
      cursor.tile += tiles - 1;
      cursor.advance(args);
    }
  }
}

}  // namespace prologue::cuda
