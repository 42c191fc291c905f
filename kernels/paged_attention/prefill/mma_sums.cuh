// Prefill by mma.sync: a warp adds up the keys that its rows see.
#pragma once

#include <prologue/kernels/base/device/instructions.cuh>
#include <prologue/kernels/paged_attention/prefill/mma_copies.cuh>

namespace prologue::cuda {

// A warp has kRowTiles times 16 rows, with the fragments of mma.m16n8k16: lane l has rows l / 4 and l / 4 + 8 of each (its halves), columns
// 2 (l % 4) and the next of every 8. Scores are scaled where they become weights, in one instruction; at once where the largest would not
// be the largest any more, or where something comes in between.
template <class T, int kHeadDim, PrefillCache kCache, class Tile>
struct PrefillMmaSums {
  using Copies = PrefillMmaCopies<T, kHeadDim, kCache, Tile>;
  static constexpr int kRowTiles = Tile::kRows / 64;
  static constexpr int kChunks = kHeadDim / 8;
  using Scores =
      float[kRowTiles][Tile::kKeys / 8][4];  // of a lane: row half i / 2, key 2 (lane % 4) + i % 2 of a group of 8; then weights

  const AttentionArgs& args;
  const Copies& copies;
  const int lane = threadIdx.x % 32;
  const int first_row = static_cast<int>(threadIdx.x) / 32 * 16 * kRowTiles;  // of the warp's, in the block's tile
  float out[kRowTiles][kChunks][4] = {};
  float maximum[kRowTiles][2];
  float sum[kRowTiles][2];
  VisibleKeys visible[kRowTiles][2];
  float q_sum[kRowTiles][2];  // of a row's channels; 0 where K has no zero points
  float score_scale;
  bool scaled_at_once;
  float weight_scale;

  __device__ __forceinline__ PrefillMmaSums(const AttentionArgs& args, const Copies& copies) : args(args), copies(copies) {
    const RowTile& tile = copies.tile;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int packed = tile.first_packed + row_of(r, half);
        visible[r][half] = VisibleKeys(args, packed < tile.num_packed ? tile.sequence.limit(packed / args.group) : 0);
        maximum[r][half] = -INFINITY;
        sum[r][half] = 0.0f;
        q_sum[r][half] = 0.0f;
      }
    }
    score_scale = args.score_scale;
    if constexpr (Copies::kQuantized) score_scale *= shared_scale(copies.k_format(), args.p.kv.k.scale, copies.kv_head);
    scaled_at_once = args.cap_log2 > 0.0f || !(score_scale > 0.0f);
    weight_scale = scaled_at_once ? 1.0f : score_scale;
  }

  // Returns half h of row tile r as a row of the block's tile.
  __device__ __forceinline__ int row_of(int r, int half) const { return first_row + r * 16 + half * 8 + lane / 4; }

  // Adds up the channels of each row of q, for zero points of K. Called when q is in shared memory.
  __device__ __forceinline__ void add_up_q() {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const T* row = copies.shared.q[row_of(r, half)];
        for (int d = lane % 4; d < kHeadDim; d += 4) q_sum[r][half] += to_float(row[d]);
        q_sum[r][half] += __shfl_xor_sync(0xffffffffu, q_sum[r][half], 1);
        q_sum[r][half] += __shfl_xor_sync(0xffffffffu, q_sum[r][half], 2);
      }
    }
  }

  __device__ __forceinline__ void multiply_keys(Scores& score) const {
    const Tile& shared = copies.shared;
#pragma unroll
    for (int c = 0; c < kHeadDim / 16; ++c) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) load_matrices(a[r], &shared.q[first_row + r * 16 + lane % 16][c * 16 + lane / 16 * 8]);
#pragma unroll
      for (int n = 0; n < Tile::kKeys / 16; ++n) {
        uint32_t b[4];
        load_matrices(b, &shared.k[n * 16 + lane % 8 + lane / 16 * 8][c * 16 + lane / 8 % 2 * 8]);
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          multiply_matrices<T>(score[r][2 * n], a[r], b[0], b[1]);
          multiply_matrices<T>(score[r][2 * n + 1], a[r], b[2], b[3]);
        }
      }
    }
  }

  // Converts scores into weights, and divides the sums so far by what the maximum has grown by.
  __device__ __forceinline__ void weigh(int key_tile, Scores& score) {
    const RowTile& tile = copies.tile;
    const int first_key = key_tile * Tile::kKeys + lane % 4 * 2;
    const bool masked = (key_tile + 1) * Tile::kKeys > tile.first_limit || key_tile * Tile::kKeys < lowest(args, tile.last_limit);
    if (copies.k_scale_per_token()) {
      for_each(score, [&](float& s, int r, int n, int i) {
        const int key = lane % 4 * 2 + n * 8 + i % 2;
        s *= copies.shared.k_scales[key_tile % 2][key];
        if constexpr (Copies::kAnyFormats) s = fmaf(copies.shared.k_zero_points[key_tile % 2][key], q_sum[r][i / 2], s);
      });
    }
    if (scaled_at_once) for_each(score, [&](float& s, int, int, int) { s *= score_scale; });
    if (args.cap_log2 > 0.0f) for_each(score, [&](float& s, int, int, int) { s = capped_roughly(args, s); });
    if (masked) {
      for_each(score, [&](float& s, int r, int n, int i) {
        if (!visible[r][i / 2].hold(first_key + n * 8 + i % 2)) s = -INFINITY;
      });
    }
    raise_maximum(score);
    float shift[kRowTiles][2];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) shift[r][half] = shift_of(maximum[r][half]);
    }
    for_each(score, [&](float& s, int r, int, int i) {
      s = exp2_approximate(fmaf(s, weight_scale, -shift[r][i / 2]));
      sum[r][i / 2] += s;
    });
  }

  __device__ __forceinline__ void multiply_values(const Scores& weight) {
#pragma unroll
    for (int n = 0; n < Tile::kKeys / 16; ++n) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* const two = &weight[r][2 * n + i / 2][i % 2 * 2];
          a[r][i] = pack<T>(two[0], two[1]);
        }
      }
#pragma unroll
      for (int c = 0; c < kHeadDim / 16; ++c) {
        uint32_t b[4];
        load_matrices_transposed(b, &copies.shared.v[n * 16 + lane % 16][c * 16 + lane / 16 * 8]);
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          multiply_matrices<T>(out[r][2 * c], a[r], b[0], b[1]);
          multiply_matrices<T>(out[r][2 * c + 1], a[r], b[2], b[3]);
        }
      }
    }
  }

  // Stores the rows of the warp. They pass through the shared memory of q.
  __device__ __forceinline__ void store() {
    const PagedAttentionParams& p = args.p;
    const RowTile& tile = copies.tile;
    const Sequence& sequence = tile.sequence;
    Tile& shared = copies.shared;
    const int kv_head = copies.kv_head;
    float value_scale = 1.0f;
    if constexpr (Copies::kQuantized) value_scale = shared_scale(copies.v_format(), p.kv.v.scale, kv_head);
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float row_sum = sum[r][half];
        row_sum += __shfl_xor_sync(0xffffffffu, row_sum, 1);
        row_sum += __shfl_xor_sync(0xffffffffu, row_sum, 2);
        const int row = row_of(r, half);
        const int packed = tile.first_packed + row;
        const bool fault = packed < tile.num_packed && (sequence.too_long || (shared.faulty[row / 32] >> (row % 32) & 1) != 0);
        if (fault && lane % 4 == 0 && kv_head == 0 && packed % args.group == 0)
          record_row_fault(args, sequence, packed / args.group);
        const bool zero = fault || visible[r][half].count == 0;
        row_sum += sink_weight(p, q_head_of(args, kv_head, packed), maximum[r][half] * weight_scale);
        const float inverse = 1.0f / row_sum;
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
          float two[2];
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            two[i] = fmaf(out[r][c][2 * half + i], inverse, 0.0f);  // -0 becomes 0
            if constexpr (Copies::kQuantized) two[i] *= value_scale;
          }
          *reinterpret_cast<uint32_t*>(&shared.q[row][c * 8 + lane % 4 * 2]) = zero ? 0 : pack<T>(two[0], two[1]);
        }
      }
    }
    __syncwarp();  // a warp stores the rows that it made
    const int v_chunks = copies.v_chunks;
    for (int i = lane; i < 16 * kRowTiles * v_chunks; i += 32) {
      const int row = first_row + i / v_chunks;
      const int chunk = i % v_chunks;
      const int packed = tile.first_packed + row;
      if (packed >= tile.num_packed) break;
      T* to = static_cast<T*>(p.out.data) + (sequence.first_row + packed / args.group) * p.out.token_stride +
              q_head_of(args, kv_head, packed) * p.out.head_stride + chunk * 8;
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(&shared.q[row][chunk * 8]);
    }
  }

 private:
  // Calls f(score, row tile, group of 8 keys, i) for all scores of a lane.
  template <class F>
  __device__ __forceinline__ static void for_each(Scores& score, const F& f) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int n = 0; n < Tile::kKeys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) f(score[r][n][i], r, n, i);
      }
    }
  }
  __device__ __forceinline__ float shift_of(float of_row) const {
    const float scaled = __fmul_rn(of_row, weight_scale);
    return scaled == -INFINITY ? 0.0f : scaled;
  }
  __device__ __forceinline__ void raise_maximum(Scores& score) {
    float new_maximum[kRowTiles][2];
    bool larger = false;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) new_maximum[r][half] = maximum[r][half];
    }
    for_each(score, [&](float& s, int r, int, int i) { new_maximum[r][i / 2] = fmaxf(new_maximum[r][i / 2], s); });
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& most = new_maximum[r][half];
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        larger = larger || most != maximum[r][half];
      }
    }
    if (!__any_sync(0xffffffffu, larger)) return;  // mostly, after the first tiles
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float rescale = exp2_approximate(__fmul_rn(maximum[r][half], weight_scale) - shift_of(new_maximum[r][half]));
        maximum[r][half] = new_maximum[r][half];
        sum[r][half] *= rescale;
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
          out[r][c][2 * half] *= rescale;
          out[r][c][2 * half + 1] *= rescale;
        }
      }
    }
  }
};

}  // namespace prologue::cuda
