// This kernel is for 1 and 2 tokens and packed weights with the attention prologue (integer/product.cuh, finish/head.cuh). A cluster has a head, and
// its blocks divide the head's rows. A thirteenth warp of each block finishes the head of one of the tokens: it finds the token's position and slot
// while the others multiply.
#pragma once

#include <cstdint>
#include <span>

#include <prologue/kernels/projection/finish/head.cuh>
#include <prologue/kernels/projection/integer/product.cuh>

namespace prologue::cuda {

struct IntegerHeadArgs : IntegerArgs {
  int32_t head_dim = 0;
  int32_t lanes = 32;  // of a head, in what follows the projection
  // In shared memory: Arrivals, then the products of the block's own tokens, [own tokens][head_dim] of float32.
  int32_t arrivals_at = 0;
};

inline constexpr int kArrivalsBytesOfHead = 16;

template <class T, int V, int kTokens, int kFeatures>
__global__ void __launch_bounds__(kIntegerLaunchBound)
    integer_head_kernel(const __grid_constant__ PackedArgs<IntegerHeadArgs> a, const __grid_constant__ MostStepsArgs p) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  static_assert((kFeatures & kMostSteps) != 0 && (kFeatures & kTokenNorm) == 0);
  constexpr int kTileRows = static_cast<int>(kPackedGroupRows);
  auto* const memory = dynamic_shared<unsigned char>();
  const IntegerShared shared = lay_out(memory, a);
  auto& arrivals = *reinterpret_cast<Arrivals*>(memory + a.arrivals_at);
  auto* const products = reinterpret_cast<float*>(memory + a.arrivals_at + kArrivalsBytesOfHead);
  const int blocks = 1 << a.log_blocks, rank = a.log_blocks == 0 ? 0 : static_cast<int>(cluster_rank());
  const int head = static_cast<int>(blockIdx.x) >> a.log_blocks;  // of q, then of k, then of v
  const int own_tokens = (a.num_tokens - rank + blocks - 1) >> a.log_blocks, first_row = rank * a.tiles * kTileRows;
  Barrier& stored = shared.tail->stored;  // the products, where there is one block
  if (threadIdx.x == 0 && blocks > 1) arrivals.open(4 * own_tokens * a.head_dim);
  if (threadIdx.x == 0 && blocks == 1) stored.init(kIntegerWarps);
  blocks > 1 ? arrive_at_cluster() : __syncthreads();
  if (threadIdx.x >= kIntegerThreads) {
    const auto token_in = [&](int slot) { return static_cast<uint32_t>((slot << a.log_blocks) + rank); };
    wait_for_previous_kernels();
    let_next_kernel_start();
    PendingToken<kFeatures, V, false> pending;
    if (own_tokens > 0) ask_token(p, pending, token_in(0));
    if (blocks > 1) wait_for_cluster();
    if (own_tokens == 0) return;
    finish_heads<T, V, kFeatures, true>(p, pending, head, a.lanes, 0, own_tokens, 1, token_in,
                                        [&](int slot, const UnitChannels& place) {
                                          if (slot == 0) blocks > 1 ? arrivals.wait() : stored.wait(0);
                                          return unit_of_rows<T, V>(products + slot * a.head_dim, 1.0f, place);
                                        });
    return;
  }
  const auto rows_of = [&](int tile) {
    return PackedWeights<T>::rows_at(a, int64_t{head} * a.head_dim + first_row + tile * kTileRows);
  };
  IntegerStream<kTokens, decltype(rows_of), PackedArgs<IntegerHeadArgs>> stream(a, shared, rows_of);
  prefetch_norm_weight(a);
  wait_for_previous_kernels();
  let_next_kernel_start();
  stage_x<T, kTokens>(a, shared);
  sync_barrier(kMultipliersOfInteger, kIntegerThreads);
  stream.multiply();
  if (blocks > 1) wait_for_cluster();
  sync_barrier(kMultipliersOfInteger, kIntegerThreads);
  const int groups = a.tiles * kTileRows / 4, i = static_cast<int>(threadIdx.x);
  if (i < kTokens * groups) {
    const int t = kTokens > 1 && i >= groups ? 1 : 0, row = (i - t * groups) * 4;
    float values[4];
    gather_rows<kTokens>(shared, t, row, norm_of_token(a, shared, t), values);
    const float4 four = make_float4(values[0], values[1], values[2], values[3]);
    float* const to = products + (t >> a.log_blocks) * a.head_dim + first_row + row;
    if (blocks > 1) {
      arrivals.store(static_cast<uint32_t>(t & (blocks - 1)), to, four);
    } else {
      *reinterpret_cast<float4*>(to) = four;
    }
  }
  if (blocks > 1) return;
  __syncwarp();
  if (i % 32 == 0) stored.arrive();
#endif
}

// ---- on the host ------------------------------------------------------------------------------------------------------------

struct IntegerHeadInstance {
  int vector;    // channels of an access of the prologue: heads have 64 * vector channels at most
  int features;  // of prologue_args.h, beside kMostSteps
  int num_tokens;
  void (*kernel)(PackedArgs<IntegerHeadArgs>, MostStepsArgs);
};

// Lists the kernels that ship, in the order in which they are chosen (integer/instances_cuda.cu).
std::span<const IntegerHeadInstance> integer_heads(DType type);

}  // namespace prologue::cuda
