// Prefill on Hopper (sm_90a) with wgmma. The warpgroups of a block live as long as the launch and work through its tiles of packed rows.
// The producers find a tile and load its Q, K and V: they are two warps (prefill_wgmma/copies.cuh: by TMA) or all of one or two warpgroups
// (prefill_wgmma/codes.cuh: the cache holds codes). Two more warpgroups, the consumers, multiply 64 of its 128 rows each. They exchange
// data through pairs of barriers, full and empty:
//
//   work     two entries  which tile of which kv head, and the keys: the producer is up to one tile ahead
//   q        one entry    all rows of the tile, one box for 64 channels: tokens x the q heads of the kv head, which is the packed order
//   k, v     kStages      128 or 64 keys; positions that no row of the tile needs, bad pages and channels beyond the head are zeros
//
// A consumer issues the scores of the next keys before it adds up the values of these, and works on those scores meanwhile. The two
// consumers issue their multiplications alternately, so that one's exponentials run under the other's multiplications.
//
// A row takes the same steps whatever else its tile holds (see prefill/mma_kernel.cuh): keys come in tiles that start at multiples of their
// size, in ascending order; for a tile without a key that the row sees, its maximum stays, the factor of its sums is 1.
//
// If there are few tiles with many keys, they are divided into parts, for more blocks. The blocks of a cluster that have parts of a tile
// exchange their sums through shared memory, and each adds up all parts, in order, for some of the channels. If a tile has several
// clusters, they leave such sums in the workspace, and the last one to arrive adds them up.
//
//   work.cuh                 which tile is next, and what the warps of a block exchange
//   copies.cuh, codes.cuh    the producers
//   consumer.cuh             a consumer
//   parts.cuh                parts of a tile, added up
#pragma once

#include <prologue/kernels/paged_attention/prefill_wgmma/codes.cuh>
#include <prologue/kernels/paged_attention/prefill_wgmma/consumer.cuh>
#include <prologue/kernels/paged_attention/prefill_wgmma/copies.cuh>
#include <prologue/kernels/paged_attention/prefill_wgmma/work.cuh>

namespace prologue::cuda {

// Code for other GPUs is empty and admits fewer threads, which tells the host.
template <class Shared>
inline constexpr int kWgmmaLaunchBound = PROLOGUE_HOPPER ? Shared::kThreads : 32;

// A thread has so many registers. A block has those that it was launched with: a consumer that claims what nobody has released waits for
// ever.
template <class Shared>
inline constexpr int kProducerRegisters = Shared::kThreads == 512 ? 64 : 72;
template <class Shared>
inline constexpr int kConsumerRegisters = Shared::kThreads == 512 ? 192 : 216;

// kDivides says that tiles may be divided into parts.
template <class T, int kHeadDim, bool kCodes, bool kSoftCap, bool kDivides>
__global__ void __launch_bounds__(kWgmmaLaunchBound<WgmmaShared<T, kHeadDim, kCodes>>, 1)
    prefill_wgmma_kernel(const __grid_constant__ AttentionArgs args, const __grid_constant__ PrefillWgmmaParams w) {
#if PROLOGUE_HOPPER
  using Shared = WgmmaShared<T, kHeadDim, kCodes>;
  Shared& shared = *swizzled_dynamic_shared<Shared>();
  constexpr int kConsumerWarps = kWgmmaConsumers / 32;
  static_assert(Shared::kProducers * kProducerRegisters<Shared> + kWgmmaConsumers * kConsumerRegisters<Shared> ==
                Shared::kThreads * Shared::kRegisters);
  constexpr int kProducerWarps = kCodes ? kCodeWarps<Shared> : 1;  // of K, and of V
  if (threadIdx.x == 0) {
    if (shared_address(&shared) % 1024 != 0) __trap();  // the swizzle would be another
    for (int i = 0; i < 2; ++i) {
      shared.work_full[i].init(1);
      shared.work_empty[i].init(kConsumerWarps + 2 * kProducerWarps - 1);  // and the producers but the one that finds it
    }
    shared.q_full.init(1);
    shared.q_empty.init(kConsumerWarps);
    for (int i = 0; i < Shared::kStages; ++i) {
      shared.k_full[i].init(kCodes ? kProducerWarps * 32 : 1);
      shared.k_empty[i].init(kCodes ? kWgmmaConsumers : kConsumerWarps);
      shared.v_full[i].init(kCodes ? kProducerWarps * 32 : 1);
      shared.v_empty[i].init(kConsumerWarps);
    }
    shared.v_copied.init(1);
    fence_barrier_init();
    prefetch_map(w.q);
    if constexpr (!kCodes) {
      prefetch_map(w.k);
      prefetch_map(w.v);
    }
  }
  __syncthreads();
  if (threadIdx.x < Shared::kProducers) {
    release_registers<kProducerRegisters<Shared>>();
    if constexpr (kCodes) {
      threadIdx.x < kProducerWarps * 32 ? convert_side<true>(args, w, shared) : convert_side<false>(args, w, shared);
    } else if (threadIdx.x < 32) {
      copy_keys(args, w, shared);
    } else if (threadIdx.x < 64) {
      copy_values(args, w, shared);
    }
  } else {
    claim_registers<kConsumerRegisters<Shared>>();
    WgmmaConsumer<kHeadDim, kSoftCap, kDivides, Shared>(args, w, shared).run();
  }
#endif
}

}  // namespace prologue::cuda
