// This file has the arguments that all attention kernels have in common.
//
// The rows of a sequence are *packed*: packed row r of kv head g is q head g * group + r % group of query row r / group, so that a block
// reads a key or a value once for all of its q heads.
//
//   decode_mma_kernel      few rows per sequence, 16-bit types: tensor cores, the keys of the batch in equal ranges
//   decode_mla_kernel      the same of latent attention (MLA) on Hopper, 16-bit types: wgmma, 64 packed rows x 64 keys, by TMA
//   decode_kernel          few rows per sequence, anything else: CUDA cores, sequences split over blocks  (then combine_kernel)
//   prefill_wgmma_kernel   many rows, 16-bit types, on Hopper: tensor cores, 128 packed rows x 128 keys, by TMA or from codes
//   prefill_mma_kernel     many rows, 16-bit types: tensor cores, 64 or 128 packed rows x 64 keys
//   prefill_simple_kernel  many rows, float32 and whatever does not fit the tensor cores: CUDA cores
//
// All of them derive everything from the device arrays, so a captured launch follows them; the launch is shaped by host bounds.
#pragma once

#include <climits>
#include <cstdint>

#include <prologue/kernels/base/shared/divisor.h>
#include <prologue/kernels/paged_attention/paged_attention.h>

struct float2;  // of CUDA; its headers are not needed to name it

namespace prologue::cuda {

struct ItemBlocks {
  int first, last;
};

struct AttentionArgs {
  PagedAttentionParams p;
  float score_scale = 0.0f;  // scores are powers of two: scale * log2(e); with a soft cap scale / soft_cap,
  float cap_log2 = 0.0f;     // and then tanh of that times soft_cap * log2(e); 0 = no cap
  int window = INT_MAX;      // positions that a row sees; INT_MAX = all
  Divisor chunk;             // positions of a chunk; 0 = no chunks
  Divisor group;             // q heads that share a kv head
  Divisor num_kv_heads;      // of the cache, of which an int is enough
  Divisor page_size;         // likewise
  Divisor ring_size;         // likewise
  int v_head_dim = 0;
  bool whole_groups = true;         // q, cache and out move in whole aligned groups
  bool same_rows = false;           // K and V have the same head_dim and strides
  int64_t first_seq = 0;            // prefill: decode runs those before it, in a launch of its own
  int min_tiles = 1;                // decode_mma, decode_mla: of a block
  int heads_of_block = 1;           // decode_mma: kv heads of each of the cooperating blocks (decode_tiles.cuh); decode_mla: 1
  int stages = 2;                   // decode_mma: of the rings
  int row_tiles = 0;                // decode, decode_mla: tiles of packed rows per sequence; prefill: the most of all sequences
  int num_splits = 1;               // decode: blocks that a sequence is divided over
  float2* partial_stats = nullptr;  // decode with splits, [block, row of its tile]: maximum and sum, the sum negative for a fault
  float* partial_out = nullptr;     // and [block, row of its tile, v_head_dim]: not yet divided by the sum; prefill_wgmma: both
  uint32_t* counters = nullptr;     // of blocks, if several may work on one tile: zeros before and after
  ItemBlocks* item_blocks = nullptr;  // decode_mla, [sequence, tile of rows]: the blocks of a work item, for combine
};

}  // namespace prologue::cuda
