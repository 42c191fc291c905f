// This kernel is for up to 64 tokens with the attention prologue, if no step needs a whole head (norms and computed scales do). A block has
// the same eight rotary pairs of some heads, 16 rows of the weights each. So it rotates and stores what it has multiplied: there are no
// clusters, and more SMs have a block than if blocks divide heads (ring/head_kernel.cuh; 8B: 128 in place of 96). While the others
// multiply, a tenth warp finds the tokens' positions and slots, and cos and sin of the pairs, which are the same for each head. Then a
// thread has a token and V pairs of it, of one head after another.
#pragma once

#include <cstdint>
#include <span>

#include <prologue/kernels/projection/ring/head_kernel.cuh>

namespace prologue::cuda {

inline constexpr int kRingPairsThreads = kRingThreads + 32;

struct PairsOfToken {
  FoundToken found;
  float cos[kPairsOfBlock];
  float sin[kPairsOfBlock];
};

struct RingPairs {
  Barrier found;           // all tokens
  PairsOfToken tokens[1];  // [num_tokens]
};

inline int64_t bytes_of_pairs(int64_t num_tokens) {
  return static_cast<int64_t>(sizeof(RingPairs)) + (num_tokens - 1) * static_cast<int64_t>(sizeof(PairsOfToken));
}

// By is RingByMma or RingByWgmma.
template <int V, class By, int kFeatures>
__global__ void __launch_bounds__(PROLOGUE_HOPPER ? kRingPairsThreads : 32)
    ring_head_pairs_kernel(const __grid_constant__ RingHeadArgs a, const __grid_constant__ MostStepsArgs p) {
  static_assert((kFeatures & ~(kLayouts | kBias | kGivenScales)) == 0);  // whether positions are derived is read at run time
#if PROLOGUE_HOPPER
  using T = typename By::T;
  constexpr int kRowsOfHead = 2 * kPairsOfBlock, kLanes = kPairsOfBlock / V;
  auto* const memory = swizzled_dynamic_shared<unsigned char>();
  const Ring ring(a, By::W::kBoxRowBytes, memory);
  auto& pairs = *reinterpret_cast<RingPairs*>(memory + a.heads_offset);
  const int blocks_of_head = a.head_dim / kRowsOfHead, number = static_cast<int>(blockIdx.x) % blocks_of_head;
  const int first_head = static_cast<int>(blockIdx.x) / blocks_of_head * a.heads, heads = min(a.heads, a.num_heads - first_head);
  if (threadIdx.x == 0) pairs.found.init(32);
  if (threadIdx.x < kRingThreads) ring.open();
  __syncthreads();
  let_next_kernel_start();
  if (threadIdx.x >= kRingThreads) {
    wait_for_previous_kernels();
#pragma unroll 1
    for (int t = static_cast<int>(threadIdx.x) - kRingThreads; t < a.num_tokens; t += 32) {
      PairsOfToken token;
      token.found = find_token(p, a.num_tokens, t, blockIdx.x == 0);
      if (p.layout.rotary_dim > 0) {
        const auto angles = load_row<kPairsOfBlock>(p, token.found.token.row, number * kPairsOfBlock);
#pragma unroll
        for (int i = 0; i < kPairsOfBlock; ++i) token.cos[i] = angles.cos[i], token.sin[i] = angles.sin[i];
      }
      pairs.tokens[t] = token;
    }
    pairs.found.arrive();
    return;
  }
  if (threadIdx.x >= kRingConsumers) {
    if (threadIdx.x == kRingConsumers) {
      fill_ring(a, ring, [&](void* to, Barrier& loaded, int box) {
        load_box(to, a.weight, loaded, 0, number * a.box_rows, 0, first_head, box);
      });
    }
    return;
  }
  if (a.norm_weight != nullptr) {
    load_norm_weight(a, ring);
    sync_barrier(1, kRingConsumers);
  }
  wait_for_previous_kernels();
  const int lane = static_cast<int>(threadIdx.x) % kLanes, item = static_cast<int>(threadIdx.x) / kLanes;
  const int t = item & ((1 << a.log_tokens) - 1), step = kRingConsumers / kLanes >> a.log_tokens;
  int head = item >> a.log_tokens;  // of the block's; then every `step`th
  const bool finishes = t < a.num_tokens && head < heads;
  TokenHead<T, V, kFeatures> finished;
  if (finishes) finished.prepare_unit(p, first_head + head, number * kLanes + lane);
  By::multiply(a, ring);
  sync_barrier(1, kRingConsumers);
  if (!finishes) return;

  pairs.found.wait(0);
  const PairsOfToken& token = pairs.tokens[t];
  UnitAngles<V> angles;
#pragma unroll
  for (int i = 0; i < V; ++i) angles.cos[i] = token.cos[lane * V + i], angles.sin[i] = token.sin[lane * V + i];
  finished.set_token(token.found, t, angles);
  // The unit is in these rows of a head.
  const bool halves = (kFeatures & kLayouts) == 0;
  const int row_a = halves ? lane * V : 2 * lane * V, row_b = row_a + (halves ? kPairsOfBlock : V);
#pragma unroll 1
  for (;;) {
    float values_a[V], values_b[V];
    gather_rows<By>(a, ring, t, head * kRowsOfHead + row_a, values_a);
    gather_rows<By>(a, ring, t, head * kRowsOfHead + row_b, values_b);
    TokenHead<T, V, kFeatures> next = finished;
    head += step;
    if (head < heads) next.prepare_unit(p, first_head + head, number * kLanes + lane);
    finished.finish(p, {pack<T, V>(values_a), pack<T, V>(values_b)});
    if (head >= heads) return;
    finished = next;
  }
#endif
}

// ---- on the host ------------------------------------------------------------------------------------------------------------

struct RingHeadInstance {
  bool of_pairs;  // a block has the same rotary pairs of some heads; otherwise it has rows of one head (ring/head_kernel.cuh)
  int vector;     // channels of an access of the prologue; not of pairs: heads have 64 * vector channels at most
  int features;   // of prologue_args.h
  int fewest_rows, most_rows;  // of the weights, of a block
  int most_tokens;
  int64_t (*lay_out)(RingArgs&, int64_t room);
  EncodeWeights encode;
  void (*kernel)(RingHeadArgs, MostStepsArgs);
};

// Lists the kernels that ship, in the order in which they are chosen (ring/instances.cuh).
std::span<const RingHeadInstance> float16_ring_heads();
std::span<const RingHeadInstance> bfloat16_ring_heads();

}  // namespace prologue::cuda
