// Decode on tensor cores: what a warp adds up over the keys of a work item, and how the sums of the warps, and of the blocks that work on
// it, become rows of `out`. The layout of fragments is in decode_mma/kernel.cuh.
#pragma once

#include <prologue/kernels/paged_attention/decode_mma/copies.cuh>
#include <prologue/kernels/paged_attention/decode_mma/queries.cuh>
#include <prologue/kernels/paged_attention/decode_parts.cuh>

namespace prologue::cuda {

// The warps exchange this in shared memory at the end of a work item. kRows is the number of its packed rows.
template <class V, int kHeadDim, int kRows>
struct alignas(16) DecodeMmaShared {
  float out[kDecodeMmaWarps][8][kHeadDim];  // of eight packed rows, one column tile after the other
  float maximum[kDecodeMmaWarps][kRows];
  float sum[kDecodeMmaWarps][kRows];
  float zero_sum[kDecodeMmaWarps][kHasZeroPoint<V> ? kRows : 1];
  FindRange<kDecodeMmaThreads> find_range;
  unsigned faulty[2];  // a bit per packed row; work items use them alternately
  unsigned arrived;
};

// Returns log2 of a power of two that a scale of V does not reach. It is at least 2^-90, since below that weights without their scale could
// be infinite.
__device__ inline float log_bound(float scale) {
  const uint32_t exponent = __float_as_uint(scale) >> 23 & 255u;                          // plus 127
  return fmaxf(-90.0f, __uint_as_float(exponent | 0x4b000000u) - (8388608.0f + 126.0f));  // 2^23 + the exponent, less that
}

// Does the same. If weights are multiplied by scales that are up to 2^-24 times as large, they use all of float16's range.
template <class V>
__device__ inline float log_bound_of(float scale) {
  constexpr float kSpare = std::is_same_v<V, BlockFp8> ? 15.0f : 0.0f;
  return kSpare == 0.0f ? log_bound(scale) : fmaxf(-90.0f, log_bound(scale) - kSpare);
}

// If tokens have scales of V, weights are multiplied by them and `maximum` bounds the products, so that float16 holds them.
template <class T, class K, class V, int kHeadDim, int kColumns, int kKeys>
struct DecodeMmaSums {
  using KeysOf = Keys<K, kHeadDim>;
  using ValuesOf = Values<V, kHeadDim>;
  using Stage = DecodeMmaStage<K, V, kHeadDim, kKeys>;
  using StageKeys = DecodeMmaKeys<K, V, kHeadDim, kKeys>;
  using Queries = DecodeMmaQueries<T, K, V, kHeadDim, kColumns>;
  static constexpr int kRows = 8 * kColumns;
  using Shared = DecodeMmaShared<V, kHeadDim, kRows>;
  static constexpr bool kScaled = StageKeys::kScaled;
  static constexpr int kGroups = kKeys / kKeyGroup;

  float out[ValuesOf::kTiles][kColumns][4];
  float maximum[kColumns][2];
  float sum[kColumns][2];
  float zero_sum[kColumns][2];  // only for zero points of V
  float block_factor = 1.0f;    // only for block-scaled V

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        maximum[c][i] = -INFINITY;
        sum[c][i] = 0.0f;
        if constexpr (kHasZeroPoint<V>) zero_sum[c][i] = 0.0f;
      }
#pragma unroll
      for (int tile = 0; tile < ValuesOf::kTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[tile][c][i] = 0.0f;
      }
    }
  }

  // Adds the keys of a stage, from position first_key on. The rows that see a missing key are added to `faulty`, which is the block's.
  template <class Cursor>
  __device__ __forceinline__ void add(const AttentionArgs& args, const Cursor& item, const Queries& q, const Stage& stage,
                                      const StageKeys& keys, unsigned& faulty) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int g = lane / 4;
    Scores score;
    multiply_keys(q, stage, keys, score);
    const bool v_has_scales = scale_per_token<K, V>(args.p.kv.v) || has_largest_scales<V, false>(args.p.kv.v);
    [[maybe_unused]] float value_scale[kGroups][2];  // of keys g and g + 8
    [[maybe_unused]] float log_scale[kGroups][2];
    [[maybe_unused]] float zero_point[kGroups][2];  // of V, as a multiple of its scale if that is not 0
    if constexpr (kScaled) {
      if (scale_per_token<K, V>(args.p.kv.k) || has_largest_scales<K, true>(args.p.kv.k)) {
        for_each(score, [&](float& s, int group, int c, int i) {
          const int key = group * kKeyGroup + g + i / 2 * 8;
          s *= keys.k_scales[key];
          if constexpr (kHasZeroPoint<K>) s = fmaf(keys.k_zero_points[key], q.sum[c][i % 2], s);
        });
      }
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int key = group * kKeyGroup + g + half * 8;
          value_scale[group][half] = v_has_scales ? keys.v_scales[key] : 1.0f;
          log_scale[group][half] = v_has_scales ? log_bound_of<V>(value_scale[group][half]) : 0.0f;
          if constexpr (kHasZeroPoint<V>) {
            zero_point[group][half] =
                keys.v_zero_points[key] / (value_scale[group][half] == 0.0f ? 1.0f : value_scale[group][half]);
          }
        }
      }
    }
    for_each(score, [&](float& s, int, int c, int i) { s *= q.row_scale[c][i % 2]; });
    if (args.cap_log2 > 0.0f) for_each(score, [&](float& s, int, int, int) { s = capped_roughly(args, s); });
    hide(args, item, q, item.position() + warp * kKeys, keys.missing, score, faulty);
    raise_maximum(score, log_scale, v_has_scales);
    for_each(score, [&](float& s, int group, int c, int i) {
      const float weight = weight_of(s, maximum[c][i % 2]);
      sum[c][i % 2] += weight;
      s = weight;
      if constexpr (!kIsFloat<V> && !kIsBlocks<V>) {
        if (weight != 0.0f) s = weight * value_scale[group][i / 2];  // hidden ones may have any scale
      }
      // The weight that multiplies the codes is used here too: what its rounding changes is the whole element.
      if constexpr (kHasZeroPoint<V>) {
        const float rounded = value_scale[group][i / 2] == 0.0f ? weight : to_float(from_float<T>(s));
        if (weight != 0.0f) zero_sum[c][i % 2] = fmaf(rounded, zero_point[group][i / 2], zero_sum[c][i % 2]);
      }
    });
    if constexpr (kIsBlocks<V>) {  // finite ones
      if (v_has_scales) for_each(score, [&](float& s, int group, int, int i) { s *= value_scale[group][i / 2]; });
    }
    multiply_values(score, stage, keys);
  }

  // Ends this block's part of a work item. The ranges first_range to last_range have parts of it. The warps add up their sums. If this
  // block is the only one, or the last to arrive, it stores the rows. `parity` selects one of shared.faulty.
  template <class Cursor>
  __device__ __forceinline__ void end_item(const AttentionArgs& args, const Cursor& item, int first_range, int last_range,
                                           int parity, Shared& shared) {
    constexpr int kFours = kHeadDim / 4;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int g = lane / 4, t = lane % 4;
    const int head_dim = args.v_head_dim;
    const int num_packed = min(kRows, item.num_packed(args) - item.first_packed());  // of this work item
    const bool whole = first_range == last_range;
    float value_scale = 1.0f;
    if constexpr (kScaled)
      value_scale = kIsBlocks<V> ? block_factor : shared_scale(args.p.kv.v.format, args.p.kv.v.scale, item.kv_head);
    const int part =
        (part_of(first_range, static_cast<int>(blockIdx.y)) * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x)) * kRows;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int offset = 4; offset < 32; offset *= 2) {
          sum[c][i] += __shfl_xor_sync(0xffffffffu, sum[c][i], offset);
          if constexpr (kHasZeroPoint<V>) zero_sum[c][i] += __shfl_xor_sync(0xffffffffu, zero_sum[c][i], offset);
        }
        if (g == 0) {
          const int row = c * 8 + 2 * t + i;
          shared.maximum[warp][row] = maximum[c][i];
          shared.sum[warp][row] = sum[c][i];
          if constexpr (kHasZeroPoint<V>) shared.zero_sum[warp][row] = zero_sum[c][i];
        }
      }
#pragma unroll
      for (int tile = 0; tile < ValuesOf::kTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // rows 2t and 2t + 1 of four lanes: in different banks
          shared.out[warp][2 * t + i % 2][ValuesOf::channel(tile, g, i / 2) ^ (t * 8)] = out[tile][c][i];
        }
      }
      __syncthreads();
      const unsigned faulty = shared.faulty[parity];
      const int rows = min(8, num_packed - c * 8);
      for (int i = threadIdx.x; i < rows * kFours; i += kDecodeMmaThreads) {
        const int of_column = i / kFours;
        const int row = c * 8 + of_column;
        const int d = i % kFours * 4;
        if (d >= head_dim) continue;
        const bool fault = item.sequence.too_long || (faulty >> row & 1) != 0;
        float row_maximum = -INFINITY;
#pragma unroll
        for (int w = 0; w < kDecodeMmaWarps; ++w) row_maximum = fmaxf(row_maximum, shared.maximum[w][row]);
        float row_sum = 0.0f;
        [[maybe_unused]] float row_zero_sum = 0.0f;
        float values[4] = {};
#pragma unroll
        for (int w = 0; w < kDecodeMmaWarps; ++w) {
          const float weight = weight_of(shared.maximum[w][row], row_maximum);
          row_sum = fmaf(weight, shared.sum[w][row], row_sum);
          const float4 four = *reinterpret_cast<const float4*>(&shared.out[w][of_column][d ^ (of_column / 2 * 8)]);
          values[0] = fmaf(weight, four.x, values[0]);
          values[1] = fmaf(weight, four.y, values[1]);
          values[2] = fmaf(weight, four.z, values[2]);
          values[3] = fmaf(weight, four.w, values[3]);
          if constexpr (kHasZeroPoint<V>) row_zero_sum = fmaf(weight, shared.zero_sum[w][row], row_zero_sum);
        }
#pragma unroll
        for (float& value : values) {
          if constexpr (kScaled) value *= value_scale;
          if constexpr (kHasZeroPoint<V>) value += row_zero_sum;  // as much for every channel
        }
        if (whole) {
          store_row(args, item, item.first_packed() + row, d, row_maximum, row_sum, fault, values);
        } else {
          *reinterpret_cast<float4*>(&args.partial_out[(part + row) * head_dim + d]) = {values[0], values[1], values[2],
                                                                                        values[3]};
          if (d == 0) args.partial_stats[part + row] = {row_maximum, fault ? -1.0f : row_sum};
        }
      }
      if (threadIdx.x == 0) shared.faulty[1 - parity] = 0;
      __syncthreads();
    }
    if (whole) return;
    uint32_t* const counter = &args.counters[first_range * gridDim.x + blockIdx.x];
    if (threadIdx.x == 0) shared.arrived = count_arrival(counter);
    __syncthreads();
    if (shared.arrived != static_cast<unsigned>(last_range - first_range)) return;
    if (threadIdx.x == 0) *counter = 0;
#pragma unroll 1
    for (int row = warp; row < num_packed; row += kDecodeMmaWarps) {
      using Row = RowOfParts<kRows, kHeadDim>;
      Row sums(args, first_range, last_range, row);
      if (lane >= Row::kLanes) continue;
#pragma unroll
      for (int four = 0; four < Row::kFours; ++four) {
        const int d = lane * 4 + four * 128;
        if (d < head_dim) {
          store_row(args, item, item.first_packed() + row, d, sums.maximum, sums.sum, sums.fault, sums.values[four]);
        }
      }
    }
  }

 private:
  // A lane has the scores of key group * 16 + g + i / 2 * 8 and packed row 2t + i % 2 of the column tile. They become weights in place.
  using Scores = float[kGroups][kColumns][4];

  // Calls f(score, group, column tile, i) for all of them.
  template <class F>
  __device__ __forceinline__ static void for_each(Scores& score, const F& f) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
#pragma unroll
        for (int i = 0; i < 4; ++i) f(score[group][c][i], group, c, i);
      }
    }
  }

  __device__ __forceinline__ static void multiply_keys(const Queries& q, const Stage& stage,
                                                       [[maybe_unused]] const StageKeys& keys, Scores& score) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const unsigned char* const rows = stage.k + group * kKeyGroup * KeysOf::kRowBytes;
      if constexpr (std::is_same_v<K, BlockFp8>) {
        multiply_scaled_blocks(q, rows, keys.k_blocks.of_blocks + group * kKeyGroup, score[group]);
        continue;
      }
      float halves[2][kColumns][4] = {};  // two chains of sums
      const auto add_step = [&](int step, const uint32_t(&a)[4]) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          multiply_matrices<T>(halves[step % 2][c], a, q.elements[step][c][0], q.elements[step][c][1]);
        }
      };
      if constexpr (std::is_same_v<K, BlockFp4>) {
        KeysOf::for_each_step(rows, keys.k_blocks.of_blocks[group * kKeyGroup], lane, add_step);
      } else {
        KeysOf::for_each_step(rows, lane, add_step);
      }
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
#pragma unroll
        for (int i = 0; i < 4; ++i) score[group][c][i] = halves[0][c][i] + halves[1][c][i];
      }
    }
  }

  // The part of a score that a block has is multiplied by the block's scale.
  template <int kBlocks>
  __device__ __forceinline__ static void multiply_scaled_blocks(const Queries& q, const unsigned char* rows,
                                                                const float (*scales)[kBlocks], float (&score)[kColumns][4]) {
    const int lane = threadIdx.x % 32;
    float part[kColumns][4];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (float& of_key : score[c]) of_key = 0.0f;
    }
    KeysOf::for_each_step(rows, lane, [&](int step, const uint32_t(&a)[4]) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        if (step % 2 == 0) {
#pragma unroll
          for (float& of_key : part[c]) of_key = 0.0f;
        }
        multiply_matrices<T>(part[c], a, q.elements[step][c][0], q.elements[step][c][1]);
        if (step % 2 == 0) continue;
#pragma unroll
        for (int i = 0; i < 4; ++i) score[c][i] = fmaf(part[c][i], scales[lane / 4 + i / 2 * 8][step / 2], score[c][i]);
      }
    });
  }

  // Scores of keys that a row does not see, or that have no page, become -infinity.
  template <class Cursor>
  __device__ __forceinline__ static void hide(const AttentionArgs& args, const Cursor& item, const Queries& q, int first_key,
                                              unsigned missing, Scores& score, unsigned& faulty) {
    if (first_key >= q.all_see_from && first_key + kKeys <= q.all_see_to && missing == 0) return;
    const int lane = threadIdx.x % 32;
    for_each(score, [&](float& s, int group, int c, int i) {
      const int key = group * kKeyGroup + lane / 4 + i / 2 * 8;
      if (!q.visible[c][i % 2].hold(first_key + key) || (missing >> key & 1) != 0) s = -INFINITY;
    });
    if (missing != 0 && lane == 0) {
#pragma unroll 1
      for (int key = 0; key < kKeys; ++key) {
        if ((missing >> key & 1) == 0) continue;
        const auto rows = static_cast<unsigned>(rows_that_see<kRows>(args, item.sequence, item.first_packed(), first_key + key));
        atomicOr(&faulty, rows);
      }
    }
  }

  // If there are larger scores, all sums are divided by what the maximum grows by.
  __device__ __forceinline__ void raise_maximum(Scores& score, [[maybe_unused]] const float (&log_scale)[kGroups][2],
                                                bool v_has_scales) {
    float new_maximum[kColumns][2];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int i = 0; i < 2; ++i) new_maximum[c][i] = maximum[c][i];
    }
    if (kIsFloat<V> || (kIsBlocks<V> && !v_has_scales)) {
      for_each(score, [&](float& s, int, int c, int i) { new_maximum[c][i % 2] = fmaxf(new_maximum[c][i % 2], s); });
    } else {
      for_each(score, [&](float& s, int group, int c, int i) {
        new_maximum[c][i % 2] = fmaxf(new_maximum[c][i % 2], s + log_scale[group][i / 2]);
      });
    }
    bool larger = false;
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      larger = larger || new_maximum[c][0] != maximum[c][0] || new_maximum[c][1] != maximum[c][1];
    if (!__any_sync(0xffffffffu, larger)) return;  // mostly, after the first steps
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int offset = 4; offset < 32; offset *= 2) {
          new_maximum[c][i] = fmaxf(new_maximum[c][i], __shfl_xor_sync(0xffffffffu, new_maximum[c][i], offset));
        }
        const float rescale = weight_of(maximum[c][i], new_maximum[c][i]);
        maximum[c][i] = new_maximum[c][i];
        sum[c][i] *= rescale;
        if constexpr (kHasZeroPoint<V>) zero_sum[c][i] *= rescale;
#pragma unroll
        for (int tile = 0; tile < ValuesOf::kTiles; ++tile) {
          out[tile][c][i] *= rescale;
          out[tile][c][2 + i] *= rescale;
        }
      }
    }
  }

  __device__ __forceinline__ void multiply_values(const Scores& weight, const Stage& stage,
                                                  [[maybe_unused]] const StageKeys& keys) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      uint32_t weights[kColumns][2];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          weights[c][half] = transpose_matrix(pack<T>(weight[group][c][2 * half], weight[group][c][2 * half + 1]));
        }
      }
      const unsigned char* const rows = stage.v + group * kKeyGroup * ValuesOf::kRowBytes;
      const auto add_tile = [&](int tile, const uint32_t(&a)[4]) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) multiply_matrices<T>(out[tile][c], a, weights[c][0], weights[c][1]);
      };
      if constexpr (std::is_same_v<V, BlockFp4>) {
        ValuesOf::for_each_tile(rows, keys.v_blocks.of_blocks + group * keys.v_blocks.kOfGroup, lane, add_tile);
      } else if constexpr (std::is_same_v<V, BlockFp8>) {  // two tiles are a block
        constexpr int kChunks = kHeadDim / 32;
        const auto* const scales =
            reinterpret_cast<const uint2*>(keys.v_blocks.of_blocks + group * keys.v_blocks.kOfGroup) + lane % 4 * kChunks;
        uint32_t scaled[kColumns][2];
        ValuesOf::for_each_tile(rows, lane, [&](int tile, const uint32_t(&a)[4]) {
          if (tile % 2 == 0) {
            const uint2 pairs = scales[tile / 2];
#pragma unroll
            for (int c = 0; c < kColumns; ++c) {
              scaled[c][0] = multiply_pairs<T>(weights[c][0], pairs.x);
              scaled[c][1] = multiply_pairs<T>(weights[c][1], pairs.y);
            }
          }
#pragma unroll
          for (int c = 0; c < kColumns; ++c) multiply_matrices<T>(out[tile][c], a, scaled[c][0], scaled[c][1]);
        });
      } else {
        ValuesOf::for_each_tile(rows, lane, add_tile);
      }
    }
  }

  // Stores four channels of a row whose sums are complete.
  template <class Cursor>
  __device__ __forceinline__ static void store_row(const AttentionArgs& args, const Cursor& item, int packed, int d,
                                                   float row_maximum, float row_sum, bool fault, float (&values)[4]) {
    const PagedAttentionParams& p = args.p;
    const int j = packed / args.group;
    const int64_t q_head = static_cast<int64_t>(item.kv_head) * args.group + packed % args.group;
    if (fault && d == 0 && item.kv_head == 0 && packed % args.group == 0) record_row_fault(args, item.sequence, j);
    row_sum += sink_weight(p, q_head, row_maximum);
    const bool zero = fault || item.sequence.limit(j) == 0;
    // Where V has no scales the sum is 1 or more, and its reciprocal loses nothing that 16 bits would keep.
    const float inverse = kIsFloat<V> ? 1.0f / row_sum : 1.0f;
#pragma unroll
    for (float& value : values) value = zero ? 0.0f : kIsFloat<V> ? value * inverse : value / row_sum;
    store_four(p.dtype, p.out.data, (item.sequence.first_row + j) * p.out.token_stride + q_head * p.out.head_stride + d, values);
  }
};

}  // namespace prologue::cuda
