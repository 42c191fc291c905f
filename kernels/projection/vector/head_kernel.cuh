// The projection and the prologue of one token. A cluster = a head: its blocks share the rows of the weights (vector/product.cuh) and send
// their sums to the first of them, where a warp has asked for the token's place, cos and sin before it multiplies. That warp does to the head
// what the prologue's lean kernels do (lean/more_steps_schedule.cuh).
#pragma once

#include <cstdint>

#include <prologue/kernels/projection/vector/product.cuh>
#include <prologue/kernels/projection/finish/head.cuh>

namespace prologue::cuda {

struct QkvVectorArgs : VectorArgs {
  int32_t log_blocks = 0;  // of a cluster, two at least
  int32_t lanes = 32;      // of a head, in what follows the projection
  int32_t head_dim = 0;
};

struct QkvVectorShared : VectorShared {
  Arrivals arrivals;  // of the arrays behind it
  float squares[kVectorWarps];
  float sums[1];  // [way, row of the head]
};

__host__ __device__ inline int64_t shared_bytes_of(const QkvVectorArgs& a) {
  return static_cast<int64_t>(sizeof(QkvVectorShared)) +
         (int64_t{a.head_dim} << a.log_ways) * static_cast<int64_t>(sizeof(float));
}

// The head as the separate projection would store it.
template <class T, int V>
__device__ inline Unit<T, V> gather_head(const QkvVectorArgs& a, const QkvVectorShared& shared, const UnitPlace& place) {
  float a_values[V] = {}, b_values[V] = {};
#pragma unroll 1
  for (int way = 0; way < 1 << a.log_ways; ++way) {
    const float* const of_way = shared.sums + way * a.head_dim;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      if (place.has_a) a_values[i] += of_way[place.a + i];
      if (place.has_b) b_values[i] += of_way[place.b + i];
    }
  }
  if (a.normed != 0) {
    const float factor = norm_of_vector(a, shared.squares);
#pragma unroll
    for (int i = 0; i < V; ++i) a_values[i] *= factor, b_values[i] *= factor;
  }
  return {pack<T, V>(a_values), pack<T, V>(b_values)};
}

// kFeatures: with kMoreSteps, the steps are decided at run time. kTurns: a warp may have more than kVectorRowsAtOnce rows; then there are no
// registers for second sums.
template <class T, int V, int kFeatures, bool kTurns>
__global__ void __launch_bounds__(kVectorThreads, 2)
    qkv_vector_kernel(const __grid_constant__ QkvVectorArgs a, const __grid_constant__ MoreArgs p) {
  static_assert((kFeatures & (kTokenNorm | kAxes | kDerived)) == 0);  // whether positions are derived is read at run time
  auto& shared = *dynamic_shared<QkvVectorShared>();
  const int head = static_cast<int>(blockIdx.x) >> a.log_blocks, rank = static_cast<int>(cluster_rank());
  const VectorShare share(a);
  const int row = rank * rows_of_block(a) + share.row;  // of the head
  VectorProduct<T, kTurns, kTurns ? 1 : 2> product(a, share, shared);
  product.load_weights(a, int64_t{head} * a.head_dim + row, a.rows);
  let_next_kernel_start();  // attention, whose first part is long and needs nothing that the kernel before this one writes
  if (threadIdx.x == 0) {
    const int squares = a.normed != 0 ? 1 : 0;
    shared.arrivals.open(static_cast<uint32_t>((a.head_dim + squares) << a.log_ways) * static_cast<uint32_t>(sizeof(float)));
  }
  arrive_at_cluster();
  product.copy_norm_weight(a);
  wait_for_previous_kernels();

  product.load_x(a);
  const bool finishes = rank == 0 && threadIdx.x < 32;
  TokenHead<T, V, kFeatures> finished;
  if (finishes) {
    finished.prepare(p, a.lanes, head);
    finished.ask(p, find_token(p, 1, 0, (head | static_cast<int>(threadIdx.x)) == 0), 0);
  }
  const int own = product.row_of_lane();
  float squares = a.normed != 0 ? product.apply_norm(a) : 0.0f;
  int done = 0;  // of the warp's rows
#pragma unroll 1
  do {
    product.multiply(a);
    if (done == 0) {
      if (a.normed != 0) squares = sum_of_warp(squares);  // while the tensor cores multiply
      wait_for_cluster();
      if (a.normed != 0 && threadIdx.x % 32 == 0 && row == 0) shared.arrivals.store(0, shared.squares + share.way, squares);
    }
    const float sum = product.sum_of_row();
    if (own < min(a.rows - done, kVectorRowsAtOnce)) {
      shared.arrivals.store(0, shared.sums + share.way * a.head_dim + row + done + own, sum);
    }
    done += kVectorRowsAtOnce;
  } while (kTurns && done < a.rows);
  if (!finishes) return;
  shared.arrivals.wait();
  finished.finish(p, gather_head<T, V>(a, shared, finished.place()));
}

}  // namespace prologue::cuda
