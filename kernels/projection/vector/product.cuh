// One token multiplied by weights: a matrix times a vector. A warp has some rows, or, where rows are long, its part of them, and each of
// its lanes 16 bytes of a row at a time. What four rows have is in registers before there is an x; if a warp has more, the next four are on
// their way as soon as these are multiplied. Every warp reads its part of x from the L2 and multiplies by itself: all that warps share are
// the sums of a row, if several have parts of it.
//
// The tensor cores add up, since that takes few instructions: a product of 16 x 16 by 16 x 8 has eight neighbours in k of each of 32 lanes and
// of two rows as its first operand, x as they lie in memory as its second, and of its results those are wanted where a row of the first
// meets the column of the same lanes.
//
// One code for all sizes, so that all projections of a layer run the same: instructions that an SM has not had since the last 56 KB of
// others come from the L2, and take longer than what they do (docs/tuning/launches.md).
#pragma once

#include <cuda_pipeline_primitives.h>

#include <cstdint>

#include <prologue/kernels/base/shared/reciprocal_root.h>
#include <prologue/kernels/base/device/head_unit.cuh>
#include <prologue/kernels/base/device/instructions.cuh>
#include <prologue/kernels/projection/sums.cuh>

namespace prologue::cuda {

inline constexpr int kVectorWarps = 8;  // of a block
inline constexpr int kVectorThreads = kVectorWarps * 32;
inline constexpr int kVectorPart = 32 * 16;                         // bytes of a row that a warp loads at a time
inline constexpr int kVectorRowsAtOnce = 4;                         // of a warp, in registers
inline constexpr int kMostVectorRows = 16;                          // of a warp
inline constexpr int kMostVectorParts = 4;                          // of a row, of a warp
inline constexpr int kVectorSums = kVectorWarps * kMostVectorRows;  // of a block, whatever its warps share

struct VectorArgs {
  const char* x = nullptr;
  const char* weight = nullptr;
  const char* norm_weight = nullptr;  // null = 1
  int32_t row_bytes = 0;              // of x, and of the weights
  int32_t rows = 0;                   // of a warp
  int32_t parts = 0;                  // of a row, of a warp
  int32_t log_ways = 0;               // 2^log_ways warps share a row
  int32_t float_weights = 0;          // norm_weight is float32
  int32_t normed = 0;
  float eps = 0.0f;
  float inverse_width = 0.0f;  // 1 / k
};

__host__ __device__ inline int rows_of_block(const VectorArgs& a) { return a.rows * kVectorWarps >> a.log_ways; }

// What a warp of a block has to do.
struct VectorShare {
  int way;  // its part of the rows
  int row;  // of the block's, the first

  __device__ explicit VectorShare(const VectorArgs& a) {
    const int warp = threadIdx.x / 32;
    way = warp & ((1 << a.log_ways) - 1);
    row = (warp >> a.log_ways) * a.rows;
  }
};

// Of a block: each lane's part of the norm's weight.
struct VectorShared {
  uint4 norm_weights[kMostVectorParts][kVectorThreads];
};

// kTurns: a warp may have more than kVectorRowsAtOnce rows. kSums: of a row, 1 or 2; with 2, half as many products wait for each other.
template <class T, bool kTurns, int kSums>
class VectorProduct {
 public:
  __device__ VectorProduct(const VectorArgs& a, const VectorShare& share, VectorShared& shared)
      : shared_(shared),
        begin_(share.way * kVectorPart + static_cast<int>(threadIdx.x % 32) * 16),
        step_(kVectorPart << a.log_ways) {}

  // The first of `rows` rows from `first_row` on, which may be 0 or less: nobody may ask for sums of rows that there are not.
  __device__ void load_weights(const VectorArgs& a, int64_t first_row, int rows) {
    from_ = a.weight + first_row * a.row_bytes + begin_;
    left_ = rows;
    load_rows<true>(a);
    if constexpr (!kTurns) return;
    // They stay in registers: computed again, they would be in the way between x and its products.
    asm volatile("" : "+l"(from_), "+r"(left_));
  }

  // The norm's weight, if it is of T, comes to shared memory before there is an x; the thread that copies it reads it.
  __device__ void copy_norm_weight(const VectorArgs& a) {
    if (a.norm_weight == nullptr || a.float_weights != 0) return;
#pragma unroll
    for (int i = 0; i < kMostVectorParts; ++i) {
      const int at = begin_ + i * step_;
      copy_or_clear(&shared_.norm_weights[i][threadIdx.x], at < a.row_bytes ? a.norm_weight + at : a.norm_weight,
                    at < a.row_bytes);
    }
    __pipeline_commit();
  }

  __device__ void load_x(const VectorArgs& a) {
#pragma unroll
    for (int i = 0; i < kMostVectorParts; ++i) {
      x_[i] = {};
      if (begin_ + i * step_ < a.row_bytes) x_[i] = load_bytes<16, false>(a.x + begin_ + i * step_);
    }
  }

  // x = x * the norm's weight, rounded. What the lane has of the sum of x's squares before that.
  __device__ float apply_norm(const VectorArgs& a) {
    float of_squares[2][4] = {};
#pragma unroll
    for (const Bytes<16>& part : x_) {
      const uint32_t(&x)[4] = part.words;
      const uint32_t first[4] = {x[0], 0, x[1], 0}, second[4] = {x[2], 0, x[3], 0};
      multiply_matrices<T>(of_squares[0], first, x[0], x[1]);
      multiply_matrices<T>(of_squares[1], second, x[2], x[3]);
    }
    if (a.norm_weight != nullptr && a.float_weights == 0) {
      __pipeline_wait_prior(0);
#pragma unroll
      for (int i = 0; i < kMostVectorParts; ++i) {
        const Bytes<16> weight = load_bytes<16, false>(&shared_.norm_weights[i][threadIdx.x]);
#pragma unroll
        for (int j = 0; j < 4; ++j) x_[i].words[j] = multiply_pairs<T>(x_[i].words[j], weight.words[j]);
      }
    } else if (a.norm_weight != nullptr) {
#pragma unroll 1
      for (int i = 0; i < a.parts; ++i) weigh_by_floats(a, i);
    }
    return of_own_column(of_squares[0][0] + of_squares[1][0], of_squares[0][1] + of_squares[1][1]);
  }

  // The next kVectorRowsAtOnce rows. When they are multiplied, those that will be in their registers are on their way.
  __device__ void multiply(const VectorArgs& a) {
#pragma unroll
    for (int pair = 0; pair < kVectorRowsAtOnce / 2; ++pair) {
#pragma unroll
      for (float(&products)[4] : products_[pair]) {
#pragma unroll
        for (float& product : products) product = 0.0f;
      }
    }
#pragma unroll
    for (int i = 0; i < kMostVectorParts; ++i) {
      const uint32_t(&x)[4] = x_[i].words;
#pragma unroll
      for (int pair = 0; pair < kVectorRowsAtOnce / 2; ++pair) {
        const uint4 &even = weights_[2 * pair][i], &odd = weights_[2 * pair + 1][i];
        const uint32_t first[4] = {even.x, odd.x, even.y, odd.y}, second[4] = {even.z, odd.z, even.w, odd.w};
        multiply_matrices<T>(products_[pair][0], first, x[0], x[1]);
        multiply_matrices<T>(products_[pair][kSums - 1], second, x[2], x[3]);
      }
    }
    if constexpr (kTurns) {
      if (left_ > 0) load_rows<false>(a);
    }
  }

  // What the warp has of the sum of row row_of_lane().
  __device__ float sum_of_row() const {
    // Two lanes exchange rows, so that each adds up one; then the next two.
    const auto halve = [](float low, float high, int other) {
      const bool upper = (threadIdx.x & static_cast<unsigned>(other)) != 0;
      return (upper ? high : low) + __shfl_xor_sync(0xffffffffu, upper ? low : high, other);
    };
    float of_pairs[kVectorRowsAtOnce / 2];
#pragma unroll
    for (int pair = 0; pair < kVectorRowsAtOnce / 2; ++pair) {
      float sums[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[i] = products_[pair][0][i];
        if constexpr (kSums == 2) sums[i] += products_[pair][1][i];
      }
      of_pairs[pair] = halve(of_own_column(sums[0], sums[1]), of_own_column(sums[2], sums[3]), 16);
    }
    static_assert(kVectorRowsAtOnce == 4);
    float sum = halve(of_pairs[0], of_pairs[1], 8);
#pragma unroll
    for (int other = 4; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, other);
    return sum;
  }
  // The row that a lane has, of those that were multiplied last; kMostVectorRows: none.
  __device__ static int row_of_lane() {
    const int lane = threadIdx.x % 32;
    return lane % 8 == 0 ? lane / 16 + lane / 8 % 2 * 2 : kMostVectorRows;
  }

 private:
  // kClears: what is not loaded becomes 0.
  template <bool kClears>
  __device__ void load_rows(const VectorArgs& a) {
#pragma unroll
    for (int r = 0; r < kVectorRowsAtOnce; ++r) {
      if constexpr (kClears) {
#pragma unroll
        for (uint4& part : weights_[r]) part = make_uint4(0, 0, 0, 0);
      }
      if (r < left_) {
#pragma unroll
        for (int i = 0; i < kMostVectorParts; ++i) {
          if (begin_ + i * step_ < a.row_bytes) weights_[r][i] = load_once(from_ + i * step_);
        }
      }
      from_ += a.row_bytes;
    }
    left_ -= kVectorRowsAtOnce;
  }

  __device__ void weigh_by_floats(const VectorArgs& a, int part) {
    const int at = begin_ + part * step_;
    if (at >= a.row_bytes) return;
    const Bytes<32> weight = load_bytes<32, false>(a.norm_weight + 2 * at);
#pragma unroll
    for (int i = 0; i < kMostVectorParts; ++i) {
      if (i != part) continue;
      float values[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) values[j] = element<T, 8>(x_[i], j) * element<float, 8>(weight, j);
      x_[i] = pack<T, 8>(values);
    }
  }

  VectorShared& shared_;
  int begin_;  // byte of a row: this lane's first
  int step_;
  const char* from_ = nullptr;  // this lane's part of the next row to load
  int left_ = 0;                // rows to load
  uint4 weights_[kVectorRowsAtOnce][kMostVectorParts];
  Bytes<16> x_[kMostVectorParts];
  float products_[kVectorRowsAtOnce / 2][kSums][4];  // of two rows each
};

// Over the lanes of a warp.
__device__ inline float sum_of_warp(float value) {
#pragma unroll
  for (int other = 16; other > 0; other /= 2) value += __shfl_xor_sync(0xffffffffu, value, other);
  return value;
}

// What the norm multiplies results by, of the squares that all ways have.
__device__ inline float norm_of_vector(const VectorArgs& a, const float* squares) {
  float sum = 0.0f;
#pragma unroll 1
  for (int way = 0; way < 1 << a.log_ways; ++way) sum += squares[way];
  return reciprocal_root(fmaf(sum, a.inverse_width, a.eps));
}

}  // namespace prologue::cuda
