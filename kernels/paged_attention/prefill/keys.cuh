// Prefill without wgmma: what is known of a tile of keys in shared memory.
#pragma once

#include <cstdint>

namespace prologue::cuda {

// Where a position's keys and values are; negative if there are none.
struct KvOffset {
  int64_t k;
  int64_t v;
};

// 0 where there are none.
template <class Tile, int kStages>
struct WithZeroPoints : Tile {
  float k_zero_points[kStages][Tile::kKeys];
  float v_zero_points[kStages][Tile::kKeys];
};

}  // namespace prologue::cuda
