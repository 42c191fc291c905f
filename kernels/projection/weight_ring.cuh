// Up to 64 tokens multiplied by weights that pass through shared memory: a block for each SM, with some rows of the weights and all of k.
//
//   one thread of a ninth warp, copies    weights and x by TMA into a ring of stages
//   two warpgroups that multiply          each a half of a stage's channels, by wgmma: tokens (a warp has 16) times rows of weights. x is
//                                         in registers, multiplied by the norm's weight there; its squares are summed on the way
//
// The ring holds weights before the kernel before this one has ended: nothing waits for x until then. No block needs another one's sums.
// Every block reads all of x, from the L2: that is what limits the number of tokens.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/shared/reciprocal_root.h>
#include <prologue/kernels/base/device/head_unit.cuh>
#include <prologue/kernels/base/device/hopper.cuh>
#include <prologue/kernels/base/device/instructions.cuh>

namespace prologue::cuda {

inline constexpr int kMostRingTokens = 64;
inline constexpr int kRingConsumers = 2 * kWarpgroup;
inline constexpr int kRingThreads = kRingConsumers + 32;
inline constexpr int kRingLaunchBound = PROLOGUE_HOPPER ? kRingThreads : 32;
// So few registers that a block of the next kernel has room beside this one.
template <int kRows>
inline constexpr int kRingBlocksOfSm = kRows <= 64 ? 2 : 1;
inline constexpr int kMostRingStages = 12;
inline constexpr int kBoxChannels = 64;  // of k: 128 bytes, a row of the swizzle
inline constexpr int kBoxRowBytes = 128;
// On their way to an SM. In whole layers more and less were slower (docs/tuning-log.md).
inline constexpr int64_t kEnoughWeights = 112 * 1024;

struct RingArgs {
  CUtensorMap weight;  // [channel of 64, row, half, k / 64]: a box is a stage's; halves: of gate and of up, else one
  CUtensorMap x;       // [channel of 64, token, k / 64]: likewise
  const char* norm_weight = nullptr;  // null = 1
  int32_t num_tokens = 0;
  int32_t x_rows = 0;       // num_tokens and more, a multiple of 8
  int32_t k = 0;            // a multiple of 64
  int32_t rows = 0;         // of the weights, of a block, of all halves
  int32_t box_rows = 0;     // of one half: a multiple of 8
  int32_t stages = 0;       // of the ring
  int32_t stage_bytes = 0;  // of its weights, then of its x
  int32_t tail_at = 0;      // in shared memory: RingTail
  int32_t normed = 0;
  int32_t float_weights = 0;  // norm_weight is float32
  float eps = 0.0f;
  float inverse_width = 0.0f;  // 1 / k
};

struct RingTail {
  Barrier loaded[kMostRingStages];
  Barrier emptied[kMostRingStages];
  float squares[2][kMostRingTokens];  // of each warpgroup
  float norm_weight[4];               // [k, and zeros to the end of the last stage]
};

// kRows: of the weights, of a block, at most.
template <int kRows>
struct RingShape {
  static constexpr int kBoxes = kRows <= 64 ? 4 : kRows <= 128 ? 2 : 1;  // of 64 channels, in a stage
  static constexpr int kChannels = kBoxes * kBoxChannels;
  static constexpr int kRowOfSums = kRows + 8;  // floats, so that neighbours are in different banks
  static int64_t stages_of_k(int64_t k) { return (k + kChannels - 1) / kChannels; }

  // Fills the members that say where things are in shared memory, of `room` bytes; returns how many are used.
  static int64_t place(RingArgs& a, int64_t room) {
    const int64_t count = stages_of_k(a.k);
    const int64_t tail = static_cast<int64_t>(sizeof(RingTail)) + (a.normed != 0 ? count * kChannels * 4 : 0);
    // Rows of weights and tokens that there are not are read, too, and nothing is made of them.
    const int64_t rows_beyond = kRows - a.rows, beyond = (rows_beyond > 8 ? rows_beyond : 8) * kBoxRowBytes;
    const int64_t sums = 2 * a.num_tokens * kRowOfSums * 4;
    const int64_t weights = kBoxes * a.rows * kBoxRowBytes;
    a.stage_bytes = static_cast<int32_t>(weights + kBoxes * a.x_rows * kBoxRowBytes);
    const auto at_most = [&](int64_t stages) { a.stages = static_cast<int32_t>(stages < a.stages ? stages : a.stages); };
    a.stages = kMostRingStages;
    at_most((room - tail - beyond) / a.stage_bytes);
    at_most((kEnoughWeights + weights - 1) / weights);
    at_most(count);
    const int64_t ring = a.stages * a.stage_bytes + beyond;
    a.tail_at = static_cast<int32_t>(ring > sums ? ring : (sums + 15) / 16 * 16);
    return a.tail_at + tail;
  }
};

template <int kRows>
struct Ring {
  using Shape = RingShape<kRows>;
  unsigned char* memory;
  RingTail* tail;
  int stages;
  int stage_bytes;
  int weights_bytes;  // of a box
  int x_bytes;        // of a box

  __device__ Ring(const RingArgs& a, unsigned char* shared)
      : memory(shared),
        tail(reinterpret_cast<RingTail*>(shared + a.tail_at)),
        stages(a.stages),
        stage_bytes(a.stage_bytes),
        weights_bytes(a.rows * kBoxRowBytes),
        x_bytes(a.x_rows * kBoxRowBytes) {}

  // Then a __syncthreads().
  __device__ void open() const {
    if (threadIdx.x != 0) return;
    for (int s = 0; s < stages; ++s) {
      tail->loaded[s].init(1);
      tail->emptied[s].init(kRingConsumers / 32);
    }
    fence_barrier_init();
  }
  __device__ unsigned char* weights(int stage, int box) const { return memory + stage * stage_bytes + box * weights_bytes; }
  __device__ unsigned char* x(int stage, int box) const {
    return memory + stage * stage_bytes + Shape::kBoxes * weights_bytes + box * x_bytes;
  }
  // [token][kRowOfSums] of each warpgroup, where the ring was.
  __device__ float* sums(const RingArgs& a, int group) const {
    return reinterpret_cast<float*>(memory) + group * a.num_tokens * Shape::kRowOfSums;
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
template <int kRows>
__device__ inline void fill_ring(const RingArgs& a, const Ring<kRows>& ring, int first_row) {
  using Shape = RingShape<kRows>;
  const auto load_weights = [&](int stage, int number) {
    ring.tail->loaded[stage].arrive_and_expect(ring.stage_bytes);
    load_box(ring.weights(stage, 0), a.weight, ring.tail->loaded[stage], 0, first_row, 0, number * Shape::kBoxes);
  };
  const auto load_x = [&](int stage, int number) {
    load_box(ring.x(stage, 0), a.x, ring.tail->loaded[stage], 0, 0, number * Shape::kBoxes);
  };
  const int count = (a.k + Shape::kChannels - 1) / Shape::kChannels, ahead = min(count, ring.stages);
  for (int i = 0; i < ahead; ++i) load_weights(i, i);
  wait_for_previous_kernels();
  for (int i = 0; i < ahead; ++i) load_x(i, i);
  RingStage place;
  for (int i = ahead; i < count; ++i, place.advance(ring.stages)) {
    ring.tail->emptied[place.stage].wait(place.parity);
    load_weights(place.stage, i);
    load_x(place.stage, i);
  }
}

// Eight of the norm's weights, in float32.
template <class T>
__device__ inline Bytes<32> load_norm_weights(const RingArgs& a, int channel) {
  if (a.norm_weight != nullptr && a.float_weights != 0) return load_bytes<32, false>(a.norm_weight + channel * 4);
  float weights[8] = {1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f};
  if (a.norm_weight != nullptr) {
    const auto loaded = load_bytes<16, false>(a.norm_weight + channel * static_cast<int>(sizeof(T)));
#pragma unroll
    for (int i = 0; i < 8; ++i) weights[i] = element<T, 8>(loaded, i);
  }
  return pack<float, 8>(weights);
}

// By all threads that multiply; then a barrier of theirs.
template <class T, int kRows>
__device__ inline void load_norm_weight(const RingArgs& a, const Ring<kRows>& ring) {
  const int end = (a.k + RingShape<kRows>::kChannels - 1) / RingShape<kRows>::kChannels * RingShape<kRows>::kChannels;
#pragma unroll 2
  for (int i = threadIdx.x * 8; i < end; i += kRingConsumers * 8) {
    Bytes<32> weights = {};
    if (i < a.k) weights = load_norm_weights<T>(a, i);
    store_bytes<32, false>(ring.tail->norm_weight + i, weights);
  }
}

// Two channels of a token times the norm's weight, rounded to T.
template <class T>
__device__ inline void norm_pair(uint32_t& pair, const float2& weight, float& squares) {
  const Bytes<4> bytes = {{pair}};
  const float x[2] = {element<T, 2>(bytes, 0), element<T, 2>(bytes, 1)};
  squares = fmaf(x[0], x[0], fmaf(x[1], x[1], squares));
  const float product[2] = {x[0] * weight.x, x[1] * weight.y};
  pair = pack<T, 2>(product).words[0];
}

// By all threads but the copying warp's. Then the sums are in shared memory, ring.sums(), and may be read behind a barrier.
template <class T, int kRows>
__device__ inline void multiply_ring(const RingArgs& a, const Ring<kRows>& ring) {
  using Shape = RingShape<kRows>;
  constexpr int kCount = kRows / 2, kSteps = Shape::kChannels / 32, kStepsOfBox = kBoxChannels / 16;
  constexpr int kStrideOfRows = 8 * kBoxRowBytes;
  const int group = threadIdx.x / kWarpgroup, lane = threadIdx.x % 32;
  const int first_token = threadIdx.x % kWarpgroup / 32 * 16;  // of the warp
  const int count = (a.k + Shape::kChannels - 1) / Shape::kChannels;
  // Lane i gives the address of a row of one of the four 8 x 8 matrices of a fragment: tokens, then tokens + 8, of 8 channels, then of the next.
  const int row = first_token + lane % 16, chunk = lane / 16;
  float sums[kCount];
#pragma unroll
  for (float& sum : sums) sum = 0.0f;
  uint32_t x[kSteps][4] = {};  // of tokens that there are not: zeros
  float squares[2] = {};       // of tokens first_token + lane / 4, and + 8
  RingStage place;
#pragma unroll 1
  for (int i = 0; i < count; ++i, place.advance(ring.stages)) {
    ring.tail->loaded[place.stage].wait(place.parity);
    if (first_token < a.num_tokens) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int of_stage = group * kSteps + step, of_box = of_stage % kStepsOfBox * 2 + chunk;
        load_matrices(x[step], ring.x(place.stage, of_stage / kStepsOfBox) + row * kBoxRowBytes + ((of_box ^ row % 8) << 4));
      }
      if (a.normed != 0) {
        const float* const weight = ring.tail->norm_weight + i * Shape::kChannels + group * kSteps * 16 + lane % 4 * 2;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float2 pair = *reinterpret_cast<const float2*>(weight + step * 16 + half * 8);
            norm_pair<T>(x[step][half * 2], pair, squares[0]);
            norm_pair<T>(x[step][half * 2 + 1], pair, squares[1]);
          }
        }
      }
    }
    multiply_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int of_stage = group * kSteps + step;
      const uint64_t weights = matrix_descriptor(ring.weights(place.stage, of_stage / kStepsOfBox), 0, kStrideOfRows);
      multiply_registers_async<T, false>(sums, x[step], advance(weights, of_stage % kStepsOfBox * 32));
    }
    multiply_commit();
    multiply_wait<0>();
    keep_in_order(sums);
#pragma unroll
    for (uint32_t(&fragment)[4] : x) keep_in_order(fragment);
    __syncwarp();
    if (lane == 0) ring.tail->emptied[place.stage].arrive();
  }
  sync_barrier(1, kRingConsumers);  // nobody reads the ring any more
#pragma unroll
  for (int of_pair = 0; of_pair < 2; ++of_pair) {
    const int t = first_token + lane / 4 + of_pair * 8;
#pragma unroll
    for (int step = 1; step < 4; step *= 2) squares[of_pair] += __shfl_xor_sync(0xffffffffu, squares[of_pair], step);
    if (t >= a.num_tokens) continue;
    if (lane % 4 == 0) ring.tail->squares[group][t] = squares[of_pair];
    float* const to = ring.sums(a, group) + t * Shape::kRowOfSums + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kRows / 8; ++n) {
      *reinterpret_cast<float2*>(to + n * 8) = make_float2(sums[n * 4 + of_pair * 2], sums[n * 4 + of_pair * 2 + 1]);
    }
  }
}

// The products of kCount neighbouring rows and a token, and what the norm multiplies them by.
template <int kCount, int kRows>
__device__ inline void gather_rows(const RingArgs& a, const Ring<kRows>& ring, int t, int row, float (&values)[kCount]) {
  const int at = t * RingShape<kRows>::kRowOfSums + row;
  const auto one = load_bytes<kCount * 4, false>(ring.sums(a, 0) + at);
  const auto other = load_bytes<kCount * 4, false>(ring.sums(a, 1) + at);
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = element<float, kCount>(one, i) + element<float, kCount>(other, i);
}

template <int kRows>
__device__ inline float norm_of_token(const RingArgs& a, const Ring<kRows>& ring, int t) {
  return reciprocal_root(fmaf(ring.tail->squares[0][t] + ring.tail->squares[1][t], a.inverse_width, a.eps));
}

}  // namespace prologue::cuda
