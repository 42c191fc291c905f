// In this way, which is for 2 to 64 tokens, weights pass through a ring of stages in shared memory. A block for each SM has some rows of
// the weights and all of k. One thread of a ninth warp copies weights and x by TMA into the stages; eight warps multiply. Each of them
// brings x to registers, where it multiplies x by the norm's weight and sums its squares.
//
//   ring/by_mma.cuh      up to 16 tokens: rows of weights times tokens, by mma.m16n8k16. One code for all numbers of rows, so that all
//                        projections of a layer run the same (vector/product.cuh says why)
//   ring/by_wgmma.cuh    up to 64: tokens times rows of weights
//
// A scheduler has two of the warps, so an instruction takes some five clocks, whatever it is: a warp must do little with a stage, or the
// stage is not free in time. The ring holds weights before the kernel before this one has ended: nothing waits for x until then. Every
// block reads all of x, from the L2; that is what limits the number of tokens. Where it would read more of x than of the weights,
// cooperating blocks divide k instead, and then add up each other's sums (ring/output_kernel.cuh).
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <prologue/kernels/base/shared/reciprocal_root.h>
#include <prologue/kernels/projection/policy.h>
#include <prologue/kernels/base/device/head_unit.cuh>
#include <prologue/kernels/base/device/hopper.cuh>
#include <prologue/kernels/base/device/instructions.cuh>
#include <prologue/kernels/projection/sums.cuh>
#include <prologue/kernels/projection/weights/dense.cuh>

namespace prologue::cuda {

inline constexpr int kMostRingTokens = 64;
inline constexpr int kMostFewTokens = 16;  // of ring/by_mma.cuh
inline constexpr int kRingWarps = 8;       // that multiply
inline constexpr int kRingConsumers = kRingWarps * 32;
inline constexpr int kRingThreads = kRingConsumers + 32;
inline constexpr int kRingLaunchBound = PROLOGUE_HOPPER ? kRingThreads : 32;
inline constexpr int kMostRingRows = 256;
inline constexpr int kMostRingStages = 12;
inline constexpr int kBoxChannels = 64;    // of k: a row of the swizzle
inline constexpr int kXBoxRowBytes = 128;  // of x
inline constexpr int kStepsOfBox = kBoxChannels / 16;
inline constexpr int kPairsOfLane = 2 * kStepsOfBox;  // of a box's channels, in a lane's fragments

struct RingArgs {
  // This is [channel of 64, row, half, k / 64], of which a stage has one box; the halves are those of gate and of up, or there is one.
  // ring_head_pairs_kernel has heads before k / 64.
  CUtensorMap weight;
  CUtensorMap x;                      // [channel of 64, token, k / 64], likewise
  const char* norm_weight = nullptr;  // null = 1
  int32_t num_tokens = 0;
  int32_t x_rows = 0;        // of a box of x: num_tokens, up to a multiple of 8
  int32_t k = 0;             // a multiple of 64
  int32_t rows = 0;          // of the weights, of a block, of all halves: a multiple of 8
  int32_t box_rows = 0;      // of one half: a multiple of 8; ring_head_pairs_kernel: from one block's rows to the next one's
  int32_t boxes = 0;         // of 64 channels, of a stage
  int32_t log_splits = 0;    // 2^log_splits warps or warpgroups divide the channels of a stage
  int32_t log_k_blocks = 0;  // 2^log_k_blocks blocks, a cluster, have the same rows and divide k; there is no norm then
  int32_t stages = 0;        // of the ring
  int32_t stage_bytes = 0;   // of its weights, then of its x
  int32_t sums_stride = 0;   // floats from one token's sums to the next, such that lanes that store together use different banks
  int32_t tail_offset = 0;   // of RingTail, in shared memory
  int32_t normed = 0;
  int32_t float_norm_weight = 0;  // norm_weight is float32
  float eps = 0.0f;
  float inverse_k = 0.0f;  // 1 / k
};

struct RingTail {
  Barrier loaded[kMostRingStages];
  Barrier emptied[kMostRingStages];
  float squares[kRingWarps * kMostRingTokens];  // of x, [part][token]; zeros where no warp writes
  float factors[kMostRingTokens];               // of the norm
  uint4 norm_weight[1];                         // [k, and zeros to the end of the last stage], of its own type
};

// Lays out `room` bytes of shared memory for num_tokens, rows, k, the norm, boxes, log_splits and sums_stride. Returns how many bytes are
// used; with no stages there is no room. weight_row_bytes are those of a box. `beyond` is the number of bytes that are read after the last
// stage, and not used. `bytes_in_flight` counts bytes of weights; the ring has no more stages than that takes.
inline int64_t lay_out_ring(RingArgs& a, int64_t weight_row_bytes, int64_t beyond, int64_t room, int64_t bytes_in_flight) {
  const int64_t channels = int64_t{a.boxes * kBoxChannels} << a.log_k_blocks, count = divide_up(a.k, channels);
  const int64_t norm_weight = a.norm_weight == nullptr ? 0 : count * channels * (a.float_norm_weight != 0 ? 4 : 2);
  const int64_t tail = static_cast<int64_t>(sizeof(RingTail)) + norm_weight;
  const int64_t weights = int64_t{a.boxes} * a.rows * weight_row_bytes;
  a.stage_bytes = static_cast<int32_t>(weights + int64_t{a.boxes} * a.x_rows * kXBoxRowBytes);
  a.stages = kMostRingStages;
  const auto at_most = [&](int64_t stages) { a.stages = static_cast<int32_t>(stages < a.stages ? stages : a.stages); };
  at_most((room - tail - beyond) / a.stage_bytes);
  at_most(divide_up(bytes_in_flight, weights));
  at_most(count);
  const int64_t ring = int64_t{a.stages} * a.stage_bytes + beyond;
  const int64_t sums = int64_t{a.num_tokens} * a.sums_stride * 4 << a.log_splits;
  a.tail_offset = static_cast<int32_t>(ring > sums ? ring : round_up(sums, 16));
  return a.tail_offset + tail;
}

struct Ring {
  unsigned char* memory;
  RingTail* tail;
  int stages;
  int stage_bytes;
  int channels;  // of a stage
  int first;     // the block's K extent, in stages
  int count;
  int weights_bytes;  // of a box
  int x_bytes;        // of a box
  int x_at;           // in a stage

  __device__ Ring(const RingArgs& a, int weight_row_bytes, unsigned char* shared)
      : memory(shared),
        tail(reinterpret_cast<RingTail*>(shared + a.tail_offset)),
        stages(a.stages),
        stage_bytes(a.stage_bytes),
        channels(a.boxes * kBoxChannels),
        first(0),
        count((a.k + channels - 1) / channels),
        weights_bytes(a.rows * weight_row_bytes),
        x_bytes(a.x_rows * kXBoxRowBytes),
        x_at(a.boxes * weights_bytes) {}

  // This block has only its part of k.
  __device__ void take_part_of_k(const RingArgs& a) {
    const int of_block = (count + (1 << a.log_k_blocks) - 1) >> a.log_k_blocks;
    first = static_cast<int>(cluster_rank()) * of_block;
    count = min(of_block, count - first);
  }

  // All kRingThreads threads call it; then a __syncthreads() must follow.
  __device__ void open() const {
    for (int i = threadIdx.x; i < kRingWarps * kMostRingTokens; i += kRingThreads) tail->squares[i] = 0.0f;
    if (threadIdx.x != 0) return;
    for (int s = 0; s < stages; ++s) {
      tail->loaded[s].init(1);
      tail->emptied[s].init(kRingWarps);
    }
    fence_barrier_init();
  }
  // Returns the norm's weight as this lane needs it for its fragments of x, from the one on that begins at this channel of k.
  __device__ const unsigned char* norm_weight(const RingArgs& a, int channel) const {
    const int pair = (channel / kBoxChannels * 4 + static_cast<int>(threadIdx.x % 4)) * kPairsOfLane + channel % kBoxChannels / 8;
    return reinterpret_cast<const unsigned char*>(tail->norm_weight) + pair * (a.float_norm_weight != 0 ? 8 : 4);
  }
  // Returns the sums [split][token][sums_stride], index_of_sum() of a row (by_mma.cuh, by_wgmma.cuh), where the ring was.
  __device__ float* sums(const RingArgs& a, int split) const {
    return reinterpret_cast<float*>(memory) + split * a.num_tokens * a.sums_stride;
  }
};

// This is a stage: its barriers, its offset in the ring, and the parity of the barriers' phase.
struct RingStage {
  Barrier* loaded;
  int at = 0;
  unsigned parity = 0;

  __device__ explicit RingStage(const Ring& ring) : loaded(ring.tail->loaded) {}
  __device__ Barrier* emptied() const {
    static_assert(offsetof(RingTail, emptied) == offsetof(RingTail, loaded) + kMostRingStages * sizeof(Barrier));
    return loaded + kMostRingStages;
  }
  // Goes to the next stage. `end` is the end of the ring.
  __device__ void advance(const Ring& ring, int end) {
    at += ring.stage_bytes, ++loaded;
    if (at == end) at = 0, loaded = ring.tail->loaded, parity ^= 1;
  }
};

// One thread calls it. `load_rows(to, barrier, k / 64)` copies a box of the block's weights.
template <class LoadRows>
__device__ inline void fill_ring(const RingArgs& a, const Ring& ring, const LoadRows& load_rows) {
  const auto load_weights = [&](const RingStage& stage, int number) {
    stage.loaded->arrive_and_expect(ring.stage_bytes);
    load_rows(ring.memory + stage.at, *stage.loaded, (ring.first + number) * a.boxes);
  };
  const auto load_x = [&](const RingStage& stage, int number) {
    load_box(ring.memory + stage.at + ring.x_at, a.x, *stage.loaded, 0, 0, (ring.first + number) * a.boxes);
  };
  const int first_fill = min(ring.count, ring.stages), end = ring.stages * ring.stage_bytes;
  RingStage stage(ring);
  for (int i = 0; i < first_fill; ++i, stage.advance(ring, end)) load_weights(stage, i);
  wait_for_previous_kernels();
  stage = RingStage(ring);
  for (int i = 0; i < first_fill; ++i, stage.advance(ring, end)) load_x(stage, i);
  stage = RingStage(ring);
  for (int i = first_fill; i < ring.count; ++i, stage.advance(ring, end)) {
    stage.emptied()->wait(stage.parity);
    load_weights(stage, i);
    load_x(stage, i);
  }
}

// Fills the ring with rows that are neighbours, from `first_row` of each half on.
__device__ inline void fill_ring(const RingArgs& a, const Ring& ring, int first_row) {
  fill_ring(a, ring, [&](void* to, Barrier& loaded, int box) { load_box(to, a.weight, loaded, 0, first_row, 0, box); });
}

// Copies the norm's weight to shared memory. All threads that multiply call it; then a barrier of theirs must follow. It is in the order in
// which lanes need it: of 64 channels those of lane % 4 = 0, pairs that are 8 channels apart, then those of lane % 4 = 1, and so on.
__device__ inline void load_norm_weight(const RingArgs& a, const Ring& ring) {
  const auto store = [&](int chunk, const auto& pairs) {  // of 8 channels
    const int box = chunk / kPairsOfLane, of_lane = chunk % kPairsOfLane;
#pragma unroll
    for (int lane = 0; lane < 4; ++lane) {
      auto* const to = reinterpret_cast<std::remove_cvref_t<decltype(pairs[0])>*>(ring.tail->norm_weight);
      to[(box * 4 + lane) * kPairsOfLane + of_lane] = pairs[lane];
    }
  };
  const int end = ring.count * ring.channels / 8;
#pragma unroll 2
  for (int chunk = threadIdx.x; chunk < end; chunk += kRingConsumers) {
    const bool inside = chunk * 8 < a.k;
    if (a.float_norm_weight == 0) {
      Bytes<16> weights = {};
      if (inside) weights = load_bytes<16, false>(a.norm_weight + chunk * 16);
      store(chunk, weights.words);
    } else {
      Bytes<32> weights = {};
      if (inside) weights = load_bytes<32, false>(a.norm_weight + chunk * 32);
      uint2 pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) pairs[i] = make_uint2(weights.words[2 * i], weights.words[2 * i + 1]);
      store(chunk, pairs);
    }
  }
}

// Fragments of x are matrices of 8 tokens and 8 channels, of which a lane has two channels, lane % 4 * 2 and the next, of token lane / 4.
// 16 tokens and 16 channels are four of them, in the order of the first operand of mma.m16n8k16 or of two second ones.
enum class XOrder { tokens_first, channels_first };

// Multiplies neighbouring fragments by the norm's weight (Ring::norm_weight()), and rounds them to T.
template <class T, XOrder kOrder, int kSteps>
__device__ inline void weigh_fragments(const RingArgs& a, const unsigned char* weight, uint32_t (&x)[kSteps][4]) {
  static_assert(kSteps % 2 == 0);
  const auto for_two = [&](int step, const auto& weigh) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int of_fragment = kOrder == XOrder::tokens_first ? i % 4 / 2 : i % 2;  // the first or the second 8 channels
      weigh(x[step + i / 4][i % 4], i / 4 * 2 + of_fragment);
    }
  };
  if (a.float_norm_weight == 0) {
#pragma unroll
    for (int step = 0; step < kSteps; step += 2) {
      const Bytes<16> pairs = load_bytes<16, false>(weight + step * 8);
      for_two(step, [&](uint32_t& channels, int pair) { channels = multiply_pairs<T>(channels, pairs.words[pair]); });
    }
    return;
  }
#pragma unroll
  for (int step = 0; step < kSteps; step += 2) {
    const Bytes<32> pairs = load_bytes<32, false>(weight + step * 16);
    for_two(step, [&](uint32_t& channels, int pair) {
      const Bytes<4> both = {{channels}};
      const float product[2] = {element<T, 2>(both, 0) * element<float, 8>(pairs, pair * 2),
                                element<T, 2>(both, 1) * element<float, 8>(pairs, pair * 2 + 1)};
      channels = pack<T, 2>(product).words[0];
    });
  }
}

// The factor of the norm for a token, once its squares are visible.
__device__ inline float norm_of_token(const RingArgs& a, const Ring& ring, int t) {
  float squares = 0.0f;
#pragma unroll
  for (int part = 0; part < kRingWarps; ++part) squares += ring.tail->squares[part * kMostRingTokens + t];
  return reciprocal_root(fmaf(squares, a.inverse_k, a.eps));
}

// Finds the factors of all tokens, which are visible after a barrier. With few tokens a thread finds its only one itself.
__device__ inline void find_factors(const RingArgs& a, const Ring& ring) {
  const int t = static_cast<int>(threadIdx.x);
  if (a.normed != 0 && t < a.num_tokens) ring.tail->factors[t] = norm_of_token(a, ring, t);
}

template <class By>
__device__ inline float factor_of_token(const RingArgs& a, const Ring& ring, int t) {
  if (a.normed == 0) return 1.0f;
  return By::kMostTokens > kMostFewTokens ? ring.tail->factors[t] : norm_of_token(a, ring, t);
}

// Adds to `values` the sums of kCount neighbouring rows, from a multiple of kCount on, of a token. By is RingByMma or RingByWgmma.
template <class By, int kCount>
__device__ inline void add_sums(const RingArgs& a, const float* sums, int t, int row, float (&values)[kCount]) {
  constexpr int kTogether = kCount < 4 ? kCount : 4;
  const int stride = a.num_tokens * a.sums_stride;
#pragma unroll
  for (int first = 0; first < kCount; first += kTogether) {
    const float* const from = sums + t * a.sums_stride + By::index_of_sum(row + first);
    float(&together)[kTogether] = *reinterpret_cast<float(*)[kTogether]>(values + first);
    if constexpr (By::kSplits > 0) {
      add_up<By::kSplits>(from, stride, together);
    } else {
      add_up<2>(from, stride, 1 << a.log_splits, together);
    }
  }
}

// Gathers the products of the rows and the token.
template <class By, int kCount>
__device__ inline void gather_rows(const RingArgs& a, const Ring& ring, int t, int row, float (&values)[kCount]) {
#pragma unroll
  for (float& value : values) value = 0.0f;
  add_sums<By>(a, ring.sums(a, 0), t, row, values);
  const float factor = factor_of_token<By>(a, ring, t);
#pragma unroll
  for (float& value : values) value *= factor;
}

// Gathers them where blocks divide k.
template <class By, int kCount>
__device__ inline void gather_rows_of_cluster(const RingArgs& a, const Ring& ring, int t, int row, float (&values)[kCount]) {
#pragma unroll
  for (float& value : values) value = 0.0f;
#pragma unroll 1
  for (int k_block = 0; k_block < 1 << a.log_k_blocks; ++k_block) {
    add_sums<By>(a, in_block_of_cluster(ring.sums(a, 0), static_cast<uint32_t>(k_block)), t, row, values);
  }
}

}  // namespace prologue::cuda
