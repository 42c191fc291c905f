// Up to 64 tokens multiplied by weights that pass through shared memory: a block for each SM, with some rows of the weights and all of k.
// One thread of a ninth warp copies weights and x by TMA into a ring of stages; eight warps multiply. Each brings x to registers, where it
// is multiplied by the norm's weight, and its squares are summed on the way.
//
//   ring_by_mma.cuh      up to 16 tokens: rows of weights times tokens, by mma.m16n8k16. One code for all numbers of rows, so that all
//                        projections of a layer run the same (vector_product.cuh says why)
//   ring_by_wgmma.cuh    up to 64: tokens times rows of weights
//
// The ring holds weights before the kernel before this one has ended: nothing waits for x until then. No block needs another one's sums.
// Every block reads all of x, from the L2: that is what limits the number of tokens.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/shared/reciprocal_root.h>
#include <prologue/kernels/base/device/head_unit.cuh>
#include <prologue/kernels/base/device/hopper.cuh>
#include <prologue/kernels/base/device/instructions.cuh>
#include <prologue/kernels/projection/sums.cuh>

namespace prologue::cuda {

inline constexpr int kMostRingTokens = 64;
inline constexpr int kRingWarps = 8;  // that multiply
inline constexpr int kRingConsumers = kRingWarps * 32;
inline constexpr int kRingThreads = kRingConsumers + 32;
inline constexpr int kRingLaunchBound = PROLOGUE_HOPPER ? kRingThreads : 32;
inline constexpr int kMostRingRows = 256;
inline constexpr int kMostRingStages = 12;
inline constexpr int kBoxChannels = 64;  // of k: 128 bytes, a row of the swizzle
inline constexpr int kBoxRowBytes = 128;
inline constexpr int kStepsOfBox = kBoxChannels / 16;
// On their way to an SM. In whole layers more and less were slower (docs/tuning-log.md).
inline constexpr int64_t kEnoughWeights = 112 * 1024;

struct RingArgs {
  CUtensorMap weight;  // [channel of 64, row, half, k / 64]: a box is a stage's; halves: of gate and of up, else one
  CUtensorMap x;       // [channel of 64, token, k / 64]: likewise
  const char* norm_weight = nullptr;  // null = 1
  int32_t num_tokens = 0;
  int32_t x_rows = 0;       // num_tokens and more, a multiple of 8
  int32_t k = 0;            // a multiple of 64
  int32_t rows = 0;         // of the weights, of a block, of all halves: a multiple of 8
  int32_t box_rows = 0;     // of one half: a multiple of 8
  int32_t boxes = 0;        // of 64 channels, of a stage
  int32_t log_ways = 0;     // 2^log_ways warps or warpgroups share the channels of a stage
  int32_t stages = 0;       // of the ring
  int32_t stage_bytes = 0;  // of its weights, then of its x
  int32_t row_of_sums = 0;  // floats, such that lanes that store together use different banks
  int32_t tail_at = 0;      // in shared memory: RingTail
  int32_t normed = 0;
  int32_t float_weights = 0;  // norm_weight is float32
  float eps = 0.0f;
  float inverse_width = 0.0f;  // 1 / k
};

struct RingTail {
  Barrier loaded[kMostRingStages];
  Barrier emptied[kMostRingStages];
  float squares[kRingWarps * kMostRingTokens];  // of x, [part][token]; those that nobody writes are zeros
  uint4 norm_weight[1];                         // [k, and zeros to the end of the last stage], of its own type
};

// Where things are in so many bytes of shared memory, from num_tokens, rows, k, the norm, boxes, log_ways and row_of_sums. Returns how many
// are used; without any stages there is no room. `beyond`: rows of weights or of x behind the last, which are read, and nothing is made of them.
inline int64_t place_ring(RingArgs& a, int64_t beyond, int64_t room) {
  const int64_t channels = a.boxes * kBoxChannels, count = (a.k + channels - 1) / channels;
  const int64_t norm_weight = a.norm_weight == nullptr ? 0 : count * channels * (a.float_weights != 0 ? 4 : 2);
  const int64_t tail = static_cast<int64_t>(sizeof(RingTail)) + norm_weight;
  const int64_t weights = int64_t{a.boxes} * a.rows * kBoxRowBytes;
  a.stage_bytes = static_cast<int32_t>(weights + int64_t{a.boxes} * a.x_rows * kBoxRowBytes);
  a.stages = kMostRingStages;
  const auto at_most = [&](int64_t stages) { a.stages = static_cast<int32_t>(stages < a.stages ? stages : a.stages); };
  at_most((room - tail - beyond * kBoxRowBytes) / a.stage_bytes);
  at_most((kEnoughWeights + weights - 1) / weights);
  at_most(count);
  const int64_t ring = int64_t{a.stages} * a.stage_bytes + beyond * kBoxRowBytes;
  const int64_t sums = int64_t{a.num_tokens} * a.row_of_sums * 4 << a.log_ways;
  a.tail_at = static_cast<int32_t>(ring > sums ? ring : (sums + 15) / 16 * 16);
  return a.tail_at + tail;
}

struct Ring {
  unsigned char* memory;
  RingTail* tail;
  int stages;
  int stage_bytes;
  int channels;       // of a stage
  int count;          // of stages of k
  int weights_bytes;  // of a box
  int x_bytes;        // of a box
  int x_at;           // in a stage

  __device__ Ring(const RingArgs& a, unsigned char* shared)
      : memory(shared),
        tail(reinterpret_cast<RingTail*>(shared + a.tail_at)),
        stages(a.stages),
        stage_bytes(a.stage_bytes),
        channels(a.boxes * kBoxChannels),
        count((a.k + channels - 1) / channels),
        weights_bytes(a.rows * kBoxRowBytes),
        x_bytes(a.x_rows * kBoxRowBytes),
        x_at(a.boxes * weights_bytes) {}

  // By all threads; then a __syncthreads().
  __device__ void open() const {
    for (int i = threadIdx.x; i < kRingWarps * kMostRingTokens; i += kRingThreads) tail->squares[i] = 0.0f;
    if (threadIdx.x != 0) return;
    for (int s = 0; s < stages; ++s) {
      tail->loaded[s].init(1);
      tail->emptied[s].init(kRingWarps);
    }
    fence_barrier_init();
  }
  __device__ unsigned char* stage(int number) const { return memory + number * stage_bytes; }
  __device__ unsigned char* weights(int number, int box) const { return stage(number) + box * weights_bytes; }
  __device__ unsigned char* x(int number, int box) const { return stage(number) + x_at + box * x_bytes; }
  // Those of the norm, of a channel of k.
  __device__ const unsigned char* norm_weight(const RingArgs& a, int channel) const {
    return reinterpret_cast<const unsigned char*>(tail->norm_weight) + channel * (a.float_weights != 0 ? 4 : 2);
  }
  // [token][row_of_sums] of each way, where the ring was.
  __device__ float* sums(const RingArgs& a, int way) const {
    return reinterpret_cast<float*>(memory) + way * a.num_tokens * a.row_of_sums;
  }
};

// A stage, and the parity of its barriers' phase.
struct RingStage {
  int stage = 0;
  unsigned parity = 0;
  __device__ void advance(int stages) {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

// By one thread. `first_row`: of each half.
__device__ inline void fill_ring(const RingArgs& a, const Ring& ring, int first_row) {
  const auto load_weights = [&](int stage, int number) {
    ring.tail->loaded[stage].arrive_and_expect(ring.stage_bytes);
    load_box(ring.stage(stage), a.weight, ring.tail->loaded[stage], 0, first_row, 0, number * a.boxes);
  };
  const auto load_x = [&](int stage, int number) {
    load_box(ring.stage(stage) + ring.x_at, a.x, ring.tail->loaded[stage], 0, 0, number * a.boxes);
  };
  const int ahead = min(ring.count, ring.stages);
  for (int i = 0; i < ahead; ++i) load_weights(i, i);
  wait_for_previous_kernels();
  for (int i = 0; i < ahead; ++i) load_x(i, i);
  RingStage place;
  for (int i = ahead; i < ring.count; ++i, place.advance(ring.stages)) {
    ring.tail->emptied[place.stage].wait(place.parity);
    load_weights(place.stage, i);
    load_x(place.stage, i);
  }
}

// The norm's weight to shared memory, by all threads that multiply; then a barrier of theirs.
__device__ inline void load_norm_weight(const RingArgs& a, const Ring& ring) {
  const int size = a.float_weights != 0 ? 4 : 2, bytes = a.k * size, end = ring.count * ring.channels * size;
#pragma unroll 2
  for (int i = threadIdx.x * 16; i < end; i += kRingConsumers * 16) {
    Bytes<16> weights = {};
    if (i < bytes) weights = load_bytes<16, false>(a.norm_weight + i);
    store_bytes<16, false>(reinterpret_cast<unsigned char*>(ring.tail->norm_weight) + i, weights);
  }
}

// Fragments of x, of 16 channels each, neighbours, and 16 tokens: a lane has channels lane % 4 * 2 and the next of tokens lane / 4 and
// lane / 4 + 8, then the channels 8 further of both. Each times the norm's weight, rounded to T. `weight`: that of the lane's first channel.
template <class T, int kSteps>
__device__ inline void weigh_fragments(const RingArgs& a, const unsigned char* weight, uint32_t (&x)[kSteps][4]) {
  if (a.float_weights == 0) {
#pragma unroll
    for (int i = 0; i < 2 * kSteps; ++i) {
      const uint32_t pair = *reinterpret_cast<const uint32_t*>(weight + i * 8 * 2);
#pragma unroll
      for (int token = 0; token < 2; ++token) {
        uint32_t& channels = x[i / 2][i % 2 * 2 + token];
        channels = multiply_pairs<T>(channels, pair);
      }
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 2 * kSteps; ++i) {
    const float2 pair = *reinterpret_cast<const float2*>(weight + i * 8 * 4);
#pragma unroll
    for (int token = 0; token < 2; ++token) {
      uint32_t& channels = x[i / 2][i % 2 * 2 + token];
      const Bytes<4> both = {{channels}};
      const float product[2] = {element<T, 2>(both, 0) * pair.x, element<T, 2>(both, 1) * pair.y};
      channels = pack<T, 2>(product).words[0];
    }
  }
}

// The products of kCount neighbouring rows and a token, without what the norm multiplies them by.
template <int kCount>
__device__ inline void gather_rows(const RingArgs& a, const Ring& ring, int t, int row, float (&values)[kCount]) {
#pragma unroll
  for (float& value : values) value = 0.0f;
  add_up<2>(ring.sums(a, 0) + t * a.row_of_sums + row, a.num_tokens * a.row_of_sums, 1 << a.log_ways, values);
}

__device__ inline float norm_of_token(const RingArgs& a, const Ring& ring, int t) {
  float squares = 0.0f;
#pragma unroll
  for (int part = 0; part < kRingWarps; ++part) squares += ring.tail->squares[part * kMostRingTokens + t];
  return reciprocal_root(fmaf(squares, a.inverse_width, a.eps));
}

}  // namespace prologue::cuda
