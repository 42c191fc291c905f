// The products of a weight ring (weight_ring.cuh) by mma.m16n8k16, for up to 16 tokens: rows of weights times tokens. A warp has up to 32 rows,
// and all channels of a stage or, where the block has few rows, a part of them.
#pragma once

#include <cstdint>

#include <prologue/kernels/projection/weight_ring.cuh>

namespace prologue::cuda {

template <class T>
struct RingByMma {
  static constexpr int kMostTokens = 16;
  static constexpr int kMostRows = kMostRingRows;
  static constexpr int kBlocksOfSm = 2;  // so few registers that a block of the next kernel has room beside this one
  static constexpr int kRowsOfWarp = kMostRows / kRingWarps;

  // place_ring(), with what it needs.
  static int64_t place(RingArgs& a, int64_t room) {
    a.log_ways = 0;
    while (a.log_ways < 3 && a.rows << (a.log_ways + 1) <= kMostRows) ++a.log_ways;
    static_assert(1 << 3 == kRingWarps);
    // A box for each way, or half of one if less of the last stage is empty then.
    const int32_t boxes_of_k = a.k / kBoxChannels;
    const auto up_to = [&](int32_t boxes) { return (boxes_of_k + boxes - 1) / boxes * boxes; };
    a.boxes = 1 << a.log_ways;
    if (a.boxes > 1 && up_to(a.boxes / 2) < up_to(a.boxes)) a.boxes /= 2;
    a.row_of_sums = (a.rows + 15) / 16 * 16 + 4;
    const int64_t rows_beyond = -a.rows & 15, tokens_beyond = kMostTokens - a.x_rows;
    return place_ring(a, rows_beyond > tokens_beyond ? rows_beyond : tokens_beyond, room);
  }

  // By all threads but the copying warp's. Then the sums are in shared memory, ring.sums(), and may be read behind a barrier.
  __device__ static void multiply(const RingArgs& a, const Ring& ring) {
    constexpr int kTiles = kRowsOfWarp / 16, kSteps = 2;  // of 16 rows; of 16 channels, side by side
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, way = warp & ((1 << a.log_ways) - 1), group = warp >> a.log_ways;
    const int first_row = group * kRowsOfWarp, groups = (a.rows + kRowsOfWarp - 1) / kRowsOfWarp;
    const bool multiplies = first_row < a.rows, has_second = first_row + 16 < a.rows;
    const int steps = kStepsOfBox * a.boxes >> a.log_ways, first_step = way * steps, box = first_step / kStepsOfBox;
    // Lane i gives the address of a row of one of the four 8 x 8 matrices of a fragment: rows, then rows + 8, of 8 channels, then of the next.
    const int row = lane % 16 * kBoxRowBytes;
    int chunk = ((first_step % kStepsOfBox * 2 + lane / 16) ^ lane % 8)
                << 4;  // of the first step, of the others with some bits changed
    int weights_at = box * ring.weights_bytes + first_row * kBoxRowBytes + row, x_at = ring.x_at + box * ring.x_bytes + row;
    int channel = first_step * 16 + lane % 4 * 2;
    int rounds = steps / kSteps, count = ring.count, stages = ring.stages, stage_bytes = ring.stage_bytes;
    int until_squares = a.normed != 0 && multiplies ? group : -1;  // the groups take turns
    // All of it stays in registers, so that the loop has few instructions that wait for each other.
    asm volatile("" : "+r"(chunk), "+r"(weights_at), "+r"(x_at), "+r"(channel), "+r"(until_squares));
    asm volatile("" : "+r"(rounds), "+r"(count), "+r"(stages), "+r"(stage_bytes));
    float sums[kTiles][2][4] = {};  // of 8 tokens each
    float squares[2][4] = {};       // products of tokens with each other
    int number = 0, at = 0;         // of the stage, and where it is
    unsigned parity = 0;
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      ring.tail->loaded[number].wait(parity);
      if (multiplies) {
#pragma unroll 1
        for (int round = 0; round < rounds; ++round) {
          const unsigned char* const stage = ring.memory + at;
          uint32_t weights[kSteps][kTiles][4], x[kSteps][4];
#pragma unroll
          for (int step = 0; step < kSteps; ++step) {
            const int of_step = chunk ^ (round * kSteps + step) << 5;
            load_matrices(weights[step][0], stage + weights_at + of_step);
            if (has_second) load_matrices(weights[step][1], stage + weights_at + of_step + 16 * kBoxRowBytes);
            load_matrices(x[step], stage + x_at + of_step);
          }
          if (until_squares == 0) {
#pragma unroll
            for (const uint32_t(&tokens)[4] : x) {
              multiply_matrices<T>(squares[0], tokens, tokens[0], tokens[2]);
              multiply_matrices<T>(squares[1], tokens, tokens[1], tokens[3]);
            }
          }
          if (a.norm_weight != nullptr) weigh_fragments<T>(a, ring.norm_weight(a, channel + round * kSteps * 16), x);
#pragma unroll
          for (int step = 0; step < kSteps; ++step) {
            const uint32_t(&tokens)[4] = x[step];
            multiply_matrices<T>(sums[0][0], weights[step][0], tokens[0], tokens[2]);
            multiply_matrices<T>(sums[0][1], weights[step][0], tokens[1], tokens[3]);
            if (has_second) {
              multiply_matrices<T>(sums[1][0], weights[step][1], tokens[0], tokens[2]);
              multiply_matrices<T>(sums[1][1], weights[step][1], tokens[1], tokens[3]);
            }
          }
        }
        __syncwarp();
      }
      if (lane == 0) ring.tail->emptied[number].arrive();
      channel += ring.channels;
      until_squares = until_squares == 0 ? groups - 1 : until_squares - 1;
      at += stage_bytes;
      if (++number == stages) number = 0, at = 0, parity ^= 1;
    }
    sync_barrier(1, kRingConsumers);  // nobody reads the ring any more
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float own = of_own_column(squares[half][half * 2], squares[half][half * 2 + 1]);
      if (lane % 4 == lane / 8) ring.tail->squares[warp * kMostRingTokens + half * 8 + lane / 4] = own;
#pragma unroll
      for (int of_pair = 0; of_pair < 2; ++of_pair) {
        const int t = half * 8 + lane % 4 * 2 + of_pair;
        if (t >= a.num_tokens) continue;
        float* const to = ring.sums(a, way) + t * a.row_of_sums;
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
          for (int of_tile = 0; of_tile < 2; ++of_tile) {
            const int of_block = first_row + tile * 16 + of_tile * 8 + lane / 4;
            if (of_block < a.rows) to[of_block] = sums[tile][half][of_tile * 2 + of_pair];
          }
        }
      }
    }
  }
};

}  // namespace prologue::cuda
