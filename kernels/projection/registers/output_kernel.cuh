// A linear layer for few tokens (registers/product.cuh). Where the sums of a token meet, a warp adds the bias, applies the activation, adds
// the residual and stores, four neighbours at a time for each lane. A cluster's rows are neighbours; with a gated activation the first half
// of its tiles are rows of gate, the second half the rows of up that go with them.
#pragma once

#include <cstdint>

#include <prologue/kernels/projection/finish/output.cuh>
#include <prologue/kernels/projection/registers/product.cuh>

namespace prologue::cuda {

inline constexpr int kProjectionThreads = 256;

template <class T, int kTokenTiles>
__global__ void __launch_bounds__(kProjectionThreads, kWarpsOfSm * 32 / kProjectionThreads)
    projection_kernel(const __grid_constant__ ProjectionArgs a, const __grid_constant__ OutputArgs o) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const ProjectionShared shared = share_out(dynamic_shared<unsigned char>(), a);
  const WarpShare share(a);
  const int rows = o.gated != 0 ? a.tiles * 8 : a.tiles * 16;  // of y, of a cluster
  const int first_row = (static_cast<int>(blockIdx.x) >> a.log_blocks) * rows;
  const bool is_up = share.tile * 16 >= rows;
  const int row = first_row + share.tile * 16 - (is_up ? rows : 0);
  const int64_t row_bytes = int64_t{a.units} * kUnitBytes;
  WeightStream<T, kTokenTiles> stream(a, share, row < o.n ? a.weight + (int64_t{row} + (is_up ? o.n : 0)) * row_bytes : nullptr);
  open_arrivals(a, share, shared);
  prefetch_norm_weight(a, share.of_block);
  const StageOfX<T, kTokenTiles> stage(a, share.of_block, warps);
  wait_for_previous_kernels();
  if (a.early != 0) let_next_kernel_start();

  // What a lane will add its first sums to.
  const int own_tokens = share.own_tokens(a);
  const auto token_in = [&](int slot) { return (slot << a.log_blocks) + share.rank; };
  const int first = lane * kRowsAtOnce;
  Packed<T, kRowsAtOnce> residual = {};
  const auto load_residual = [&](int slot, int i) {
    if (o.adds != 0) residual = load_packed<T>(place_of_output<T>(o, token_in(slot), first_row + i));
  };
  if (warp < own_tokens && first < rows && first_row + first < o.n) load_residual(warp, first);
  stage.run(a, shared);
  __syncthreads();
  float sums[kTokenTiles][4];
  stream.multiply(sums, a, share, shared);
  if (a.early == 0) let_next_kernel_start();
  send_sums(a, share, shared, sums);
  if (warp >= own_tokens) return;
  wait_for_sums(a, shared);

#pragma unroll 1
  for (int slot = warp; slot < own_tokens; slot += warps) {
    const float factor = a.normed != 0 ? norm_of_token(a, shared, slot) : 1.0f;
    const auto product = [&](int of_cluster, float(&values)[kRowsAtOnce]) {
      gather_rows(a, shared, slot, of_cluster, values);
#pragma unroll
      for (float& value : values) value *= factor;
    };
#pragma unroll 1
    for (int i = first; i < rows && first_row + i < o.n; i += 32 * kRowsAtOnce) {
      if (slot != warp || i != first) load_residual(slot, i);
      const int at = first_row + i;
      finish_rows<T>(o, i, rows, at, place_of_output<T>(o, token_in(slot), at), residual, product);
    }
  }
}

}  // namespace prologue::cuda
