// This kernel is for up to 64 tokens with a linear layer's end (ring/product.cuh, finish/output.cuh). A block has some rows of y; with a
// gated activation the rows of gate and the rows of up that go with them. When its sums are done, all threads but those of the copying warp
// finish them: four neighbours of a token at a time, or eight where a thread would have four more than once. Blocks that divide k add up
// each other's sums.
#pragma once

#include <cstdint>
#include <span>

#include <prologue/kernels/projection/finish/output.cuh>
#include <prologue/kernels/projection/ring/product.cuh>

namespace prologue::cuda {

// Says whether blocks divide k: never with few tokens, whose kernel is kept small.
template <class By>
__device__ inline bool divides_k(const RingArgs& a) {
  return By::kMostTokens > kMostFewTokens && a.log_k_blocks != 0;
}

// A thread finishes kCount neighbouring channels of y, from `row` of the block's rows on, of token t, then as many of a later token, and so
// on. `residual` is that of the first ones.
template <class By, int kCount>
__device__ inline void finish_tokens(const RingArgs& a, const OutputArgs& o, const Ring& ring, int first_row, int rows, int t,
                                     int row, const Packed<typename By::T, 8>& residual) {
  using T = typename By::T;
  Packed<T, kCount> added;
#pragma unroll
  for (int i = 0; i < Packed<T, kCount>::kWords; ++i) added.words[i] = residual.words[i];
#pragma unroll 1
  while (t < a.num_tokens) {
    const int at = first_row + row;
    finish_rows<T, kCount>(o, row, a.box_rows, at, address_of_output<T>(o, t, at), added,
                           [&](int of_block, float(&values)[kCount]) {
                             divides_k<By>(a) ? gather_rows_of_cluster<By>(a, ring, t, of_block, values)
                                              : gather_rows<By>(a, ring, t, of_block, values);
                           });
    const int threads = divides_k<By>(a) ? kRingConsumers << a.log_k_blocks : kRingConsumers, groups = rows / kCount;
    t += threads / groups, row += threads % groups * kCount;
    if (row >= rows) row -= rows, ++t;
    if (o.adds != 0 && t < a.num_tokens) added = load_packed<T, kCount>(address_of_output<T>(o, t, first_row + row));
  }
}

// By is RingByMma or RingByWgmma.
template <class By>
__global__ void __launch_bounds__(kRingLaunchBound, By::kBlocksOfSm)
    ring_output_kernel(const __grid_constant__ RingArgs a, const __grid_constant__ OutputArgs o) {
#if PROLOGUE_HOPPER
  using T = typename By::T;
  Ring ring(a, By::W::kBoxRowBytes, swizzled_dynamic_shared<unsigned char>());
  if (divides_k<By>(a)) ring.take_part_of_k(a);
  const int log_k_blocks = divides_k<By>(a) ? a.log_k_blocks : 0;
  const int first_row = static_cast<int>(blockIdx.x >> log_k_blocks) * a.box_rows;  // of y
  ring.open();
  __syncthreads();
  let_next_kernel_start();
  if (threadIdx.x >= kRingConsumers) {
    if (threadIdx.x == kRingConsumers) fill_ring(a, ring, first_row);
    return;
  }
  // What this thread will store is found before it waits for anything.
  const int rows = min(a.box_rows, o.n - first_row), threads = kRingConsumers << log_k_blocks;
  const bool by_8 = By::kMostTokens > kMostFewTokens && o.by_8 != 0 && a.num_tokens * (rows / 4) > threads;
  const int k_block = divides_k<By>(a) ? static_cast<int>(cluster_rank()) : 0, thread = k_block * kRingConsumers + threadIdx.x;
  const int groups = by_8 ? rows / 8 : rows / 4, t = thread / groups, row = (thread - t * groups) * (by_8 ? 8 : 4);
  if (a.norm_weight != nullptr) {
    load_norm_weight(a, ring);
    sync_barrier(1, kRingConsumers);
  }
  wait_for_previous_kernels();  // x is waited for anyway; the residual can be seen
  Packed<T, 8> residual = {};
  if (o.adds != 0 && t < a.num_tokens) {
    const char* const from = address_of_output<T>(o, t, first_row + row);
    if (by_8) {
      residual = load_packed<T, 8>(from);
    } else {
      const auto half = load_packed<T, 4>(from);
      residual.words[0] = half.words[0], residual.words[1] = half.words[1];
    }
  }
  By::multiply(a, ring);
  divides_k<By>(a) ? sync_cluster() : sync_barrier(1, kRingConsumers);
  by_8 ? finish_tokens<By, 8>(a, o, ring, first_row, rows, t, row, residual)
       : finish_tokens<By, 4>(a, o, ring, first_row, rows, t, row, residual);
  if (divides_k<By>(a)) sync_cluster();  // no other block reads this one's sums after this
#endif
}

// ---- on the host ------------------------------------------------------------------------------------------------------------

struct RingOutputInstance {
  int most_rows;  // of the weights, of a block
  int most_tokens;
  int blocks_of_sm;  // for which there are registers
  int64_t (*lay_out)(RingArgs&, int64_t room);
  EncodeWeights encode;
  void (*kernel)(RingArgs, OutputArgs);
};

// Lists the kernels that ship, in the order in which they are chosen (ring/instances.cuh).
std::span<const RingOutputInstance> float16_ring_outputs();
std::span<const RingOutputInstance> bfloat16_ring_outputs();

}  // namespace prologue::cuda
