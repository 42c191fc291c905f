// Three ways through the pages, and what they share.
//
// The rows of a sequence are *packed*: packed row r of kv head g is q head g * group + r % group of query row r / group, so that
// a block reads a key or a value once for all q heads that share it.
//
//   decode_kernel          few rows per sequence: CUDA cores, float32, sequences split over blocks      (then combine_kernel)
//   prefill_mma_kernel     many rows, 16-bit types: tensor cores, 64 packed rows x 64 keys
//   prefill_simple_kernel  many rows, float32 and whatever is not aligned: CUDA cores, 64 packed rows x 32 keys
//
// All of them derive everything from the device arrays, so a captured launch follows them; the launch is shaped by host bounds.
#pragma once

#include <cuda_pipeline_primitives.h>

#include <climits>
#include <type_traits>

#include <prologue/kernels/paged_attention/paged_attention.h>
#include <prologue/kernels/base/cuda_groups.cuh>

namespace prologue::cuda {

struct AttentionArgs {
  PagedAttentionParams p;
  float scale_log2 = 0.0f;          // scale * log2(e): scores are powers of two
  int group = 1;                    // q heads that share a kv head
  int page_shift = -1;              // log2 of a page size that is a power of two, otherwise -1
  bool whole_groups = true;         // q, cache and out move in 16-byte accesses
  int row_tiles = 0;                // decode: tiles of packed rows per sequence; prefill: an upper bound of all sequences' tiles
  int num_splits = 1;               // decode: blocks that share a sequence
  float2* partial_stats = nullptr;  // decode with splits, [block, row of its tile]: maximum and sum, the sum negative for a fault
  float* partial_out = nullptr;     // and [block, row of its tile, head_dim]: not yet divided by the sum
};

// ---------------------------------------------------------------------------------------------------------------------
// Sequences, rows and pages

struct Sequence {
  int first_row = 0;  // its first query row
  int num_rows = 0;
  int length = 0;  // tokens in the cache; 0 where the entry of seq_lens is not to be believed
  bool too_long = false;
  const int32_t* pages = nullptr;

  // Query row j attends to the positions below this.
  __device__ int limit(int j) const { return max(0, length - num_rows + j + 1); }
};

__device__ inline Sequence sequence_at(const AttentionArgs& args, int64_t s) {
  const PagedAttentionParams& p = args.p;
  Sequence sequence;
  const int64_t first = p.cu_seqlens_q[s];
  const int64_t end = min(static_cast<int64_t>(p.cu_seqlens_q[s + 1]), p.num_tokens);
  sequence.first_row = static_cast<int>(first);
  sequence.num_rows = first < 0 ? 0 : static_cast<int>(max(int64_t{0}, end - first));
  const int length = p.seq_lens[s];
  sequence.too_long = length > p.max_seq_len || length > p.max_pages_per_seq * p.kv.page_size;
  sequence.length = sequence.too_long ? 0 : max(0, length);
  sequence.pages = p.block_table + s * p.block_table_stride;
  return sequence;
}

__device__ inline int page_index(const AttentionArgs& args, int position) {
  return args.page_shift >= 0 ? position >> args.page_shift : static_cast<int>(position / args.p.kv.page_size);
}

// Where a position's keys and values lie; negative for a page outside the cache.
struct KvOffset {
  int64_t k;
  int64_t v;
};

__device__ inline KvOffset kv_offset(const AttentionArgs& args, int page, int position) {
  const PagedKvView& kv = args.p.kv;
  if (page < 0 || page >= kv.num_pages) return {-1, -1};
  const int64_t offset = args.page_shift >= 0 ? position & ((1 << args.page_shift) - 1) : position % kv.page_size;
  return {page * kv.k_strides.page + offset * kv.k_strides.token, page * kv.v_strides.page + offset * kv.v_strides.token};
}

// exp2(x - maximum) where the maximum may still be that of nothing.
__device__ inline float weight_of(float x, float maximum) { return exp2f(x - (maximum == -INFINITY ? 0.0f : maximum)); }

// A row that attends to nothing, or may not, is zeros; a faulty one is recorded by the one thread that owns its first head.
__device__ inline bool row_fault(const AttentionArgs& args, const Sequence& sequence, int j, int first_bad_position) {
  return sequence.too_long || first_bad_position < sequence.limit(j);
}

__device__ inline void record_row_fault(const AttentionArgs& args, const Sequence& sequence, int j) {
  cuda::record_fault(args.p.faults, sequence.first_row + j,
                     sequence.too_long ? FaultCode::sequence_too_long : FaultCode::page_out_of_range);
}

// ---------------------------------------------------------------------------------------------------------------------
// Decode

inline constexpr int kDecodeThreads = 128;
inline constexpr int kDecodeRowsPerSm = 16;   // packed rows of the blocks that a multiprocessor runs at a time
inline constexpr int kSplitGranularity = 32;  // a split is a multiple of this many keys

// Keys of one split; a function of the sequence's length and the launch, so both kernels derive the same.
__device__ inline int split_size(const AttentionArgs& args, int length) {
  const int keys = (length + args.num_splits - 1) / args.num_splits;
  return (keys + kSplitGranularity - 1) / kSplitGranularity * kSplitGranularity;
}

// Adds values[i] over kLanes lanes and deals the totals out: lane l is left with those from l * N / kLanes on (with more lanes
// than values, neighbours share one). Half the shuffles of adding each value by itself, and what follows is done once per value.
template <int kLanes, int N, int kSize>
__device__ inline void add_and_deal(float (&values)[kSize], int lane) {
  if constexpr (kLanes > 1) {
    constexpr int kOffset = kLanes / 2;
    constexpr int kKept = N > 1 ? N / 2 : 1;
    const bool upper = (lane & kOffset) != 0;
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      const float kept = N > 1 && upper ? values[i + N - kKept] : values[i];
      const float sent = N > 1 && !upper ? values[i + N - kKept] : values[i];
      values[i] = kept + __shfl_xor_sync(0xffffffffu, sent, kOffset);
    }
    add_and_deal<kOffset, kKept>(values, lane);
  }
}

// A block = kRows packed rows of one kv head of one sequence, over one split of its keys. kLanes lanes, each with 16 bytes or
// more of the channels, are a stream, which takes every kStreams-th key. The scores of a step are dealt out to the lanes of the
// stream, so a lane keeps the softmax of one row, own_row, with a maximum that all streams of the warp share.
template <class T, int kHeadDim, int kRows>
__global__ void __launch_bounds__(kDecodeThreads, kDecodeRowsPerSm / kRows / (kHeadDim * sizeof(T) > 512 ? 2 : 1))
    decode_kernel(const __grid_constant__ AttentionArgs args) {
  constexpr int kLanes = kHeadDim / kGroup<T> < 32 ? kHeadDim / kGroup<T> : 32;
  constexpr int kChannels = kHeadDim / kLanes;
  constexpr int kPieces = kChannels / kGroup<T>;
  constexpr int kStreams = kDecodeThreads / kLanes;
  // Keys of a stream in one step, their loads in flight together: as many as the registers of the blocks of an SM hold.
  constexpr int kKeysAhead = kRows * kChannels <= 16 ? 4 : 2;
  constexpr int kScores = kRows * kKeysAhead;
  constexpr int kOwned = kScores > kLanes ? kScores / kLanes : 1;    // scores of a lane
  constexpr int kSharers = kLanes > kScores ? kLanes / kScores : 1;  // lanes with the same score
  constexpr int kRowLanes = kLanes / kRows;                          // lanes with the same row
  constexpr int kWarps = kDecodeThreads / 32;
  const PagedAttentionParams& p = args.p;

  int64_t block = blockIdx.x;
  const int tile = static_cast<int>(block % args.row_tiles);
  block /= args.row_tiles;
  const int kv_head = static_cast<int>(block % p.kv.num_kv_heads);
  block /= p.kv.num_kv_heads;
  const int split = static_cast<int>(block % args.num_splits);
  const Sequence sequence = sequence_at(args, block / args.num_splits);
  const int num_packed = sequence.num_rows * args.group;
  const int first_packed = tile * kRows;
  if (first_packed >= num_packed) return;

  const int size = split_size(args, sequence.length);
  const int64_t split_begin = static_cast<int64_t>(split) * size;
  if (split > 0 && split_begin >= sequence.length) return;  // combine_kernel does not look here either
  const int last_row = (min(first_packed + kRows, num_packed) - 1) / args.group;
  const int begin = static_cast<int>(split_begin);
  const int end = static_cast<int>(min(split_begin + size, static_cast<int64_t>(sequence.limit(last_row))));

  const int lane = threadIdx.x % kLanes;
  const int stream = threadIdx.x / kLanes;
  const int channel = lane * kChannels;
  Group<T> q[kRows][kPieces];
  float out[kRows][kChannels];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int packed = first_packed + r;
    const bool exists = packed < num_packed;
    const int j = exists ? packed / args.group : 0;
    const T* row = static_cast<const T*>(p.q.data) + (sequence.first_row + j) * p.q.token_stride +
                   (static_cast<int64_t>(kv_head) * args.group + packed % args.group) * p.q.head_stride;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const int d = channel + piece * kGroup<T>;
      const int64_t count = exists ? p.head_dim - d : 0;
      q[r][piece] = load_group(row + d, count, args.whole_groups);
    }
#pragma unroll
    for (int c = 0; c < kChannels; ++c) out[r][c] = 0.0f;
  }

  const int own_row = lane / kRowLanes;
  const int own_key = lane % kRowLanes / kSharers * kOwned;
  const int own_packed = first_packed + own_row;
  const int own_limit = own_packed < num_packed ? sequence.limit(own_packed / args.group) : 0;
  float maximum = -INFINITY;
  float sum = 0.0f;

  const T* keys = static_cast<const T*>(p.kv.k) + kv_head * p.kv.k_strides.head + channel;
  const T* values = static_cast<const T*>(p.kv.v) + kv_head * p.kv.v_strides.head + channel;
  constexpr int kStep = kStreams * kKeysAhead;
  int first_bad_position = INT_MAX;
  int pages[kKeysAhead];
  const auto load_pages = [&](int base) {
#pragma unroll
    for (int u = 0; u < kKeysAhead; ++u) {
      const int position = base + u * kStreams + stream;
      pages[u] = position < end ? sequence.pages[page_index(args, position)] : -1;
    }
  };
  load_pages(begin);
  for (int base = begin; base < end; base += kStep) {
    Group<T> k[kKeysAhead][kPieces];
    Group<T> v[kKeysAhead][kPieces];
    unsigned there = 0;  // a bit per key
    const auto load = [&](auto whole) {
#pragma unroll
      for (int u = 0; u < kKeysAhead; ++u) {
        const int position = base + u * kStreams + stream;
        const KvOffset offset = kv_offset(args, pages[u], position);
        there |= static_cast<unsigned>(offset.k >= 0) << u;
        if (position < end && offset.k < 0) first_bad_position = min(first_bad_position, position);
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
          const int64_t count = offset.k >= 0 ? p.head_dim - channel - piece * kGroup<T> : 0;
          k[u][piece] = load_group(keys + offset.k + piece * kGroup<T>, count, whole);
          v[u][piece] = load_group(values + offset.v + piece * kGroup<T>, count, whole);
        }
      }
    };
    if (args.whole_groups) {  // out here, so that the loads of all keys are issued before the first is waited for
      load(std::true_type());
    } else {
      load(std::false_type());
    }
    load_pages(base + kStep);

    float score[kScores];
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const Group<T>(&row)[kPieces] = q[i / kKeysAhead];
      const Group<T>(&key)[kPieces] = k[i % kKeysAhead];
      score[i] = 0.0f;
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        score[i] = fmaf(row[c / kGroup<T>][c % kGroup<T>], key[c / kGroup<T>][c % kGroup<T>], score[i]);
      }
    }
    add_and_deal<kLanes, kScores>(score, lane);

    float new_maximum = maximum;
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      const int position = base + (own_key + i) * kStreams + stream;
      score[i] = (there >> (own_key + i) & 1) != 0 && position < own_limit ? score[i] * args.scale_log2 : -INFINITY;
      new_maximum = fmaxf(new_maximum, score[i]);
    }
#pragma unroll
    for (int offset = kSharers; offset < 32; offset *= 2) {
      if (offset < kRowLanes || offset >= kLanes)
        new_maximum = fmaxf(new_maximum, __shfl_xor_sync(0xffffffffu, new_maximum, offset));
    }
    if (__any_sync(0xffffffffu, new_maximum != maximum)) {  // seldom, after the first steps
      const float rescale = weight_of(maximum, new_maximum);
      maximum = new_maximum;
      sum *= rescale;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float row_rescale = __shfl_sync(0xffffffffu, rescale, r * kRowLanes, kLanes);
#pragma unroll
        for (int c = 0; c < kChannels; ++c) out[r][c] *= row_rescale;
      }
    }
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      score[i] = weight_of(score[i], maximum);
      sum += score[i];
    }
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const float weight = __shfl_sync(0xffffffffu, score[i % kOwned], i * kLanes / kScores, kLanes);
      const Group<T>(&value)[kPieces] = v[i % kKeysAhead];
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        float& element = out[i / kKeysAhead][c];
        element = fmaf(weight, value[c / kGroup<T>][c % kGroup<T>], element);
      }
    }
  }

  // The streams of a warp, then the warps of the block, each in a fixed order.
#pragma unroll
  for (int offset = kSharers; offset < 32; offset *= 2) {
    if (offset < kRowLanes || offset >= kLanes) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  }
#pragma unroll
  for (int offset = kLanes; offset < 32; offset *= 2) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) out[r][c] += __shfl_xor_sync(0xffffffffu, out[r][c], offset);
    }
  }
  __shared__ float warp_out[kWarps][kRows][kHeadDim];
  __shared__ float2 warp_stats[kWarps][kRows];
  __shared__ int block_first_bad;
  const int warp = threadIdx.x / 32;
  if (threadIdx.x == 0) block_first_bad = INT_MAX;
  __syncthreads();
  if (first_bad_position != INT_MAX) atomicMin(&block_first_bad, first_bad_position);
  if (threadIdx.x % 32 < kLanes) {
    if (lane % kRowLanes == 0) warp_stats[warp][own_row] = {maximum, sum};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) warp_out[warp][r][channel + c] = out[r][c];
    }
  }
  __syncthreads();

  const int head_dim = static_cast<int>(p.head_dim);
  for (int i = threadIdx.x; i < kRows * head_dim; i += kDecodeThreads) {
    const int r = i / head_dim;
    const int d = i % head_dim;
    const int packed = first_packed + r;
    if (packed >= num_packed) break;
    const int j = packed / args.group;
    const int head_in_group = packed % args.group;
    const bool fault = row_fault(args, sequence, j, block_first_bad);
    float row_maximum = -INFINITY;
    for (int w = 0; w < kWarps; ++w) row_maximum = fmaxf(row_maximum, warp_stats[w][r].x);
    float row_sum = 0.0f;
    float value = 0.0f;
    for (int w = 0; w < kWarps; ++w) {
      const float weight = weight_of(warp_stats[w][r].x, row_maximum);
      row_sum = fmaf(weight, warp_stats[w][r].y, row_sum);
      value = fmaf(weight, warp_out[w][r][d], value);
    }
    if (args.num_splits > 1) {
      const int64_t partial = static_cast<int64_t>(blockIdx.x) * kRows + r;
      args.partial_out[partial * head_dim + d] = value;
      if (d == 0) args.partial_stats[partial] = {row_maximum, fault ? -1.0f : row_sum};
      continue;
    }
    if (fault && d == 0 && kv_head == 0 && head_in_group == 0) record_row_fault(args, sequence, j);
    T* row = static_cast<T*>(p.out.data) + (sequence.first_row + j) * p.out.token_stride +
             (static_cast<int64_t>(kv_head) * args.group + head_in_group) * p.out.head_stride;
    row[d] = from_float<T>(fault || sequence.limit(j) == 0 ? 0.0f : value / row_sum);
  }
}

inline constexpr int kCombineThreads = 256;

// A block = one packed row of one kv head of one sequence. Each warp sums every 8th split, a lane every 32nd channel.
template <class T, int kRows>
__global__ void __launch_bounds__(kCombineThreads) combine_kernel(const __grid_constant__ AttentionArgs args) {
  constexpr int kWarps = kCombineThreads / 32;
  constexpr int kMaxChannels = 256 / 32;
  const PagedAttentionParams& p = args.p;
  const int packed = blockIdx.x % (args.row_tiles * kRows);
  const int64_t seq_and_head = blockIdx.x / (args.row_tiles * kRows);
  const int kv_head = static_cast<int>(seq_and_head % p.kv.num_kv_heads);
  const int64_t s = seq_and_head / p.kv.num_kv_heads;
  const Sequence sequence = sequence_at(args, s);
  const int j = packed / args.group;
  if (j >= sequence.num_rows) return;

  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int head_dim = static_cast<int>(p.head_dim);
  const int num_splits = (sequence.length + split_size(args, sequence.length) - 1) / max(1, split_size(args, sequence.length));
  const auto partial_of = [&](int split) {
    const int64_t block = ((s * args.num_splits + split) * p.kv.num_kv_heads + kv_head) * args.row_tiles + packed / kRows;
    return block * kRows + packed % kRows;
  };
  float maximum = -INFINITY;
  bool fault = sequence.too_long;
  for (int split = lane; split < num_splits; split += 32) {
    const float2 stats = args.partial_stats[partial_of(split)];
    maximum = fmaxf(maximum, stats.x);
    fault = fault || stats.y < 0.0f;
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, offset));
  fault = __any_sync(0xffffffffu, fault);

  float sum = 0.0f;
  float out[kMaxChannels] = {};
#pragma unroll 4
  for (int split = warp; split < num_splits; split += kWarps) {
    const int64_t partial = partial_of(split);
    const float2 stats = args.partial_stats[partial];
    const float weight = weight_of(stats.x, maximum);
    sum = fmaf(weight, stats.y, sum);
#pragma unroll
    for (int c = 0; c < kMaxChannels; ++c) {
      const int d = lane + c * 32;
      if (d < head_dim) out[c] = fmaf(weight, args.partial_out[partial * head_dim + d], out[c]);
    }
  }
  __shared__ float warp_sum[kWarps];
  __shared__ float warp_out[kWarps][256];
  if (lane == 0) warp_sum[warp] = sum;
#pragma unroll
  for (int c = 0; c < kMaxChannels; ++c) warp_out[warp][lane + c * 32] = out[c];
  __syncthreads();

  if (fault && threadIdx.x == 0 && kv_head == 0 && packed % args.group == 0) record_row_fault(args, sequence, j);
  const int d = threadIdx.x;
  if (d >= head_dim) return;
  float total = 0.0f;
  float value = 0.0f;
  for (int w = 0; w < kWarps; ++w) {
    total += warp_sum[w];
    value += warp_out[w][d];
  }
  T* row = static_cast<T*>(p.out.data) + (sequence.first_row + j) * p.out.token_stride +
           (static_cast<int64_t>(kv_head) * args.group + packed % args.group) * p.out.head_stride;
  row[d] = from_float<T>(fault || sequence.limit(j) == 0 ? 0.0f : value / total);
}

// ---------------------------------------------------------------------------------------------------------------------
// Prefill

inline constexpr int kTileRows = 64;

// The tile of packed rows that a prefill block works on.
struct RowTile {
  Sequence sequence;
  int first_packed = 0;
  int num_packed = 0;   // of the whole sequence
  int first_limit = 0;  // positions that the tile's first row attends to
  int last_limit = 0;   // and its last row
};

// blockIdx.x = tile * num_kv_heads + kv head. Tiles are dealt to the sequences in order, as many to each as its rows need: a
// warp-wide running sum over cu_seqlens_q finds whose tile it is. False for a block that the host's bound made too many.
__device__ inline bool find_tile(const AttentionArgs& args, RowTile& tile) {
  const PagedAttentionParams& p = args.p;
  const int lane = threadIdx.x % 32;
  int64_t index = blockIdx.x / p.kv.num_kv_heads;
  for (int64_t base = 0; base < p.num_seqs; base += 32) {
    const int64_t s = base + lane;
    const int64_t packed = s < p.num_seqs ? static_cast<int64_t>(sequence_at(args, s).num_rows) * args.group : 0;
    const int64_t tiles = (packed + kTileRows - 1) / kTileRows;
    int64_t running = tiles;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int64_t other = __shfl_up_sync(0xffffffffu, running, offset);
      if (lane >= offset) running += other;
    }
    const unsigned after = __ballot_sync(0xffffffffu, index < running);
    if (after == 0) {
      index -= __shfl_sync(0xffffffffu, running, 31);
      continue;
    }
    const int owner = __ffs(static_cast<int>(after)) - 1;
    // A sequence's last tiles have the most keys: they go first.
    const int64_t tile_of_owner = __shfl_sync(0xffffffffu, running, owner) - 1 - index;
    tile.sequence = sequence_at(args, base + owner);
    tile.num_packed = tile.sequence.num_rows * args.group;
    tile.first_packed = static_cast<int>(tile_of_owner) * kTileRows;
    tile.first_limit = tile.sequence.limit(tile.first_packed / args.group);
    tile.last_limit = tile.sequence.limit((min(tile.first_packed + kTileRows, tile.num_packed) - 1) / args.group);
    return true;
  }
  return false;
}

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ inline void load_matrices(uint32_t (&out)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address));
}

__device__ inline void load_matrices_transposed(uint32_t (&out)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address));
}

// c [16, 8] += a [16, 16] b [16, 8].
template <class T>
__device__ inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

template <class T, int kHeadDim>
struct MmaTile {
  static constexpr int kKeys = 64;
  static constexpr int kThreads = 128;
  static constexpr int kStride = kHeadDim + 8;  // 16 bytes of padding: the eight rows of a matrix lie in different banks
  alignas(16) T q[kTileRows][kStride];          // the output passes through here too
  alignas(16) T k[kKeys][kStride];
  alignas(16) T v[kKeys][kStride];
  KvOffset offsets[2][kKeys];
  int first_bad_position;
};

// A block = 64 packed rows of one kv head; a warp = 16 of them, with the fragments of mma.m16n8k16: lane l holds rows l / 4 and
// l / 4 + 8, columns 2 (l % 4) and the next of every 8. While keys are multiplied the values are on their way, and vice versa.
// head_dim is a multiple of 8 up to kHeadDim; the channels beyond it are zeros.
template <class T, int kHeadDim>
__global__ void __launch_bounds__(MmaTile<T, kHeadDim>::kThreads) prefill_mma_kernel(const __grid_constant__ AttentionArgs args) {
  using Tile = MmaTile<T, kHeadDim>;
  constexpr int kChunks = kHeadDim / 8;  // of 16 bytes, in a row
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  Tile& shared = *reinterpret_cast<Tile*>(shared_bytes);
  const PagedAttentionParams& p = args.p;
  RowTile tile;
  if (!find_tile(args, tile)) return;
  const Sequence& sequence = tile.sequence;
  const int kv_head = static_cast<int>(blockIdx.x % p.kv.num_kv_heads);
  const int num_chunks = static_cast<int>(p.head_dim) / 8;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int num_key_tiles = (tile.last_limit + Tile::kKeys - 1) / Tile::kKeys;

  const auto q_head = [&](int packed) { return static_cast<int64_t>(kv_head) * args.group + packed % args.group; };
  const auto copy_chunk = [](T* to, const T* from, bool there) { __pipeline_memcpy_async(to, from, 16, there ? 0 : 16); };
  const auto copy_cache_tile = [&](T(*to)[Tile::kStride], const void* from, int64_t head_offset, int stage, auto offset_of) {
    for (int i = threadIdx.x; i < Tile::kKeys * kChunks; i += Tile::kThreads) {
      const int key = i / kChunks;
      const int chunk = i % kChunks;
      const int64_t offset = offset_of(shared.offsets[stage][key]);
      const bool there = offset >= 0 && chunk < num_chunks;
      copy_chunk(&to[key][chunk * 8], static_cast<const T*>(from) + (there ? head_offset + offset + chunk * 8 : 0), there);
    }
    __pipeline_commit();
  };
  const auto copy_keys = [&](int stage) {
    copy_cache_tile(shared.k, p.kv.k, kv_head * p.kv.k_strides.head, stage, [](const KvOffset& offset) { return offset.k; });
  };
  const auto copy_values = [&](int stage) {
    copy_cache_tile(shared.v, p.kv.v, kv_head * p.kv.v_strides.head, stage, [](const KvOffset& offset) { return offset.v; });
  };
  int first_bad_position = INT_MAX;
  const auto find_keys = [&](int key_tile) {  // positions past the tile's last are zeros, like those of bad pages
    const int position = key_tile * Tile::kKeys + threadIdx.x;
    if (threadIdx.x >= Tile::kKeys) return;
    KvOffset offset = {-1, -1};
    if (position < tile.last_limit) {
      offset = kv_offset(args, sequence.pages[page_index(args, position)], position);
      if (offset.k < 0) first_bad_position = min(first_bad_position, position);
    }
    shared.offsets[key_tile % 2][threadIdx.x] = offset;
  };

  if (threadIdx.x == 0) shared.first_bad_position = INT_MAX;
  for (int i = threadIdx.x; i < kTileRows * kChunks; i += Tile::kThreads) {
    const int packed = tile.first_packed + i / kChunks;
    const int chunk = i % kChunks;
    const bool there = packed < tile.num_packed && chunk < num_chunks;
    const T* row = static_cast<const T*>(p.q.data) + (sequence.first_row + packed / args.group) * p.q.token_stride +
                   q_head(packed) * p.q.head_stride;
    copy_chunk(&shared.q[i / kChunks][chunk * 8], there ? row + chunk * 8 : static_cast<const T*>(p.q.data), there);
  }
  __pipeline_commit();
  find_keys(0);
  __syncthreads();
  if (num_key_tiles > 0) {
    copy_keys(0);
    copy_values(0);
  }

  float out[kChunks][4] = {};
  float maximum[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0.0f, 0.0f};
  int limit[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int packed = tile.first_packed + warp * 16 + half * 8 + lane / 4;
    limit[half] = packed < tile.num_packed ? sequence.limit(packed / args.group) : 0;
  }

  for (int key_tile = 0; key_tile < num_key_tiles; ++key_tile) {
    __pipeline_wait_prior(1);  // the keys are there
    __syncthreads();
    const bool more = key_tile + 1 < num_key_tiles;
    if (more) find_keys(key_tile + 1);
    float score[Tile::kKeys / 8][4] = {};
#pragma unroll
    for (int c = 0; c < kHeadDim / 16; ++c) {
      uint32_t a[4];
      load_matrices(a, shared_address(&shared.q[warp * 16 + lane % 16][c * 16 + lane / 16 * 8]));
#pragma unroll
      for (int n = 0; n < Tile::kKeys / 16; ++n) {
        uint32_t b[4];
        load_matrices(b, shared_address(&shared.k[n * 16 + lane % 8 + lane / 16 * 8][c * 16 + lane / 8 % 2 * 8]));
        multiply<T>(score[2 * n], a, b[0], b[1]);
        multiply<T>(score[2 * n + 1], a, b[2], b[3]);
      }
    }
    __pipeline_wait_prior(0);  // the values are there
    __syncthreads();           // and every warp is done with the keys
    if (more) copy_keys((key_tile + 1) % 2);

    const int first_key = key_tile * Tile::kKeys + lane % 4 * 2;
    const bool masked = (key_tile + 1) * Tile::kKeys > tile.first_limit;
    float new_maximum[2] = {maximum[0], maximum[1]};
#pragma unroll
    for (int n = 0; n < Tile::kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        score[n][i] *= args.scale_log2;
        if (masked && first_key + n * 8 + i % 2 >= limit[i / 2]) score[n][i] = -INFINITY;
        new_maximum[i / 2] = fmaxf(new_maximum[i / 2], score[n][i]);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      new_maximum[half] = fmaxf(new_maximum[half], __shfl_xor_sync(0xffffffffu, new_maximum[half], 1));
      new_maximum[half] = fmaxf(new_maximum[half], __shfl_xor_sync(0xffffffffu, new_maximum[half], 2));
      const float rescale = weight_of(maximum[half], new_maximum[half]);
      maximum[half] = new_maximum[half];
      sum[half] *= rescale;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        out[c][2 * half] *= rescale;
        out[c][2 * half + 1] *= rescale;
      }
    }
#pragma unroll
    for (int n = 0; n < Tile::kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        score[n][i] = weight_of(score[n][i], maximum[i / 2]);
        sum[i / 2] += score[n][i];
      }
    }
#pragma unroll
    for (int n = 0; n < Tile::kKeys / 16; ++n) {
      const uint32_t a[4] = {pack<T>(score[2 * n][0], score[2 * n][1]), pack<T>(score[2 * n][2], score[2 * n][3]),
                             pack<T>(score[2 * n + 1][0], score[2 * n + 1][1]),
                             pack<T>(score[2 * n + 1][2], score[2 * n + 1][3])};
#pragma unroll
      for (int c = 0; c < kHeadDim / 16; ++c) {
        uint32_t b[4];
        load_matrices_transposed(b, shared_address(&shared.v[n * 16 + lane % 16][c * 16 + lane / 16 * 8]));
        multiply<T>(out[2 * c], a, b[0], b[1]);
        multiply<T>(out[2 * c + 1], a, b[2], b[3]);
      }
    }
    if (more) {
      __syncthreads();  // every warp is done with the values
      copy_values((key_tile + 1) % 2);
    }
  }
  __pipeline_wait_prior(0);  // without keys to wait for, Q may still be on its way to where the output passes

  if (first_bad_position != INT_MAX) atomicMin(&shared.first_bad_position, first_bad_position);
  __syncthreads();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
    sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
    const int row = warp * 16 + half * 8 + lane / 4;
    const int packed = tile.first_packed + row;
    const bool fault = packed < tile.num_packed && row_fault(args, sequence, packed / args.group, shared.first_bad_position);
    if (fault && lane % 4 == 0 && kv_head == 0 && packed % args.group == 0) record_row_fault(args, sequence, packed / args.group);
    const bool zero = fault || limit[half] == 0;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const float low = zero ? 0.0f : out[c][2 * half] / sum[half];
      const float high = zero ? 0.0f : out[c][2 * half + 1] / sum[half];
      *reinterpret_cast<uint32_t*>(&shared.q[row][c * 8 + lane % 4 * 2]) = pack<T>(low, high);
    }
  }
  __syncwarp();  // a warp stores the 16 rows that it made
  for (int i = lane; i < 16 * num_chunks; i += 32) {
    const int row = warp * 16 + i / num_chunks;
    const int chunk = i % num_chunks;
    const int packed = tile.first_packed + row;
    if (packed >= tile.num_packed) break;
    T* to = static_cast<T*>(p.out.data) + (sequence.first_row + packed / args.group) * p.out.token_stride +
            q_head(packed) * p.out.head_stride + chunk * 8;
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(&shared.q[row][chunk * 8]);
  }
}

template <int kHeadDim>
struct SimpleTile {
  static constexpr int kKeys = 32;
  static constexpr int kThreads = 256;
  static constexpr int kStride = kHeadDim + 4;
  alignas(16) float q[kTileRows][kStride];
  alignas(16) float k[kKeys][kStride];
  alignas(16) float v[kKeys][kStride];
  alignas(16) float weights[kTileRows][kKeys];
  KvOffset offsets[kKeys];
  int first_bad_position;
};

// A block = 64 packed rows of one kv head. Thread (y, x) of 16 x 16 has the rows 4 y .. 4 y + 3, of their scores the keys x and
// x + 16, of their outputs the channels 4 x .. 4 x + 3 of every 64. Any type, head_dim and alignment.
template <int kHeadDim>
__global__ void __launch_bounds__(SimpleTile<kHeadDim>::kThreads, 1)
    prefill_simple_kernel(const __grid_constant__ AttentionArgs args) {
  using Tile = SimpleTile<kHeadDim>;
  constexpr int kRowsOfThread = 4;
  constexpr int kKeysOfThread = Tile::kKeys / 16;
  constexpr int kChunks = kHeadDim / 64;
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  Tile& shared = *reinterpret_cast<Tile*>(shared_bytes);
  const PagedAttentionParams& p = args.p;
  RowTile tile;
  if (!find_tile(args, tile)) return;
  const Sequence& sequence = tile.sequence;
  const int kv_head = static_cast<int>(blockIdx.x % p.kv.num_kv_heads);
  const int head_dim = static_cast<int>(p.head_dim);
  const int x = threadIdx.x % 16;
  const int y = threadIdx.x / 16;
  const bool vectors = args.whole_groups && p.dtype == DType::f32;

  const auto q_head = [&](int packed) { return static_cast<int64_t>(kv_head) * args.group + packed % args.group; };
  // Four channels of a row that starts at element `offset`, or zeros where there is none.
  const auto load_four = [&](const void* data, int64_t offset, int d) {
    float4 four = {0.0f, 0.0f, 0.0f, 0.0f};
    if (offset < 0 || d >= head_dim) return four;
    if (vectors) return *reinterpret_cast<const float4*>(static_cast<const float*>(data) + offset + d);
    four.x = load_element(p.dtype, data, offset + d);
    four.y = load_element(p.dtype, data, offset + d + 1);  // head_dim is even
    if (d + 2 < head_dim) four.z = load_element(p.dtype, data, offset + d + 2);
    if (d + 2 < head_dim) four.w = load_element(p.dtype, data, offset + d + 3);
    return four;
  };

  if (threadIdx.x == 0) shared.first_bad_position = INT_MAX;
  for (int i = threadIdx.x; i < kTileRows * (kHeadDim / 4); i += Tile::kThreads) {
    const int row = i / (kHeadDim / 4);
    const int d = i % (kHeadDim / 4) * 4;
    const int packed = tile.first_packed + row;
    const int64_t offset = packed < tile.num_packed
                               ? (sequence.first_row + packed / args.group) * p.q.token_stride + q_head(packed) * p.q.head_stride
                               : -1;
    *reinterpret_cast<float4*>(&shared.q[row][d]) = load_four(p.q.data, offset, d);
  }

  float out[kRowsOfThread][kChunks][4] = {};
  float maximum[kRowsOfThread];
  float sum[kRowsOfThread];
  int limit[kRowsOfThread];
#pragma unroll
  for (int r = 0; r < kRowsOfThread; ++r) {
    const int packed = tile.first_packed + y * kRowsOfThread + r;
    maximum[r] = -INFINITY;
    sum[r] = 0.0f;
    limit[r] = packed < tile.num_packed ? sequence.limit(packed / args.group) : 0;
  }
  int first_bad_position = INT_MAX;
  for (int first_key = 0; first_key < tile.last_limit; first_key += Tile::kKeys) {
    __syncthreads();  // everyone is done with the previous keys and values
    if (threadIdx.x < Tile::kKeys) {
      const int position = first_key + threadIdx.x;
      KvOffset offset = {-1, -1};
      if (position < tile.last_limit) {
        offset = kv_offset(args, sequence.pages[page_index(args, position)], position);
        if (offset.k < 0) first_bad_position = min(first_bad_position, position);
      }
      shared.offsets[threadIdx.x] = offset;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < Tile::kKeys * (kHeadDim / 4); i += Tile::kThreads) {
      const int key = i / (kHeadDim / 4);
      const int d = i % (kHeadDim / 4) * 4;
      const KvOffset offset = shared.offsets[key];
      const bool there = offset.k >= 0;
      *reinterpret_cast<float4*>(&shared.k[key][d]) = load_four(p.kv.k, there ? offset.k + kv_head * p.kv.k_strides.head : -1, d);
      *reinterpret_cast<float4*>(&shared.v[key][d]) = load_four(p.kv.v, there ? offset.v + kv_head * p.kv.v_strides.head : -1, d);
    }
    __syncthreads();

    float score[kRowsOfThread][kKeysOfThread] = {};
#pragma unroll 4
    for (int d = 0; d < kHeadDim; d += 4) {
      float4 k[kKeysOfThread];
#pragma unroll
      for (int n = 0; n < kKeysOfThread; ++n) k[n] = *reinterpret_cast<const float4*>(&shared.k[x + n * 16][d]);
#pragma unroll
      for (int r = 0; r < kRowsOfThread; ++r) {
        const float4 q = *reinterpret_cast<const float4*>(&shared.q[y * kRowsOfThread + r][d]);
#pragma unroll
        for (int n = 0; n < kKeysOfThread; ++n) {
          score[r][n] = fmaf(q.x, k[n].x, score[r][n]);
          score[r][n] = fmaf(q.y, k[n].y, score[r][n]);
          score[r][n] = fmaf(q.z, k[n].z, score[r][n]);
          score[r][n] = fmaf(q.w, k[n].w, score[r][n]);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kRowsOfThread; ++r) {
      float new_maximum = maximum[r];
#pragma unroll
      for (int n = 0; n < kKeysOfThread; ++n) {
        score[r][n] = first_key + x + n * 16 < limit[r] ? score[r][n] * args.scale_log2 : -INFINITY;
        new_maximum = fmaxf(new_maximum, score[r][n]);
      }
#pragma unroll
      for (int offset = 8; offset > 0; offset /= 2)
        new_maximum = fmaxf(new_maximum, __shfl_xor_sync(0xffffffffu, new_maximum, offset));
      const float rescale = weight_of(maximum[r], new_maximum);
      maximum[r] = new_maximum;
      sum[r] *= rescale;
#pragma unroll
      for (int n = 0; n < kKeysOfThread; ++n) {
        const float weight = weight_of(score[r][n], new_maximum);
        sum[r] += weight;
        shared.weights[y * kRowsOfThread + r][x + n * 16] = weight;
      }
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[r][c][i] *= rescale;
      }
    }
    __syncwarp();  // a row's weights are made and used by the same half warp
#pragma unroll 4
    for (int key = 0; key < Tile::kKeys; ++key) {
      float weight[kRowsOfThread];
#pragma unroll
      for (int r = 0; r < kRowsOfThread; ++r) weight[r] = shared.weights[y * kRowsOfThread + r][key];
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const float4 v = *reinterpret_cast<const float4*>(&shared.v[key][c * 64 + x * 4]);
#pragma unroll
        for (int r = 0; r < kRowsOfThread; ++r) {
          out[r][c][0] = fmaf(weight[r], v.x, out[r][c][0]);
          out[r][c][1] = fmaf(weight[r], v.y, out[r][c][1]);
          out[r][c][2] = fmaf(weight[r], v.z, out[r][c][2]);
          out[r][c][3] = fmaf(weight[r], v.w, out[r][c][3]);
        }
      }
    }
  }

  if (first_bad_position != INT_MAX) atomicMin(&shared.first_bad_position, first_bad_position);
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kRowsOfThread; ++r) {
    const int packed = tile.first_packed + y * kRowsOfThread + r;
#pragma unroll
    for (int offset = 8; offset > 0; offset /= 2) sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], offset);
    if (packed >= tile.num_packed) continue;
    const int j = packed / args.group;
    const bool fault = row_fault(args, sequence, j, shared.first_bad_position);
    if (fault && x == 0 && kv_head == 0 && packed % args.group == 0) record_row_fault(args, sequence, j);
    const int64_t row = (sequence.first_row + j) * p.out.token_stride + q_head(packed) * p.out.head_stride;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int d = c * 64 + x * 4 + i;
        if (d < head_dim) store_element(p.dtype, p.out.data, row + d, fault || limit[r] == 0 ? 0.0f : out[r][c][i] / sum[r]);
      }
    }
  }
}

}  // namespace prologue::cuda
