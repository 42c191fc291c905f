// How few tokens are multiplied by weights, and what surrounds that: shared by the kernels of projection and of qkv_prologue.
//
// A cluster works on some rows of the weights, 16 for each warp; its blocks share k (and, where there are few rows, the warps of a block
// share the block's part of k). So each block needs only its part of x, which it keeps in shared memory, and each warp streams 16 rows of
// weights through registers into fragments of mma.m16n8k16: rows = 16 rows of weights, columns = 8 tokens. Then the sums meet: block r of
// the cluster takes those of tokens r, r + blocks, ..., a warp for each, and finishes them.
//
// A lane loads 16 bytes of a row of weights at a time, 8 neighbours in k, and as many of x: the fragments of two products, whose k are
// in an order of their own, the same for both operands.
//
// Nothing waits for what another kernel has written until the first weights are on their way, so that the launch can overlap the end of
// the kernel before it.
#pragma once

#include <cstdint>
#include <type_traits>

#include <prologue/kernels/base/shared/reciprocal_root.h>
#include <prologue/kernels/base/device/head_unit.cuh>
#include <prologue/kernels/base/device/instructions.cuh>
#include <prologue/kernels/projection/sums.cuh>

namespace prologue::cuda {

inline constexpr int kUnitOfK = 32;  // 64 bytes of a row: what a warp multiplies at a time
inline constexpr int kUnitBytes = 64;
inline constexpr int kMaxStreamedTokens = 16;
inline constexpr int kMaxBlocksOfCluster = 8;  // that every device has
// Many warps of few registers, with little on its way for each: 2 KB for each of 24 warps of an SM keep the memory busy.
inline constexpr int kWarpsOfSm = 32;
inline constexpr int kUnitsAhead = 2;  // on their way, of each warp

struct ProjectionArgs {
  const char* x = nullptr;
  const char* weight = nullptr;
  const char* norm_weight = nullptr;  // null = 1
  int64_t x_stride = 0;               // bytes
  int32_t num_tokens = 0;
  int32_t units = 0;   // of k
  int32_t blocks = 1;  // of a cluster: a power of two
  int32_t log_blocks = 0;
  int32_t log_parts = 0;      // a block's units are in 2^log_parts parts, each of a warp of its own
  int32_t tiles = 0;          // of 16 rows: of a cluster
  int32_t row_bytes = 0;      // of x in shared memory, an odd number of units: the rows of neighbours are then in different banks
  int32_t log_stagers = 0;    // so many warps of a block, as a logarithm, bring a token's x there together
  int32_t float_weights = 0;  // norm_weight is float32
  int32_t normed = 0;
  int32_t early = 0;  // projection_kernel lets the next kernel start before it multiplies
  float eps = 0.0f;
  float inverse_width = 0.0f;  // 1 / k
};

// Units [begin, end) of k.
struct UnitRange {
  int begin;
  int end;
};

// Part i of 2^log_parts, as even as can be.
__device__ inline UnitRange part_of(const UnitRange& all, int i, int log_parts) {
  const int count = all.end - all.begin;
  return {all.begin + (count * i >> log_parts), all.begin + (count * (i + 1) >> log_parts)};
}

// Tokens that a block of the cluster finishes, at most.
__host__ __device__ inline int slots_of(const ProjectionArgs& a) { return (a.num_tokens + a.blocks - 1) >> a.log_blocks; }

// Where a block keeps what, in its shared memory. `x` is aligned to 16 bytes.
struct ProjectionShared {
  Arrivals* arrivals;  // of the two arrays behind it
  float* sums;         // [blocks of the cluster << log_parts, slots, rows of the cluster]
  float* all_squares;  // [blocks of the cluster, slots]: of a block's channels of x
  float* squares;      // [tokens, stagers] of this block's
  unsigned char* x;    // [num_tokens, row_bytes]
};

inline constexpr int kArrivalsBytes = 16;
inline constexpr int kMostSquares = kMaxStreamedTokens;  // of a block: as many as it has tokens, or warps

__host__ __device__ inline int rows_of_sums(const ProjectionArgs& a) { return slots_of(a) << (a.log_blocks + a.log_parts); }
__host__ __device__ inline int rows_of_squares(const ProjectionArgs& a) { return ((slots_of(a) << a.log_blocks) + 3) / 4 * 4; }

__host__ __device__ inline int64_t shared_bytes_of(const ProjectionArgs& a) {
  const int64_t floats = int64_t{rows_of_sums(a)} * 16 * a.tiles + rows_of_squares(a) + kMostSquares;
  return kArrivalsBytes + 4 * floats + int64_t{a.num_tokens} * a.row_bytes;
}

__device__ inline ProjectionShared share_out(unsigned char* memory, const ProjectionArgs& a) {
  ProjectionShared shared;
  shared.arrivals = reinterpret_cast<Arrivals*>(memory);
  shared.sums = reinterpret_cast<float*>(memory + kArrivalsBytes);
  shared.all_squares = shared.sums + rows_of_sums(a) * 16 * a.tiles;
  shared.squares = shared.all_squares + rows_of_squares(a);
  shared.x = reinterpret_cast<unsigned char*>(shared.squares + kMostSquares);
  return shared;
}

// What a warp of a cluster has to do.
struct WarpShare {
  int rank;  // of the block
  int tile;  // of the cluster's rows
  int part;  // of the block's units
  UnitRange of_block;
  UnitRange of_warp;

  __device__ explicit WarpShare(const ProjectionArgs& a)
      : rank(static_cast<int>(cluster_rank())), tile(threadIdx.x / 32), part(0) {
    for (; tile >= a.tiles; tile -= a.tiles) ++part;
    of_block = part_of({0, a.units}, rank, a.log_blocks);
    of_warp = part_of(of_block, part, a.log_parts);
  }
  // Tokens rank, rank + blocks, ...: how many this block finishes.
  __device__ int own_tokens(const ProjectionArgs& a) const { return (a.num_tokens - rank + a.blocks - 1) >> a.log_blocks; }
};

// Of one unit, the rows lane / 4 and lane / 4 + 8 of a warp's 16, 8 channels from lane % 4 * 8 on.
struct WeightPiece {
  uint4 low;
  uint4 high;
};

// sums [16 rows, tokens] += piece x^T. `x`: this lane's channels of its token of the first eight; that of the next eight is tile_bytes further.
template <class T, int kTokenTiles>
__device__ inline void multiply_piece(float (&sums)[kTokenTiles][4], const WeightPiece& piece, const unsigned char* x,
                                      int tile_bytes) {
  const uint32_t first[4] = {piece.low.x, piece.high.x, piece.low.y, piece.high.y};
  const uint32_t second[4] = {piece.low.z, piece.high.z, piece.low.w, piece.high.w};
#pragma unroll
  for (int n = 0; n < kTokenTiles; ++n) {
    const uint4 column = *reinterpret_cast<const uint4*>(x + n * tile_bytes);
    multiply_matrices<T>(sums[n], first, column.x, column.y);
    multiply_matrices<T>(sums[n], second, column.z, column.w);
  }
}

// The weights of a warp, the first of them on their way as soon as it is there.
template <class T, int kTokenTiles>
class WeightStream {
 public:
  // `rows`: the first of the 16; null: there are none.
  __device__ WeightStream(const ProjectionArgs& a, const WarpShare& share, const char* rows)
      : units_(rows == nullptr ? 0 : share.of_warp.end - share.of_warp.begin) {
    const int lane = threadIdx.x % 32;
    const int64_t row_bytes = int64_t{a.units} * kUnitBytes;
    low_ = rows + lane / 4 * row_bytes + share.of_warp.begin * kUnitBytes + lane % 4 * 16;
    high_ = low_ + 8 * row_bytes;
    asm volatile(""
                 : "+l"(low_),
                   "+l"(high_));  // they stay in registers: the loop has few instructions beside its loads and products
#pragma unroll
    for (int i = 0; i < kUnitsAhead; ++i) {
      if (i < units_) load(i, i);
    }
  }

  // sums [16 rows, tokens] = rows x^T
  __device__ void multiply(float (&sums)[kTokenTiles][4], const ProjectionArgs& a, const WarpShare& share,
                           const ProjectionShared& shared) {
    const int lane = threadIdx.x % 32;
    // Columns of tokens that there are not are those of the last one; nobody asks for their sums.
    const auto row_of = [&](int token) { return min(token, a.num_tokens - 1) * a.row_bytes; };
    const unsigned char* x =
        shared.x + row_of(lane / 4) + (share.of_warp.begin - share.of_block.begin) * kUnitBytes + lane % 4 * 16;
    const int tile_bytes = kTokenTiles == 1 ? 0 : row_of(8 + lane / 4) - row_of(lane / 4);
    static_assert(kTokenTiles <= 2);
#pragma unroll
    for (float(&of_tile)[4] : sums) {
#pragma unroll
      for (float& sum : of_tile) sum = 0.0f;
    }
    int left = units_;
#pragma unroll 1
    for (; left >= 2 * kUnitsAhead; left -= kUnitsAhead) {
#pragma unroll
      for (int i = 0; i < kUnitsAhead; ++i) {
        multiply_piece<T>(sums, ahead_[i], x + i * kUnitBytes, tile_bytes);
        load(i, i + kUnitsAhead);
      }
      low_ += kUnitsAhead * kUnitBytes, high_ += kUnitsAhead * kUnitBytes, x += kUnitsAhead * kUnitBytes;
    }
#pragma unroll
    for (int i = 0; i < 2 * kUnitsAhead - 1; ++i) {
      if (i >= left) break;
      multiply_piece<T>(sums, ahead_[i % kUnitsAhead], x + i * kUnitBytes, tile_bytes);
      if (i + kUnitsAhead < left) load(i % kUnitsAhead, i + kUnitsAhead);
    }
  }

 private:
  // Unit `number` from where the pointers are.
  __device__ void load(int place, int number) {
    ahead_[place] = {load_once(low_ + number * kUnitBytes), load_once(high_ + number * kUnitBytes)};
  }

  int units_;
  const char* low_;
  const char* high_;
  WeightPiece ahead_[kUnitsAhead];
};

// One thread says what will arrive; then every thread goes on to wait_for_cluster() before anything is sent. A cluster of one block does
// without: its stores are ordinary ones.
__device__ inline void open_arrivals(const ProjectionArgs& a, const WarpShare& share, const ProjectionShared& shared) {
  if (a.blocks == 1) return;
  if (threadIdx.x == 0) {
    const int squares = a.normed != 0 ? 1 << a.log_blocks : 0;
    shared.arrivals->open(4 * share.own_tokens(a) * ((16 * a.tiles << (a.log_blocks + a.log_parts)) + squares));
  }
  arrive_at_cluster();
}

// Eight channels of the norm's weight.
template <class T>
struct NormWeight {
  float values[8];

  __device__ void load(const ProjectionArgs& a, int64_t channel) {
    if (a.float_weights != 0) {
      const Bytes<32> loaded = load_bytes<32, false>(a.norm_weight + channel * 4);
#pragma unroll
      for (int i = 0; i < 8; ++i) values[i] = element<float, 8>(loaded, i);
    } else {
      const Bytes<16> loaded = load_bytes<16, false>(a.norm_weight + channel * static_cast<int>(sizeof(T)));
#pragma unroll
      for (int i = 0; i < 8; ++i) values[i] = element<T, 8>(loaded, i);
    }
  }
};

// The norm's weight is read once in a step, so it is in memory: on its way to the L2 before there is an x.
__device__ inline void prefetch_norm_weight(const ProjectionArgs& a, const UnitRange& channels) {
  if (a.norm_weight == nullptr) return;
  constexpr int kLine = 128;
  const int bytes_of_unit = a.float_weights != 0 ? kUnitOfK * 4 : kUnitOfK * 2;
  const char* const from = a.norm_weight + channels.begin * bytes_of_unit;
  const int count = (channels.end - channels.begin) * bytes_of_unit;
  for (int i = threadIdx.x * kLine; i < count; i += blockDim.x * kLine) prefetch_line(from + i);
}

// Brings x of `channels` to shared memory, times the norm's weight, and the sums of its squares, by the first `warps` of the block. Where
// there are few, several share a long one; otherwise a warp has several, whose loads are under way together. What needs no x is done when this
// is made.
template <class T, int kTokenTiles>
class StageOfX {
 public:
  __device__ StageOfX(const ProjectionArgs& a, const UnitRange& channels, int warps)
      : channels_(channels), step_(warps >> a.log_stagers) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    first_ = warp >> a.log_stagers;
    part_ = warp - (first_ << a.log_stagers);
    begin_ = part_ * 32 + lane;
    from_ = first_ * a.x_stride + channels.begin * kUnitBytes + begin_ * 16;
    to_ = first_ * a.row_bytes + begin_ * 16;
    asm volatile("" : "+l"(from_), "+r"(to_));  // they are there before the wait for x
  }

  __device__ void run(const ProjectionArgs& a, const ProjectionShared& shared) const {
    const int chunks = (channels_.end - channels_.begin) * 4;  // of 16 bytes
    const char* from = a.x + from_;
    unsigned char* to = shared.x + to_;
#pragma unroll 1
    for (int first = first_; first < a.num_tokens; first += kTokenTiles * step_) {
      float sum[kTokenTiles] = {};
#pragma unroll 2
      for (int i = begin_; i < chunks; i += 32 << a.log_stagers) {
        const int at = (i - begin_) * 16;
        Bytes<16> bytes[kTokenTiles] = {};
#pragma unroll
        for (int j = 0; j < kTokenTiles; ++j) {
          if (first + j * step_ < a.num_tokens) bytes[j] = load_bytes<16, false>(from + j * step_ * a.x_stride + at);
        }
        NormWeight<T> weight;
        if (a.norm_weight != nullptr) weight.load(a, channels_.begin * kUnitOfK + i * 8);
#pragma unroll
        for (int j = 0; j < kTokenTiles; ++j) {
          if (a.normed != 0) {
            float x[8];
#pragma unroll
            for (int n = 0; n < 8; ++n) x[n] = element<T, 8>(bytes[j], n), sum[j] = fmaf(x[n], x[n], sum[j]);
            if (a.norm_weight != nullptr) {
#pragma unroll
              for (int n = 0; n < 8; ++n) x[n] *= weight.values[n];
              bytes[j] = pack<T, 8>(x);
            }
          }
          if (first + j * step_ < a.num_tokens) store_bytes<16, false>(to + j * step_ * a.row_bytes + at, bytes[j]);
        }
      }
      if (a.normed != 0) {
#pragma unroll
        for (int j = 0; j < kTokenTiles; ++j) {
          const int token = first + j * step_;
#pragma unroll
          for (int step = 1; step < 32; step *= 2) sum[j] += __shfl_xor_sync(0xffffffffu, sum[j], step);
          if (threadIdx.x % 32 == 0 && token < a.num_tokens) shared.squares[(token << a.log_stagers) + part_] = sum[j];
        }
      }
      from += kTokenTiles * step_ * a.x_stride;
      to += kTokenTiles * step_ * a.row_bytes;
    }
  }

 private:
  UnitRange channels_;
  int step_;   // from a token of a warp to its next one
  int first_;  // the warp's first token, and its part of it
  int part_;
  int begin_;     // its first chunk
  int64_t from_;  // where that is, in bytes from x, and from x in shared memory
  int to_;
};

// The sums of a warp's 16 rows, and the block's squares, to the blocks that finish their tokens. Four lanes that hold neighbouring rows
// exchange them first, so that each sends four of them, of one token. Behind it: wait_for_sums().
template <int kTokenTiles>
__device__ inline void send_sums(const ProjectionArgs& a, const WarpShare& share, const ProjectionShared& shared,
                                 float (&sums)[kTokenTiles][4]) {
  const bool alone = a.blocks == 1;
  const auto store = [&](int t, float* to, const auto& value) {
    if (alone) {
      *reinterpret_cast<std::remove_cvref_t<decltype(value)>*>(to) = value;
    } else {
      shared.arrivals->store(static_cast<uint32_t>(t & (a.blocks - 1)), to, value);
    }
  };
  if (!alone) wait_for_cluster();
  const int lane = threadIdx.x % 32, width = 16 * a.tiles, slots = slots_of(a);
  const bool odd = (lane & 4) != 0, high = (lane & 8) != 0;
  float* const rows =
      shared.sums + ((share.rank << a.log_parts) + share.part) * slots * width + share.tile * 16 + (high ? 8 : 0) + lane / 16 * 4;
#pragma unroll
  for (int n = 0; n < kTokenTiles; ++n) {
    float(&x)[4] = sums[n];
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const float other = __shfl_xor_sync(0xffffffffu, odd ? x[i] : x[i + 1], 4);
      (odd ? x[i] : x[i + 1]) = other;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float other = __shfl_xor_sync(0xffffffffu, high ? x[i] : x[i + 2], 8);
      (high ? x[i] : x[i + 2]) = other;
    }
    const int t = n * 8 + lane % 4 * 2 + (odd ? 1 : 0);
    if (t < a.num_tokens) store(t, rows + (t >> a.log_blocks) * width, make_float4(x[0], x[1], x[2], x[3]));
  }
  for (int i = threadIdx.x; a.normed != 0 && i < a.num_tokens; i += blockDim.x) {
    float squares = 0.0f;
    for (int part = 0; part < 1 << a.log_stagers; ++part) squares += shared.squares[(i << a.log_stagers) + part];
    store(i, shared.all_squares + share.rank * slots + (i >> a.log_blocks), squares);
  }
  if (alone) __syncthreads();
}

// Until all blocks of the cluster have sent their sums; whoever reads none may leave instead.
__device__ inline void wait_for_sums(const ProjectionArgs& a, const ProjectionShared& shared) {
  if (a.blocks > 1) shared.arrivals->wait();
}

// `count` neighbouring rows of a token's result, as the separate operation would store them if it rounds; behind wait_for_sums().
template <int kCount>
__device__ inline void gather_rows(const ProjectionArgs& a, const ProjectionShared& shared, int slot, int row,
                                   float (&values)[kCount]) {
  const int width = 16 * a.tiles;
#pragma unroll
  for (float& value : values) value = 0.0f;
  add_up<8>(shared.sums + slot * width + row, slots_of(a) * width, 1 << (a.log_blocks + a.log_parts), values);
}

// The same of all rows of a token, by a whole warp: where its rows of the first part were. Few rows have two parts or more, and leave half
// of the lanes, which then take every other part.
__device__ inline const float* gather_token(const ProjectionArgs& a, const ProjectionShared& shared, int slot) {
  const int lane = threadIdx.x % 32, width = 16 * a.tiles, stride = slots_of(a) * width, parts = 1 << (a.log_blocks + a.log_parts);
  float* const rows = shared.sums + slot * width;
  const bool halves = width <= 64;
  const int begin = halves ? lane / 16 : 0;
#pragma unroll 1
  for (int first = 0; first < width; first += 128) {
    const int row = first + (halves ? lane % 16 : lane) * 4;
    float values[4] = {};
    if (row < width) {
      add_up<4>(rows + row + begin * stride, halves ? 2 * stride : stride, halves ? parts / 2 : parts, values);
    }
    if (halves) {
#pragma unroll
      for (float& value : values) value += __shfl_xor_sync(0xffffffffu, value, 16);
    }
    __syncwarp();  // the other half has read its rows, too
    if (begin == 0 && row < width) *reinterpret_cast<float4*>(rows + row) = make_float4(values[0], values[1], values[2], values[3]);
  }
  __syncwarp();
  return rows;
}

// What the norm multiplies a token's result by, where there is one.
__device__ inline float norm_of_token(const ProjectionArgs& a, const ProjectionShared& shared, int slot) {
  float squares[1] = {};
  add_up<kMaxBlocksOfCluster>(shared.all_squares + slot, slots_of(a), a.blocks, squares);
  return reciprocal_root(fmaf(squares[0], a.inverse_width, a.eps));
}

}  // namespace prologue::cuda
