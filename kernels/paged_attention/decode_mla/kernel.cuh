// Decode of multi-head latent attention on Hopper (sm_90a): one kv head of 576 channels, whose first 512 are V. It uses wgmma, fed by TMA:
// K is read once, and its tile in shared memory is an operand of both products. The list of tiles, the ranges of the blocks and the
// combination of their parts are those of decode_tiles.cuh, with work items of 64 packed rows and tiles of 64 keys.
//
// A block is two warpgroups that multiply (the consumers) and one whose first warp copies (the producer). Shared memory has q of the work
// item and two tiles of keys, the stages. Consumer c computes the scores of the tiles of stage c, all 64 rows x 64 keys, and converts them
// into weights; both consumers add to their half of the output, 64 rows x 256 channels, for every tile. So a tile goes through these steps:
//
//   k_full   the producer's copies are there             -> its consumer multiplies q and K, finds the new maxima and the weights
//   p_full   weights, maxima and factors of the sums     -> the other consumer reads them; both multiply weights and V
//   k_empty  both are done                               -> the producer fills the stage again
//
// The weights overwrite the tile's last 64 channels, which V does not have.
//
//   stage    [8 groups of 8 keys][9 panels of 64 channels][8 keys][64 channels], swizzled in rows of 128 bytes: one box of TMA has all
//            channels of 16 keys
//   work     two entries: what a consumer needs to know of a work item; the producer is up to one work item ahead
//
// A part of a work item is up to 128 KiB. If a work item may have more than a few, a second launch adds them up, with a block for each row.
//
//   work.cuh        what the warps of a block exchange
//   copies.cuh      the producer
//   consumer.cuh    a consumer
#pragma once

#include <prologue/kernels/paged_attention/decode_mla/consumer.cuh>
#include <prologue/kernels/paged_attention/decode_mla/copies.cuh>

namespace prologue::cuda {

// Code for other GPUs is empty, and admits fewer threads.
inline constexpr int kDecodeMlaLaunchBound = PROLOGUE_HOPPER ? kDecodeMlaThreads : 32;

// The registers of the launch are divided again: each producer thread has so many, and each consumer thread.
inline constexpr int kMlaProducerRegisters = 72;
inline constexpr int kMlaConsumerRegisters = 216;
static_assert(kMlaProducerRegisters + 2 * kMlaConsumerRegisters == 3 * kDecodeMlaRegisters);

template <class T>
__global__ void __launch_bounds__(kDecodeMlaLaunchBound, 1)
    decode_mla_kernel(const __grid_constant__ AttentionArgs args, const __grid_constant__ CUtensorMap map) {
#if PROLOGUE_HOPPER
  MlaShared<T>& shared = *swizzled_dynamic_shared<MlaShared<T>>();
  if (threadIdx.x == 0) {
    if (shared_address(&shared) % 1024 != 0) __trap();  // the swizzle would be another
    for (int i = 0; i < 2; ++i) {
      shared.work_full[i].init(1);
      shared.work_empty[i].init(kMlaConsumers);
      shared.k_full[i].init(1);
      shared.k_empty[i].init(kMlaConsumers);
      shared.p_full[i].init(kWarpgroup);
    }
    shared.both_there.init(kMlaConsumers);
    fence_barrier_init();
    prefetch_map(map);
  }
  let_next_kernel_start();
  if (!args.p.past_is_ready) wait_for_previous_kernels();
  TileCursor<kDecodeMlaRows, kDecodeMlaKeys> cursor;
  const TileRange range = find_range(args, shared.find_range, cursor);
  __syncthreads();
  if (range.begin >= range.end) {
    wait_for_previous_kernels();  // whoever waits for this kernel waits for them, too
    return;
  }
  if (threadIdx.x < kMlaConsumers) {
    claim_registers<kMlaConsumerRegisters>();
    MlaConsumer<T>(args, shared).run();
  } else {
    release_registers<kMlaProducerRegisters>();
    if (threadIdx.x < kMlaConsumers + 32) produce_mla<T>(args, map, shared, range, cursor);
  }
#endif
}

// ---------------------------------------------------------------------------------------------------------------------
// The second launch has a block for each work item and row. Each of four groups of threads adds up a quarter of the parts.

template <int kRows>  // of a work item
__global__ void __launch_bounds__(kMlaCombineThreads) mla_combine_kernel(const __grid_constant__ AttentionArgs args) {
  constexpr int kColumns = kMlaValueDim / 4;
  constexpr int kGroups = kMlaCombineThreads / kColumns;
  __shared__ PartSums shared[kGroups - 1][kColumns];
  let_next_kernel_start();
  wait_for_previous_kernels();
  const Sequence sequence = sequence_at(args, blockIdx.x / args.row_tiles);
  const int row = static_cast<int>(blockIdx.y);
  const int packed = static_cast<int>(blockIdx.x) % args.row_tiles * kRows + row;
  if (packed >= sequence.num_rows * args.group) return;
  const ItemBlocks blocks = args.item_blocks[blockIdx.x];
  const int parts = blocks.last - blocks.first + 1;
  if (parts == 1) return;
  const int column = static_cast<int>(threadIdx.x) % kColumns;
  const int group = static_cast<int>(threadIdx.x) / kColumns;
  PartSums sums;
  add_parts<kRows>(args, blocks.first, blocks.first + parts * group / kGroups, blocks.first + parts * (group + 1) / kGroups - 1,
                   row, column * 4, sums);
  if (group > 0) shared[group - 1][column] = sums;
  __syncthreads();
  if (group > 0) return;
#pragma unroll
  for (int other = 0; other < kGroups - 1; ++other) {
    const PartSums& more = shared[other][column];
    const float both = fmaxf(sums.maximum, more.maximum);
    const float weight = weight_of(sums.maximum, both);
    const float other_weight = weight_of(more.maximum, both);
    sums.maximum = both;
    sums.fault = sums.fault || more.fault;
    sums.sum = fmaf(other_weight, more.sum, sums.sum * weight);
#pragma unroll
    for (int i = 0; i < 4; ++i) sums.values[i] = fmaf(other_weight, more.values[i], sums.values[i] * weight);
  }
  store_sums(args, sequence, packed, column * 4, sums);
}

}  // namespace prologue::cuda
