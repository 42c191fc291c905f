// This kernel is for one token with a linear layer's end (vector/product.cuh, finish/output.cuh). A block's rows are neighbours; with a
// gated activation the first half of them are rows of gate, the others the rows of up that go with them. A thread finishes one channel of
// y.
#pragma once

#include <cstdint>
#include <span>

#include <prologue/kernels/projection/finish/output.cuh>
#include <prologue/kernels/projection/vector/product.cuh>

namespace prologue::cuda {

template <class W>
__global__ void __launch_bounds__(kVectorThreads, 2)
    vector_output_kernel(const __grid_constant__ VectorArgs a, const __grid_constant__ OutputArgs o) {
  using T = typename W::T;
  __shared__ VectorShared shared;
  __shared__ float sums[kVectorWarps][kVectorSums];  // [part, row of the block]
  __shared__ float squares[kVectorWarps];            // [part]
  const int rows = rows_of_block(a), rows_of_y = o.gated != 0 ? rows / 2 : rows;
  const int first_row = static_cast<int>(blockIdx.x) * rows_of_y;
  const VectorWork work(a);
  const bool is_up = work.row >= rows_of_y;
  const int row = first_row + work.row - (is_up ? rows_of_y : 0);
  VectorProduct<W, true, 2> product(a, work, shared);
  product.load_weights(a, int64_t{row} + (is_up ? o.n : 0), min(a.rows, o.n - row));
  let_next_kernel_start();
  product.copy_norm_weight(a);
  wait_for_previous_kernels();

  product.load_x(a);
  const int of_block = static_cast<int>(threadIdx.x), at = first_row + of_block;
  const bool finishes = of_block < rows_of_y && at < o.n;
  char* const to = address_of_output<T>(o, 0, at);
  Packed<T, 1> residual = {};
  if (finishes && o.adds != 0) residual = load_packed<T, 1>(to);
  const int own = product.row_of_lane();
  float of_squares = a.normed != 0 ? product.apply_norm(a) : 0.0f;
#pragma unroll 1
  for (int done = 0; done < a.rows; done += kVectorRowsOfPass) {
    product.multiply(a);
    if (done == 0 && a.normed != 0) of_squares = sum_of_warp(of_squares);  // while the tensor cores multiply
    const float sum = product.sum_of_row();
    if (own < min(a.rows - done, kVectorRowsOfPass)) sums[work.part][work.row + done + own] = sum;
  }
  if (threadIdx.x % 32 == 0 && work.row == 0) squares[work.part] = of_squares;
  __syncthreads();
  if (!finishes) return;

  const float factor = a.normed != 0 ? norm_of_vector(a, squares) : 1.0f;
  finish_rows<T, 1>(o, of_block, rows_of_y, at, to, residual, [&](int of_weights, float(&value)[1]) {
    value[0] = 0.0f;
#pragma unroll 1
    for (int part = 0; part < 1 << a.log_row_warps; ++part) value[0] += sums[part][of_weights];
    value[0] *= factor;
  });
}

// ---- on the host ------------------------------------------------------------------------------------------------------------

struct VectorOutputInstance {
  void (*kernel)(VectorArgs, OutputArgs);
};

// Lists the kernels that ship, in the order in which they are chosen (vector/instances_cuda.cu).
std::span<const VectorOutputInstance> vector_outputs(DType type);

}  // namespace prologue::cuda
