// Decode on tensor cores. Blocks take equal shares of the batch's keys, as decode_tiles.cuh says, in tiles of 64 or 128 keys. A warp takes a
// quarter of each tile, by itself, through a ring of its own in shared memory, which runs on from unit to unit. At the end of a unit the
// warps add up; where several blocks share a unit, the last of them to arrive adds up what all have left in the workspace, in the order of
// the keys.
//
// Of the fragments of mma.m16n8k16 (decode_mma_rows.cuh) lane l, g = l / 4, t = l % 4, has
//   scores of a column tile: keys g and g + 8, packed rows 2t and 2t + 1
//   output of 16 channels:   two channels that depend on g (Values::channel), packed rows 2t and 2t + 1
// The order of the channels in the sum q * k is free, so that a lane takes codes as they lie in memory: Keys::in_run.
#pragma once

#include <cuda_pipeline_primitives.h>

#include <prologue/kernels/paged_attention/decode_mma_rows.cuh>
#include <prologue/kernels/paged_attention/decode_parts.cuh>
#include <prologue/kernels/paged_attention/decode_tiles.cuh>

namespace prologue::cuda {

inline constexpr int kDecodeMmaWarps = 4;
inline constexpr int kDecodeMmaThreads = kDecodeMmaWarps * 32;
inline constexpr int kMaxDecodeMmaStages = 4;
// A share of so many tiles takes two stages, if one stage of all warps of an SM has so many bytes.
inline constexpr int kLongShare = 32;
inline constexpr int kEnoughInFlight = 64 << 10;

// A power of two, as its logarithm, that a scale of V does not reach: 2^-90 at least, since beyond it weights without their scale could
// be infinite.
__device__ inline float log_bound(float scale) {
  const uint32_t exponent = __float_as_uint(scale) >> 23 & 255u;                          // plus 127
  return fmaxf(-90.0f, __uint_as_float(exponent | 0x4b000000u) - (8388608.0f + 126.0f));  // 2^23 + the exponent, less that
}

// Shared memory: the rings [warp][stage], K before V, at its beginning, since copies want lines of 128 bytes; then DecodeMmaKeys
// [warp][stage]; then DecodeMmaShared. kKeys: of a warp in a tile; kRows: packed rows of a unit.
template <class K, class V, int kHeadDim, int kKeys>
struct DecodeMmaStage {
  unsigned char k[kKeys * Keys<K, kHeadDim>::kRowBytes];
  unsigned char v[kKeys * Values<V, kHeadDim>::kRowBytes];
};

// The rest of a stage.
template <class K, class V, int kKeys>
struct DecodeMmaKeys {
  static constexpr bool kScaled = !kIsFloat<K> || !kIsFloat<V>;
  static constexpr bool kZeroPoints = kHasZeroPoint<K> || kHasZeroPoint<V>;
  unsigned missing;  // a bit for each key that should be there and has no page
  float k_scales[kScaled ? kKeys : 1];
  float v_scales[kScaled ? kKeys : 1];
  float k_zero_points[kZeroPoints ? kKeys : 1];
  float v_zero_points[kZeroPoints ? kKeys : 1];
};

template <class V, int kHeadDim, int kRows>
struct alignas(16) DecodeMmaShared {
  float out[kDecodeMmaWarps][8][kHeadDim];  // of eight packed rows, one column tile after the other
  float maximum[kDecodeMmaWarps][kRows];
  float sum[kDecodeMmaWarps][kRows];
  float zero_sum[kDecodeMmaWarps][kHasZeroPoint<V> ? kRows : 1];
  FindShare<kDecodeMmaThreads> find_share;
  unsigned faulty[2];  // a bit per packed row; of the units in turn
  unsigned arrived;
};

__device__ inline void wait_for_oldest_stage(int stages) {
  if (stages == 2) {
    __pipeline_wait_prior(0);
  } else if (stages == 3) {
    __pipeline_wait_prior(1);
  } else {
    __pipeline_wait_prior(kMaxDecodeMmaStages - 2);
  }
}

// T: the type of the multiplication, that of the cache if it has one, else float16. kColumns: column tiles, 8 packed rows each. kKeys: of
// a warp in a tile, 16 or 32.
// A row of q with a cache of codes is multiplied by a power of two that makes its largest element fill float16, so that bfloat16 loses
// nothing that counts beside it; the scores are divided by it.
// Where tokens have scales of V, weights are multiplied by them and `maximum` bounds the products, so that float16 holds them.
template <class T, class K, class V, int kHeadDim, int kColumns, int kKeys>
__global__ void __launch_bounds__(kDecodeMmaThreads, kHeadDim > 128 ? 1 : 2)
    decode_mma_kernel(const __grid_constant__ AttentionArgs args) {
  constexpr int kRows = 8 * kColumns;
  constexpr bool kScaled = !kIsFloat<K> || !kIsFloat<V>;
  using KeysOf = Keys<K, kHeadDim>;
  using ValuesOf = Values<V, kHeadDim>;
  constexpr int kGroups = kKeys / kKeyGroup;
  constexpr int kTileKeys = kDecodeMmaWarps * kKeys;
  using Shared = DecodeMmaShared<V, kHeadDim, kRows>;
  using Stage = DecodeMmaStage<K, V, kHeadDim, kKeys>;
  using StageKeys = DecodeMmaKeys<K, V, kKeys>;
  Stage* const all_rings = dynamic_shared<Stage>();
  StageKeys* const all_keys = reinterpret_cast<StageKeys*>(all_rings + kDecodeMmaWarps * args.stages);
  Shared& shared = *reinterpret_cast<Shared*>(all_keys + kDecodeMmaWarps * args.stages);
  const PagedAttentionParams& p = args.p;
  const PagedKvView& kv = p.kv;
  const KvFormat& k_format = kv.k.format;
  const KvFormat& v_format = kv.v.format;
  [[maybe_unused]] const bool k_scale_per_token = kScaled && k_format.scaling == KvScaling::token_head;
  [[maybe_unused]] const bool v_scale_per_token = kScaled && v_format.scaling == KvScaling::token_head;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int g = lane / 4;
  const int t = lane % 4;
  Stage* const ring = all_rings + warp * args.stages;
  StageKeys* const ring_keys = all_keys + warp * args.stages;
  if (p.early_signal) let_next_kernel_start();
  // Otherwise it may start when this one waits no more: blocks that come earlier slow down the kernel that is waited for.
  const auto wait = [&] {
    wait_for_previous_kernels();
    if (!p.late_signal) let_next_kernel_start();
  };
  bool waiting = p.past_is_ready;
  if (!waiting) wait();

  TileCursor<kRows, kTileKeys> load;
  constexpr int kTilesOfOneBlock = 2;  // what another block would save is less than what the combination costs
  const Share share = find_share(args, shared.find_share, load, kTilesOfOneBlock);
  if (share.begin >= share.end) {
    // Whoever waits for this kernel waits for those before it, too; that takes one block.
    if (waiting && blockIdx.x == 0 && blockIdx.y == 0) wait_for_previous_kernels();
    return;
  }
  TileCursor<kRows, kTileKeys> use = load;

  // ---- From the cache to the ring
  const int k_chunks = static_cast<int>(p.head_dim) * kElementBits<K> / 128;
  const int v_chunks = args.v_head_dim * kElementBits<V> / 128;
  // With more on its way at a time the memory is slower: measured, 1 to 3 % (docs/tuning-log.md).
  constexpr int kKeysOfAllWarps = (kHeadDim > 128 ? 1 : 2) * kTileKeys;
  const bool few_stages = share.size >= kLongShare && (k_chunks + v_chunks) * 16 * kKeysOfAllWarps >= kEnoughInFlight;
  const int stages = few_stages ? 2 : args.stages;
  if (k_chunks * 16 < KeysOf::kRowBytes) {  // the channels that K does not have are zeros
    for (int stage = 0; stage < stages; ++stage) {
      uint4* const chunks = reinterpret_cast<uint4*>(ring[stage].k);
      for (int i = lane; i < kKeys * KeysOf::kRowBytes / 16; i += 32) chunks[i] = uint4{0, 0, 0, 0};
    }
    __syncwarp();
  }
  // A lane copies the same chunk of several rows, and knows the page of key lane % kKeys of the tile at `load`. Where 16 keys are
  // always in one page, and none of them is missing, the rows follow from where their first one is.
  const bool keys_share_a_page = int{args.page_size} % kKeyGroup == 0 && int{args.ring_size} % kKeyGroup == 0;
  int page = -1;
  bool needed = false;
  int64_t next_load = share.begin;
  const auto load_page = [&] {
    const int position = load.position() + warp * kKeys + lane % kKeys;
    needed = next_load < share.end && position >= load.of_sequence.begin && position < load.sequence.length;
    page = needed ? load.sequence.pages[page_index(args, place_of(args, position))] : -1;
  };
  // Fills a stage from the tile at `load`. What needs nothing but the page comes before `before_copies`.
  const auto fill = [&](Stage& stage, StageKeys& keys, const auto& before_copies) {
    const int first_key = load.position() + warp * kKeys;
    const bool bad = needed && (page < 0 || page >= kv.num_pages);
    const unsigned missing = __ballot_sync(0xffffffffu, lane < kKeys && bad);
    const int first_needed = max(0, load.of_sequence.begin - first_key);
    const auto num_needed = static_cast<unsigned>(max(0, min(kKeys, load.sequence.length - first_key) - first_needed));
    const CopiedRows<kElementBits<K>, KeysOf> k_rows(kv.k, load.kv_head, k_chunks);
    const CopiedRows<kElementBits<V>, ValuesOf> v_rows(kv.v, load.kv_head, v_chunks);
    constexpr bool kAlike = kIsFloat<K> && kIsFloat<V>;  // rows of K and of V have one width and place in a stage
    const int64_t v_behind_k = static_cast<const char*>(kv.v.data) - static_cast<const char*>(kv.k.data);
    const unsigned char *k_from[kGroups], *v_from[kGroups];  // the lane's first row of a group that is in one page
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int known = min(max(first_needed, group * kKeyGroup), group * kKeyGroup + kKeyGroup - 1);
      const int page_of_group = max(0, __shfl_sync(0xffffffffu, page, known));
      const int offset = place_of(args, first_key + group * kKeyGroup) % args.page_size;
      k_from[group] = k_rows.at(page_of_group, offset + k_rows.first_row);
      if (!kAlike || !args.same_rows) v_from[group] = v_rows.at(page_of_group, offset + v_rows.first_row);
    }
    if (lane == 0) keys.missing = missing;
    before_copies();
    if (!keys_share_a_page || missing != 0) {
      const int page_or_none = needed && !bad ? page : -1;
      const int offset = place_of(args, first_key + lane % kKeys) % args.page_size;
      k_rows.copy_each(stage.k, kKeys, page_or_none, offset);
      v_rows.copy_each(stage.v, kKeys, page_or_none, offset);
    } else {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        if (!kAlike || !args.same_rows) {
          k_rows.template copy_group<false, false>(stage.k, group, k_from[group], first_needed, num_needed);
          v_rows.template copy_group<false, false>(stage.v, group, v_from[group], first_needed, num_needed);
        } else if (num_needed < kKeys) {
          k_rows.template copy_group<false, true>(stage.k, group, k_from[group], first_needed, num_needed, stage.v, v_behind_k);
        } else {
          k_rows.template copy_group<true, true>(stage.k, group, k_from[group], 0, kKeys, stage.v, v_behind_k);
        }
      }
    }
    if (k_scale_per_token || v_scale_per_token) {
      const bool there = needed && !bad;
      const CacheSlot slot = {there ? page : 0, place_of(args, first_key + lane % kKeys) % args.page_size};
      const auto copy_scales = [&](const PagedHeads& side, float* scales, float* zero_points, bool has_zero_points) {
        if (lane >= kKeys) return;
        const float* const from = side.scale + (there ? slot.in(side.scale_strides) + load.kv_head * side.scale_strides.head : 0);
        __pipeline_memcpy_async(scales + lane, from, 4, there ? 0 : 4);
        if (has_zero_points) __pipeline_memcpy_async(zero_points + lane, from + (there ? 1 : 0), 4, there ? 0 : 4);
      };
      if (k_scale_per_token) copy_scales(kv.k, keys.k_scales, keys.k_zero_points, kHasZeroPoint<K>);
      if (v_scale_per_token) copy_scales(kv.v, keys.v_scales, keys.v_zero_points, kHasZeroPoint<V>);
    }
  };
  // Every step commits one group of copies, an empty one at the end.
  const auto load_next = [&](int stage, const auto& before_copies) {
    if (next_load < share.end) {
      fill(ring[stage], ring_keys[stage], before_copies);
      if (++next_load < share.end) load.advance(args);
      load_page();
    }
    __pipeline_commit();
  };

  // ---- A unit
  uint32_t q[KeysOf::kSteps][kColumns][2];
  float row_scale[kColumns][2];  // of the scores of packed rows 2t and 2t + 1
  [[maybe_unused]] float q_sum[kColumns][2];
  VisibleKeys visible[kColumns][2];
  int all_see_from = 0, all_see_to = 0;     // every row sees the positions between these
  int64_t q_row[kColumns];                  // where packed row g is in q; -1: there is none
  int first_share = 0, last_share = 0;      // that have parts of it
  float out[ValuesOf::kTiles][kColumns][4];
  int turn = 0;
  float maximum[kColumns][2];
  float sum[kColumns][2];
  [[maybe_unused]] float zero_sum[kColumns][2];

  // What needs nothing of the previous kernels.
  const auto begin_unit = [&] {
    const int num_packed = use.num_packed(args), first_packed = use.first_packed();
    const int64_t first_head = static_cast<int64_t>(use.kv_head) * args.group;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        maximum[c][i] = -INFINITY;
        sum[c][i] = 0.0f;
        if constexpr (kHasZeroPoint<V>) zero_sum[c][i] = 0.0f;
      }
    }
    if (use.sequence.num_rows == 1) {  // as in most steps: what follows, without its divisions
      all_see_to = use.sequence.limit(0);
      const VisibleKeys of_row(args, all_see_to);
      all_see_from = of_row.first;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
#pragma unroll
        for (int i = 0; i < 2; ++i) visible[c][i] = first_packed + c * 8 + 2 * t + i < num_packed ? of_row : VisibleKeys();
        const int packed = first_packed + c * 8 + g;
        q_row[c] = packed < num_packed ? use.sequence.first_row * p.q.token_stride + (first_head + packed) * p.q.head_stride : -1;
      }
    } else {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int of_lane = first_packed + c * 8 + 2 * t + i;
          visible[c][i] = VisibleKeys(args, of_lane < num_packed ? use.sequence.limit(of_lane / args.group) : 0);
        }
        const int packed = first_packed + c * 8 + g;
        q_row[c] = packed < num_packed ? (use.sequence.first_row + packed / args.group) * p.q.token_stride +
                                             (first_head + packed % args.group) * p.q.head_stride
                                       : -1;
      }
      const int last_packed = min(first_packed + kRows, num_packed) - 1;
      all_see_from = lowest(args, use.sequence.limit(max(0, last_packed) / args.group));
      all_see_to = use.sequence.limit(first_packed / args.group);
    }
    const int64_t end = use.first + use.of_sequence.tiles;
    const int block = static_cast<int>(blockIdx.y);
    first_share = use.first >= share.begin ? block : static_cast<int>(quotient(use.first, share.size));
    last_share = end <= share.end ? block : static_cast<int>(quotient(end - 1, share.size));
  };

  // The rest.
  const auto load_q = [&] {
    if (use.sequence.bad_rows && use.row_tile == 0 && use.tile == 0) clear_bad_rows(args, use.s, use.kv_head);
    float score_scale = args.score_scale;
    if constexpr (kScaled) score_scale *= shared_scale(k_format, kv.k.scale, use.kv_head);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const bool exists = q_row[c] >= 0;
      const int64_t row = exists ? q_row[c] : 0;
      float inverse = 1.0f;
      [[maybe_unused]] float own_sum = 0.0f;
      if constexpr (kIsFloat<K>) {
#pragma unroll
        for (int step = 0; step < KeysOf::kSteps; ++step) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int channel = KeysOf::channel(step, t, 2 * half);
            const bool there = exists && channel < p.head_dim;
            q[step][c][half] = there ? *reinterpret_cast<const uint32_t*>(static_cast<const T*>(p.q.data) + row + channel) : 0;
          }
        }
      } else {
        uint4 words[KeysOf::kLoads][KeysOf::kRun / 8];
#pragma unroll
        for (int load = 0; load < KeysOf::kLoads; ++load) {
          const int channel = (load * 4 + t) * KeysOf::kRun;
          const bool there = exists && channel < p.head_dim;
#pragma unroll
          for (int n = 0; n < KeysOf::kRun / 8; ++n) {
            words[load][n] =
                there ? reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(p.q.data) + row + channel)[n] : uint4{};
          }
        }
        const auto q_at = [&](int step, int i) {
          const int channel = KeysOf::in_run(step, i);
          const uint4& eight = words[step / KeysOf::kStepsOfLoad][channel / 8];
          const uint32_t pair = channel % 8 / 2 == 0   ? eight.x
                                : channel % 8 / 2 == 1 ? eight.y
                                : channel % 8 / 2 == 2 ? eight.z
                                                       : eight.w;
          if (p.dtype == DType::bf16) return __uint_as_float(channel % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
          const float2 both = __half22float2(*reinterpret_cast<const __half2*>(&pair));
          return channel % 2 == 0 ? both.x : both.y;
        };
        float largest = 0.0f;
#pragma unroll
        for (int step = 0; step < KeysOf::kSteps; ++step) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float element = q_at(step, i);
            largest = fmaxf(largest, fabsf(element));
            if constexpr (kHasZeroPoint<K>) own_sum += element;
          }
        }
#pragma unroll
        for (int offset = 1; offset < 4; offset *= 2) {
          largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
          if constexpr (kHasZeroPoint<K>) own_sum += __shfl_xor_sync(0xffffffffu, own_sum, offset);
        }
        const int exponent = static_cast<int>(__float_as_uint(largest) >> 23);  // plus 127
        const float factor = exponent == 0 || exponent == 255
                                 ? 1.0f
                                 : __uint_as_float(static_cast<uint32_t>(min(254, 127 + 14 + 127 - exponent)) << 23);
        inverse = 1.0f / factor;
        own_sum *= factor;
#pragma unroll
        for (int step = 0; step < KeysOf::kSteps; ++step) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            q[step][c][half] = pack<__half>(q_at(step, 2 * half) * factor, q_at(step, 2 * half + 1) * factor);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        row_scale[c][i] = score_scale * (kIsFloat<K> ? 1.0f : __shfl_sync(0xffffffffu, inverse, (2 * t + i) * 4));
        if constexpr (kHasZeroPoint<K>) q_sum[c][i] = __shfl_sync(0xffffffffu, own_sum, (2 * t + i) * 4);
      }
#pragma unroll
      for (int tile = 0; tile < ValuesOf::kTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[tile][c][i] = 0.0f;
      }
    }
  };

  begin_unit();
  load_page();
  // What the previous kernels write must not be in a line of L1 before they have: copies of 16 bytes do not go through it, scales do.
  const auto is_past = [&] {
    return !k_scale_per_token && !v_scale_per_token &&
           load.position() + warp * kKeys + kKeys <= load.sequence.length - load.sequence.num_rows;
  };
#pragma unroll 1
  for (int stage = 0; stage < stages - 1; ++stage) {
    load_next(stage, [&] {
      if (!waiting || is_past()) return;
      wait();
      waiting = false;
    });
  }
  if (waiting) wait();
  load_q();

  const auto take_keys = [&](const Stage& stage, const StageKeys& keys) {
    float score[kGroups][kColumns][4];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      float halves[2][kColumns][4] = {};  // two chains of sums
      KeysOf::for_each_step(stage.k + group * kKeyGroup * KeysOf::kRowBytes, lane, [&](int step, const uint32_t(&a)[4]) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) multiply_matrices<T>(halves[step % 2][c], a, q[step][c][0], q[step][c][1]);
      });
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
#pragma unroll
        for (int i = 0; i < 4; ++i) score[group][c][i] = halves[0][c][i] + halves[1][c][i];
      }
    }
    // f(score, group, column tile, i) for all of a lane: key group * 16 + g + i / 2 * 8, packed row 2t + i % 2 of the tile.
    const auto for_each_score = [&](const auto& f) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
#pragma unroll
          for (int i = 0; i < 4; ++i) f(score[group][c][i], group, c, i);
        }
      }
    };
    [[maybe_unused]] float value_scale[kGroups][2];  // of keys g and g + 8
    [[maybe_unused]] float log_scale[kGroups][2];
    [[maybe_unused]] float zero_point[kGroups][2];  // of V, in units of its scale where that is not 0
    if constexpr (kScaled) {
      if (k_scale_per_token) {
        for_each_score([&](float& s, int group, int c, int i) {
          const int key = group * kKeyGroup + g + i / 2 * 8;
          s *= keys.k_scales[key];
          if constexpr (kHasZeroPoint<K>) s = fmaf(keys.k_zero_points[key], q_sum[c][i % 2], s);
        });
      }
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int key = group * kKeyGroup + g + half * 8;
          value_scale[group][half] = v_scale_per_token ? keys.v_scales[key] : 1.0f;
          log_scale[group][half] = v_scale_per_token ? log_bound(value_scale[group][half]) : 0.0f;
          if constexpr (kHasZeroPoint<V>) {
            zero_point[group][half] =
                keys.v_zero_points[key] / (value_scale[group][half] == 0.0f ? 1.0f : value_scale[group][half]);
          }
        }
      }
    }
    for_each_score([&](float& s, int, int c, int i) { s *= row_scale[c][i % 2]; });
    if (args.cap_log2 > 0.0f) for_each_score([&](float& s, int, int, int) { s = capped_roughly(args, s); });
    const int first_key = use.position() + warp * kKeys;
    const unsigned missing = keys.missing;
    if (first_key < all_see_from || first_key + kKeys > all_see_to || missing != 0) {
      for_each_score([&](float& s, int group, int c, int i) {
        const int key = group * kKeyGroup + g + i / 2 * 8;
        if (!visible[c][i % 2].hold(first_key + key) || (missing >> key & 1) != 0) s = -INFINITY;
      });
      if (missing != 0 && lane == 0) {
#pragma unroll 1
        for (int key = 0; key < kKeys; ++key) {
          if ((missing >> key & 1) == 0) continue;
          const auto rows = static_cast<unsigned>(rows_that_see<kRows>(args, use.sequence, use.first_packed(), first_key + key));
          atomicOr(&shared.faulty[turn], rows);
        }
      }
    }
    float new_maximum[kColumns][2];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int i = 0; i < 2; ++i) new_maximum[c][i] = maximum[c][i];
    }
    for_each_score([&](float& s, int group, int c, int i) {
      float& most = new_maximum[c][i % 2];
      if constexpr (kIsFloat<V>) {
        most = fmaxf(most, s);
      } else {
        most = fmaxf(most, s + log_scale[group][i / 2]);
      }
    });
    bool larger = false;
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      larger = larger || new_maximum[c][0] != maximum[c][0] || new_maximum[c][1] != maximum[c][1];
    if (__any_sync(0xffffffffu, larger)) {  // rarely, after the first steps
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
    for_each_score([&](float& s, int group, int c, int i) {
      const float weight = weight_of(s, maximum[c][i % 2]);
      sum[c][i % 2] += weight;
      s = weight;
      if constexpr (!kIsFloat<V>) {
        if (weight != 0.0f) s = weight * value_scale[group][i / 2];  // hidden ones may have any scale
      }
      // With the weight that multiplies the codes: what its rounding moves is the whole element.
      if constexpr (kHasZeroPoint<V>) {
        const float rounded = value_scale[group][i / 2] == 0.0f ? weight : to_float(from_float<T>(s));
        if (weight != 0.0f) zero_sum[c][i % 2] = fmaf(rounded, zero_point[group][i / 2], zero_sum[c][i % 2]);
      }
    });
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      uint32_t weights[kColumns][2];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          weights[c][half] = transpose_matrix(pack<T>(score[group][c][2 * half], score[group][c][2 * half + 1]));
        }
      }
      ValuesOf::for_each_tile(stage.v + group * kKeyGroup * ValuesOf::kRowBytes, lane, [&](int tile, const uint32_t(&a)[4]) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) multiply_matrices<T>(out[tile][c], a, weights[c][0], weights[c][1]);
      });
    }
  };

  constexpr int kFours = kHeadDim / 4;
  const int head_dim = args.v_head_dim;
  // Of a row whose sums are complete: what goes to `out`.
  const auto store_row = [&](int packed, int d, float row_maximum, float row_sum, bool fault, float(&values)[4]) {
    const int j = packed / args.group;
    const int64_t q_head = static_cast<int64_t>(use.kv_head) * args.group + packed % args.group;
    if (fault && d == 0 && use.kv_head == 0 && packed % args.group == 0) record_row_fault(args, use.sequence, j);
    row_sum += sink_weight(p, q_head, row_maximum);
    const bool zero = fault || use.sequence.limit(j) == 0;
    // Where V has no scales the sum is 1 or more, and its reciprocal loses nothing that 16 bits would keep.
    const float inverse = kIsFloat<V> ? 1.0f / row_sum : 1.0f;
#pragma unroll
    for (float& value : values) value = zero ? 0.0f : kIsFloat<V> ? value * inverse : value / row_sum;
    store_four(p.dtype, p.out.data, (use.sequence.first_row + j) * p.out.token_stride + q_head * p.out.head_stride + d, values);
  };

  const auto end_unit = [&] {
    const int num_packed = min(kRows, use.num_packed(args) - use.first_packed());  // of this unit
    const bool whole = first_share == last_share;
    float value_scale = 1.0f;
    if constexpr (kScaled) value_scale = shared_scale(v_format, kv.v.scale, use.kv_head);
    const int part =
        (part_of(first_share, static_cast<int>(blockIdx.y)) * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x)) * kRows;
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
      const unsigned faulty = shared.faulty[turn];
      const int rows = min(8, num_packed - c * 8);
      for (int i = threadIdx.x; i < rows * kFours; i += kDecodeMmaThreads) {
        const int of_column = i / kFours;
        const int row = c * 8 + of_column;
        const int d = i % kFours * 4;
        if (d >= head_dim) continue;
        const bool fault = use.sequence.too_long || (faulty >> row & 1) != 0;
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
          store_row(use.first_packed() + row, d, row_maximum, row_sum, fault, values);
        } else {
          *reinterpret_cast<float4*>(&args.partial_out[(part + row) * head_dim + d]) = {values[0], values[1], values[2],
                                                                                        values[3]};
          if (d == 0) args.partial_stats[part + row] = {row_maximum, fault ? -1.0f : row_sum};
        }
      }
      if (threadIdx.x == 0) shared.faulty[1 - turn] = 0;
      __syncthreads();
    }
    turn = 1 - turn;
    if (whole) return;
    uint32_t* const counter = &args.counters[first_share * gridDim.x + blockIdx.x];
    if (threadIdx.x == 0) shared.arrived = count_arrival(counter);
    __syncthreads();
    if (shared.arrived != static_cast<unsigned>(last_share - first_share)) return;
    if (threadIdx.x == 0) *counter = 0;
#pragma unroll 1
    for (int row = warp; row < num_packed; row += kDecodeMmaWarps) {
      using Row = RowOfParts<kRows, kHeadDim>;
      Row sums(args, first_share, last_share, row);
      if (lane >= Row::kLanes) continue;
#pragma unroll
      for (int four = 0; four < Row::kFours; ++four) {
        const int d = lane * 4 + four * 128;
        if (d < head_dim) store_row(use.first_packed() + row, d, sums.maximum, sums.sum, sums.fault, sums.values[four]);
      }
    }
  };

  if (threadIdx.x == 0) shared.faulty[0] = 0;
  __syncthreads();
  int stage = 0;
#pragma unroll 1
  for (int64_t at = share.begin; at < share.end; ++at) {
    wait_for_oldest_stage(stages);
    __syncwarp();  // the copies of all lanes are there, and all lanes are done with the stage that is filled next
    load_next(stage == 0 ? stages - 1 : stage - 1, [] {});
    take_keys(ring[stage], ring_keys[stage]);
    if (++stage == stages) stage = 0;
    const bool more = at + 1 < share.end;
    if (!more && p.late_signal) let_next_kernel_start();
    if (!more || use.tile + 1 == use.of_sequence.tiles) end_unit();
    if (!more) break;
    use.advance(args, load);
    if (use.tile == 0) begin_unit(), load_q();
  }
}

}  // namespace prologue::cuda
