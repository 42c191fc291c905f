// This way, which is for one token, multiplies a matrix by a vector. A warp has some rows of the weights, or, where rows are long, some of
// their channels, and each of its lanes a piece of 8 channels of a row. The pieces of four rows are in registers before there is an x. If a
// warp has more rows, it takes several passes, and loads the next four as soon as these are multiplied. Every warp reads its channels of x
// from the L2 and multiplies by itself: warps exchange only the sums of a row, if several have channels of it.
//
// The tensor cores add up, since that takes few instructions. The first operand of a product of 16 x 16 by 16 x 8 is eight neighbours in k
// of each of 32 lanes and of two rows; the second is x as it is in memory. The wanted results are those where a row of the first operand
// meets the column of the same lanes.
//
// There is one code for all sizes, so that all projections of a layer run the same: instructions that an SM has not had since the last
// 56 KB of others come from the L2, and take longer than what they do (docs/tuning/launches.md).
#pragma once

#include <cuda_pipeline_primitives.h>

#include <cstdint>

#include <prologue/kernels/base/shared/reciprocal_root.h>
#include <prologue/kernels/base/device/head_unit.cuh>
#include <prologue/kernels/base/device/instructions.cuh>
#include <prologue/kernels/projection/sums.cuh>
#include <prologue/kernels/projection/weights/dense.cuh>

namespace prologue::cuda {

inline constexpr int kVectorWarps = 8;  // of a block
inline constexpr int kVectorThreads = kVectorWarps * 32;
inline constexpr int kVectorStepBytes = 32 * 16;                    // of x: what a warp loads at a time
inline constexpr int kVectorRowsOfPass = 4;                         // of a warp, in registers
inline constexpr int kMostVectorRows = 16;                          // of a warp
inline constexpr int kMostVectorSteps = 4;                          // of a warp, to the end of a row
inline constexpr int kVectorSums = kVectorWarps * kMostVectorRows;  // of a block, however many warps have a row

struct VectorArgs {
  const char* x = nullptr;
  const char* weight = nullptr;
  const char* norm_weight = nullptr;  // null = 1
  int32_t row_bytes = 0;              // of x
  int32_t rows = 0;                   // of a warp
  int32_t steps = 0;                  // of a warp, to the end of a row
  int32_t log_row_warps = 0;          // 2^log_row_warps warps have the same rows, and a part of their channels each
  int32_t float_norm_weight = 0;      // norm_weight is float32
  int32_t normed = 0;
  float eps = 0.0f;
  float inverse_k = 0.0f;  // 1 / k
};

__host__ __device__ inline int rows_of_block(const VectorArgs& a) { return a.rows * kVectorWarps >> a.log_row_warps; }

// This is the work item of a warp.
struct VectorWork {
  int part;  // which channels of its rows
  int row;   // its first row, of the block's

  __device__ explicit VectorWork(const VectorArgs& a) {
    const int warp = threadIdx.x / 32;
    part = warp & ((1 << a.log_row_warps) - 1);
    row = (warp >> a.log_row_warps) * a.rows;
  }
};

// Holds the norm's weight for the channels of each thread, in shared memory.
struct VectorShared {
  uint4 norm_weights[kMostVectorSteps][kVectorThreads];
};

// W is the format of the weights (weights/). If kSeveralPasses, a warp may have more than kVectorRowsOfPass rows. kSums is the number of
// accumulators of a row, 1 or 2; with 2, half as many products wait for each other.
template <class W, bool kSeveralPasses, int kSums>
class VectorProduct {
  using T = typename W::T;

 public:
  __device__ VectorProduct(const VectorArgs& a, const VectorWork& work, VectorShared& shared)
      : shared_(shared),
        begin_(work.part * kVectorStepBytes + static_cast<int>(threadIdx.x % 32) * 16),
        step_(kVectorStepBytes << a.log_row_warps) {}

  // Loads the first of `rows` rows from `first_row` on. `rows` may be 0 or less; the sums of rows that do not exist must not be used.
  __device__ void load_weights(const VectorArgs& a, int64_t first_row, int rows) {
    from_ = a.weight + first_row * W::beside_x(a.row_bytes) + W::beside_x(begin_);
    left_ = rows;
    load_rows<true>(a);
    if constexpr (!kSeveralPasses) return;
    // They stay in registers: computed again, they would be in the way between x and its products.
    asm volatile("" : "+l"(from_), "+r"(left_));
  }

  // Copies the norm's weight to shared memory, if it is of T, before there is an x. The thread that copies it reads it.
  __device__ void copy_norm_weight(const VectorArgs& a) {
    if (a.norm_weight == nullptr || a.float_norm_weight != 0) return;
#pragma unroll
    for (int i = 0; i < kMostVectorSteps; ++i) {
      const int at = begin_ + i * step_;
      copy_or_clear(&shared_.norm_weights[i][threadIdx.x], at < a.row_bytes ? a.norm_weight + at : a.norm_weight,
                    at < a.row_bytes);
    }
    __pipeline_commit();
  }

  __device__ void load_x(const VectorArgs& a) {
#pragma unroll
    for (int i = 0; i < kMostVectorSteps; ++i) {
      x_[i] = {};
      if (begin_ + i * step_ < a.row_bytes) x_[i] = load_bytes<16, false>(a.x + begin_ + i * step_);
    }
  }

  // x = x * the norm's weight, rounded. Returns the sum of the squares of the lane's channels of x before that.
  __device__ float apply_norm(const VectorArgs& a) {
    float of_squares[2][4] = {};
#pragma unroll
    for (const Bytes<16>& chunk : x_) {
      const uint32_t(&x)[4] = chunk.words;
      const uint32_t first[4] = {x[0], 0, x[1], 0}, second[4] = {x[2], 0, x[3], 0};
      multiply_matrices<T>(of_squares[0], first, x[0], x[1]);
      multiply_matrices<T>(of_squares[1], second, x[2], x[3]);
    }
    if (a.norm_weight != nullptr && a.float_norm_weight == 0) {
      __pipeline_wait_prior(0);
#pragma unroll
      for (int i = 0; i < kMostVectorSteps; ++i) {
        const Bytes<16> weight = load_bytes<16, false>(&shared_.norm_weights[i][threadIdx.x]);
#pragma unroll
        for (int j = 0; j < 4; ++j) x_[i].words[j] = multiply_pairs<T>(x_[i].words[j], weight.words[j]);
      }
    } else if (a.norm_weight != nullptr) {
#pragma unroll 1
      for (int i = 0; i < a.steps; ++i) weigh_by_floats(a, i);
    }
    return of_own_column(of_squares[0][0] + of_squares[1][0], of_squares[0][1] + of_squares[1][1]);
  }

  // Multiplies the kVectorRowsOfPass rows that are in registers; then the loads of the next ones are in flight.
  __device__ void multiply(const VectorArgs& a) {
#pragma unroll
    for (int pair = 0; pair < kVectorRowsOfPass / 2; ++pair) {
#pragma unroll
      for (float(&products)[4] : products_[pair]) {
#pragma unroll
        for (float& product : products) product = 0.0f;
      }
    }
#pragma unroll
    for (int i = 0; i < kMostVectorSteps; ++i) {
      const uint32_t(&x)[4] = x_[i].words;
#pragma unroll
      for (int pair = 0; pair < kVectorRowsOfPass / 2; ++pair) {
        uint32_t first[4], second[4];
        W::make_operands(weights_[2 * pair][i], weights_[2 * pair + 1][i], first, second);
        multiply_matrices<T>(products_[pair][0], first, x[0], x[1]);
        multiply_matrices<T>(products_[pair][kSums - 1], second, x[2], x[3]);
      }
    }
    if constexpr (kSeveralPasses) {
      if (left_ > 0) load_rows<false>(a);
    }
  }

  // Returns the warp's sum of row row_of_lane().
  __device__ float sum_of_row() const {
    // Two lanes exchange rows, so that each adds up one; then the next two.
    const auto halve = [](float low, float high, int other) {
      const bool upper = (threadIdx.x & static_cast<unsigned>(other)) != 0;
      return (upper ? high : low) + __shfl_xor_sync(0xffffffffu, upper ? low : high, other);
    };
    float of_pairs[kVectorRowsOfPass / 2];
#pragma unroll
    for (int pair = 0; pair < kVectorRowsOfPass / 2; ++pair) {
      float sums[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[i] = products_[pair][0][i];
        if constexpr (kSums == 2) sums[i] += products_[pair][1][i];
      }
      of_pairs[pair] = halve(of_own_column(sums[0], sums[1]), of_own_column(sums[2], sums[3]), 16);
    }
    static_assert(kVectorRowsOfPass == 4);
    float sum = halve(of_pairs[0], of_pairs[1], 8);
#pragma unroll
    for (int other = 4; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, other);
    return sum;
  }
  // Returns the row that a lane has, of those that were multiplied last, or kMostVectorRows if there is none.
  __device__ static int row_of_lane() {
    const int lane = threadIdx.x % 32;
    return lane % 8 == 0 ? lane / 16 + lane / 8 % 2 * 2 : kMostVectorRows;
  }

 private:
  // If kClears, what is not loaded becomes 0.
  template <bool kClears>
  __device__ void load_rows(const VectorArgs& a) {
#pragma unroll
    for (int r = 0; r < kVectorRowsOfPass; ++r) {
      if constexpr (kClears) {
#pragma unroll
        for (typename W::Piece& piece : weights_[r]) piece = W::no_piece();
      }
      if (r < left_) {
#pragma unroll
        for (int i = 0; i < kMostVectorSteps; ++i) {
          if (begin_ + i * step_ < a.row_bytes) weights_[r][i] = W::load_piece(from_ + W::beside_x(i * step_));
        }
      }
      from_ += W::beside_x(a.row_bytes);
    }
    left_ -= kVectorRowsOfPass;
  }

  __device__ void weigh_by_floats(const VectorArgs& a, int step) {
    const int at = begin_ + step * step_;
    if (at >= a.row_bytes) return;
    const Bytes<32> weight = load_bytes<32, false>(a.norm_weight + 2 * at);
#pragma unroll
    for (int i = 0; i < kMostVectorSteps; ++i) {
      if (i != step) continue;
      float values[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) values[j] = element<T, 8>(x_[i], j) * element<float, 8>(weight, j);
      x_[i] = pack<T, 8>(values);
    }
  }

  VectorShared& shared_;
  int begin_;                   // the lane's first byte of x
  int step_;                    // bytes of x from one step of the lane to its next one
  const char* from_ = nullptr;  // the lane's first piece of the next row to load
  int left_ = 0;                // rows to load
  typename W::Piece weights_[kVectorRowsOfPass][kMostVectorSteps];
  Bytes<16> x_[kMostVectorSteps];
  float products_[kVectorRowsOfPass / 2][kSums][4];  // of two rows each
};

// Returns the sum over the lanes of a warp.
__device__ inline float sum_of_warp(float value) {
#pragma unroll
  for (int other = 16; other > 0; other /= 2) value += __shfl_xor_sync(0xffffffffu, value, other);
  return value;
}

// The factor of the norm, from the sums of squares of all warps that have a row.
__device__ inline float norm_of_vector(const VectorArgs& a, const float* squares) {
  float sum = 0.0f;
#pragma unroll 1
  for (int part = 0; part < 1 << a.log_row_warps; ++part) sum += squares[part];
  return reciprocal_root(fmaf(sum, a.inverse_k, a.eps));
}

}  // namespace prologue::cuda
