// This kernel is for up to 8 tokens with a linear layer's end (registers/product.cuh, finish/output.cuh). Where the sums of a token meet, a
// warp finishes it, each lane four neighbouring channels at a time. A cluster's rows are neighbours; with a gated activation the first half
// of its tiles are rows of gate, the second half the rows of up that go with them.
#pragma once

#include <cstdint>
#include <span>

#include <prologue/kernels/projection/finish/output.cuh>
#include <prologue/kernels/projection/registers/packed_stream.cuh>
#include <prologue/kernels/projection/registers/product.cuh>

namespace prologue::cuda {

inline constexpr int kRegistersThreads = 256;

template <class W, int kTokenTiles>
__global__ void __launch_bounds__(kRegistersThreads, W::kWarpsOfSm * 32 / kRegistersThreads)
    registers_output_kernel(const __grid_constant__ typename W::template With<RegistersArgs> a,
                            const __grid_constant__ OutputArgs o) {
  using T = typename W::T;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const RegistersShared shared = lay_out(dynamic_shared<unsigned char>(), a);
  const WarpWork work(a, W::log_unit(a));
  const int rows = o.gated != 0 ? a.row_tiles * 8 : a.row_tiles * 16;  // of y, of a cluster
  const int first_row = (static_cast<int>(blockIdx.x) >> a.log_blocks) * rows;
  const bool is_up = work.tile * 16 >= rows;
  const int row = first_row + work.tile * 16 - (is_up ? rows : 0);
  WeightStream<W, kTokenTiles> stream(a, work, row < o.n ? W::rows_at(a, int64_t{row} + (is_up ? o.n : 0)) : W::kNoRows);
  open_arrivals(a, work, shared);
  prefetch_norm_weight(a, work.of_block);
  const XStaging<W, kTokenTiles> stage(a, work.of_block, warps);
  wait_for_previous_kernels();
  if (a.signals_early != 0) let_next_kernel_start();

  // The residual of a lane's first channels is loaded early.
  const int own_tokens = work.own_tokens(a);
  const auto token_in = [&](int slot) { return (slot << a.log_blocks) + work.rank; };
  const int first = lane * kRowsAtOnce;
  Packed<T, kRowsAtOnce> residual = {};
  const auto load_residual = [&](int slot, int i) {
    if (o.adds != 0) residual = load_packed<T>(address_of_output<T>(o, token_in(slot), first_row + i));
  };
  if (warp < own_tokens && first < rows && first_row + first < o.n) load_residual(warp, first);
  stage.run(a, shared);
  __syncthreads();
  float sums[kTokenTiles][4];
  stream.multiply(sums, a, work, shared);
  if (a.signals_early == 0) let_next_kernel_start();
  send_sums(a, work, shared, sums);
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
      finish_rows<T>(o, i, rows, at, address_of_output<T>(o, token_in(slot), at), residual, product);
    }
  }
}

// ---- on the host ------------------------------------------------------------------------------------------------------------

template <class Args>
struct RegistersOutputInstance {
  int token_tiles;  // of 8 tokens, at most
  void (*kernel)(Args, OutputArgs);
};

// List the kernels that ship, in the order in which they are chosen (registers/instances_cuda.cu, packed_instances_cuda.cu).
std::span<const RegistersOutputInstance<RegistersArgs>> registers_outputs(DType type);
std::span<const RegistersOutputInstance<PackedArgs<RegistersArgs>>> packed_registers_outputs(DType type);

}  // namespace prologue::cuda
