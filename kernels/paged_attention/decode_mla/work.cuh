// What the warps of a block of decode_mla_kernel share, and rows of the output.
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

// A block's part of a unit: consecutive tiles.
struct MlaWork {
  Sequence sequence;
  int64_t sequence_index = 0;
  int tiles = 0;      // 0: there is no more work
  int position = 0;   // of the first tile
  int first_key = 0;  // the first position that a row of the unit needs, and
  int key_limit = 0;  // the position behind the last one
  int first_packed = 0;
  int rows = 0;         // packed rows of the unit
  int first_block = 0;  // the blocks that share it
  int last_block = 0;
  bool begins = false;      // with the unit's first tile
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
  float sum[2][kRows];      // of each consumer's tiles, at the end of a unit
  FindShare<kDecodeMlaThreads> find_share;
  unsigned arrived;

  // Of the weights of a row in a stage: chunk i has keys 8i to 8i + 7.
  static __device__ int weights_place(int row, int chunk) {
    return row / 8 * kGroupBytes + (kPanels - 1) * kPanelBytes + row % 8 * kRowBytes + (chunk ^ row % 8) * 16;
  }
};

// A row of the output.
struct MlaOutRow {
  int j;  // query row
  int q_head;
  int64_t offset;

  __device__ MlaOutRow(const AttentionArgs& args, const Sequence& sequence, int packed)
      : j(packed / args.group),
        q_head(packed % args.group),
        offset((sequence.first_row + j) * args.p.out.token_stride + q_head * args.p.out.head_stride) {}
  // What the row's sums are divided by; negative: it is zeros. One of its threads records its fault.
  __device__ float divisor(const AttentionArgs& args, const Sequence& sequence, float maximum, float sum, bool fault,
                           bool records) const {
    if (fault && records && q_head == 0) record_row_fault(args, sequence, j);
    return fault || sequence.limit(j) == 0 ? -1.0f : sum + sink_weight(args.p, q_head, maximum);
  }
};

// The sums of four channels, which are complete.
__device__ inline void store_sums(const AttentionArgs& args, const Sequence& sequence, int packed, int d, PartSums& sums) {
  const MlaOutRow to(args, sequence, packed);
  const float by = to.divisor(args, sequence, sums.maximum, sums.sum, sums.fault, d == 0);
#pragma unroll
  for (float& value : sums.values) value = by < 0.0f ? 0.0f : value / by;
  store_four(args.p.dtype, args.p.out.data, to.offset + d, sums.values);
}

}  // namespace prologue::cuda
