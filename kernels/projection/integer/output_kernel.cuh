// This kernel is for 1 and 2 tokens and packed weights with a linear layer's end (integer/product.cuh, finish/output.cuh). With a gated activation
// the first half of a block's tiles are rows of gate, the second half the rows of up that go with them.
#pragma once

#include <cstdint>
#include <span>

#include <prologue/kernels/projection/finish/output.cuh>
#include <prologue/kernels/projection/integer/product.cuh>

namespace prologue::cuda {

template <class T, int kTokens>
__global__ void __launch_bounds__(kIntegerLaunchBound)
    integer_output_kernel(const __grid_constant__ PackedArgs<IntegerArgs> a, const __grid_constant__ OutputArgs o) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  if (threadIdx.x >= kIntegerThreads) return;  // it is there for its registers (policy::integer_blocks_are_apart_by_memory())
  constexpr int kTileRows = static_cast<int>(kPackedGroupRows);
  const IntegerShared shared = lay_out(dynamic_shared<unsigned char>(), a);
  const int rows = o.gated != 0 ? a.tiles * kTileRows / 2 : a.tiles * kTileRows;  // of y
  const int first_row = static_cast<int>(blockIdx.x) * rows;
  // Tiles that the weights do not have are the last one once more: nothing of them is stored.
  const auto rows_of = [&](int tile) {
    const int row = tile * kTileRows;
    const bool is_up = row >= rows;
    const int of_y = min(first_row + row - (is_up ? rows : 0), o.n - kTileRows);
    return PackedWeights<T>::rows_at(a, int64_t{of_y} + (is_up ? o.n : 0));
  };
  IntegerStream<kTokens, decltype(rows_of), PackedArgs<IntegerArgs>> stream(a, shared, rows_of);
  prefetch_norm_weight(a);
  // A thread finishes some neighbouring rows of a token at a time.
  const int groups = min(rows, o.n - first_row) / kRowsAtOnce, thread = static_cast<int>(threadIdx.x);
  const auto token_of = [&](int i) { return kTokens > 1 && i >= groups ? 1 : 0; };
  const auto row_of = [&](int i) { return (i - token_of(i) * groups) * kRowsAtOnce; };
  const auto address = [&](int i) { return address_of_output<T>(o, token_of(i), first_row + row_of(i)); };
  wait_for_previous_kernels();
  let_next_kernel_start();
  Packed<T, kRowsAtOnce> residual = {};
  if (o.adds != 0 && thread < kTokens * groups) residual = load_packed<T>(address(thread));
  stage_x<T, kTokens>(a, shared);
  sync_barrier(kMultipliersOfInteger, kIntegerThreads);
  stream.multiply();
  sync_barrier(kMultipliersOfInteger, kIntegerThreads);
#pragma unroll 1
  for (int i = thread; i < kTokens * groups; i += kIntegerThreads) {
    if (i != thread && o.adds != 0) residual = load_packed<T>(address(i));
    const int t = token_of(i), row = row_of(i);
    const float factor = norm_of_token(a, shared, t);
    finish_rows<T>(o, row, rows, first_row + row, address(i), residual,
                   [&](int of_block, float(&values)[kRowsAtOnce]) { gather_rows<kTokens>(shared, t, of_block, factor, values); });
  }
#endif
}

// ---- on the host ------------------------------------------------------------------------------------------------------------

// Returns the kernel that ships for an element type and so many tokens (integer/instances_cuda.cu), or null.
using IntegerOutputKernel = void (*)(PackedArgs<IntegerArgs>, OutputArgs);
IntegerOutputKernel integer_output(DType type, int64_t num_tokens);

}  // namespace prologue::cuda
