// Multiplies the stages of a weight ring (ring/product.cuh) by mma.m16n8k16, for up to 16 tokens: rows of weights times tokens. A warp has
// up to 32 rows, and all channels of a stage or, where the block has few rows, a part of them. Or each warp has all rows of the block, and
// two steps of 16 channels of each stage: then no other warp brings the same x to registers.
#pragma once

#include <algorithm>
#include <cstdint>

#include <prologue/kernels/projection/ring/product.cuh>

namespace prologue::cuda {

// W is the format of the weights (weights/). kAllRows is the number of rows of a block, if each warp has all of them; if it is 0, a warp
// has 32 of any number.
template <class Weights, int kAllRows = 0>
struct RingByMma {
  using W = Weights;
  using T = typename W::T;
  static constexpr int kMostTokens = kMostFewTokens;
  static constexpr int kRowsOfWarp = kAllRows > 0 ? kAllRows : kMostRingRows / kRingWarps;
  static constexpr int kMostRows = kAllRows > 0 ? kAllRows : kMostRingRows;
  static constexpr int kFewestRows = kAllRows > 0 ? kAllRows - 15 : 0;  // with fewer, a tile of 16 would have none
  static constexpr int kBlocksOfSm = kAllRows > 0 ? 1 : 2;
  static constexpr int kSplits = kAllRows > 0 ? kRingWarps : 0;  // 0: a.log_splits says
  static constexpr int kSteps = kAllRows > 0 ? 2 : kStepsOfBox;  // of a warp, in a stage
  static constexpr int64_t kBytesInFlight = kAllRows > 0 ? policy::kRingBytesInFlightOfAllRows : policy::kRingBytesInFlight;

  // Fills in what lay_out_ring() needs, and calls it.
  static int64_t lay_out(RingArgs& a, int64_t room) {
    a.log_splits = 0;
    while (a.log_splits < 3 && (kAllRows > 0 || a.rows << (a.log_splits + 1) <= kMostRows)) ++a.log_splits;
    static_assert(1 << 3 == kRingWarps);
    a.boxes = (kSteps << a.log_splits) / kStepsOfBox;
    a.sums_stride = (a.rows + 15) / 16 * 16 + 4;
    const int64_t rows_beyond = (kRowsOfWarp - a.rows % kRowsOfWarp) % kRowsOfWarp, tokens_beyond = kMostTokens - a.x_rows;
    const int64_t weights_beyond = rows_beyond * W::kBoxRowBytes, x_beyond = tokens_beyond * kXBoxRowBytes;
    return lay_out_ring(a, W::kBoxRowBytes, std::max(weights_beyond, x_beyond), room, kBytesInFlight);
  }

  __device__ static int index_of_sum(int row) { return row; }

  // All threads but those of the copying warp call it. After a barrier gather_rows() finds the sums.
  __device__ static void multiply(const RingArgs& a, const Ring& ring) {
    constexpr int kTiles = kRowsOfWarp / 16,
                  kAtOnce = 2;  // with more at once, two blocks have no registers
    const int warp = threadIdx.x / 32, split = kAllRows > 0 ? warp : warp & ((1 << a.log_splits) - 1);
    const int group = kAllRows > 0 ? 0 : warp >> a.log_splits,
              groups = kAllRows > 0 ? 1 : (a.rows + kRowsOfWarp - 1) / kRowsOfWarp;
    const int first_row = group * kRowsOfWarp, box = split * kSteps / kStepsOfBox, first_step = split * kSteps % kStepsOfBox;
    int lane = threadIdx.x % 32;
    // Lane i gives the address of a row of one of the four 8 x 8 matrices of a fragment. For x these are tokens, of 8 channels and of the
    // next 8, then tokens + 8.
    const int row = lane % 16, token = lane % 8 + lane / 16 * 8;
    const int weights_of_lane = box * ring.weights_bytes + (first_row + row) * W::kBoxRowBytes;
    const int x_of_lane = ring.x_at + box * ring.x_bytes + token * kXBoxRowBytes;
    int weights_at[kSteps], x_at[kSteps], squares_of = 0;  // bits: the steps whose squares this group sums
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      weights_at[step] = weights_of_lane + W::offset_of_step(row, lane, first_step + step);
      x_at[step] = x_of_lane + ((((first_step + step) * 2 + lane / 8 % 2) ^ token % 8) << 4);
      if (a.normed != 0 && step % groups == group) squares_of |= 1 << step;
    }
    const int weight_size = a.float_norm_weight != 0 ? 4 : 2, norm_bytes = ring.channels * weight_size;
    int norm_weight =
        a.norm_weight == nullptr ? -1 : static_cast<int>(ring.norm_weight(a, box * kBoxChannels + first_step * 16) - ring.memory);
    int multiplies = first_row < a.rows ? 1 : 0, count = ring.count, end = ring.stages * ring.stage_bytes;
    // All of it stays in registers, so that the loop has few instructions.
#pragma unroll
    for (int step = 0; step < kSteps; ++step) asm volatile("" : "+r"(weights_at[step]), "+r"(x_at[step]));
    asm volatile("" : "+r"(lane), "+r"(squares_of), "+r"(norm_weight), "+r"(multiplies), "+r"(count), "+r"(end));
    float sums[kTiles][2][4] = {};  // of 8 tokens each
    float squares[2][4] = {};       // products of tokens with 8 of them
    RingStage stage(ring);
#pragma unroll 1
    for (; count > 0; --count) {
      stage.loaded->wait(stage.parity);
      if (kAllRows > 0 || multiplies != 0) {
        const unsigned char* const from = ring.memory + stage.at;
#pragma unroll
        for (int first = 0; first < kSteps; first += kAtOnce) {
          uint32_t weights[kAtOnce][kTiles][4], x[kAtOnce][4];
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
            load_matrices(x[i], from + x_at[first + i]);
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile) {
              W::load_fragment(weights[i][tile], from + weights_at[first + i] + tile * 16 * W::kBoxRowBytes);
            }
          }
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
            if ((squares_of & 1 << (first + i)) == 0) continue;
            const uint32_t tokens[4] = {x[i][0], x[i][2], x[i][1], x[i][3]};
            multiply_matrices<T>(squares[0], tokens, x[i][0], x[i][1]);
            multiply_matrices<T>(squares[1], tokens, x[i][2], x[i][3]);
          }
          if (norm_weight >= 0) {  // a lane has four channels of a step
            weigh_fragments<T, XOrder::channels_first>(a, ring.memory + norm_weight + first * 4 * weight_size, x);
          }
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile) {
              multiply_matrices<T>(sums[tile][0], weights[i][tile], x[i][0], x[i][1]);
              multiply_matrices<T>(sums[tile][1], weights[i][tile], x[i][2], x[i][3]);
            }
          }
        }
        __syncwarp();
      }
      if (lane == 0) stage.emptied()->arrive();
      norm_weight += norm_weight >= 0 ? norm_bytes : 0;
      stage.advance(ring, end);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float square = of_own_column(squares[half][half * 2], squares[half][half * 2 + 1]);
      if (lane % 4 == lane / 8) ring.tail->squares[warp * kMostRingTokens + half * 8 + lane / 4] = square;
    }
    sync_barrier(1, kRingConsumers);  // no warp reads the ring after this
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int of_pair = 0; of_pair < 2; ++of_pair) {
        const int t = half * 8 + lane % 4 * 2 + of_pair;
        if (t >= a.num_tokens) continue;
        float* const to = ring.sums(a, split) + t * a.sums_stride;
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
          for (int of_tile = 0; of_tile < 2; ++of_tile) {
            const int of_block = first_row + tile * 16 + of_tile * 8 + lane / 4;
            if (of_block < a.rows) to[index_of_sum(of_block)] = sums[tile][half][of_tile * 2 + of_pair];
          }
        }
      }
    }
  }
};

}  // namespace prologue::cuda
