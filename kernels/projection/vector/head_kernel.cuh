// This kernel is for one token with the attention prologue (vector/product.cuh, finish/head.cuh). A cluster has a head: its blocks divide
// the rows of the weights and send their sums to the block of CTA rank 0, where a warp has found the token's position and slot and loaded
// cos and sin before it multiplies. That warp finishes the head.
#pragma once

#include <cstdint>
#include <span>

#include <prologue/kernels/projection/finish/head.cuh>
#include <prologue/kernels/projection/vector/product.cuh>

namespace prologue::cuda {

struct VectorHeadArgs : VectorArgs {
  int32_t log_blocks = 0;  // of a cluster, which has two blocks at least
  int32_t lanes = 32;      // of a head, in what follows the projection
  int32_t head_dim = 0;
};

struct VectorHeadShared : VectorShared {
  Arrivals arrivals;  // of the two arrays that follow
  float squares[kVectorWarps];
  float sums[1];  // [part, row of the head]
};

__host__ __device__ inline int64_t shared_bytes_of(const VectorHeadArgs& a) {
  return static_cast<int64_t>(sizeof(VectorHeadShared)) +
         (int64_t{a.head_dim} << a.log_row_warps) * static_cast<int64_t>(sizeof(float));
}

// Gathers the head as the separate projection would store it.
template <class T, int V>
__device__ inline Unit<T, V> gather_head(const VectorHeadArgs& a, const VectorHeadShared& shared, const UnitChannels& place) {
  float a_values[V] = {}, b_values[V] = {};
#pragma unroll 1
  for (int part = 0; part < 1 << a.log_row_warps; ++part) {
    const float* const of_part = shared.sums + part * a.head_dim;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      if (place.has_a) a_values[i] += of_part[place.a + i];
      if (place.has_b) b_values[i] += of_part[place.b + i];
    }
  }
  if (a.normed != 0) {
    const float factor = norm_of_vector(a, shared.squares);
#pragma unroll
    for (int i = 0; i < V; ++i) a_values[i] *= factor, b_values[i] *= factor;
  }
  return {pack<T, V>(a_values), pack<T, V>(b_values)};
}

// If kFeatures has kMostSteps, the steps are decided at run time. If kSeveralPasses, a warp may have more than kVectorRowsOfPass rows; then
// there are no registers for second sums.
template <class W, int V, int kFeatures, bool kSeveralPasses>
__global__ void __launch_bounds__(kVectorThreads, 2)
    vector_head_kernel(const __grid_constant__ VectorHeadArgs a, const __grid_constant__ MostStepsArgs p) {
  using T = typename W::T;
  static_assert((kFeatures & (kTokenNorm | kAxes | kDerived)) == 0);  // whether positions are derived is read at run time
  auto& shared = *dynamic_shared<VectorHeadShared>();
  const int head = static_cast<int>(blockIdx.x) >> a.log_blocks, rank = static_cast<int>(cluster_rank());
  const VectorWork work(a);
  const int row = rank * rows_of_block(a) + work.row;  // of the head
  VectorProduct<W, kSeveralPasses, kSeveralPasses ? 1 : 2> product(a, work, shared);
  product.load_weights(a, int64_t{head} * a.head_dim + row, a.rows);
  let_next_kernel_start();  // attention, whose first part is long and needs nothing that the kernel before this one writes
  if (threadIdx.x == 0) {
    const int squares = a.normed != 0 ? 1 : 0;
    shared.arrivals.open(static_cast<uint32_t>((a.head_dim + squares) << a.log_row_warps) * static_cast<uint32_t>(sizeof(float)));
  }
  arrive_at_cluster();
  product.copy_norm_weight(a);
  wait_for_previous_kernels();

  product.load_x(a);
  const bool finishes = rank == 0 && threadIdx.x < 32;
  TokenHead<T, V, kFeatures> finished;
  if (finishes) {
    finished.prepare(p, a.lanes, head);
    finished.load_token(p, find_token(p, 1, 0, (head | static_cast<int>(threadIdx.x)) == 0), 0);
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
      if (a.normed != 0 && threadIdx.x % 32 == 0 && row == 0) shared.arrivals.store(0, shared.squares + work.part, squares);
    }
    const float sum = product.sum_of_row();
    if (own < min(a.rows - done, kVectorRowsOfPass)) {
      shared.arrivals.store(0, shared.sums + work.part * a.head_dim + row + done + own, sum);
    }
    done += kVectorRowsOfPass;
  } while (kSeveralPasses && done < a.rows);
  if (!finishes) return;
  shared.arrivals.wait();
  finished.finish(p, gather_head<T, V>(a, shared, finished.place()));
}

// ---- on the host ------------------------------------------------------------------------------------------------------------

struct VectorHeadInstance {
  int vector;           // channels of an access of the prologue: heads have 64 * vector channels at most
  int features;         // of prologue_args.h
  bool several_passes;  // a warp has more than kVectorRowsOfPass rows
  void (*kernel)(VectorHeadArgs, MostStepsArgs);
};

// Lists the kernels that ship, in the order in which they are chosen (vector/instances_cuda.cu).
std::span<const VectorHeadInstance> vector_heads(DType type);

}  // namespace prologue::cuda
