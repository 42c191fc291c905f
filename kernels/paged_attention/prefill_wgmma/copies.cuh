// This file has the producers of prefill_wgmma_kernel for caches of the type of q. They are two warps, since a tile of small pages has many
// boxes, which one warp issues too slowly.
//
// Positions that no row of the tile needs, bad pages and channels beyond the head are outside of the tensor for TMA, and arrive as zeros.
// If a box has positions that are needed and others, the producer of V overwrites V of the others, so that 0 * NaN is not added.
#pragma once

#include <prologue/kernels/paged_attention/prefill_wgmma/work.cuh>

namespace prologue::cuda {

// A lane has a box of a tile of keys: its page and its first slot there. The page is -1, outside of the tensor, if no row of the tile
// needs it, or if there is no such page.
struct Box {
  int page = -1;
  int slot = 0;
  bool bad = false;  // needed, and there is no such page
  int begin = 0;     // the needed positions
  int end = 0;
};

template <int kKeys>
__device__ inline Box box_of_lane(const AttentionArgs& args, const PrefillWgmmaParams& w, const RowTile& tile, int first_needed,
                                  int key_tile) {
  const int lane = threadIdx.x % 32;
  const int position = key_tile * kKeys + lane * w.box_slots;
  Box box;
  box.begin = max(position, first_needed);
  box.end = min(position + w.box_slots, tile.last_limit);
  if (lane * w.box_slots < kKeys && box.begin < box.end) {
    const int logical_slot = logical_slot_of(args, position);
    const CacheSlot slot = cache_slot(args, tile.sequence.pages[page_index(args, logical_slot)], logical_slot);
    box.page = static_cast<int>(slot.page);
    box.slot = static_cast<int>(slot.offset);
    box.bad = slot.page < 0;
  }
  return box;
}

// Every lane loads its box, of each panel.
template <class T, int kPanels, int kKeys>
__device__ inline void load_boxes(T (&to)[kPanels][kKeys][64], const PrefillWgmmaParams& w, const CUtensorMap& map,
                                  Barrier& barrier, int kv_head, const Box& from) {
  const int first = threadIdx.x % 32 * w.box_slots;
  if (first >= kKeys) return;
#pragma unroll
  for (int panel = 0; panel < kPanels; ++panel)
    load_box(&to[panel][first], map, barrier, panel * 64, from.slot, kv_head, from.page);
}

// Finds the work, and loads Q and the keys.
template <class Shared>
__device__ inline void copy_keys(const AttentionArgs& args, const PrefillWgmmaParams& w, Shared& shared) {
  constexpr int kKeys = Shared::kKeys;
  const int lane = threadIdx.x % 32;
  if (!args.p.past_is_ready) wait_for_previous_kernels();
  const int blocks_of_tile = blocks_of_tiles(args, w);
  StageIndex<2> work_at;
  StageIndex<Shared::kStages> at;
  unsigned q_phase = 0;

  for (int round = 0;; work_at.advance()) {
    PrefillWork& work = publish_work(args, w, blocks_of_tile, round, work_at, shared);
    if (work.kv_head < 0) return;
    if (work.begin == work.end) continue;
    const int first_needed = lowest(args, work.tile.first_limit);

    wait_for_previous_kernels();
    copy_q(args, w, work, q_phase, shared);
    for (int key_tile = work.begin; key_tile < work.end; ++key_tile, at.advance()) {
      const Box box = box_of_lane<kKeys>(args, w, work.tile, first_needed, key_tile);
      mark_faulty_rows(args, w, work, box.bad, box.begin, box.end);
      shared.k_empty[at.index].wait(at.phase ^ 1);
      __syncwarp();  // the faulty rows are known before the keys are there
      if (lane == 0) shared.k_full[at.index].arrive_and_expect(Shared::kStageBytes);
      __syncwarp();
      load_boxes(shared.k[at.index], w, w.k, shared.k_full[at.index], work.kv_head, box);
    }
  }
}

template <class Shared>
__device__ inline void copy_values(const AttentionArgs& args, const PrefillWgmmaParams& w, Shared& shared) {
  constexpr int kKeys = Shared::kKeys;
  const int lane = threadIdx.x % 32;
  StageIndex<2> work_at;
  StageIndex<Shared::kStages> at;
  unsigned copied_phase = 0;

  wait_for_previous_kernels();
  for (;; work_at.advance()) {
    shared.work_full[work_at.index].wait(work_at.phase);
    const PrefillWork& work = shared.work[work_at.index];
    if (work.kv_head < 0) return;
    const int first_needed = lowest(args, work.tile.first_limit);
    const int last_limit = work.tile.last_limit;
    for (int key_tile = work.begin; key_tile < work.end; ++key_tile, at.advance()) {
      const Box box = box_of_lane<kKeys>(args, w, work.tile, first_needed, key_tile);
      // Rows of the tile before `low` and from `high` on are not needed. Boxes without a needed one are zeros already.
      const int low = max(0, first_needed - key_tile * kKeys);
      const int high = min(kKeys, last_limit - key_tile * kKeys);
      const bool mixed = ((low | high) & (w.box_slots - 1)) != 0;  // a box is a power of two
      Barrier& full = shared.v_full[at.index];
      Barrier& copied = mixed ? shared.v_copied : full;
      shared.v_empty[at.index].wait(at.phase ^ 1);
      if (lane == 0) copied.arrive_and_expect(Shared::kStageBytes);
      __syncwarp();
      load_boxes(shared.v[at.index], w, w.v, copied, work.kv_head, box);
      if (mixed) {
        copied.wait(copied_phase);
        copied_phase ^= 1;
        const int clear_begin = low & -w.box_slots;
        const int clear_end = (high + w.box_slots - 1) & -w.box_slots;
        for (int i = clear_begin * 8 + lane; i < clear_end * 8; i += 32) {
          if (i / 8 >= low && i / 8 < high) continue;
#pragma unroll
          for (int panel = 0; panel < Shared::kPanels; ++panel) {
            *reinterpret_cast<uint4*>(&shared.v[at.index][panel][i / 8][i % 8 * 8]) = uint4{0, 0, 0, 0};
          }
        }
        fence_shared_for_async();  // each lane's zeros, before wgmma reads them
        __syncwarp();
        if (lane == 0) full.arrive();
      }
    }
    __syncwarp();
    if (lane == 0) shared.work_empty[work_at.index].arrive();
  }
}

}  // namespace prologue::cuda
