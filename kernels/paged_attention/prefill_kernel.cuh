// Prefill: a block = a tile of packed rows of one kv head, over all positions that they see. prefill_mma_kernel: a warp = 16 rows
// of 64, or 32 of 128, fragments of mma.m16n8k16. prefill_simple_kernel: 16 x 16 threads, each with a few rows, keys and channels.
//
// A row takes the same steps whatever else its tile holds: keys come in tiles that start at multiples of their size (in
// prefill_simple_kernel only if the call is batch-invariant), a hidden key has the weight 0, and tiles without a key that the row
// sees leave its maximum and sums as they are. Only the sign of a sum that is 0 could tell: it is dropped before the division.
#pragma once

#include <cuda_pipeline_primitives.h>

#include <iterator>

#include <prologue/kernels/base/device/instructions.cuh>
#include <prologue/kernels/paged_attention/attention_args.cuh>
#include <prologue/kernels/paged_attention/attention_instances.cuh>
#include <prologue/kernels/paged_attention/cache_codes.cuh>
#include <prologue/kernels/paged_attention/row_tile.cuh>

namespace prologue::cuda {

// Where a position's keys and values are; negative if there are none.
struct KvOffset {
  int64_t k;
  int64_t v;
};

// What a block of shared memory holds. kMaxKeys: heads of 256 channels with 64 keys need more than the 99 KiB that a block has on
// sm_86, sm_89 and sm_120.
template <class T, int kHeadDim, bool kQuantized, int kMaxKeys, int kRowTiles>
struct MmaTile {
  static constexpr int kRows = 64 * kRowTiles;
  static constexpr int kKeys = kMaxKeys;
  static constexpr int kThreads = 128;
  static constexpr int kStride = kHeadDim + 8;  // 16 bytes of padding: the eight rows of a matrix are in different banks
  alignas(16) T q[kRows][kStride];              // the output passes through here too
  alignas(16) T k[kKeys][kStride];
  alignas(16) T v[kKeys][kStride];
  KvOffset offsets[2][kKeys];
  float k_scales[2][kQuantized ? kKeys : 1];  // where every token has its own
  float v_scales[2][kQuantized ? kKeys : 1];
  unsigned faulty[kRows / 32];  // a bit per row
};

// 0 where there are none.
template <class Tile, int kStages>
struct WithZeroPoints : Tile {
  float k_zero_points[kStages][Tile::kKeys];
  float v_zero_points[kStages][Tile::kKeys];
};

template <class T, int kHeadDim, PrefillCache kCache, int kMaxKeys, int kRowTiles>
using MmaTileOf =
    std::conditional_t<kCache == PrefillCache::any_formats, WithZeroPoints<MmaTile<T, kHeadDim, true, kMaxKeys, kRowTiles>, 2>,
                       MmaTile<T, kHeadDim, kCache == PrefillCache::codes, kMaxKeys, kRowTiles>>;

// Moves K or V of a tile from the cache (codes, held in registers) to shared memory (numbers of T).
template <class T, class Tile, int kHeadDim, bool kAnyFormats>
class CodeTile {
 public:
  // `offset_of(key)` is that of the key's first element, negative for none.
  template <class F>
  __device__ void load(const void* data, DType type, int num_chunks, const F& offset_of) {
#pragma unroll
    for (int n = 0; n < kPerThread; ++n) {
      const int64_t offset = offset_of(key_of(n));
      const bool there = offset >= 0 && chunk_of(n) < num_chunks;
      codes_[n] = load_codes(data, offset + chunk_of(n) * 8, there ? 8 : 0, true,
                             kAnyFormats ? dtype_bits(type) == 4 : type == DType::int4);
    }
  }
  // `value_of(key)(number)` is what is stored for a code's number.
  template <class F>
  __device__ void store(T (&to)[Tile::kKeys][Tile::kStride], DType type, const F& value_of) const {
#pragma unroll
    for (int n = 0; n < kPerThread; ++n) {
      float values[8];
      expand_codes<kAnyFormats>(type, codes_[n], values);
      const auto value = value_of(key_of(n));
      const Group<T> group = make_group<T>([&](int i) { return value(values[i]); });
      *reinterpret_cast<Group<T>*>(&to[key_of(n)][chunk_of(n) * 8]) = group;
    }
  }

 private:
  static constexpr int kChunks = kHeadDim / 8;
  static constexpr int kPerThread = Tile::kKeys * kChunks / Tile::kThreads;
  __device__ static int key_of(int n) { return (threadIdx.x + n * Tile::kThreads) / kChunks; }
  __device__ static int chunk_of(int n) { return (threadIdx.x + n * Tile::kThreads) % kChunks; }
  uint2 codes_[kPerThread];
};

// Blocks of an SM, for whose registers there is room: a block less costs a quarter of the speed.
template <int kHeadDim, int kRowTiles>
inline constexpr int kMmaBlocksPerSm = kRowTiles > 1     ? 2
                                       : kHeadDim <= 96  ? 4
                                       : kHeadDim <= 128 ? 3
                                                         : 2;

// A block = 64 kRowTiles packed rows of one kv head, over kMaxKeys keys at a time; a warp = kRowTiles times 16 of the rows, with the
// fragments of mma.m16n8k16: lane l holds rows l / 4 and l / 4 + 8, columns 2 (l % 4) and the next of every 8. Two tiles of rows share what a
// warp loads of K and V from shared memory, which limits a single one. While keys are multiplied the
// values are on their way, and vice versa. The head dims are multiples of 8 up to kHeadDim; the channels beyond them are zeros.
// The cache holds T, or codes: those pass through registers, K without its scale, which multiplies the scores, V with the scale
// of its token, or without the scale that all tokens share, which multiplies the output. Zero points: that of K, times the sum of
// a row of q, is added to the score; that of V is added where its token's scale is multiplied.
template <class T, int kHeadDim, PrefillCache kCache, int kMaxKeys, int kRowTiles>
__global__ void __launch_bounds__(MmaTileOf<T, kHeadDim, kCache, kMaxKeys, kRowTiles>::kThreads,
                                  kMmaBlocksPerSm<kHeadDim, kRowTiles>)
    prefill_mma_kernel(const __grid_constant__ AttentionArgs args) {
  using Tile = MmaTileOf<T, kHeadDim, kCache, kMaxKeys, kRowTiles>;
  constexpr bool kAnyFormats = kCache == PrefillCache::any_formats;
  constexpr bool kQuantized = kCache == PrefillCache::codes || kAnyFormats;
  constexpr int kChunks = kHeadDim / 8;  // of 16 bytes, in a row
  Tile& shared = *dynamic_shared<Tile>();
  const PagedAttentionParams& p = args.p;
  if (!p.past_is_ready) wait_for_previous_kernels();
  RowTile tile;
  const bool found = find_tile(args, static_cast<int>(blockIdx.x) / args.num_kv_heads, Tile::kRows, tile);
  const Sequence& sequence = tile.sequence;
  const int kv_head = static_cast<int>(blockIdx.x) % args.num_kv_heads;
  const int k_chunks = static_cast<int>(p.head_dim) / 8;
  const int v_chunks = args.v_head_dim / 8;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int num_key_tiles = (tile.last_limit + Tile::kKeys - 1) / Tile::kKeys;
  const int first_needed = lowest(args, tile.first_limit);
  const int first_key_tile = first_needed / Tile::kKeys;

  // A thread has a key of each tile, and asks for its page while the tile before it is multiplied.
  const auto is_needed = [&](int position) { return position >= first_needed && position < tile.last_limit; };
  const auto page_in = [&](int key_tile) {
    const int position = key_tile * Tile::kKeys + threadIdx.x;
    const bool asks = threadIdx.x < Tile::kKeys && is_needed(position);
    return asks ? sequence.pages[page_index(args, place_of(args, position))] : -1;
  };
  int page = page_in(first_key_tile);

  wait_for_previous_kernels();
  if (!found) return;
  if (sequence.bad_rows && tile.first_packed == 0) clear_bad_rows(args, tile.sequence_index, kv_head);
  if (tile.num_packed == 0) return;

  const auto q_head = [&](int packed) { return static_cast<int64_t>(kv_head) * args.group + packed % args.group; };
  const auto copy_cache_tile = [&](T(*to)[Tile::kStride], const void* from, int64_t head_offset, int num_chunks, int stage,
                                   auto offset_of) {
    const T* const of_head = static_cast<const T*>(from) + head_offset;
    static_assert(Tile::kKeys * kChunks % Tile::kThreads == 0);
#pragma unroll
    for (int n = 0; n < Tile::kKeys * kChunks / Tile::kThreads; ++n) {
      const int i = static_cast<int>(threadIdx.x) + n * Tile::kThreads;
      const int key = i / kChunks;
      const int chunk = i % kChunks;
      const int64_t offset = offset_of(shared.offsets[stage][key]);
      copy_or_clear(&to[key][chunk * 8], of_head + chunk * 8 + offset, offset >= 0 && chunk < num_chunks);
    }
    __pipeline_commit();
  };
  const auto copy_keys = [&](int stage) {
    copy_cache_tile(shared.k, p.kv.k.data, kv_head * p.kv.k.strides.head, k_chunks, stage,
                    [](const KvOffset& offset) { return offset.k; });
  };
  const auto copy_values = [&](int stage) {
    copy_cache_tile(shared.v, p.kv.v.data, kv_head * p.kv.v.strides.head, v_chunks, stage,
                    [](const KvOffset& offset) { return offset.v; });
  };

  // The same for codes, which wait in registers until their buffer is free. Of any formats, K or V may still hold T: then that one
  // is copied when its codes would be loaded.
  using Codes = std::conditional_t<kQuantized, CodeTile<T, Tile, kHeadDim, kAnyFormats>, std::nullptr_t>;
  [[maybe_unused]] Codes codes;
  const KvFormat& k_format = p.kv.k.format;
  const KvFormat& v_format = kAnyFormats ? p.kv.v.format : p.kv.k.format;
  const bool k_scale_per_token = kQuantized && k_format.scaling == KvScaling::token_head;
  const bool v_scale_per_token = kQuantized && v_format.scaling == KvScaling::token_head;
  [[maybe_unused]] const bool k_holds_codes = !kAnyFormats || dtype_is_quantized(k_format.type);
  [[maybe_unused]] const bool v_holds_codes = !kAnyFormats || dtype_is_quantized(v_format.type);
  const auto load_keys = [&](int stage) {
    if constexpr (kQuantized) {
      if (!k_holds_codes) return copy_keys(stage);
      codes.load(p.kv.k.data, k_format.type, k_chunks, [&](int key) {
        const int64_t offset = shared.offsets[stage][key].k;
        return offset < 0 ? offset : offset + kv_head * p.kv.k.strides.head;
      });
    }
  };
  const auto load_values = [&](int stage) {
    if constexpr (kQuantized) {
      if (!v_holds_codes) return copy_values(stage);
      codes.load(p.kv.v.data, v_format.type, v_chunks, [&](int key) {
        const int64_t offset = shared.offsets[stage][key].v;
        return offset < 0 ? offset : offset + kv_head * p.kv.v.strides.head;
      });
    }
  };
  const auto store_keys = [&] {
    if constexpr (kQuantized) {
      if (k_holds_codes) codes.store(shared.k, k_format.type, [](int) { return [](float number) { return number; }; });
    }
  };
  const auto store_values = [&](int stage) {
    if constexpr (kQuantized) {
      if (!v_holds_codes) return;
      codes.store(shared.v, v_format.type, [&](int key) {
        const float scale = v_scale_per_token ? shared.v_scales[stage][key] : 1.0f;
        if constexpr (kAnyFormats) {
          const float zero_point = v_scale_per_token ? shared.v_zero_points[stage][key] : 0.0f;
          return [=](float number) { return fmaf(number, scale, zero_point); };
        } else {
          return [=](float number) { return number * scale; };
        }
      });
    }
  };

  const auto find_keys = [&](int key_tile) {  // positions that no row of the tile needs are zeros, like those of bad pages
    const int position = key_tile * Tile::kKeys + threadIdx.x;
    if (threadIdx.x >= Tile::kKeys) return;
    CacheSlot slot = {-1, 0};
    if (is_needed(position)) {
      slot = cache_slot(args, page, place_of(args, position));
      if (slot.page < 0) {
        for (int i = 0; i < Tile::kRows / 32; ++i) {
          const uint64_t rows = rows_that_see<32>(args, sequence, tile.first_packed + 32 * i, position);
          atomicOr(&shared.faulty[i], static_cast<unsigned>(rows));
        }
      }
    }
    page = page_in(key_tile + 1);
    const bool exists = slot.page >= 0;
    shared.offsets[key_tile % 2][threadIdx.x] = {exists ? slot.in(p.kv.k.strides) : -1, exists ? slot.in(p.kv.v.strides) : -1};
    if (k_scale_per_token) {
      shared.k_scales[key_tile % 2][threadIdx.x] = exists ? token_scale(p.kv.k.scale, p.kv.k.scale_strides, slot, kv_head) : 1.0f;
      if constexpr (kAnyFormats) {
        const bool given = exists && k_format.type == DType::uint4;
        shared.k_zero_points[key_tile % 2][threadIdx.x] =
            given ? token_zero_point(p.kv.k.scale, p.kv.k.scale_strides, slot, kv_head) : 0.0f;
      }
    }
    if (v_scale_per_token) {
      shared.v_scales[key_tile % 2][threadIdx.x] = exists ? token_scale(p.kv.v.scale, p.kv.v.scale_strides, slot, kv_head) : 1.0f;
      if constexpr (kAnyFormats) {
        const bool given = exists && v_format.type == DType::uint4;
        shared.v_zero_points[key_tile % 2][threadIdx.x] =
            given ? token_zero_point(p.kv.v.scale, p.kv.v.scale_strides, slot, kv_head) : 0.0f;
      }
    }
  };

  if (threadIdx.x < Tile::kRows / 32) shared.faulty[threadIdx.x] = 0;
  for (int i = threadIdx.x; i < Tile::kRows * kChunks; i += Tile::kThreads) {
    const int packed = tile.first_packed + i / kChunks;
    const int chunk = i % kChunks;
    const bool there = packed < tile.num_packed && chunk < k_chunks;
    const T* row = static_cast<const T*>(p.q.data) + (sequence.first_row + packed / args.group) * p.q.token_stride +
                   q_head(packed) * p.q.head_stride;
    copy_or_clear(&shared.q[i / kChunks][chunk * 8], there ? row + chunk * 8 : static_cast<const T*>(p.q.data), there);
  }
  __pipeline_commit();
  __syncthreads();
  find_keys(first_key_tile);
  __syncthreads();
  if (num_key_tiles > 0) {
    const int stage = first_key_tile % 2;
    if constexpr (kQuantized) {
      load_keys(stage);
      store_keys();
      load_values(stage);
    } else {
      copy_keys(stage);
      copy_values(stage);
    }
  }

  const int first_row = warp * 16 * kRowTiles;  // of the warp's, in the block's tile
  // Half h of row tile r: rows first_row + r * 16 + h * 8 + lane / 4.
  const auto row_of = [&](int r, int half) { return first_row + r * 16 + half * 8 + lane / 4; };
  float out[kRowTiles][kChunks][4] = {};
  float maximum[kRowTiles][2];
  float sum[kRowTiles][2];
  VisibleKeys visible[kRowTiles][2];
  [[maybe_unused]] float q_sum[kRowTiles][2];  // of a row's channels; 0 where K has no zero points
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int packed = tile.first_packed + row_of(r, half);
      visible[r][half] = VisibleKeys(args, packed < tile.num_packed ? sequence.limit(packed / args.group) : 0);
      maximum[r][half] = -INFINITY;
      sum[r][half] = 0.0f;
      q_sum[r][half] = 0.0f;
    }
  }

  // Scores are scaled where they become weights, in one instruction; at once where the largest would not be the largest any more, or where
  // something comes in between.
  float score_scale = args.score_scale;
  if constexpr (kQuantized) score_scale *= shared_scale(k_format, p.kv.k.scale, kv_head);
  const bool scaled_at_once = args.cap_log2 > 0.0f || !(score_scale > 0.0f);
  const float weight_scale = scaled_at_once ? 1.0f : score_scale;
  const auto shift_of = [&](float of_row) { return of_row == -INFINITY ? 0.0f : __fmul_rn(of_row, weight_scale); };

  if (kAnyFormats && k_format.type == DType::uint4) {
    __pipeline_wait_prior(0);
    __syncthreads();  // Q is there
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const T* row = shared.q[row_of(r, half)];
        for (int d = lane % 4; d < kHeadDim; d += 4) q_sum[r][half] += to_float(row[d]);
        q_sum[r][half] += __shfl_xor_sync(0xffffffffu, q_sum[r][half], 1);
        q_sum[r][half] += __shfl_xor_sync(0xffffffffu, q_sum[r][half], 2);
      }
    }
  }

  for (int key_tile = first_key_tile; key_tile < num_key_tiles; ++key_tile) {
    __pipeline_wait_prior(kQuantized ? 0 : 1);  // the keys are there
    __syncthreads();
    const bool more = key_tile + 1 < num_key_tiles;
    if (more) find_keys(key_tile + 1);
    float score[kRowTiles][Tile::kKeys / 8][4] = {};
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
    if constexpr (kQuantized) {
      store_values(key_tile % 2);
    } else {
      __pipeline_wait_prior(0);
    }
    __syncthreads();  // the values are there, and every warp is done with the keys
    if (more) kQuantized ? load_keys((key_tile + 1) % 2) : copy_keys((key_tile + 1) % 2);

    const int first_key = key_tile * Tile::kKeys + lane % 4 * 2;
    const bool masked = (key_tile + 1) * Tile::kKeys > tile.first_limit || key_tile * Tile::kKeys < lowest(args, tile.last_limit);
    // f(score, row tile, group of 8 keys, i) for all of a lane: row half i / 2, key 2 (lane % 4) + i % 2 of the group.
    const auto for_each_score = [&](const auto& f) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int n = 0; n < Tile::kKeys / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) f(score[r][n][i], r, n, i);
        }
      }
    };
    if (k_scale_per_token) {
      for_each_score([&](float& s, int r, int n, int i) {
        const int key = lane % 4 * 2 + n * 8 + i % 2;
        s *= shared.k_scales[key_tile % 2][key];
        if constexpr (kAnyFormats) s = fmaf(shared.k_zero_points[key_tile % 2][key], q_sum[r][i / 2], s);
      });
    }
    if (scaled_at_once) for_each_score([&](float& s, int, int, int) { s *= score_scale; });
    if (args.cap_log2 > 0.0f) for_each_score([&](float& s, int, int, int) { s = capped_roughly(args, s); });
    if (masked) {
      for_each_score([&](float& s, int r, int n, int i) {
        if (!visible[r][i / 2].hold(first_key + n * 8 + i % 2)) s = -INFINITY;
      });
    }
    float new_maximum[kRowTiles][2];
    bool larger = false;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) new_maximum[r][half] = maximum[r][half];
    }
    for_each_score([&](float& s, int r, int, int i) { new_maximum[r][i / 2] = fmaxf(new_maximum[r][i / 2], s); });
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
    if (__any_sync(0xffffffffu, larger)) {  // rarely, after the first tiles
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float rescale = maximum[r][half] == -INFINITY
                                    ? 0.0f
                                    : exp2_approximate(shift_of(maximum[r][half]) - shift_of(new_maximum[r][half]));
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
    float shift[kRowTiles][2];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) shift[r][half] = shift_of(maximum[r][half]);
    }
    for_each_score([&](float& s, int r, int, int i) {
      s = exp2_approximate(fmaf(s, weight_scale, -shift[r][i / 2]));
      sum[r][i / 2] += s;
    });
#pragma unroll
    for (int n = 0; n < Tile::kKeys / 16; ++n) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* const two = &score[r][2 * n + i / 2][i % 2 * 2];
          a[r][i] = pack<T>(two[0], two[1]);
        }
      }
#pragma unroll
      for (int c = 0; c < kHeadDim / 16; ++c) {
        uint32_t b[4];
        load_matrices_transposed(b, &shared.v[n * 16 + lane % 16][c * 16 + lane / 16 * 8]);
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          multiply_matrices<T>(out[r][2 * c], a[r], b[0], b[1]);
          multiply_matrices<T>(out[r][2 * c + 1], a[r], b[2], b[3]);
        }
      }
    }
    if (more) {
      if constexpr (kQuantized) {
        store_keys();
        if (!v_holds_codes) __syncthreads();  // every warp is done with the values, which are copied
        load_values((key_tile + 1) % 2);
      } else {
        __syncthreads();  // every warp is done with the values
        copy_values((key_tile + 1) % 2);
      }
    }
  }
  __pipeline_wait_prior(0);  // without keys to wait for, Q may still be on its way to where the output passes

  __syncthreads();
  float value_scale = 1.0f;
  if constexpr (kQuantized) value_scale = shared_scale(v_format, p.kv.v.scale, kv_head);
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
      row_sum += sink_weight(p, q_head(packed), maximum[r][half] * weight_scale);
      const float inverse = 1.0f / row_sum;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        float two[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          two[i] = fmaf(out[r][c][2 * half + i], inverse, 0.0f);  // -0 becomes 0
          if constexpr (kQuantized) two[i] *= value_scale;
        }
        *reinterpret_cast<uint32_t*>(&shared.q[row][c * 8 + lane % 4 * 2]) = zero ? 0 : pack<T>(two[0], two[1]);
      }
    }
  }
  __syncwarp();  // a warp stores the rows that it made
  for (int i = lane; i < 16 * kRowTiles * v_chunks; i += 32) {
    const int row = first_row + i / v_chunks;
    const int chunk = i % v_chunks;
    const int packed = tile.first_packed + row;
    if (packed >= tile.num_packed) break;
    T* to = static_cast<T*>(p.out.data) + (sequence.first_row + packed / args.group) * p.out.token_stride +
            q_head(packed) * p.out.head_stride + chunk * 8;
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(&shared.q[row][chunk * 8]);
  }
}

// Up to 148 KiB of shared memory; small tiles, with K and V one after the other in one buffer, need less than the 99 KiB that a
// block has on sm_86, sm_89 and sm_120. Heads of up to 128 channels need no more in either.
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

template <int kHeadDim, bool kSmall, PrefillCache kCache>
using SimpleTileOf = std::conditional_t<kCache == PrefillCache::any_formats, WithZeroPoints<SimpleTile<kHeadDim, kSmall>, 1>,
                                        SimpleTile<kHeadDim, kSmall>>;

// A block = kRows packed rows of one kv head. Thread (y, x) of 16 x 16 has kRows / 16 rows from there on, of their scores every
// 16th key from x on, of their outputs the channels 4 x .. 4 x + 3 of every 64. Any types, head dims and alignment; codes are
// multiplied by their scales, and zero points are added, when they are loaded.
template <int kHeadDim, bool kSmall, PrefillCache kCache>
__global__ void __launch_bounds__(SimpleTileOf<kHeadDim, kSmall, kCache>::kThreads, 1)
    prefill_simple_kernel(const __grid_constant__ AttentionArgs args) {
  using Tile = SimpleTileOf<kHeadDim, kSmall, kCache>;
  constexpr bool kAnyFormats = kCache == PrefillCache::any_formats;
  const auto load_one = [](DType type, const void* data, int64_t i) {
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
  // Channels d .. d + 3 of a row of `width` that starts at element `offset`, zeros where there are none.
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
        const int place = place_of(args, position);
        slot = cache_slot(args, sequence.pages[page_index(args, place)], place);
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
    const auto load_keys = [&](int key, int d) {
      const float4 k = load_four(k_format.type, p.kv.k.data, shared.offsets[key].k, d, head_dim);
      float4& to = *reinterpret_cast<float4*>(&keys[key][d]);
      if constexpr (kAnyFormats) {
        to = shifted(k, shared.k_scales[key], shared.k_zero_points[0][key]);
      } else {
        to = scaled(k, shared.k_scales[key]);
      }
    };
    const auto load_values = [&](int key, int d) {
      const float4 v = load_four(v_format.type, p.kv.v.data, shared.offsets[key].v, d, v_head_dim);
      float4& to = *reinterpret_cast<float4*>(&values[key][d]);
      if constexpr (kAnyFormats) {
        to = shifted(v, shared.v_scales[key], shared.v_zero_points[0][key]);
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
