// Prefill by mma.sync: this file brings the keys and values of a tile from the cache to shared memory. The cache holds T, which is copied,
// or codes, which pass through registers and wait there until their buffer is free. In a call with any formats, K or V may still hold T:
// then it is copied at the point where codes would be loaded.
#pragma once

#include <cuda_pipeline_primitives.h>

#include <cstddef>
#include <type_traits>

#include <prologue/kernels/paged_attention/attention_args.cuh>
#include <prologue/kernels/paged_attention/attention_instances.cuh>
#include <prologue/kernels/paged_attention/cache_codes.cuh>
#include <prologue/kernels/paged_attention/prefill/keys.cuh>
#include <prologue/kernels/paged_attention/row_tile.cuh>

namespace prologue::cuda {

// Lays out the shared memory of a block. kMaxKeys: heads of 256 channels with 64 keys need more than the 99 KiB that a block has on sm_86,
// sm_89 and sm_120.
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

// Returns the q head of a packed row.
__device__ inline int64_t q_head_of(const AttentionArgs& args, int kv_head, int packed) {
  return static_cast<int64_t>(kv_head) * args.group + packed % args.group;
}

template <class T, int kHeadDim, PrefillCache kCache, class Tile>
struct PrefillMmaCopies {
  static constexpr bool kAnyFormats = kCache == PrefillCache::any_formats;
  static constexpr bool kQuantized = kCache == PrefillCache::codes || kAnyFormats;
  static constexpr int kChunks = kHeadDim / 8;  // of 16 bytes, in a row

  const AttentionArgs& args;
  const RowTile& tile;
  Tile& shared;
  const int kv_head;
  const int first_needed;  // position
  const int first_key_tile;
  const int end_of_key_tiles;
  const int k_chunks;
  const int v_chunks;
  int page = -1;  // of the thread's key of the tile that is found next

  __device__ __forceinline__ PrefillMmaCopies(const AttentionArgs& args, const RowTile& tile, Tile& shared, int kv_head)
      : args(args),
        tile(tile),
        shared(shared),
        kv_head(kv_head),
        first_needed(lowest(args, tile.first_limit)),
        first_key_tile(first_needed / Tile::kKeys),
        end_of_key_tiles((tile.last_limit + Tile::kKeys - 1) / Tile::kKeys),
        k_chunks(static_cast<int>(args.p.head_dim) / 8),
        v_chunks(args.v_head_dim / 8) {
    page = page_in(first_key_tile);
  }

  __device__ __forceinline__ const KvFormat& k_format() const { return args.p.kv.k.format; }
  __device__ __forceinline__ const KvFormat& v_format() const { return kAnyFormats ? args.p.kv.v.format : args.p.kv.k.format; }
  __device__ __forceinline__ bool k_scale_per_token() const { return kQuantized && k_format().scaling == KvScaling::token_head; }
  __device__ __forceinline__ bool v_scale_per_token() const { return kQuantized && v_format().scaling == KvScaling::token_head; }
  __device__ __forceinline__ bool k_holds_codes() const { return !kAnyFormats || dtype_is_quantized(k_format().type); }
  __device__ __forceinline__ bool v_holds_codes() const { return !kAnyFormats || dtype_is_quantized(v_format().type); }

  // Finds where the keys of a tile are. Positions that no row needs are zeros, and so are those of bad pages.
  __device__ __forceinline__ void find_keys(int key_tile) {
    const PagedAttentionParams& p = args.p;
    const int position = key_tile * Tile::kKeys + threadIdx.x;
    if (threadIdx.x >= Tile::kKeys) return;
    CacheSlot slot = {-1, 0};
    if (is_needed(position)) {
      slot = cache_slot(args, page, logical_slot_of(args, position));
      if (slot.page < 0) {
        for (int i = 0; i < Tile::kRows / 32; ++i) {
          const uint64_t rows = rows_that_see<32>(args, tile.sequence, tile.first_packed + 32 * i, position);
          atomicOr(&shared.faulty[i], static_cast<unsigned>(rows));
        }
      }
    }
    page = page_in(key_tile + 1);
    const bool exists = slot.page >= 0;
    const int stage = key_tile % 2;
    shared.offsets[stage][threadIdx.x] = {exists ? slot.in(p.kv.k.strides) : -1, exists ? slot.in(p.kv.v.strides) : -1};
    if (k_scale_per_token()) {
      shared.k_scales[stage][threadIdx.x] = exists ? token_scale(p.kv.k.scale, p.kv.k.scale_strides, slot, kv_head) : 1.0f;
      if constexpr (kAnyFormats) {
        const bool given = exists && k_format().type == DType::uint4;
        shared.k_zero_points[stage][threadIdx.x] =
            given ? token_zero_point(p.kv.k.scale, p.kv.k.scale_strides, slot, kv_head) : 0.0f;
      }
    }
    if (v_scale_per_token()) {
      shared.v_scales[stage][threadIdx.x] = exists ? token_scale(p.kv.v.scale, p.kv.v.scale_strides, slot, kv_head) : 1.0f;
      if constexpr (kAnyFormats) {
        const bool given = exists && v_format().type == DType::uint4;
        shared.v_zero_points[stage][threadIdx.x] =
            given ? token_zero_point(p.kv.v.scale, p.kv.v.scale_strides, slot, kv_head) : 0.0f;
      }
    }
  }

  __device__ __forceinline__ void copy_keys(int stage) {
    copy_side(shared.k, args.p.kv.k, k_chunks, stage, [](const KvOffset& offset) { return offset.k; });
  }
  __device__ __forceinline__ void copy_values(int stage) {
    copy_side(shared.v, args.p.kv.v, v_chunks, stage, [](const KvOffset& offset) { return offset.v; });
  }

  // load_*() and then store_*() do the same for codes, in two steps.
  __device__ __forceinline__ void load_keys(int stage) {
    if constexpr (kQuantized) {
      if (!k_holds_codes()) return copy_keys(stage);
      codes_.load(args.p.kv.k.data, k_format().type, k_chunks, [&](int key) {
        const int64_t offset = shared.offsets[stage][key].k;
        return offset < 0 ? offset : offset + kv_head * args.p.kv.k.strides.head;
      });
    }
  }
  __device__ __forceinline__ void load_values(int stage) {
    if constexpr (kQuantized) {
      if (!v_holds_codes()) return copy_values(stage);
      codes_.load(args.p.kv.v.data, v_format().type, v_chunks, [&](int key) {
        const int64_t offset = shared.offsets[stage][key].v;
        return offset < 0 ? offset : offset + kv_head * args.p.kv.v.strides.head;
      });
    }
  }
  __device__ __forceinline__ void store_keys() const {
    if constexpr (kQuantized) {
      if (k_holds_codes()) codes_.store(shared.k, k_format().type, [](int) { return [](float number) { return number; }; });
    }
  }
  __device__ __forceinline__ void store_values(int stage) const {
    if constexpr (kQuantized) {
      if (!v_holds_codes()) return;
      const bool scaled = v_scale_per_token();
      codes_.store(shared.v, v_format().type, [&](int key) {
        const float scale = scaled ? shared.v_scales[stage][key] : 1.0f;
        if constexpr (kAnyFormats) {
          const float zero_point = scaled ? shared.v_zero_points[stage][key] : 0.0f;
          return [=](float number) { return fmaf(number, scale, zero_point); };
        } else {
          return [=](float number) { return number * scale; };
        }
      });
    }
  }

 private:
  using Codes = std::conditional_t<kQuantized, CodeTile<T, Tile, kHeadDim, kAnyFormats>, std::nullptr_t>;

  __device__ __forceinline__ bool is_needed(int position) const { return position >= first_needed && position < tile.last_limit; }
  // A thread has one key of each tile, and loads its page while the previous tile is multiplied.
  __device__ __forceinline__ int page_in(int key_tile) const {
    const int position = key_tile * Tile::kKeys + threadIdx.x;
    const bool reads = threadIdx.x < Tile::kKeys && is_needed(position);
    return reads ? tile.sequence.pages[page_index(args, logical_slot_of(args, position))] : -1;
  }
  template <class F>
  __device__ __forceinline__ void copy_side(T (*to)[Tile::kStride], const PagedHeads& side, int num_chunks, int stage,
                                            const F& offset_of) {
    const T* const of_head = static_cast<const T*>(side.data) + kv_head * side.strides.head;
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
  }

  [[maybe_unused]] Codes codes_;
};

}  // namespace prologue::cuda
