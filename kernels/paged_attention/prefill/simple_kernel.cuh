// Prefill for any types, head dims and alignment: a block of 16 x 16 threads works on a tile of packed rows of one kv head, over all
// positions that they see; a thread has a few rows, keys and channels.
//
// A row takes the same steps whatever else its tile holds, if the call is batch-invariant: keys come in tiles that start at multiples of their
// size then (see prefill/mma_kernel.cuh).
#pragma once

#include <iterator>

#include <prologue/kernels/paged_attention/attention_args.cuh>
#include <prologue/kernels/paged_attention/attention_instances.cuh>
#include <prologue/kernels/paged_attention/cache_codes.cuh>
#include <prologue/kernels/paged_attention/prefill/keys.cuh>
#include <prologue/kernels/paged_attention/row_tile.cuh>

namespace prologue::cuda {

// A tile needs up to 148 KiB of shared memory. Small tiles, with K and V one after the other in one buffer, need less than the 99 KiB that
// a block has on sm_86, sm_89 and sm_120. Heads of up to 128 channels need no more than that in either form.
template <int kHeadDim, bool kSmall>
struct SimpleTile {
  static constexpr int kRows = kHeadDim <= 128 ? 64 : (kHeadDim <= 256 ? 64 : 32) / (kSmall ? 2 : 1);
  static constexpr int kKeys = kHeadDim > 256 ? 16 : 32;
  static constexpr int kThreads = 256;
  static constexpr int kStride = kHeadDim + 4;
  alignas(16) float q[kRows][kStride];
  alignas(16) float kv[kSmall ? 1 : 2][kKeys][kStride];
  alignas(16) float weights[kRows][kKeys];
  KvOffset offsets[kKeys];
  float k_scales[kKeys];
  float v_scales[kKeys];
  unsigned faulty[(kRows + 31) / 32];  // a bit per row
};

// With block scales a tile keeps where its keys are: the scales are looked up when the codes are loaded.
template <class Tile>
struct WithSlots : WithZeroPoints<Tile, 1> {
  CacheSlot slots[Tile::kKeys];
};

template <int kHeadDim, bool kSmall, PrefillCache kCache>
using SimpleTileOf = std::conditional_t<
    kCache == PrefillCache::any_blocks, WithSlots<SimpleTile<kHeadDim, kSmall>>,
    std::conditional_t<kCache == PrefillCache::any_formats, WithZeroPoints<SimpleTile<kHeadDim, kSmall>, 1>, SimpleTile<kHeadDim, kSmall>>>;

// A block works on kRows packed rows of one kv head. Thread (y, x) of 16 x 16 has kRows / 16 rows from y * (kRows / 16) on. Of their scores
// it has every 16th key from x on; of their outputs the channels 4 x .. 4 x + 3 of every 64. All types, head dims and alignments are
// allowed; codes are multiplied by their scales, and zero points are added, when they are loaded.
template <int kHeadDim, bool kSmall, PrefillCache kCache>
__global__ void __launch_bounds__(SimpleTileOf<kHeadDim, kSmall, kCache>::kThreads, 1)
    prefill_simple_kernel(const __grid_constant__ AttentionArgs args) {
  using Tile = SimpleTileOf<kHeadDim, kSmall, kCache>;
  constexpr bool kBlocks = kCache == PrefillCache::any_blocks, kAnyFormats = kCache == PrefillCache::any_formats || kBlocks;
  const auto load_one = [](DType type, const void* data, int64_t i) {
    if constexpr (kBlocks) return load_cached_of_any_blocks(type, data, i);
    return kAnyFormats ? load_cached_of_any_format(type, data, i) : load_cached(type, data, i);
  };
  constexpr int kRowsOfThread = Tile::kRows / 16;
  constexpr int kKeysOfThread = Tile::kKeys / 16;
  constexpr int kChunks = kHeadDim / 64;
  Tile& shared = *dynamic_shared<Tile>();
  auto& keys = shared.kv[0];
  auto& values = shared.kv[kSmall ? 0 : 1];
  const PagedAttentionParams& p = args.p;
  wait_for_previous_kernels();
  RowTile tile;
  if (!find_tile(args, static_cast<int>(blockIdx.x) / args.num_kv_heads, Tile::kRows, tile)) return;
  const Sequence& sequence = tile.sequence;
  const int kv_head = static_cast<int>(blockIdx.x) % args.num_kv_heads;
  if (sequence.bad_rows && tile.first_packed == 0) clear_bad_rows(args, tile.sequence_index, kv_head);
  if (tile.num_packed == 0) return;
  const int head_dim = static_cast<int>(p.head_dim);
  const int v_head_dim = args.v_head_dim;
  const int x = threadIdx.x % 16;
  const int y = threadIdx.x / 16;

  const auto q_head = [&](int packed) { return static_cast<int64_t>(kv_head) * args.group + packed % args.group; };
  // Loads channels d .. d + 3 of a row of `width` that starts at element `offset`; channels that do not exist are zeros.
  const auto load_four = [&](DType type, const void* data, int64_t offset, int d, int width) {
    float4 four = {0.0f, 0.0f, 0.0f, 0.0f};
    if (offset < 0 || d >= width) return four;
    if (args.whole_groups && type == DType::f32)
      return *reinterpret_cast<const float4*>(static_cast<const float*>(data) + offset + d);
    four.x = load_one(type, data, offset + d);
    four.y = load_one(type, data, offset + d + 1);  // the width is even
    if (d + 2 < width) four.z = load_one(type, data, offset + d + 2);
    if (d + 2 < width) four.w = load_one(type, data, offset + d + 3);
    return four;
  };
  const auto scaled = [](float4 four, float scale) {
    return make_float4(four.x * scale, four.y * scale, four.z * scale, four.w * scale);
  };
  [[maybe_unused]] const auto shifted = [](float4 four, float scale, float zero_point) {
    return make_float4(fmaf(four.x, scale, zero_point), fmaf(four.y, scale, zero_point), fmaf(four.z, scale, zero_point),
                       fmaf(four.w, scale, zero_point));
  };

  if (threadIdx.x < std::size(shared.faulty)) shared.faulty[threadIdx.x] = 0;
  for (int i = threadIdx.x; i < Tile::kRows * (kHeadDim / 4); i += Tile::kThreads) {
    const int row = i / (kHeadDim / 4);
    const int d = i % (kHeadDim / 4) * 4;
    const int packed = tile.first_packed + row;
    const int64_t offset = packed < tile.num_packed
                               ? (sequence.first_row + packed / args.group) * p.q.token_stride + q_head(packed) * p.q.head_stride
                               : -1;
    *reinterpret_cast<float4*>(&shared.q[row][d]) = load_four(p.dtype, p.q.data, offset, d, head_dim);
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
  const KvFormat& k_format = p.kv.k.format;
  const KvFormat& v_format = kAnyFormats ? p.kv.v.format : p.kv.k.format;
  const float k_scale = shared_scale(k_format, p.kv.k.scale, kv_head);
  const float v_scale = shared_scale(v_format, p.kv.v.scale, kv_head);
  const int first_needed = lowest(args, tile.first_limit);
  const int first_of_all = p.batch_invariant ? first_needed / Tile::kKeys * Tile::kKeys : first_needed;
  for (int first_key = first_of_all; first_key < tile.last_limit; first_key += Tile::kKeys) {
    __syncthreads();  // everyone is done with the previous keys and values
    if (threadIdx.x < Tile::kKeys) {
      const int position = first_key + threadIdx.x;
      CacheSlot slot = {-1, 0};
      if (position >= first_needed && position < tile.last_limit) {
        const int logical_slot = logical_slot_of(args, position);
        slot = cache_slot(args, sequence.pages[page_index(args, logical_slot)], logical_slot);
        if (slot.page < 0) {
          const uint64_t rows = rows_that_see<Tile::kRows>(args, sequence, tile.first_packed, position);
          for (size_t i = 0; i < std::size(shared.faulty); ++i)
            atomicOr(&shared.faulty[i], static_cast<unsigned>(rows >> (32 * i)));
        }
      }
      const bool exists = slot.page >= 0;
      const bool k_scale_per_token = exists && k_format.scaling == KvScaling::token_head;
      const bool v_scale_per_token = exists && v_format.scaling == KvScaling::token_head;
      shared.offsets[threadIdx.x] = {exists ? slot.in(p.kv.k.strides) + kv_head * p.kv.k.strides.head : -1,
                                     exists ? slot.in(p.kv.v.strides) + kv_head * p.kv.v.strides.head : -1};
      shared.k_scales[threadIdx.x] = k_scale_per_token ? token_scale(p.kv.k.scale, p.kv.k.scale_strides, slot, kv_head) : k_scale;
      shared.v_scales[threadIdx.x] = v_scale_per_token ? token_scale(p.kv.v.scale, p.kv.v.scale_strides, slot, kv_head) : v_scale;
      if constexpr (kBlocks) shared.slots[threadIdx.x] = slot;
      if constexpr (kAnyFormats) {
        const bool k_given = exists && k_format.type == DType::uint4;
        const bool v_given = exists && v_format.type == DType::uint4;
        shared.k_zero_points[0][threadIdx.x] =
            k_given ? token_zero_point(p.kv.k.scale, p.kv.k.scale_strides, slot, kv_head) : 0.0f;
        shared.v_zero_points[0][threadIdx.x] =
            v_given ? token_zero_point(p.kv.v.scale, p.kv.v.scale_strides, slot, kv_head) : 0.0f;
      }
    }
    __syncthreads();
    [[maybe_unused]] const auto factor_of = [&](const PagedHeads& side, int64_t offset, int width, int key, int d) {
      if constexpr (kBlocks) {
        if (offset >= 0 && d < width) return block_factor_at(side, width, shared.slots[key], kv_head, d);
      }
      return 1.0f;
    };
    const auto load_keys = [&](int key, int d) {
      const float4 k = load_four(k_format.type, p.kv.k.data, shared.offsets[key].k, d, head_dim);
      float4& to = *reinterpret_cast<float4*>(&keys[key][d]);
      if constexpr (kAnyFormats) {
        to = shifted(k, shared.k_scales[key], shared.k_zero_points[0][key]);
        if constexpr (kBlocks) to = scaled(to, factor_of(p.kv.k, shared.offsets[key].k, head_dim, key, d));
      } else {
        to = scaled(k, shared.k_scales[key]);
      }
    };
    const auto load_values = [&](int key, int d) {
      const float4 v = load_four(v_format.type, p.kv.v.data, shared.offsets[key].v, d, v_head_dim);
      float4& to = *reinterpret_cast<float4*>(&values[key][d]);
      if constexpr (kAnyFormats) {
        to = shifted(v, shared.v_scales[key], shared.v_zero_points[0][key]);
        if constexpr (kBlocks) to = scaled(to, factor_of(p.kv.v, shared.offsets[key].v, v_head_dim, key, d));
      } else {
        to = scaled(v, shared.v_scales[key]);
      }
    };
    for (int i = threadIdx.x; i < Tile::kKeys * (kHeadDim / 4); i += Tile::kThreads) {
      load_keys(i / (kHeadDim / 4), i % (kHeadDim / 4) * 4);
      if constexpr (!kSmall) load_values(i / (kHeadDim / 4), i % (kHeadDim / 4) * 4);
    }
    __syncthreads();

    float score[kRowsOfThread][kKeysOfThread] = {};
#pragma unroll 4
    for (int d = 0; d < kHeadDim; d += 4) {
      float4 k[kKeysOfThread];
#pragma unroll
      for (int n = 0; n < kKeysOfThread; ++n) k[n] = *reinterpret_cast<const float4*>(&keys[x + n * 16][d]);
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
      const VisibleKeys visible(args, limit[r]);
      float new_maximum = maximum[r];
#pragma unroll
      for (int n = 0; n < kKeysOfThread; ++n) {
        score[r][n] *= args.score_scale;
        if (args.cap_log2 > 0.0f) score[r][n] = capped(args, score[r][n]);
        if (!visible.hold(first_key + x + n * 16)) score[r][n] = -INFINITY;
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
    if constexpr (kSmall) {
      __syncthreads();  // everyone is done with the keys
      for (int i = threadIdx.x; i < Tile::kKeys * (kHeadDim / 4); i += Tile::kThreads) {
        load_values(i / (kHeadDim / 4), i % (kHeadDim / 4) * 4);
      }
      __syncthreads();
    } else {
      __syncwarp();  // a row's weights are made and used by the same half warp
    }
#pragma unroll 4
    for (int key = 0; key < Tile::kKeys; ++key) {
      float weight[kRowsOfThread];
#pragma unroll
      for (int r = 0; r < kRowsOfThread; ++r) weight[r] = shared.weights[y * kRowsOfThread + r][key];
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const float4 v = *reinterpret_cast<const float4*>(&values[key][c * 64 + x * 4]);
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

  __syncthreads();
#pragma unroll
  for (int r = 0; r < kRowsOfThread; ++r) {
    const int row_of_tile = y * kRowsOfThread + r;
    const int packed = tile.first_packed + row_of_tile;
#pragma unroll
    for (int offset = 8; offset > 0; offset /= 2) sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], offset);
    if (packed >= tile.num_packed) continue;
    const int j = packed / args.group;
    const bool fault = sequence.too_long || (shared.faulty[row_of_tile / 32] >> (row_of_tile % 32) & 1) != 0;
    if (fault && x == 0 && kv_head == 0 && packed % args.group == 0) record_row_fault(args, sequence, j);
    const int64_t row = (sequence.first_row + j) * p.out.token_stride + q_head(packed) * p.out.head_stride;
    sum[r] += sink_weight(p, q_head(packed), maximum[r]);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int d = c * 64 + x * 4 + i;
        const float value = fault || limit[r] == 0 ? 0.0f : (out[r][c][i] + 0.0f) / sum[r];  // -0 becomes 0
        if (d < v_head_dim) store_element(p.dtype, p.out.data, row + d, value);
      }
    }
  }
}

}  // namespace prologue::cuda
