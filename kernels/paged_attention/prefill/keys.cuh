// Prefill without wgmma keeps this about a tile of keys in shared memory.
#pragma once

#include <cstdint>

namespace prologue::cuda {

// Says where a position's keys and values are. The offsets are negative if there are none.
struct KvOffset {
  int64_t k;
  int64_t v;
};

// Adds zero points, which are 0 if a format has none.
template <class Tile, int kStages>
struct WithZeroPoints : Tile {
  float k_zero_points[kStages][Tile::kKeys];
  float v_zero_points[kStages][Tile::kKeys];
};

}  // namespace prologue::cuda
