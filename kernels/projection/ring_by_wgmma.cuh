// The products of a weight ring (weight_ring.cuh) by wgmma, for up to 64 tokens: tokens, 16 for each warp, times rows of weights. Two
// warpgroups have a half of a stage's channels each.
#pragma once

#include <cstdint>

#include <prologue/kernels/projection/weight_ring.cuh>

namespace prologue::cuda {

// kRows: of the weights, of a block, at most.
template <class T, int kRows>
struct RingByWgmma {
  static constexpr int kMostTokens = kMostRingTokens;
  static constexpr int kMostRows = kRows;
  static constexpr int kBlocksOfSm = kRows <= 64 ? 2 : 1;
  static constexpr int kBoxes = kRows <= 64 ? 4 : kRows <= 128 ? 2 : 1;

  // place_ring(), with what it needs.
  static int64_t place(RingArgs& a, int64_t room) {
    a.boxes = kBoxes;
    a.log_ways = 1;
    a.row_of_sums = kRows + 8;
    const int64_t rows_beyond = kRows - a.rows;
    return place_ring(a, rows_beyond > 8 ? rows_beyond : 8, room);
  }

  // By all threads but the copying warp's. Then the sums are in shared memory, ring.sums(), and may be read behind a barrier.
  __device__ static void multiply(const RingArgs& a, const Ring& ring) {
    constexpr int kSteps = kBoxes * kStepsOfBox / 2, kStrideOfRows = 8 * kBoxRowBytes;
    const int group = threadIdx.x / kWarpgroup, lane = threadIdx.x % 32;
    const int first_token = threadIdx.x % kWarpgroup / 32 * 16;  // of the warp
    // Lane i gives the address of a row of one of the four 8 x 8 matrices of a fragment: tokens, then tokens + 8, of 8 channels, then of the next.
    const int row = first_token + lane % 16, chunk = lane / 16;
    float sums[kRows / 2];
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
    uint32_t x[kSteps][4] = {};  // of tokens that there are not: zeros
    float squares[2] = {};       // of tokens first_token + lane / 4, and + 8
    RingStage place;
#pragma unroll 1
    for (int i = 0; i < ring.count; ++i, place.advance(ring.stages)) {
      ring.tail->loaded[place.stage].wait(place.parity);
      if (first_token < a.num_tokens) {
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          const int of_stage = group * kSteps + step, of_box = of_stage % kStepsOfBox * 2 + chunk;
          load_matrices(x[step], ring.x(place.stage, of_stage / kStepsOfBox) + row * kBoxRowBytes + ((of_box ^ row % 8) << 4));
        }
        if (a.normed != 0) add_squares(x, squares);
        if (a.norm_weight != nullptr) {
          weigh_fragments<T>(a, ring.norm_weight(a, i * ring.channels + group * kSteps * 16 + lane % 4 * 2), x);
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
      if (lane % 4 == 0) ring.tail->squares[group * kMostRingTokens + t] = squares[of_pair];
      float* const to = ring.sums(a, group) + t * a.row_of_sums + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < kRows / 8; ++n) {
        *reinterpret_cast<float2*>(to + n * 8) = make_float2(sums[n * 4 + of_pair * 2], sums[n * 4 + of_pair * 2 + 1]);
      }
    }
  }

 private:
  template <int kSteps>
  __device__ static void add_squares(const uint32_t (&x)[kSteps][4], float (&squares)[2]) {
#pragma unroll
    for (const uint32_t(&fragment)[4] : x) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Bytes<4> pair = {{fragment[i]}};
        const float low = element<T, 2>(pair, 0), high = element<T, 2>(pair, 1);
        squares[i % 2] = fmaf(low, low, fmaf(high, high, squares[i % 2]));
      }
    }
  }
};

}  // namespace prologue::cuda
