// A linear layer for one token (vector/product.cuh). A block's rows are neighbours; with a gated activation the first half of them are rows
// of gate, the others the rows of up that go with them. A thread finishes one channel of y.
#pragma once

#include <cstdint>

#include <prologue/kernels/projection/finish/output.cuh>
#include <prologue/kernels/projection/vector/product.cuh>

namespace prologue::cuda {

template <class T>
__global__ void __launch_bounds__(kVectorThreads, 2)
    projection_vector_kernel(const __grid_constant__ VectorArgs a, const __grid_constant__ OutputArgs o) {
  __shared__ VectorShared shared;
  __shared__ float sums[kVectorWarps][kVectorSums];  // [way, row of the block]
  __shared__ float squares[kVectorWarps];            // [way]
  const int rows = rows_of_block(a), rows_of_y = o.gated != 0 ? rows / 2 : rows;
  const int first_row = static_cast<int>(blockIdx.x) * rows_of_y;
  const VectorShare share(a);
  const bool is_up = share.row >= rows_of_y;
  const int row = first_row + share.row - (is_up ? rows_of_y : 0);
  VectorProduct<T, true, 2> product(a, share, shared);
  product.load_weights(a, int64_t{row} + (is_up ? o.n : 0), min(a.rows, o.n - row));
  let_next_kernel_start();
  product.copy_norm_weight(a);
  wait_for_previous_kernels();

  product.load_x(a);
  const int of_block = static_cast<int>(threadIdx.x), at = first_row + of_block;
  const bool finishes = of_block < rows_of_y && at < o.n;
  char* const to = place_of_output<T>(o, 0, at);
  Packed<T, 1> residual = {};
  if (finishes && o.adds != 0) residual = load_packed<T, 1>(to);
  const int own = product.row_of_lane();
  float of_squares = a.normed != 0 ? product.apply_norm(a) : 0.0f;
#pragma unroll 1
  for (int done = 0; done < a.rows; done += kVectorRowsAtOnce) {
    product.multiply(a);
    if (done == 0 && a.normed != 0) of_squares = sum_of_warp(of_squares);  // while the tensor cores multiply
    const float sum = product.sum_of_row();
    if (own < min(a.rows - done, kVectorRowsAtOnce)) sums[share.way][share.row + done + own] = sum;
  }
  if (threadIdx.x % 32 == 0 && share.row == 0) squares[share.way] = of_squares;
  __syncthreads();
  if (!finishes) return;

  const float factor = a.normed != 0 ? norm_of_vector(a, squares) : 1.0f;
  finish_rows<T, 1>(o, of_block, rows_of_y, at, to, residual, [&](int of_weights, float(&value)[1]) {
    value[0] = 0.0f;
#pragma unroll 1
    for (int way = 0; way < 1 << a.log_ways; ++way) value[0] += sums[way][of_weights];
    value[0] *= factor;
  });
}

}  // namespace prologue::cuda
