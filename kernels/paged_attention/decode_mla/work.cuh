// This file has what the warps of a block of decode_mla_kernel exchange, and the store of the output's rows.
#pragma once

#include <prologue/kernels/base/device/hopper.cuh>
#include <prologue/kernels/paged_attention/attention_args.cuh>
#include <prologue/kernels/paged_attention/attention_instances.cuh>
#include <prologue/kernels/paged_attention/decode_parts.cuh>
#include <prologue/kernels/paged_attention/decode_tiles.cuh>
#include <prologue/kernels/paged_attention/wgmma_tools.cuh>

namespace prologue::cuda {

inline constexpr int kMlaConsumers = 2 * kWarpgroup;
static_assert(kDecodeMlaThreads == kMlaConsumers + kWarpgroup);

// Describes a block's part of a work item: consecutive tiles.
struct MlaWork {
  Sequence sequence;
  int64_t sequence_index = 0;
  int tiles = 0;      // 0: there is no more work
  int position = 0;   // of the first tile
  int first_key = 0;  // the first position that a row of the work item needs, and
  int key_limit = 0;  // the position after the last one
  int first_packed = 0;
  int rows = 0;         // packed rows of the work item
  int first_block = 0;  // the blocks that have parts of the work item
  int last_block = 0;
  bool begins = false;      // with the work item's first tile
  unsigned faulty[2] = {};  // a bit per row
};

template <class T>
struct MlaShared {
  static constexpr int kRows = kDecodeMlaRows;
  static constexpr int kKeys = kDecodeMlaKeys;
  static constexpr int kPanels = kMlaHeadDim / 64;
  static constexpr int kRowBytes = 128;
  static constexpr int kPanelBytes = 8 * kRowBytes;          // of 8 keys
  static constexpr int kGroupBytes = kPanels * kPanelBytes;  // 8 keys
  static constexpr int kStageBytes = kKeys / 8 * kGroupBytes;
  alignas(1024) T q[kPanels][kRows][64];
  alignas(1024) unsigned char k[2][kStageBytes];
  Barrier work_full[2], work_empty[2], k_full[2], k_empty[2], p_full[2], both_there;
  MlaWork work[2];
  float maximum[2][kRows];  // of each stage: of its tile and those before it
  float rescale[2][kRows];  // what sums over the tiles before it are multiplied by
  float sum[2][kRows];      // of each consumer's tiles, at the end of a work item
  FindRange<kDecodeMlaThreads> find_range;
  unsigned arrived;

  // Returns where the weights of a row are in a stage. Chunk i has keys 8i to 8i + 7.
  static __device__ int weights_offset(int row, int chunk) {
    return row / 8 * kGroupBytes + (kPanels - 1) * kPanelBytes + row % 8 * kRowBytes + (chunk ^ row % 8) * 16;
  }
};

// Says where a row of the output is.
struct MlaOutRow {
  int j;  // query row
  int q_head;
  int64_t offset;

  __device__ MlaOutRow(const AttentionArgs& args, const Sequence& sequence, int packed)
      : j(packed / args.group),
        q_head(packed % args.group),
        offset((sequence.first_row + j) * args.p.out.token_stride + q_head * args.p.out.head_stride) {}
  // Returns what the row's sums are divided by, or a negative number if the row becomes zeros. One of its threads records its fault.
  __device__ float divisor(const AttentionArgs& args, const Sequence& sequence, float maximum, float sum, bool fault,
                           bool records) const {
    if (fault && records && q_head == 0) record_row_fault(args, sequence, j);
    return fault || sequence.limit(j) == 0 ? -1.0f : sum + sink_weight(args.p, q_head, maximum);
  }
};

// Stores four channels whose sums are complete.
__device__ inline void store_sums(const AttentionArgs& args, const Sequence& sequence, int packed, int d, PartSums& sums) {
  const MlaOutRow to(args, sequence, packed);
  const float by = to.divisor(args, sequence, sums.maximum, sums.sum, sums.fault, d == 0);
#pragma unroll
  for (float& value : sums.values) value = by < 0.0f ? 0.0f : value / by;
  store_four(args.p.dtype, args.p.out.data, to.offset + d, sums.values);
}

}  // namespace prologue::cuda
