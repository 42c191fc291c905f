// A cluster = a head: all of its head_dim rows of the weights. Its blocks share the hidden size, its warps the head's rows, 16 each (and,
// where a head has few rows, a block's part of the hidden size). So each block needs only its part of x, which it keeps in shared
// memory, and each warp streams 16 rows of weights through registers into fragments of mma.m16n8k16: rows = 16 rows of weights,
// columns = 8 tokens. Then the sums meet: block r of the cluster takes those of tokens r, r + blocks, ..., a warp for each. It holds a
// whole head of a token, and finishes it exactly as the prologue's lean kernels do (more_steps_schedule.cuh).
//
// A lane loads 16 bytes of a row of weights at a time, 8 neighbours in k, and as many of x: the fragments of two products, whose k are
// in an order of their own, the same for both operands.
//
// Nothing waits for what another kernel has written until the first weights are on their way, so that the launch can overlap the end of
// the kernel before it.
#pragma once

#include <cstdint>

#include <prologue/kernels/attention_prologue/more_steps_schedule.cuh>
#include <prologue/kernels/base/device/cuda_types.cuh>
#include <prologue/kernels/base/device/instructions.cuh>

namespace prologue::cuda {

inline constexpr int kUnitOfK = 32;  // 64 bytes of a row: what a warp multiplies at a time
inline constexpr int kUnitBytes = 64;
inline constexpr int kUnitsAhead = 3;  // on their way, of each warp
inline constexpr int kMaxFusedTokens = 64;

struct ProjectionArgs {
  const char* hidden_states = nullptr;
  const char* weight = nullptr;       // of the projection
  const char* norm_weight = nullptr;  // null = 1
  int64_t hidden_stride = 0;          // bytes
  int32_t num_tokens = 0;
  int32_t units = 0;        // of the hidden size
  int32_t blocks = 1;       // of a cluster: a power of two
  int32_t log_blocks = 0;
  int32_t lanes = 32;       // of a head, in what follows the projection
  int32_t log_parts = 0;    // a block's units are in 2^log_parts parts, each of a warp of its own
  int32_t x_stride = 0;     // bytes of a token's row in shared memory, an odd number of units: its rows are then in different banks
  int32_t float_weights = 0;  // norm_weight is float32
  int32_t normed = 0;
  float eps = 0.0f;
  float inverse_width = 0.0f;  // 1 / hidden size
};

// Units [begin, end) of the hidden size.
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
  float* sums;         // [blocks of the cluster << log_parts, slots, head_dim]
  float* all_squares;  // [blocks of the cluster, slots]: of a block's channels of x
  float* squares;      // [tokens] of this block's
  unsigned char* x;    // [tokens, x_stride]
};

inline constexpr int kArrivalsBytes = 16;

__host__ __device__ inline int rows_of_sums(const ProjectionArgs& a) { return slots_of(a) << (a.log_blocks + a.log_parts); }
__host__ __device__ inline int rows_of_squares(const ProjectionArgs& a) { return ((slots_of(a) << a.log_blocks) + 3) / 4 * 4; }

__host__ __device__ inline int64_t shared_bytes_of(const ProjectionArgs& a, int token_tiles, int head_dim) {
  const int64_t tokens = 8 * token_tiles;
  return kArrivalsBytes + 4 * (int64_t{rows_of_sums(a)} * head_dim + rows_of_squares(a) + tokens) + tokens * a.x_stride;
}

__device__ inline ProjectionShared share_out(unsigned char* memory, const ProjectionArgs& a, int token_tiles, int head_dim) {
  ProjectionShared shared;
  shared.arrivals = reinterpret_cast<Arrivals*>(memory);
  shared.sums = reinterpret_cast<float*>(memory + kArrivalsBytes);
  shared.all_squares = shared.sums + rows_of_sums(a) * head_dim;
  shared.squares = shared.all_squares + rows_of_squares(a);
  shared.x = reinterpret_cast<unsigned char*>(shared.squares + 8 * token_tiles);
  return shared;
}

// The rows lane / 4 and lane / 4 + 8 of a warp's 16, 8 channels from lane % 4 * 8 on, of one unit.
struct WeightPiece {
  uint4 low;
  uint4 high;

  __device__ void load(const char* row, int64_t eight_rows) { low = load_once(row), high = load_once(row + eight_rows); }
};

// sums [16 rows, tokens] += piece x^T. `x`: this lane's channels of its token of the first eight.
template <class T, int kTokenTiles>
__device__ inline void multiply_piece(float (&sums)[kTokenTiles][4], const WeightPiece& piece, const unsigned char* x, int x_stride) {
  const uint32_t first[4] = {piece.low.x, piece.high.x, piece.low.y, piece.high.y};
  const uint32_t second[4] = {piece.low.z, piece.high.z, piece.low.w, piece.high.w};
#pragma unroll
  for (int n = 0; n < kTokenTiles; ++n) {
    const uint4 column = *reinterpret_cast<const uint4*>(x + n * 8 * x_stride);
    multiply_matrices<T>(sums[n], first, column.x, column.y);
    multiply_matrices<T>(sums[n], second, column.z, column.w);
  }
}

// x of `channels` into shared memory, times the norm's weight, and the sums of its squares. A warp for each token; tokens that there are
// not are zeros.
template <class T, int kTokenTiles>
__device__ inline void stage_x(const ProjectionArgs& a, const UnitRange& channels, const ProjectionShared& shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int chunks = (channels.end - channels.begin) * 4;  // of 16 bytes
#pragma unroll 1
  for (int t = warp; t < 8 * kTokenTiles; t += warps) {
    const char* row = a.hidden_states + t * a.hidden_stride + channels.begin * kUnitBytes;
    unsigned char* to = shared.x + t * a.x_stride;
    const bool there = t < a.num_tokens;
    float sum = 0.0f;
#pragma unroll 2
    for (int i = lane; i < chunks; i += 32) {
      Bytes<16> bytes = {};
      if (there) bytes = load_bytes<16, false>(row + i * 16);
      if (a.normed != 0) {
        float x[8], weight[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) x[j] = element<T, 8>(bytes, j), sum = fmaf(x[j], x[j], sum);
        if (a.norm_weight != nullptr) {
          const int64_t channel = channels.begin * kUnitOfK + i * 8;
          if (a.float_weights != 0) {
            const Bytes<32> of_chunk = load_bytes<32, false>(a.norm_weight + channel * 4);
#pragma unroll
            for (int j = 0; j < 8; ++j) weight[j] = element<float, 8>(of_chunk, j);
          } else {
            const Bytes<16> of_chunk = load_bytes<16, false>(a.norm_weight + channel * static_cast<int>(sizeof(T)));
#pragma unroll
            for (int j = 0; j < 8; ++j) weight[j] = element<T, 8>(of_chunk, j);
          }
#pragma unroll
          for (int j = 0; j < 8; ++j) x[j] *= weight[j];
          bytes = pack<T, 8>(x);
        }
      }
      store_bytes<16, false>(to + i * 16, bytes);
    }
    if (a.normed != 0) {
#pragma unroll
      for (int step = 1; step < 32; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
      if (lane == 0) shared.squares[t] = sum;
    }
  }
}

// What the blocks have summed up of a head of a token, as the separate projection would store it.
template <class T, int V>
__device__ inline Unit<T, V> gather_head(const ProjectionArgs& a, const ProjectionShared& shared, int slot, const UnitPlace& place,
                                         int head_dim) {
  const int slots = slots_of(a);
  float values[2 * V] = {};
#pragma unroll 4
  for (int part = 0; part < 1 << (a.log_blocks + a.log_parts); ++part) {
    const float* row = shared.sums + (part * slots + slot) * head_dim;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      if (place.has_a) values[i] += row[place.a + i];
      if (place.has_b) values[V + i] += row[place.b + i];
    }
  }
  if (a.normed != 0) {
    float squares = 0.0f;
    for (int block = 0; block < a.blocks; ++block) squares += shared.all_squares[block * slots + slot];
    const float inverse = reciprocal_root(fmaf(squares, a.inverse_width, a.eps));
#pragma unroll
    for (float& value : values) value *= inverse;
  }
  return {pack<T, V>(values), pack<T, V>(values + V)};
}

// The sums of a warp's 16 rows, to the blocks that finish their tokens. Four lanes that hold neighbouring rows exchange them first, so that
// each sends four of them, of one token.
template <int kTokenTiles>
__device__ inline void send_sums(const ProjectionArgs& a, const ProjectionShared& shared, float (&sums)[kTokenTiles][4],
                                 int part_of_cluster, int first_row, int head_dim) {
  const int lane = threadIdx.x % 32, slots = slots_of(a);
  const bool odd = (lane & 4) != 0, high = (lane & 8) != 0;
  const int row = first_row + (high ? 8 : 0) + lane / 16 * 4;
  float* const rows = shared.sums + part_of_cluster * slots * head_dim + row;
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
    if (t >= a.num_tokens) continue;
    shared.arrivals->store(static_cast<uint32_t>(t & (a.blocks - 1)), rows + (t >> a.log_blocks) * head_dim,
                           make_float4(x[0], x[1], x[2], x[3]));
  }
}

constexpr int projection_blocks_an_sm(int token_tiles, int max_threads) { return (token_tiles <= 2 ? 768 : 512) / max_threads; }

// kMaxThreads: 32 for 16 rows of a head, or more where a block has several parts.
template <class T, int V, int kTokenTiles, int kMaxThreads, int kFeatures>
__global__ void __launch_bounds__(kMaxThreads, projection_blocks_an_sm(kTokenTiles, kMaxThreads))
    qkv_prologue_kernel(const __grid_constant__ ProjectionArgs a, const __grid_constant__ MoreArgs p) {
  static_assert((kFeatures & kMoreSteps) != 0 && (kFeatures & kTokenNorm) == 0);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int head_dim = p.layout.head_dim, tiles = head_dim / 16;
  const int rank = static_cast<int>(cluster_rank()), head = static_cast<int>(blockIdx.x) >> a.log_blocks;
  const ProjectionShared shared = share_out(dynamic_shared<unsigned char>(), a, kTokenTiles, head_dim);
  const int own_tokens = (a.num_tokens - rank + a.blocks - 1) >> a.log_blocks;  // that this block finishes

  int tile = warp, part = 0;
  for (; tile >= tiles; tile -= tiles) ++part;
  const UnitRange of_block = part_of({0, a.units}, rank, a.log_blocks), of_warp = part_of(of_block, part, a.log_parts);
  const int units = of_warp.end - of_warp.begin;
  const int64_t row_bytes = int64_t{a.units} * kUnitBytes;
  const char* const weights = a.weight + (int64_t{head} * head_dim + tile * 16 + lane / 4) * row_bytes +
                              of_warp.begin * kUnitBytes + lane % 4 * 16;
  WeightPiece ahead[kUnitsAhead];
#pragma unroll
  for (int i = 0; i < kUnitsAhead; ++i) {
    if (i < units) ahead[i].load(weights + i * kUnitBytes, 8 * row_bytes);
  }

  if (threadIdx.x == 0) {
    const int squares = a.normed != 0 ? 1 << a.log_blocks : 0;
    shared.arrivals->open(4 * own_tokens * ((head_dim << (a.log_blocks + a.log_parts)) + squares));
  }
  arrive_at_cluster();  // waited for before the first store to another block
  let_next_kernel_start();
  wait_for_previous_kernels();
  const auto token_in = [&](int slot) { return slot * a.blocks + rank; };
  const TensorHead at = head_of_row(p.tensors, head);
  uint32_t t = static_cast<uint32_t>(min(token_in(warp), a.num_tokens - 1));
  PendingToken<kFeatures, V, false> pending;
  pending.ask(p, t);
  pending.ask_slot(p, t);
  LaneUnit unit = unit_of_lane<V, kFeatures>(lane % a.lanes, p.layout);
  unit.inside &= lane < a.lanes;  // the others do the same once more
  if constexpr ((kFeatures & kAxes) != 0) pending.ask_axes(p, max(unit.place.pair, 0));
  Unit<T, V> data;
  UnitAngles<V> angles;
  const auto loaded_angles = [&] { return angles; };
  constexpr bool kEvery = (kFeatures & kEveryStep) != 0;
  MoreSteps<T, V, true, kEvery, decltype(loaded_angles)> steps(p, at, unit.place, data, loaded_angles);
  const LeanTensor& tensor = p.tensors[at.tensor];
  const float given_scale[1] = {*reinterpret_cast<const float*>(tensor.scale + static_cast<uint32_t>(at.head) * tensor.scale_head)};

  stage_x<T, kTokenTiles>(a, of_block, shared);
  LeanToken token = resolve_token_of_head(p, pending, t, lane, at.tensor, unit.place, steps, angles);
  __syncthreads();

  float sums[kTokenTiles][4] = {};
  const unsigned char* x = shared.x + lane / 4 * a.x_stride + (of_warp.begin - of_block.begin) * kUnitBytes + lane % 4 * 16;
#pragma unroll 1
  for (int first = 0; first < units; first += kUnitsAhead) {
#pragma unroll
    for (int i = 0; i < kUnitsAhead; ++i) {
      const int number = first + i;
      if (number >= units) break;
      multiply_piece<T>(sums, ahead[i], x + number * kUnitBytes, a.x_stride);
      if (number + kUnitsAhead < units) ahead[i].load(weights + (number + kUnitsAhead) * kUnitBytes, 8 * row_bytes);
    }
  }

  wait_for_cluster();
  send_sums(a, shared, sums, (rank << a.log_parts) + part, tile * 16, head_dim);
  for (int i = threadIdx.x; a.normed != 0 && i < a.num_tokens; i += blockDim.x) {
    shared.arrivals->store(static_cast<uint32_t>(i & (a.blocks - 1)), shared.all_squares + rank * slots_of(a) + (i >> a.log_blocks),
                           shared.squares[i]);
  }
  if (warp >= own_tokens) return;
  shared.arrivals->wait();

  const auto lanes = lanes_of_head<V, kFeatures>(WarpLanes<V>{lane % a.lanes, a.lanes, unit.inside}, unit.place, p.layout);
#pragma unroll 1
  for (int slot = warp; slot < own_tokens; slot += warps) {
    if (slot != warp) {
      t = static_cast<uint32_t>(token_in(slot));
      pending.ask(p, t);
      pending.ask_slot(p, t);
      token = resolve_token_of_head(p, pending, t, lane, at.tensor, unit.place, steps, angles);
    }
    data = gather_head<T, V>(a, shared, slot, unit.place, head_dim);
    UnitValues<V> values[1];
    finish_head<T, V>(values, steps, lanes);
    store_head_of_token<false>(p, steps, values, unit, at, token, t, data, given_scale, lanes);
    if (__builtin_expect((token.fault != FaultCode::none) & !token.padding & ((head | lane) == 0), 0)) {
      cuda::record_fault(p.faults, p.token_faults, t, token.fault);
    }
  }
}

}  // namespace prologue::cuda
