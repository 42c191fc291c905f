// A linear layer for up to 64 tokens (weight_ring.cuh). A block has some rows of y; with a gated activation the rows of gate and the rows of
// up that go with them. Where its sums are done, all threads but the copying warp's add the bias, apply the activation, add the residual and
// store, four neighbours of a token at a time.
#pragma once

#include <cstdint>

#include <prologue/kernels/projection/projection_output.cuh>
#include <prologue/kernels/projection/weight_ring.cuh>

namespace prologue::cuda {

// By: RingByMma or RingByWgmma.
template <class T, class By>
__global__ void __launch_bounds__(kRingLaunchBound, By::kBlocksOfSm)
    projection_ring_kernel(const __grid_constant__ RingArgs a, const __grid_constant__ OutputArgs o) {
#if PROLOGUE_HOPPER
  const Ring ring(a, swizzled_dynamic_shared<unsigned char>());
  const int first_row = static_cast<int>(blockIdx.x) * a.box_rows;  // of y
  ring.open();
  __syncthreads();
  let_next_kernel_start();
  if (threadIdx.x >= kRingConsumers) {
    if (threadIdx.x == kRingConsumers) fill_ring(a, ring, first_row);
    return;
  }
  if (a.norm_weight != nullptr) {
    load_norm_weight(a, ring);
    sync_barrier(1, kRingConsumers);
  }
  wait_for_previous_kernels();  // x is waited for anyway; the residual can be seen
  const int groups = min(a.box_rows, o.n - first_row) / kRowsAtOnce;  // of a token
  Packed<T, kRowsAtOnce> residual = {};  // of the first that a thread will store
  const auto load_residual = [&](int i) {
    if (o.adds != 0) residual = load_packed<T>(place_of_output<T>(o, i / groups, first_row + i % groups * kRowsAtOnce));
  };
  const int first = static_cast<int>(threadIdx.x), count = a.num_tokens * groups;
  if (first < count) load_residual(first);
  By::multiply(a, ring);
  sync_barrier(1, kRingConsumers);

#pragma unroll 1
  for (int i = first; i < count; i += kRingConsumers) {
    if (i != first) load_residual(i);
    const int t = i / groups, row = i % groups * kRowsAtOnce, at = first_row + row;
    const float factor = a.normed != 0 ? norm_of_token(a, ring, t) : 1.0f;
    finish_rows<T>(o, row, a.box_rows, at, place_of_output<T>(o, t, at), residual, [&](int of_block, float(&values)[kRowsAtOnce]) {
      gather_rows(a, ring, t, of_block, values);
#pragma unroll
      for (float& value : values) value *= factor;
    });
  }
#endif
}

}  // namespace prologue::cuda
