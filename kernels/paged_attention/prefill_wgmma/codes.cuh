// This file has the producers of prefill_wgmma_kernel for quantised caches. Half of them work on K and half on V; each warp has 32 keys of
// every tile. A thread copies codes from the cache to a buffer of its own in shared memory. When they are there, it converts them to
// numbers of T where TMA would have copied those. As soon as a part of its codes is converted, the copy of a later one to the same buffer
// is issued.
//
// K is stored without its scale, which multiplies the scores. V is stored with the scale of its token, or without the one of all tokens,
// which multiplies the output. The zero point of K, times the sum of a row of q, is added to the score; that of V is added to the number.
#pragma once

#include <cuda_pipeline_primitives.h>

#include <prologue/kernels/base/device/cuda_groups.cuh>
#include <prologue/kernels/base/device/instructions.cuh>
#include <prologue/kernels/paged_attention/cache_codes.cuh>
#include <prologue/kernels/paged_attention/prefill_wgmma/work.cuh>

namespace prologue::cuda {

// So many warps convert K, and as many V.
template <class Shared>
inline constexpr int kCodeWarps = Shared::kProducers / 2 / 32;

// Says which codes of its warp's keys a lane has: kPrefillWgmmaCodes of 16 channels at n of kPerLane, of key first_key + n * kKeysApart.
// Eight neighbours write to all banks once: they have two rows, whose swizzles differ in one chunk, of the same 64 channels.
template <class Shared>
struct LaneCodes {
  static_assert(Shared::kKeys == 32 * kCodeWarps<Shared>);
  static constexpr int kThreads = 32 * kCodeWarps<Shared>;
  static constexpr int kPerLane = Shared::kPanels * 64 / kPrefillWgmmaCodes;
  static constexpr int kPerPart = kPerLane > 4 ? 4 : 2;
  static constexpr int kParts = kPerLane / kPerPart;
  static constexpr int kPartsInFlight = 2;
  static_assert(kPartsInFlight * kPerPart * kThreads == Shared::kCodesInFlight);
  static constexpr int kKeysApart = 8 / Shared::kPanels;
  static_assert(kPerPart * kKeysApart % 8 == 0);  // a part's rows begin where the swizzle does

  int first_key;  // of the warp's
  int panel;      // of 64 channels
  int quarter;    // of the panel

  __device__ LaneCodes() {
    const int lane = threadIdx.x % 32;
    first_key = lane / 8 / Shared::kPanels * 2 + lane / 4 % 2;
    panel = lane / 8 % Shared::kPanels;
    quarter = lane % 4;
  }
  __device__ int channel() const { return panel * 64 + quarter * kPrefillWgmmaCodes; }
  __device__ int key(int n) const { return first_key + n * kKeysApart; }
  // Returns the index in the thread's buffer of its codes at i of a part.
  __device__ static int buffer_index(int part, int i) { return (part % kPartsInFlight * kPerPart + i) * kThreads; }
};

// Describes a lane's key of a tile: where it begins, in groups of kPrefillWgmmaCodes codes of its kv head, or a negative number if it is
// zeros; its scale and zero point.
struct CodeKey {
  int first = -1;
  float scale = 1.0f;
  float zero_point = 0.0f;
};

// Returns eight codes as numbers of T. With kScaled they are multiplied by the scale of their key, and its zero point is added.
template <DType kType, class T, bool kScaled>
__device__ inline Group<T> numbers_of(uint2 codes, float scale, float zero_point) {
  if constexpr (!kScaled && std::is_same_v<T, __half>) {
    Group<T> group;
    expand_to_halves<kType>(codes, group.words);
    return group;
  } else {
    float numbers[8];
    expand_codes<kType>(codes, numbers);
    return make_group<T>([&](int i) {
      if constexpr (!kScaled) return numbers[i];
      return kType == DType::uint4 ? fmaf(numbers[i], scale, zero_point) : numbers[i] * scale;
    });
  }
}

// Converts a lane's codes of a kv head, in a cache of type kType.
template <DType kType, class Shared>
struct CodeRows {
  using T = typename Shared::Element;
  using Lanes = LaneCodes<Shared>;
  static constexpr bool kFourBits = dtype_bits(kType) == 4;
  static constexpr int kBytes = kPrefillWgmmaCodes * dtype_bits(kType) / 8;
  Lanes lane;
  const unsigned char* data;  // the lane's channels of the first token of the cache
  bool has_channels;
  uint4* codes;  // this thread's buffer for codes in flight, [part in flight][i], kThreads apart

  __device__ CodeRows(const unsigned char* of_head, int channels, uint4* codes_of_thread)
      : data(of_head + lane.channel() * kBytes / kPrefillWgmmaCodes),
        has_channels(lane.channel() < channels),
        codes(codes_of_thread) {}

  // Begins to copy a part of the codes of a tile. `first` is the CodeKey::first of the lane's key.
  __device__ void copy(int first, int part) const {
#pragma unroll
    for (int i = 0; i < Lanes::kPerPart; ++i) {
      const int of_key = __shfl_sync(0xffffffffu, first, lane.key(part * Lanes::kPerPart + i));
      const bool there = of_key >= 0 && has_channels;
      const unsigned char* from = data + int64_t{of_key} * kBytes;
      if constexpr (kFourBits) {
        __pipeline_memcpy_async(codes + Lanes::buffer_index(part, i), there ? from : data, kBytes, there ? 0 : kBytes);
      } else {
        copy_or_clear(codes + Lanes::buffer_index(part, i), from, there);
      }
    }
    __pipeline_commit();
  }

  // Converts the codes of a tile to numbers of T. With kScaled they are multiplied by the scales of their keys, and zero points are added.
  // `key` and `next` are the lane's keys of this tile and of the next one. The copies of the first parts of the next tile are in flight at
  // the end.
  template <bool kScaled, class Tile>
  __device__ void convert(Tile& to, const CodeKey& key, const CodeKey& next) const {
    const int first_row = static_cast<int>(threadIdx.x) % Lanes::kThreads / 32 * 32 + lane.first_key;
    const int swizzle = lane.first_key % 8;
#pragma unroll 1
    for (int part = 0; part < Lanes::kParts; ++part) {
      __pipeline_wait_prior(Lanes::kPartsInFlight - 1);
#pragma unroll
      for (int i = 0; i < Lanes::kPerPart; ++i) {
        const int n = part * Lanes::kPerPart + i;
        const uint4* const from = codes + Lanes::buffer_index(part, i);
        uint2 halves[2];
        if constexpr (kFourBits) {
          const uint2 both = *reinterpret_cast<const uint2*>(from);
          halves[0].x = both.x, halves[1].x = both.y;
        } else {
          const uint4 both = *from;
          halves[0] = {both.x, both.y}, halves[1] = {both.z, both.w};
        }
        [[maybe_unused]] float scale = 1.0f, zero_point = 0.0f;
        if constexpr (kScaled) scale = __shfl_sync(0xffffffffu, key.scale, lane.key(n));
        if constexpr (kScaled && kType == DType::uint4) zero_point = __shfl_sync(0xffffffffu, key.zero_point, lane.key(n));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int chunk = (lane.quarter * 2 + half) ^ swizzle ^ (i * Lanes::kKeysApart % 8);
          *reinterpret_cast<Group<T>*>(&to[lane.panel][first_row + n * Lanes::kKeysApart][chunk * 8]) =
              numbers_of<kType, T, kScaled>(halves[half], scale, zero_point);
        }
      }
      const int later = part + Lanes::kPartsInFlight;
      copy(later < Lanes::kParts ? key.first : next.first, later % Lanes::kParts);
    }
  }
};

template <class F>
__device__ inline void with_code_type(DType type, const F& f) {
  switch (type) {
    case DType::fp8_e4m3: return f(std::integral_constant<DType, DType::fp8_e4m3>());
    case DType::fp8_e5m2: return f(std::integral_constant<DType, DType::fp8_e5m2>());
    case DType::int8: return f(std::integral_constant<DType, DType::int8>());
    case DType::int4: return f(std::integral_constant<DType, DType::int4>());
    default: return f(std::integral_constant<DType, DType::uint4>());
  }
}

// Converts K, or V, of all tiles of the block. The first warp of K also finds the work.
template <bool kIsK, class Shared>
__device__ inline void convert_side(const AttentionArgs& args, const PrefillWgmmaParams& w, Shared& shared) {
  using Lanes = LaneCodes<Shared>;
  constexpr int kKeys = Shared::kKeys;
  const PagedHeads& side = kIsK ? args.p.kv.k : args.p.kv.v;
  const DType type = side.format.type;
  const bool scale_per_token = side.format.scaling == KvScaling::token_head;
  const int channels = kIsK ? static_cast<int>(args.p.head_dim) : args.v_head_dim;
  const auto page_groups = static_cast<int>(side.strides.page / kPrefillWgmmaCodes);
  const auto token_groups = static_cast<int>(side.strides.token / kPrefillWgmmaCodes);
  auto& tiles = kIsK ? shared.k : shared.v;
  Barrier* const full = kIsK ? shared.k_full : shared.v_full;
  Barrier* const empty = kIsK ? shared.k_empty : shared.v_empty;

  const int thread = static_cast<int>(threadIdx.x) % Lanes::kThreads;  // of the side; and its key of a tile
  const bool finds_work = kIsK && __shfl_sync(0xffffffffu, thread / 32, 0) == 0;
  if (!args.p.past_is_ready) wait_for_previous_kernels();
  const int blocks_of_tile = finds_work ? blocks_of_tiles(args, w) : 1;
  uint4* const codes = &shared.codes[kIsK ? 0 : 1][thread];
  StageIndex<2> work_at;
  StageIndex<Shared::kStages> at;
  unsigned q_phase = 0;

  for (int round = 0;; work_at.advance()) {
    if (finds_work) {
      publish_work(args, w, blocks_of_tile, round, work_at, shared);
    } else {
      shared.work_full[work_at.index].wait(work_at.phase);
    }
    PrefillWork& work = shared.work[work_at.index];
    const int kv_head = work.kv_head;
    if (kv_head < 0) return;
    const int begin = work.begin, end = work.end;
    const int first_needed = lowest(args, work.tile.first_limit);
    const auto num_needed = static_cast<unsigned>(max(0, min(work.tile.last_limit, end * kKeys) - first_needed));
    const auto* const data = static_cast<const unsigned char*>(side.data) + kv_head * side.strides.head * dtype_bits(type) / 8;

    const auto is_needed = [&](int position) { return static_cast<unsigned>(position - first_needed) < num_needed; };
    const auto page_in = [&](int key_tile) {
      const int position = key_tile * kKeys + thread;
      return is_needed(position) ? work.tile.sequence.pages[page_index(args, logical_slot_of(args, position))] : -1;
    };
    const auto find_key = [&](int key_tile, int page) {
      const int position = key_tile * kKeys + thread;
      const bool needed = is_needed(position);
      CacheSlot slot = {-1, 0};
      if (needed) slot = cache_slot(args, page, logical_slot_of(args, position));
      if constexpr (kIsK) mark_faulty_rows(args, w, work, needed && slot.page < 0, position, position + 1);
      CodeKey key;
      if (slot.page < 0) return key;
      key.first = static_cast<int>(slot.page) * page_groups + static_cast<int>(slot.offset) * token_groups;
      if (scale_per_token) {
        key.scale = token_scale(side.scale, side.scale_strides, slot, kv_head);
        if (type == DType::uint4) key.zero_point = token_zero_point(side.scale, side.scale_strides, slot, kv_head);
      }
      return key;
    };
    // If scores of K are scaled before their maximum is found, the scale of all tokens is applied to every key.
    const float scale_of_all = shared_scale(side.format, side.scale, kv_head);
    const bool at_once = kIsK && scaled_at_once(args, scale_of_all);

    int page = page_in(begin);
    wait_for_previous_kernels();
    if (finds_work && begin < end) copy_q(args, w, work, q_phase, shared);
    CodeKey key = find_key(begin, page);
    page = page_in(begin + 1);
    with_code_type(type, [&](auto of_type) {
      const CodeRows<decltype(of_type)::value, Shared> rows(data, channels, codes);
      for (int part = 0; part < Lanes::kPartsInFlight; ++part) rows.copy(key.first, part);
    });
    for (int key_tile = begin; key_tile < end; ++key_tile, at.advance()) {
      const CodeKey next = find_key(key_tile + 1, page);
      page = page_in(key_tile + 2);
      empty[at.index].wait(at.phase ^ 1);
      if (at_once) {
        shared.k_scales[at.index][thread] = key.scale * scale_of_all;
        shared.k_zero_points[at.index][thread] = key.zero_point;
      }
      with_code_type(type, [&](auto of_type) {
        const CodeRows<decltype(of_type)::value, Shared> rows(data, channels, codes);
        if (!kIsK && scale_per_token) {
          rows.template convert<true>(tiles[at.index], key, next);
        } else {
          rows.template convert<false>(tiles[at.index], key, next);
        }
      });
      fence_shared_for_async();  // what this lane has written, before wgmma reads it
      full[at.index].arrive();
      key = next;
    }
    __pipeline_wait_prior(0);  // of a tile beyond the last: zeros
    __syncwarp();
    if (!finds_work && thread % 32 == 0) shared.work_empty[work_at.index].arrive();
  }
}

}  // namespace prologue::cuda
