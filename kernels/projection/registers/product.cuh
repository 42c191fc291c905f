// In this way, which is for up to 16 tokens, weights stream through registers.
//
// A cluster has some rows of the weights, 16 for each warp. Its blocks divide k (and, where there are few rows, the warps of a block divide
// the block's part of k). So each block needs only its part of x, which it keeps in shared memory, and each warp streams 16 rows of weights
// through registers into operands of mma.m16n8k16: rows = 16 rows of weights, columns = 8 tokens. Then the sums meet: the block of CTA rank
// r takes those of tokens r, r + blocks, ..., with a warp for each, and finishes them.
//
// A lane loads a piece of 8 neighbouring channels of a row of weights at a time, and as many of x: the operands of two products, whose k
// are in an order of their own, the same for both operands.
//
// Nothing waits for what another kernel has written until the loads of the first weights are in flight, so that the launch can overlap the
// end of the kernel before it.
#pragma once

#include <cstdint>
#include <type_traits>

#include <prologue/kernels/base/shared/reciprocal_root.h>
#include <prologue/kernels/base/device/head_unit.cuh>
#include <prologue/kernels/base/device/instructions.cuh>
#include <prologue/kernels/projection/sums.cuh>
#include <prologue/kernels/projection/weights/dense.cuh>

namespace prologue::cuda {

inline constexpr int kSliceChannels = 32;  // of k: what a warp multiplies at a time
inline constexpr int kXSliceBytes = 64;    // of x
inline constexpr int kMostRegistersTokens = 16;
inline constexpr int kSlicesInFlight = 2;  // of a warp

struct RegistersArgs {
  const char* x = nullptr;
  const char* weight = nullptr;
  const char* norm_weight = nullptr;  // null = 1
  int64_t x_stride = 0;               // bytes
  int32_t num_tokens = 0;
  int32_t slices = 0;  // of k
  int32_t blocks = 1;  // of a cluster: a power of two
  int32_t log_blocks = 0;
  int32_t log_splits = 0;         // 2^log_splits warps divide a block's slices
  int32_t row_tiles = 0;          // of 16 rows, of a cluster
  int32_t x_row_bytes = 0;        // in shared memory: an odd number of slices, so that neighbouring rows are in different banks
  int32_t log_staging_warps = 0;  // 2^log_staging_warps warps of a block bring a token's x there together
  int32_t float_norm_weight = 0;  // norm_weight is float32
  int32_t normed = 0;
  int32_t signals_early = 0;  // registers_output_kernel lets the next kernel start before it multiplies
  float eps = 0.0f;
  float inverse_k = 0.0f;  // 1 / k
};

// This is a K extent: slices [begin, end).
struct SliceRange {
  int begin;
  int end;
};

// Returns part i of 2^log_splits, which are as equal as can be.
__device__ inline SliceRange part_of(const SliceRange& all, int i, int log_splits) {
  const int count = all.end - all.begin;
  return {all.begin + (count * i >> log_splits), all.begin + (count * (i + 1) >> log_splits)};
}

// Returns the most tokens that a block of the cluster finishes.
__host__ __device__ inline int slots_of(const RegistersArgs& a) { return (a.num_tokens + a.blocks - 1) >> a.log_blocks; }

// Describes a block's shared memory. `x` is aligned to 16 bytes.
struct RegistersShared {
  Arrivals* arrivals;  // of the two arrays that follow
  float* sums;         // [blocks of the cluster << log_splits, slots, rows of the cluster]
  float* all_squares;  // [blocks of the cluster, slots]: of a block's channels of x
  float* squares;      // [tokens, stagers] of this block's
  unsigned char* x;    // [num_tokens, row_bytes]
};

inline constexpr int kArrivalsBytes = 16;
inline constexpr int kMostSquares = kMostRegistersTokens;  // of a block: as many as it has tokens, or warps

__host__ __device__ inline int rows_of_sums(const RegistersArgs& a) { return slots_of(a) << (a.log_blocks + a.log_splits); }
__host__ __device__ inline int rows_of_squares(const RegistersArgs& a) { return ((slots_of(a) << a.log_blocks) + 3) / 4 * 4; }

__host__ __device__ inline int64_t shared_bytes_of(const RegistersArgs& a) {
  const int64_t floats = int64_t{rows_of_sums(a)} * 16 * a.row_tiles + rows_of_squares(a) + kMostSquares;
  return kArrivalsBytes + 4 * floats + int64_t{a.num_tokens} * a.x_row_bytes;
}

__device__ inline RegistersShared lay_out(unsigned char* memory, const RegistersArgs& a) {
  RegistersShared shared;
  shared.arrivals = reinterpret_cast<Arrivals*>(memory);
  shared.sums = reinterpret_cast<float*>(memory + kArrivalsBytes);
  shared.all_squares = shared.sums + rows_of_sums(a) * 16 * a.row_tiles;
  shared.squares = shared.all_squares + rows_of_squares(a);
  shared.x = reinterpret_cast<unsigned char*>(shared.squares + kMostSquares);
  return shared;
}

// This is the work item of a warp.
struct WarpWork {
  int rank;   // of its block in the cluster
  int tile;   // of the cluster's rows
  int split;  // of the block's K extent
  SliceRange of_block;
  SliceRange of_warp;

  // A part has a multiple of 2^log_unit slices.
  __device__ WarpWork(const RegistersArgs& a, int log_unit)
      : rank(static_cast<int>(cluster_rank())), tile(threadIdx.x / 32), split(0) {
    for (; tile >= a.row_tiles; tile -= a.row_tiles) ++split;
    const SliceRange block = part_of({0, a.slices >> log_unit}, rank, a.log_blocks);
    const SliceRange warp = part_of(block, split, a.log_splits);
    of_block = {block.begin << log_unit, block.end << log_unit};
    of_warp = {warp.begin << log_unit, warp.end << log_unit};
  }
  // Returns how many of the tokens rank, rank + blocks, ... this block finishes.
  __device__ int own_tokens(const RegistersArgs& a) const { return (a.num_tokens - rank + a.blocks - 1) >> a.log_blocks; }
};

// A lane's pieces of a slice: rows lane / 4 and lane / 4 + 8 of the warp's 16, 8 channels from lane % 4 * 8 on.
template <class W>
struct RowPair {
  typename W::Piece low;
  typename W::Piece high;
};

// sums [16 rows, tokens] += pieces x^T. `x` points to the lane's channels of its token of the first 8; those of the next 8 tokens are
// tile_bytes further.
template <class W, int kTokenTiles>
__device__ inline void multiply_pieces(float (&sums)[kTokenTiles][4], const RowPair<W>& pieces, const unsigned char* x,
                                       int tile_bytes) {
  uint32_t first[4], second[4];
  W::make_operands(pieces.low, pieces.high, first, second);
#pragma unroll
  for (int n = 0; n < kTokenTiles; ++n) {
    const uint4 column = *reinterpret_cast<const uint4*>(x + n * tile_bytes);
    multiply_matrices<typename W::T>(sums[n], first, column.x, column.y);
    multiply_matrices<typename W::T>(sums[n], second, column.z, column.w);
  }
}

// Loads and multiplies the weights of a warp. The loads of the first are in flight as soon as it is made. W is their format (weights/).
template <class W, int kTokenTiles>
class WeightStream {
  using T = typename W::T;
  static constexpr int kSliceBytes = W::kSliceBytes;

 public:
  // `rows` is the first of the 16, or null if there are none.
  __device__ WeightStream(const RegistersArgs& a, const WarpWork& work, const char* rows)
      : slices_(rows == nullptr ? 0 : work.of_warp.end - work.of_warp.begin) {
    const int lane = threadIdx.x % 32;
    const int64_t row_bytes = int64_t{a.slices} * kSliceBytes;
    low_ = rows + lane / 4 * row_bytes + work.of_warp.begin * kSliceBytes + lane % 4 * W::kPieceBytes;
    high_ = low_ + 8 * row_bytes;
    asm volatile(""
                 : "+l"(low_),
                   "+l"(high_));  // they stay in registers: the loop has few instructions beside its loads and products
#pragma unroll
    for (int i = 0; i < kSlicesInFlight; ++i) {
      if (i < slices_) load(i, i);
    }
  }

  // Computes sums [16 rows, tokens] = rows x^T.
  __device__ void multiply(float (&sums)[kTokenTiles][4], const RegistersArgs& a, const WarpWork& work,
                           const RegistersShared& shared) {
    const int lane = threadIdx.x % 32;
    // Columns past the last token repeat that token; their sums are not used.
    const auto row_of = [&](int token) { return min(token, a.num_tokens - 1) * a.x_row_bytes; };
    const unsigned char* x =
        shared.x + row_of(lane / 4) + (work.of_warp.begin - work.of_block.begin) * kXSliceBytes + lane % 4 * 16;
    const int tile_bytes = kTokenTiles == 1 ? 0 : row_of(8 + lane / 4) - row_of(lane / 4);
    static_assert(kTokenTiles <= 2);
#pragma unroll
    for (float(&of_tile)[4] : sums) {
#pragma unroll
      for (float& sum : of_tile) sum = 0.0f;
    }
    int left = slices_;
#pragma unroll 1
    for (; left >= 2 * kSlicesInFlight; left -= kSlicesInFlight) {
#pragma unroll
      for (int i = 0; i < kSlicesInFlight; ++i) {
        multiply_pieces<W>(sums, in_flight_[i], x + i * kXSliceBytes, tile_bytes);
        load(i, i + kSlicesInFlight);
      }
      low_ += kSlicesInFlight * kSliceBytes, high_ += kSlicesInFlight * kSliceBytes, x += kSlicesInFlight * kXSliceBytes;
    }
#pragma unroll
    for (int i = 0; i < 2 * kSlicesInFlight - 1; ++i) {
      if (i >= left) break;
      multiply_pieces<W>(sums, in_flight_[i % kSlicesInFlight], x + i * kXSliceBytes, tile_bytes);
      if (i + kSlicesInFlight < left) load(i % kSlicesInFlight, i + kSlicesInFlight);
    }
  }

 private:
  // Loads slice `number` from where the pointers are.
  __device__ void load(int to, int number) {
    in_flight_[to] = {W::load_piece(low_ + number * kSliceBytes), W::load_piece(high_ + number * kSliceBytes)};
  }

  int slices_;
  const char* low_;
  const char* high_;
  RowPair<W> in_flight_[kSlicesInFlight];
};

// One thread says how many bytes will arrive. Every thread must pass wait_for_cluster() before it sends anything. A cluster of one block
// needs none of this: its stores are ordinary ones.
__device__ inline void open_arrivals(const RegistersArgs& a, const WarpWork& work, const RegistersShared& shared) {
  if (a.blocks == 1) return;
  if (threadIdx.x == 0) {
    const int squares = a.normed != 0 ? 1 << a.log_blocks : 0;
    shared.arrivals->open(4 * work.own_tokens(a) * ((16 * a.row_tiles << (a.log_blocks + a.log_splits)) + squares));
  }
  arrive_at_cluster();
}

// Holds the norm's weight of eight channels.
template <class T>
struct NormWeight {
  float values[8];

  __device__ void load(const RegistersArgs& a, int64_t channel) {
    if (a.float_norm_weight != 0) {
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

// The norm's weight is read once in a step, so it is in memory. It is prefetched to the L2 before there is an x.
__device__ inline void prefetch_norm_weight(const RegistersArgs& a, const SliceRange& channels) {
  if (a.norm_weight == nullptr) return;
  constexpr int kLine = 128;
  const int bytes_of_slice = a.float_norm_weight != 0 ? kSliceChannels * 4 : kSliceChannels * 2;
  const char* const from = a.norm_weight + channels.begin * bytes_of_slice;
  const int count = (channels.end - channels.begin) * bytes_of_slice;
  for (int i = threadIdx.x * kLine; i < count; i += blockDim.x * kLine) prefetch_line(from + i);
}

// Brings x of `channels`, times the norm's weight, and the sums of its squares to shared memory. The first `warps` of the block do so:
// several divide a token's channels where there are few tokens; otherwise a warp has several tokens, whose loads are in flight together.
// The constructor does what needs no x.
template <class W, int kTokenTiles>
class XStaging {
  using T = typename W::T;

 public:
  __device__ XStaging(const RegistersArgs& a, const SliceRange& channels, int warps)
      : channels_(channels), step_(warps >> a.log_staging_warps) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    first_ = warp >> a.log_staging_warps;
    part_ = warp - (first_ << a.log_staging_warps);
    begin_ = part_ * 32 + lane;
    from_ = first_ * a.x_stride + channels.begin * kXSliceBytes + begin_ * 16;
    to_ = first_ * a.x_row_bytes + W::place_of_x(begin_);
    asm volatile("" : "+l"(from_), "+r"(to_));  // they are there before the wait for x
  }

  __device__ void run(const RegistersArgs& a, const RegistersShared& shared) const {
    const int chunks = (channels_.end - channels_.begin) * 4;  // of 16 bytes
    const char* from = a.x + from_;
    unsigned char* to = shared.x + to_;
#pragma unroll 1
    for (int first = first_; first < a.num_tokens; first += kTokenTiles * step_) {
      float sum[kTokenTiles] = {};
#pragma unroll 2
      for (int i = begin_; i < chunks; i += 32 << a.log_staging_warps) {
        const int at = (i - begin_) * 16;
        Bytes<16> bytes[kTokenTiles] = {};
#pragma unroll
        for (int j = 0; j < kTokenTiles; ++j) {
          if (first + j * step_ < a.num_tokens) bytes[j] = load_bytes<16, false>(from + j * step_ * a.x_stride + at);
        }
        NormWeight<T> weight;
        if (a.norm_weight != nullptr) weight.load(a, channels_.begin * kSliceChannels + i * 8);
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
          if (first + j * step_ < a.num_tokens) W::store_x(to + j * step_ * a.x_row_bytes + at, bytes[j]);
        }
      }
      if (a.normed != 0) {
#pragma unroll
        for (int j = 0; j < kTokenTiles; ++j) {
          const int token = first + j * step_;
#pragma unroll
          for (int step = 1; step < 32; step *= 2) sum[j] += __shfl_xor_sync(0xffffffffu, sum[j], step);
          if (threadIdx.x % 32 == 0 && token < a.num_tokens) shared.squares[(token << a.log_staging_warps) + part_] = sum[j];
        }
      }
      from += kTokenTiles * step_ * a.x_stride;
      to += kTokenTiles * step_ * a.x_row_bytes;
    }
  }

 private:
  SliceRange channels_;
  int step_;   // from one token of a warp to its next one
  int first_;  // the warp's first token, and its part of it
  int part_;
  int begin_;     // its first chunk
  int64_t from_;  // where that is, in bytes from x, and from x in shared memory
  int to_;
};

// Sends the sums of a warp's 16 rows, and the block's squares, to the blocks that finish their tokens. Four lanes that hold neighbouring
// rows exchange them first, so that each sends four sums of one token. wait_for_sums() must follow.
template <int kTokenTiles>
__device__ inline void send_sums(const RegistersArgs& a, const WarpWork& work, const RegistersShared& shared,
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
  const int lane = threadIdx.x % 32, width = 16 * a.row_tiles, slots = slots_of(a);
  const bool odd = (lane & 4) != 0, high = (lane & 8) != 0;
  float* const rows =
      shared.sums + ((work.rank << a.log_splits) + work.split) * slots * width + work.tile * 16 + (high ? 8 : 0) + lane / 16 * 4;
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
    for (int part = 0; part < 1 << a.log_staging_warps; ++part) squares += shared.squares[(i << a.log_staging_warps) + part];
    store(i, shared.all_squares + work.rank * slots + (i >> a.log_blocks), squares);
  }
  if (alone) __syncthreads();
}

// Waits until all blocks of the cluster have sent their sums. A warp that reads none may exit instead.
__device__ inline void wait_for_sums(const RegistersArgs& a, const RegistersShared& shared) {
  if (a.blocks > 1) shared.arrivals->wait();
}

// Gathers kCount neighbouring rows of a token's result, after wait_for_sums().
template <int kCount>
__device__ inline void gather_rows(const RegistersArgs& a, const RegistersShared& shared, int slot, int row,
                                   float (&values)[kCount]) {
  const int width = 16 * a.row_tiles;
#pragma unroll
  for (float& value : values) value = 0.0f;
  add_up<8>(shared.sums + slot * width + row, slots_of(a) * width, 1 << (a.log_blocks + a.log_splits), values);
}

// Gathers all rows of a token by a whole warp; the result replaces the sums of the first part. Few rows have two parts or more and
// leave half of the lanes idle, which then take every other part.
__device__ inline const float* gather_token(const RegistersArgs& a, const RegistersShared& shared, int slot) {
  const int lane = threadIdx.x % 32, width = 16 * a.row_tiles, stride = slots_of(a) * width,
            parts = 1 << (a.log_blocks + a.log_splits);
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
    if (begin == 0 && row < width)
      *reinterpret_cast<float4*>(rows + row) = make_float4(values[0], values[1], values[2], values[3]);
  }
  __syncwarp();
  return rows;
}

// Returns the factor of the norm for a token.
__device__ inline float norm_of_token(const RegistersArgs& a, const RegistersShared& shared, int slot) {
  float squares[1] = {};
  add_up<kMaxBlocksOfCluster>(shared.all_squares + slot, slots_of(a), a.blocks, squares);
  return reciprocal_root(fmaf(squares[0], a.inverse_k, a.eps));
}

}  // namespace prologue::cuda
