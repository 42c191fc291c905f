// This file prepares the launch of a kernel that uses the list of tiles of decode_tiles.cuh, and lays out its workspace. Internal, for
// CUDA.
#pragma once

#include <cstddef>
#include <cstdint>

#include <prologue/kernels/paged_attention/attention_instances.cuh>

namespace prologue::cuda {

inline constexpr int64_t kMinKeysPerBlock = 128;

struct DecodeTilesParts {
  int64_t counters_bytes = kPagedAttentionCounters * static_cast<int64_t>(sizeof(uint32_t));
  int64_t rows;  // of all parts
  int64_t bytes;

  DecodeTilesParts(int64_t blocks, int64_t tile_rows, int64_t v_width)
      : rows(2 * blocks * tile_rows),
        bytes(counters_bytes + rows * static_cast<int64_t>(sizeof(float2) + static_cast<size_t>(v_width) * sizeof(float))) {}
};

struct DecodeTilesLaunch {
  int64_t tile_rows, tile_keys;
  int64_t min_keys;     // of a block
  int64_t max_blocks;   // that run at a time
  int64_t part_blocks;  // that the workspace has parts for
  bool counts = true;   // blocks of one work item count how many have arrived
};

// Whether a work item may have several tiles of the smallest size that there is. Several blocks may work on it then.
bool items_have_several_tiles(const PagedAttentionParams& params);

// Fills in the arguments, and says what the grid is and whether the launch may overlap with the kernel before it.
Status prepare(const PagedAttentionParams& params, const DecodeTilesLaunch& shape, cudaStream_t stream, AttentionArgs& args,
               dim3& grid, bool& may_overlap);

}  // namespace prologue::cuda
