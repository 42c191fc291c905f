// This kernel is for up to 64 tokens with the attention prologue (ring/product.cuh, finish/head.cuh). A cluster has a head: its blocks
// divide the rows of the weights. The block of CTA rank r finishes tokens r, r + blocks, ...: it gets their rows from the others, rounded
// as a separate projection would store them. A warp finishes every eighth of these tokens, whose positions and slots it has found before it
// multiplied.
#pragma once

#include <cstdint>

#include <prologue/kernels/projection/finish/head.cuh>
#include <prologue/kernels/projection/ring/product.cuh>

namespace prologue::cuda {

inline constexpr int kPairsOfBlock = 8;  // in ring_head_pairs_kernel

struct RingHeadArgs : RingArgs {
  int32_t head_dim = 0;
  int32_t heads_offset = 0;  // in shared memory: RingHeads or RingPairs
  // ring_head_kernel has:
  int32_t log_blocks = 0;  // of a cluster
  int32_t lanes = 32;      // of a head, in what follows the projection
  // ring_head_pairs_kernel has:
  int32_t num_heads = 0;   // of q, k and v
  int32_t heads = 0;       // of a block
  int32_t log_tokens = 0;  // 2^log_tokens: num_tokens, and more
};

struct RingHeads {
  Arrivals arrivals;
  alignas(16) unsigned char heads[16];  // [token that this block finishes][head_dim], 16 bits each
};

inline int64_t bytes_of_heads(const RingHeadArgs& a) {
  const int64_t tokens = (a.num_tokens + (1 << a.log_blocks) - 1) >> a.log_blocks;
  return static_cast<int64_t>(sizeof(RingHeads)) + tokens * a.head_dim * 2;
}

// By is RingByMma or RingByWgmma. kFeatures: with kMostSteps, the steps are decided at run time.
template <int V, class By, int kFeatures>
__global__ void __launch_bounds__(kRingLaunchBound)
    ring_head_kernel(const __grid_constant__ RingHeadArgs a, const __grid_constant__ MostStepsArgs p) {
  static_assert((kFeatures & (kTokenNorm | kAxes | kDerived)) == 0);  // whether positions are derived is read at run time
#if PROLOGUE_HOPPER
  using T = typename By::T;
  auto* const memory = swizzled_dynamic_shared<unsigned char>();
  const Ring ring(a, By::W::kBoxRowBytes, memory);
  auto& own = *reinterpret_cast<RingHeads*>(memory + a.heads_offset);
  const int head = static_cast<int>(blockIdx.x) >> a.log_blocks, blocks = 1 << a.log_blocks;
  const int rank = static_cast<int>(blockIdx.x) & (blocks - 1);
  const int own_tokens = (a.num_tokens - rank + blocks - 1) >> a.log_blocks;
  ring.open();
  if (threadIdx.x == 0) own.arrivals.open(static_cast<uint32_t>(own_tokens * (a.head_dim - a.rows)) * uint32_t{sizeof(T)});
  if (blocks > 1) arrive_at_cluster();
  __syncthreads();
  let_next_kernel_start();
  if (threadIdx.x >= kRingConsumers) {
    if (threadIdx.x == kRingConsumers) fill_ring(a, ring, static_cast<int>(blockIdx.x) * a.rows);
    __syncwarp();
    if (blocks > 1) wait_for_cluster();
    return;
  }
  if (a.norm_weight != nullptr) {
    load_norm_weight(a, ring);
    sync_barrier(1, kRingConsumers);
  }
  wait_for_previous_kernels();
  const int first = static_cast<int>(threadIdx.x) / 32, lane = threadIdx.x % 32;  // the warp's first of the block's tokens
  const auto token_in = [&](int slot) { return (slot << a.log_blocks) + rank; };
  static_assert(kMostRingTokens / kRingWarps <= 32);
  const FoundToken found = find_token(p, a.num_tokens, token_in(first + lane * kRingWarps), head == 0);  // a lane has one of them
  TokenHead<T, V, kFeatures> finished;
  if (first < own_tokens) {
    finished.prepare(p, a.lanes, head);
    finished.load_token(p, found_by_lane(found, 0), token_in(first));
  }
  By::multiply(a, ring);
  sync_barrier(1, kRingConsumers);
  if (blocks > 1) wait_for_cluster();

  constexpr int kAtOnce = 8;
  const int chunks = a.rows / kAtOnce, count = a.num_tokens * chunks;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kRingConsumers) {
    const int t = i / chunks, row = i % chunks * kAtOnce, finisher = t & (blocks - 1);
    float values[kAtOnce];
    gather_rows<By>(a, ring, t, row, values);
    const Bytes<16> rounded = pack<T, kAtOnce>(values);
    unsigned char* const to = own.heads + ((t >> a.log_blocks) * a.head_dim + rank * a.rows + row) * static_cast<int>(sizeof(T));
    if (finisher == rank) {
      store_bytes<16, false>(to, rounded);
    } else {
      const auto& words = rounded.words;
      own.arrivals.store(static_cast<uint32_t>(finisher), to, make_uint4(words[0], words[1], words[2], words[3]));
    }
  }
  sync_barrier(1, kRingConsumers);
  if (first >= own_tokens) return;
  own.arrivals.wait();
  constexpr int kSize = sizeof(T);
#pragma unroll 1
  for (int slot = first, number = 1; slot < own_tokens; slot += kRingWarps, ++number) {
    TokenHead<T, V, kFeatures> next = finished;
    if (slot + kRingWarps < own_tokens) next.load_token(p, found_by_lane(found, number), token_in(slot + kRingWarps));
    const unsigned char* const rows = own.heads + slot * a.head_dim * kSize;
    const UnitChannels& place = finished.place();
    Unit<T, V> data = {};
    if (place.has_a) data.a = load_bytes<V * kSize, false>(rows + place.a * kSize);
    if (place.has_b) data.b = load_bytes<V * kSize, false>(rows + place.b * kSize);
    finished.finish(p, data);
    finished = next;
  }
#endif
}

}  // namespace prologue::cuda
