// Multiplies the stages of a weight ring (ring/product.cuh) by wgmma, for up to 64 tokens: tokens, 16 for each warp, times rows of weights.
// Each of two warpgroups has half of a stage's channels.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <prologue/kernels/projection/ring/product.cuh>

namespace prologue::cuda {

// Sums the squares of a warp's 16 tokens from fragments, by mma: with few instructions and 16 registers.
template <class T>
struct SquaresByMma {
  float sums[4][4] = {};  // of each matrix of a fragment with itself and its neighbour

  __device__ void add(const uint32_t (&x)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) multiply_matrices<T>(sums[i], {x[i / 2 * 2], x[i / 2 * 2 + 1]}, x[i]);
  }
  // Returns the sum of token lane / 4 of the first or the second 8, in lanes that have it.
  __device__ float of_token(int half) const {
    const auto of_matrix = [&](const float(&sum)[4]) { return of_own_column(sum[half * 2], sum[half * 2 + 1]); };
    return of_matrix(sums[half]) + of_matrix(sums[2 + half]);
  }
  __device__ static bool has_token(int lane) { return lane % 4 == lane / 8; }
};

// Sums them by fused multiplications and additions, with two registers.
template <class T>
struct SquaresByFma {
  float sums[2] = {};

  __device__ void add(const uint32_t (&x)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Bytes<4> pair = {{x[i]}};
      const float low = element<T, 2>(pair, 0), high = element<T, 2>(pair, 1);
      sums[i % 2] = fmaf(low, low, fmaf(high, high, sums[i % 2]));
    }
  }
  __device__ float of_token(int half) const {
    float sum = sums[half];
#pragma unroll
    for (int step = 1; step < 4; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
  }
  __device__ static bool has_token(int lane) { return lane % 4 == 0; }
};

// W is the format of the weights (weights/). kRows is the most rows of a block.
template <class Weights, int kRows>
struct RingByWgmma {
  using W = Weights;
  using T = typename W::T;
  static constexpr int kMostTokens = kMostRingTokens;
  static constexpr int kFewestRows = 0;
  static constexpr int kMostRows = kRows;
  static constexpr int kBlocksOfSm = 1;
  static constexpr int kSplits = 2;
  static constexpr int kBoxes = kRows <= 64 ? 4 : kRows <= 128 ? 2 : 1;

  // Fills in what lay_out_ring() needs, and calls it.
  static int64_t lay_out(RingArgs& a, int64_t room) {
    a.boxes = kBoxes;
    a.log_splits = 1;  // kSplits
    a.sums_stride = kRows + 8;
    const int64_t rows_beyond = kRows - a.rows, tokens_beyond = kMostTokens - a.x_rows;
    const int64_t weights_beyond = rows_beyond * W::kBoxRowBytes, x_beyond = tokens_beyond * kXBoxRowBytes;
    return lay_out_ring(a, W::kBoxRowBytes, std::max(weights_beyond, x_beyond), room, policy::kRingBytesInFlight);
  }

  // Returns where a row's sum is among those of a token. Neighbouring groups of 4 are swapped so that lanes with 8 rows each use all banks.
  __device__ static int index_of_sum(int row) { return row ^ (row >> 3 & 4); }

  // All threads but those of the copying warp call it. After a barrier gather_rows() finds the sums.
  __device__ static void multiply(const RingArgs& a, const Ring& ring) {
    constexpr int kSteps = kBoxes * kStepsOfBox / 2, kStrideOfX = 8 * kXBoxRowBytes;
    constexpr int kAtOnce = kSteps < kStepsOfBox ? kSteps : kStepsOfBox, kParts = kSteps / kAtOnce;
    const int group = threadIdx.x / kWarpgroup, first_token = threadIdx.x % kWarpgroup / 32 * 16;  // of the warp
    const int first_step = group * kSteps, box = first_step / kStepsOfBox, of_box = first_step % kStepsOfBox;
    int lane = threadIdx.x % 32;
    // Lane i gives the address of a row of one of the four 8 x 8 matrices of a fragment: tokens, then tokens + 8, of 8 channels, then of
    // the next.
    const int row = first_token + lane % 16;
    int chunk = ((of_box * 2 + lane / 16) ^ row % 8) << 4;  // of the first step, of the others with some bits changed
    int x_at = ring.x_at + box * ring.x_bytes + row * kXBoxRowBytes;
    uint64_t weights = W::descriptor(ring.memory + box * ring.weights_bytes, of_box);
    uint64_t x_in_place = matrix_descriptor(ring.memory + ring.x_at + box * ring.x_bytes + of_box * 32, 0, kStrideOfX);
    const int weight_size = a.float_norm_weight != 0 ? 4 : 2, norm_bytes = ring.channels * weight_size;
    int norm_weight = a.norm_weight == nullptr ? -1 : static_cast<int>(ring.norm_weight(a, first_step * 16) - ring.memory);
    int has_tokens = first_token < a.num_tokens ? 1 : 0, count = ring.count, end = ring.stages * ring.stage_bytes;
    // All of it stays in registers, so that the loop has few instructions.
    asm volatile(""
                 : "+r"(chunk), "+r"(x_at), "+r"(norm_weight), "+l"(weights), "+r"(has_tokens), "+r"(lane), "+r"(count),
                   "+r"(end));
    if constexpr (kReadsInPlace) asm volatile("" : "+l"(x_in_place));
    float sums[kRows / 2];
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
    uint32_t x[kParts][kAtOnce][4] = {};  // zeros past the last token
    Squares squares;
    RingStage stage(ring);
#pragma unroll 1
    for (; count > 0; --count) {
      stage.loaded->wait(stage.parity);
      const bool in_place = kReadsInPlace && a.normed == 0;
      if constexpr (kReadsInPlace) {
        if (in_place) {
          multiply_fence();
#pragma unroll
          for (int step = 0; step < kSteps; ++step) {
            const int part = step / kStepsOfBox, i = step % kStepsOfBox;
            multiply_async<T>(sums, advance(x_in_place, stage.at + part * ring.x_bytes + i * 32),
                              advance(weights, stage.at + part * ring.weights_bytes + i * W::kStepBytes), true);
          }
          multiply_commit();
        }
      }
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        if (in_place) break;
        if (has_tokens != 0) {
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
            load_matrices(x[part][i], ring.memory + stage.at + x_at + part * ring.x_bytes + (chunk ^ i << 5));
          }
          if (kReadsInPlace || a.normed != 0) {
#pragma unroll
            for (const uint32_t(&fragment)[4] : x[part]) squares.add(fragment);
          }
          if (norm_weight >= 0) {
            const unsigned char* const weight = ring.memory + norm_weight + part * kBoxChannels * weight_size;
            weigh_fragments<T, XOrder::tokens_first>(a, weight, x[part]);
          }
        }
        multiply_fence();
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          multiply_registers_async<T, false>(sums, x[part][i],
                                             advance(weights, stage.at + part * ring.weights_bytes + i * W::kStepBytes));
        }
        multiply_commit();
      }
      multiply_wait<0>();
      keep_in_order(sums);
#pragma unroll
      for (auto& fragments : x) {
#pragma unroll
        for (uint32_t(&fragment)[4] : fragments) keep_in_order(fragment);
      }
      __syncwarp();
      if (lane == 0) stage.emptied()->arrive();
      norm_weight += norm_weight >= 0 ? norm_bytes : 0;
      stage.advance(ring, end);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float square = squares.of_token(half);
      if (Squares::has_token(lane)) ring.tail->squares[group * kMostRingTokens + first_token + lane / 4 + half * 8] = square;
    }
    sync_barrier(1, kRingConsumers);  // no warp reads the ring after this
    find_factors(a, ring);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int t = first_token + lane / 4 + half * 8;
      if (t >= a.num_tokens) continue;
      float* const to = ring.sums(a, group) + t * a.sums_stride;
      const int of_lane = lane % 4 * 2, swapped = of_lane ^ 4;
#pragma unroll
      for (int n = 0; n < kRows / 8; ++n) {  // at index_of_sum()
        float2* const two = reinterpret_cast<float2*>(to + n * 8 + (n / 4 % 2 == 0 ? of_lane : swapped));
        *two = make_float2(sums[n * 4 + half * 2], sums[n * 4 + half * 2 + 1]);
      }
    }
  }

 private:
  // With many rows there are no registers for either of these.
  static constexpr bool kReadsInPlace = kRows <= 64;  // wgmma reads x from shared memory if there is no norm
  using Squares = std::conditional_t<kRows <= 64, SquaresByMma<T>, SquaresByFma<T>>;
};

}  // namespace prologue::cuda
