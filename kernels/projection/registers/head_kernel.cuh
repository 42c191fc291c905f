// This kernel is for up to 16 tokens with the attention prologue (registers/product.cuh). A cluster has a head: all of its head_dim rows of
// the weights. Where the sums of a token meet, a warp has the whole head, and finishes it exactly as the prologue's lean kernels do
// (lean/most_steps_schedule.cuh). The loads of its position and slot are in flight while the weights are multiplied, those of cos and sin
// while the other blocks' sums arrive.
//
// An instance with a finisher has one more warp in each block, which multiplies nothing and has all of that for the block's first token
// when the sums arrive. A cluster of one block has none: its sums are ordinary stores, for which all of its warps would have to meet.
#pragma once

#include <cstdint>
#include <span>

#include <prologue/kernels/base/device/cuda_types.cuh>
#include <prologue/kernels/base/device/hopper.cuh>
#include <prologue/kernels/projection/finish/head.cuh>
#include <prologue/kernels/projection/registers/packed_stream.cuh>
#include <prologue/kernels/projection/registers/product.cuh>

namespace prologue::cuda {

struct RegistersHeadArgs : RegistersArgs {
  int32_t lanes = 32;  // of a head, in what follows the projection
};

// Gathers a head of a token, as the separate projection would store it.
template <class T, int V>
__device__ inline Unit<T, V> gather_head(const RegistersArgs& a, const RegistersShared& shared, int slot,
                                         const UnitChannels& place) {
  const float* const rows = gather_token(a, shared, slot);
  return unit_of_rows<T, V>(rows, a.normed != 0 ? norm_of_token(a, shared, slot) : 1.0f, place);
}

inline constexpr int kMultipliersBarrier = 1;

// kMultipliers is the most threads that multiply: 32 for 16 rows of a head, or more if the warps of a block divide k. kFinishers is 1, or 0
// for launches that need as many blocks on an SM as fit without.
template <class W, int V, int kTokenTiles, int kMultipliers, int kFinishers, int kFeatures>
__global__ void __launch_bounds__(kMultipliers + 32 * kFinishers, kFinishers != 0 ? 2 : W::kHeadWarpsOfSm * 32 / kMultipliers)
    registers_head_kernel(const __grid_constant__ typename W::template With<RegistersHeadArgs> a,
                          const __grid_constant__ MostStepsArgs p) {
  using T = typename W::T;
  static_assert((kFeatures & kMostSteps) != 0 && (kFeatures & kTokenNorm) == 0);
  const int warp = threadIdx.x / 32, multipliers = blockDim.x / 32 - kFinishers;
  const bool multiplies = warp < multipliers;
  const int head = static_cast<int>(blockIdx.x) >> a.log_blocks;  // of q, then of k, then of v
  const RegistersShared shared = lay_out(dynamic_shared<unsigned char>(), a);
  const WarpWork work(a, W::log_unit(a));
  const int own_tokens = work.own_tokens(a);
  const int64_t first_row = (int64_t{head} * a.row_tiles + work.tile) * 16;
  WeightStream<W, kTokenTiles> stream(a, work, multiplies ? W::rows_at(a, first_row) : W::kNoRows);
  let_next_kernel_start();  // attention, whose first part is long and needs nothing that the kernel before this one writes
  open_arrivals(a, work, shared);
  prefetch_norm_weight(a, work.of_block);
  const XStaging<W, kTokenTiles> stage(a, work.of_block, multipliers);
  wait_for_previous_kernels();

  const auto token_in = [&](int slot) { return static_cast<uint32_t>((slot << a.log_blocks) + work.rank); };
  PendingToken<kFeatures, V, false> pending;
  const auto ask = [&](int slot) { ask_token(p, pending, token_in(slot)); };
  const int first = multiplies ? warp + kFinishers : 0;  // token that this warp finishes
  if (kFinishers == 0 && first < own_tokens) ask(first);
  if (multiplies) {
    stage.run(a, shared);
    sync_barrier(kMultipliersBarrier, multipliers * 32);
    float sums[kTokenTiles][4];
    stream.multiply(sums, a, work, shared);
    send_sums(a, work, shared, sums);
  } else {
    wait_for_cluster();
  }
  if (first >= own_tokens) return;
  if (kFinishers != 0) ask(first);

  finish_heads<T, V, kFeatures, false>(p, pending, head, a.lanes, first, own_tokens, static_cast<int>(blockDim.x) / 32, token_in,
                                [&](int slot, const UnitChannels& place) {
                                  if (slot == first) wait_for_sums(a, shared);
                                  return gather_head<T, V>(a, shared, slot, place);
                                });
}

// ---- on the host ------------------------------------------------------------------------------------------------------------

template <class Args>
struct RegistersHeadInstance {
  int vector;       // channels of an access of the prologue: heads have 64 * vector channels at most
  int features;     // of prologue_args.h, beside kMostSteps
  int token_tiles;  // of 8 tokens, at most
  int finishers;    // warps of a block that do not multiply
  void (*kernel)(Args, MostStepsArgs);
};

// List the kernels that ship, in the order in which they are chosen (registers/instances_cuda.cu, packed_instances_cuda.cu).
std::span<const RegistersHeadInstance<RegistersHeadArgs>> registers_heads(DType type);
std::span<const RegistersHeadInstance<PackedArgs<RegistersHeadArgs>>> packed_registers_heads(DType type);

}  // namespace prologue::cuda
