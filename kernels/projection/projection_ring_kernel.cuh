// A linear layer for up to 64 tokens (weight_ring.cuh). A block has some rows of y; with a gated activation the rows of gate and the rows of
// up that go with them. Where its sums are done, all threads but the copying warp's add the bias, apply the activation, add the residual and
// store, four neighbours of a token at a time.
#pragma once

#include <cstdint>

#include <prologue/kernels/projection/projection_output.cuh>
#include <prologue/kernels/projection/weight_ring.cuh>

namespace prologue::cuda {

// The product of kRowsAtOnce rows of the weights and a token, rounded to T as the separate operation stores it. `row` counts in the block,
// `of_weights` in the weights.
template <class T, int kRows>
__device__ inline void product_of_rows(const RingArgs& a, const Ring<kRows>& ring, const OutputArgs& o, int t, int row,
                                       int of_weights, float factor, float (&values)[kRowsAtOnce]) {
  gather_rows(a, ring, t, row, values);
  if (a.normed != 0) {
#pragma unroll
    for (float& value : values) value *= factor;
  }
  round_product<T>(o, of_weights, values);
}

template <class T, int kRows>
__global__ void __launch_bounds__(kRingLaunchBound, kRingBlocksOfSm<kRows>)
    projection_ring_kernel(const __grid_constant__ RingArgs a, const __grid_constant__ OutputArgs o) {
#if PROLOGUE_HOPPER
  const Ring<kRows> ring(a, swizzled_dynamic_shared<unsigned char>());
  const int first_row = static_cast<int>(blockIdx.x) * a.box_rows;  // of y
  ring.open();
  __syncthreads();
  let_next_kernel_start();
  if (threadIdx.x >= kRingConsumers) {
    if (threadIdx.x == kRingConsumers) fill_ring(a, ring, first_row);
    return;
  }
  if (a.normed != 0) {
    load_norm_weight<T>(a, ring);
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
  multiply_ring<T>(a, ring);
  sync_barrier(1, kRingConsumers);

#pragma unroll 1
  for (int i = first; i < count; i += kRingConsumers) {
    const int t = i / groups, row = i % groups * kRowsAtOnce, at = first_row + row;
    const float factor = a.normed != 0 ? norm_of_token(a, ring, t) : 1.0f;
    float values[kRowsAtOnce];
    product_of_rows<T>(a, ring, o, t, row, at, factor, values);
    if (o.activates != 0) {
      float up[kRowsAtOnce] = {};
      if (o.gated != 0) product_of_rows<T>(a, ring, o, t, a.box_rows + row, o.n + at, factor, up);
      apply_activation(o, values, up);
    }
    if (i != first) load_residual(i);
    store_output<T>(o, place_of_output<T>(o, t, at), residual, values);
  }
#endif
}

}  // namespace prologue::cuda
