// blockIdx.y is the token. The warps of all its blocks are numbered together. The first one has the latent: lane i has pieces i (and i +
// 32) of 8 channels of both halves. The lanes of the others have units (head_unit.cuh) of 8 pairs, first those of k_pe, then those of
// q_pe's heads. No warp waits for another.
#pragma once

#include <cstdint>

#include <prologue/kernels/attention_prologue/steps/head_plan.h>
#include <prologue/kernels/base/shared/angle.h>
#include <prologue/kernels/base/shared/reciprocal_root.h>
#include <prologue/kernels/mla_prologue/mla_token.h>
#include <prologue/kernels/attention_prologue/steps/head_lanes.cuh>
#include <prologue/kernels/base/device/head_unit.cuh>
#include <prologue/kernels/base/device/pending_index.cuh>

namespace prologue::cuda {

inline constexpr int kMlaThreads = 128;  // of a block
inline constexpr int kPiece = 8;         // channels

// Describes rows of x and y, with strides in bytes. If y is null it is not written.
struct MlaRows {
  const char* x = nullptr;
  char* y = nullptr;
  int64_t x_token = 0;
  int64_t y_token = 0;
  int64_t x_head = 0;
  int64_t y_head = 0;
};

// Describes a part of the cache, with strides in bytes.
struct MlaPartArgs {
  char* data = nullptr;  // null: not written
  int64_t page = 0;
  int64_t token = 0;
  KvFormat format;
  const float* scale = nullptr;
};

struct MlaArgs {
  const char* positions = nullptr;  // null: 0
  const char* slots = nullptr;      // null: there are none
  uint32_t position_step = 4;       // bytes
  uint32_t slot_step = 4;
  int64_t num_slots_given = 0;
  int64_t first_token = 0;  // of the launch
  MlaTokenArgs token;
  DType dtype = DType::f32;
  int32_t latent_warps = 0;   // 1, or 0: there is no latent
  uint32_t num_units = 0;     // of k_pe and q_pe
  uint32_t k_units = 0;       // of k_pe: one head, or 0
  PageDivider units_of_head;  // divides a unit of q_pe by its head's
  int32_t kv_lora_rank = 0;
  int32_t rope_dim = 0;
  MlaRows latent, k, q;
  MlaPartArgs latent_part, rope_part;
  Rope rope;
  HeadNorm norm;
  float inverse_rank = 0.0f;
  FaultRecord* faults = nullptr;
  uint8_t* token_faults = nullptr;
  HeadNorm k_norm;  // placement none: there is none, or no k_pe
  float inverse_rope_dim = 0.0f;
};

// ---- 8 channels in memory -------------------------------------------------------------------------------------------------------

// kAligned: vectors are aligned to 16 bytes, or to their size if it is smaller.
template <class T, bool kAligned>
__device__ inline Packed<T, kPiece> load_piece(const void* from) {
  constexpr int kBytes = kPiece * static_cast<int>(sizeof(T));
  if constexpr (kAligned) {
    return load_bytes<kBytes, false>(from);
  } else {
    Packed<T, kPiece> packed = {};
#pragma unroll
    for (int i = 0; i < kPiece; ++i) {
      if constexpr (sizeof(T) == 4) {
        packed.words[i] = static_cast<const uint32_t*>(from)[i];
      } else {
        packed.words[i / 2] |= uint32_t{static_cast<const uint16_t*>(from)[i]} << (i % 2 * 16);
      }
    }
    return packed;
  }
}

template <class T, bool kAligned>
__device__ inline void store_piece(void* to, const Packed<T, kPiece>& packed) {
  if constexpr (kAligned) {
    store_bytes<kPiece* static_cast<int>(sizeof(T)), false>(to, packed);
  } else {
#pragma unroll
    for (int i = 0; i < kPiece; ++i) {
      if constexpr (sizeof(T) == 4) {
        static_cast<uint32_t*>(to)[i] = packed.words[i];
      } else {
        static_cast<uint16_t*>(to)[i] = static_cast<uint16_t>(packed.words[i / 2] >> (i % 2 * 16));
      }
    }
  }
}

template <bool kAligned>
__device__ inline void store_codes(void* to, const Bytes<kPiece>& codes) {
  if constexpr (kAligned) {
    store_bytes<kPiece, false>(to, codes);
  } else {
#pragma unroll
    for (int i = 0; i < kPiece; ++i) static_cast<uint8_t*>(to)[i] = static_cast<uint8_t>(codes.words[i / 4] >> (i % 4 * 8));
  }
}

template <class T, bool kAligned>
__device__ inline Unit<T, kPiece> load_pieces(const void* row, const UnitChannels& place) {
  const T* from = static_cast<const T*>(row);
  return {load_piece<T, kAligned>(from + place.a), load_piece<T, kAligned>(from + place.b)};
}

template <class T, bool kAligned>
__device__ inline void store_pieces(void* row, const UnitChannels& place, const Unit<T, kPiece>& unit) {
  T* to = static_cast<T*>(row);
  store_piece<T, kAligned>(to + place.a, unit.a);
  store_piece<T, kAligned>(to + place.b, unit.b);
}

// Stores into an entry of the cache, whose scale is given or 1.
template <class T, bool kAligned>
__device__ inline void store_entry(const MlaPartArgs& part, DType dtype, char* entry, const UnitChannels& place,
                                   const Unit<T, kPiece>& unit, float reciprocal) {
  const DType type = part.format.type;
  if (type == dtype) return store_pieces<T, kAligned>(entry, place, unit);
  const UnitValues<kPiece> values = widen<T, kPiece>(unit);
  if (dtype_is_fp8(type)) {
    const UnitBytes<kPiece> codes = quantise<kPiece>(values, reciprocal, type);
    store_codes<kAligned>(entry + place.a, codes.a);
    store_codes<kAligned>(entry + place.b, codes.b);
    return;
  }
#pragma unroll
  for (int i = 0; i < kPiece; ++i) {
    store_element(type, entry, place.a + i, values.x[i]);
    store_element(type, entry, place.b + i, values.x[kPiece + i]);
  }
}

__device__ inline char* entry_of(const MlaArgs& p, const MlaPartArgs& part, const MlaToken& token) {
  return part.data + entry_at(p.token, token, part.page, part.token);
}

// ---- the latent -----------------------------------------------------------------------------------------------------------------

// Divides the channels of two tiles, a's and b's, which 16 lanes hold, by the scales of the tiles, and stores both.
template <class T, bool kAligned>
__device__ inline void store_tiles(char* entry, int rank, const UnitChannels& place, int lane, const Unit<T, kPiece>& unit) {
  const UnitValues<kPiece> values = widen<T, kPiece>(unit);
  UnitValues<kPiece> quotients;
  float scales[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float* x = values.x + half * kPiece;
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < kPiece; ++i) largest = max(largest, magnitude_bits(x[i]));
    largest = reduce({kWholeWarp, kRecordTile / kPiece}, largest, Larger{});
    scales[half] = tile_scale(largest);
    const bool bad = largest >= prologue::detail::kInfinityBits;
#pragma unroll
    for (int i = 0; i < kPiece; ++i) quotients.x[half * kPiece + i] = bad ? 0.0f : divide_rounded(x[i], scales[half]);
  }
  if (!place.has_a) return;
  const UnitBytes<kPiece> codes = to_8_bits<kPiece>(quotients, DType::fp8_e4m3);
  store_codes<kAligned>(entry + place.a, codes.a);
  store_codes<kAligned>(entry + place.b, codes.b);
  if (lane % (kRecordTile / kPiece) != 0) return;
  float* const stored = reinterpret_cast<float*>(entry + rank);
  stored[place.a / kRecordTile] = scales[0];
  stored[place.b / kRecordTile] = scales[1];
}

// kGroups is the number of pieces that a lane has in each half.
template <class T, int kGroups, bool kAligned>
struct MlaLatent {
  UnitChannels places[kGroups];
  UnitValues<kPiece> weights[kGroups];
  Unit<T, kPiece> units[kGroups];
  float reciprocal = 1.0f;  // of a given scale

  // Loads only what the kernels before this one did not write.
  __device__ MlaLatent(const MlaArgs& p, int lane) {
    const int half = p.kv_lora_rank / 2;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int a = (lane + 32 * g) * kPiece;
      const bool inside = a < half;
      places[g] = {inside ? a : 0, half + (inside ? a : 0), -1, inside, inside};
      if (p.norm.weight == nullptr) continue;
      if (p.norm.weight_type == p.dtype) {
        weights[g] = widen<T, kPiece>(load_pieces<T, kAligned>(p.norm.weight, places[g]));
      } else {
        weights[g] = widen<float, kPiece>(load_pieces<float, kAligned>(p.norm.weight, places[g]));
      }
    }
    if (p.latent_part.scale != nullptr) reciprocal = given_scale(*p.latent_part.scale).reciprocal;
  }

  __device__ void load(const MlaArgs& p, int64_t t) {
    const char* row = p.latent.x + t * p.latent.x_token;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) units[g] = load_pieces<T, kAligned>(row, places[g]);
  }

  // The order of the sum is that of head_sum.h.
  __device__ void normalise(const MlaArgs& p) {
    UnitValues<kPiece> values[kGroups];
    float sum = 0.0f;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      values[g] = widen<T, kPiece>(units[g]);
      const float a = sum_vector<kPiece>(values[g].x, SumOfSquares()),
                  b = sum_vector<kPiece>(values[g].x + kPiece, SumOfSquares());
      const bool inside = places[g].has_a;
      const float of_group = sum_halves<kPiece>({kWholeWarp, 32}, inside ? a : 0.0f, inside ? b : 0.0f);
      sum = g == 0 ? of_group : add_rounded(sum, of_group);
    }
    const float inverse = reciprocal_root(fused_multiply_add(sum, p.inverse_rank, p.norm.eps));
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      multiply<kPiece>(values[g], inverse);
      if (p.norm.weight != nullptr) {
#pragma unroll
        for (int i = 0; i < 2 * kPiece; ++i) {
          values[g].x[i] = multiply_rounded(values[g].x[i], norm_factor(p.norm.weight_offset, weights[g].x[i]));
        }
      }
      units[g] = narrow<T, kPiece>(values[g]);
    }
  }

  __device__ void store(const MlaArgs& p, const MlaToken& token, int64_t t, int lane) const {
    const bool cached = token.reaches_cache && p.latent_part.data != nullptr;
    char* const entry = cached ? entry_of(p, p.latent_part, token) : nullptr;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (cached && has_tiles(p.latent_part.format)) {
        store_tiles<T, kAligned>(entry, p.kv_lora_rank, places[g], lane, units[g]);
      }
      if (!places[g].has_a) continue;
      if (p.latent.y != nullptr) store_pieces<T, kAligned>(p.latent.y + t * p.latent.y_token, places[g], units[g]);
      if (cached && !has_tiles(p.latent_part.format)) {
        store_entry<T, kAligned>(p.latent_part, p.dtype, entry, places[g], units[g], reciprocal);
      }
    }
  }
};

// ---- k_pe and q_pe ----------------------------------------------------------------------------------------------------------------

template <class Stored, bool kAligned>
__device__ inline UnitAngles<kPiece> angles_of_row(const Rope& rope, int64_t row, int pair) {
  const auto load = [&](const RopeColumns& columns) {
    return load_piece<Stored, kAligned>(static_cast<const Stored*>(columns.data) + row * columns.row_stride + pair);
  };
  const Packed<Stored, kPiece> cos = load(rope.cos), sin = load(rope.sin);
  UnitAngles<kPiece> angles;
#pragma unroll
  for (int i = 0; i < kPiece; ++i) {
    angles.cos[i] = element<Stored, kPiece>(cos, i);
    angles.sin[i] = element<Stored, kPiece>(sin, i);
  }
  return angles;
}

// Returns the angles of 8 pairs from `pair` on.
template <bool kAligned>
__device__ inline UnitAngles<kPiece> angles_at(const Rope& rope, int64_t t, int64_t position, int pair) {
  UnitAngles<kPiece> angles;
  if (rope.source == RopeSource::inv_freq) {
    const auto factor = static_cast<float>(rope.attention_factor);
#pragma unroll
    for (int i = 0; i < kPiece; ++i) {
      const CosSin value = cos_sin_of(static_cast<int32_t>(position), static_cast<const float*>(rope.inv_freq)[pair + i]);
      angles.cos[i] = multiply_rounded(value.cos, factor);
      angles.sin[i] = multiply_rounded(value.sin, factor);
    }
  } else {
    const int64_t row = rope.source == RopeSource::per_token ? t : position;
    angles = rope.type == DType::f32   ? angles_of_row<float, kAligned>(rope, row, pair)
             : rope.type == DType::f16 ? angles_of_row<__half, kAligned>(rope, row, pair)
                                       : angles_of_row<__nv_bfloat16, kAligned>(rope, row, pair);
  }
  if (rope.inverse != 0) {
#pragma unroll
    for (int i = 0; i < kPiece; ++i) angles.sin[i] = -angles.sin[i];
  }
  return angles;
}

// Of k_pe, whose units are those of the first lanes, as many as there are. All lanes of its warp must be here.
template <class T, bool kAligned>
__device__ inline void normalise_k(const MlaArgs& p, int lane, bool is_k, const UnitChannels& place, Unit<T, kPiece>& unit) {
  UnitValues<kPiece> values[1] = {widen<T, kPiece>(unit)};
  float inverse[1];
  const LayoutLanes<kPiece> lanes = {{lane, 32, is_k}, place, HeadLayout{p.rope_dim, p.rope_dim, 0, p.rope.style}};
  lanes.sum(
      values, SumOfSquares(),
      [&](float sum) { return reciprocal_root(fused_multiply_add(sum, p.inverse_rope_dim, p.k_norm.eps)); }, inverse);
  if (!is_k) return;
  multiply<kPiece>(values[0], inverse[0]);
  if (p.k_norm.weight != nullptr) {
    const bool of_type = p.k_norm.weight_type == p.dtype;
    const UnitValues<kPiece> weights = of_type ? widen<T, kPiece>(load_pieces<T, kAligned>(p.k_norm.weight, place))
                                               : widen<float, kPiece>(load_pieces<float, kAligned>(p.k_norm.weight, place));
#pragma unroll
    for (int i = 0; i < 2 * kPiece; ++i) {
      values[0].x[i] = multiply_rounded(values[0].x[i], norm_factor(p.k_norm.weight_offset, weights.x[i]));
    }
  }
  unit = narrow<T, kPiece>(values[0]);
}

// ---- the kernel -------------------------------------------------------------------------------------------------------------------

template <class T, int kGroups, bool kAligned>
__global__ void __launch_bounds__(kMlaThreads) mla_prologue_kernel(const __grid_constant__ MlaArgs p) {
  const int64_t t = p.first_token + blockIdx.y;
  const int warp = static_cast<int>(blockIdx.x) * (kMlaThreads / 32) + static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;

  // All loads of data are issued before the first index is used: the chain index -> row of the table -> result is the longest.
  const auto resolve = [&](const PendingIndex& position, const PendingIndex& slot) {
    const MlaToken token = resolve_mla_token(p.token, position.value(p.position_step), slot.value(p.slot_step));
    if (warp == 0 && lane == 0 && !token.padding && token.fault != FaultCode::none) {
      cuda::record_fault(p.faults, p.token_faults, t, token.fault);
    }
    return token;
  };
  const auto load_position = [&] {
    return p.positions == nullptr ? PendingIndex{0, 0} : load_index(p.positions, p.position_step, static_cast<uint64_t>(t));
  };
  const auto load_slot = [&] {
    return p.slots == nullptr || t >= p.num_slots_given ? PendingIndex{0xffffffffu, 0xffffffffu}
                                                        : load_index(p.slots, p.slot_step, static_cast<uint64_t>(t));
  };

  if (warp < p.latent_warps) {
    MlaLatent<T, kGroups, kAligned> latent(p, lane);
    wait_for_previous_kernels();
    let_next_kernel_start();
    const PendingIndex position = load_position(), slot = load_slot();
    latent.load(p, t);
    __syncwarp();
    if (p.norm.placement != NormPlacement::none) latent.normalise(p);
    const MlaToken token = resolve(position, slot);
    if (token.padding) return;
    if (token.zero) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) latent.units[g] = {};
    }
    return latent.store(p, token, t, lane);
  }

  // Lanes without a unit do what the last one does, and store nothing: a load that waits for a comparison is issued late.
  const uint32_t number = static_cast<uint32_t>(warp - p.latent_warps) * 32 + static_cast<uint32_t>(lane);
  const uint32_t unit_of_token = min(number, max(p.num_units, 1u) - 1);
  const bool is_k = unit_of_token < p.k_units;
  const uint32_t unit_of_q = is_k ? 0 : unit_of_token - p.k_units;
  const uint32_t head = page_of(p.units_of_head, unit_of_q);
  const int unit_of_head = static_cast<int>(is_k ? unit_of_token : unit_of_q - head * p.units_of_head.page_size);
  const UnitChannels place = channels_of_unit<kPiece>(unit_of_head, HeadLayout{p.rope_dim, p.rope_dim, 0, p.rope.style});
  float reciprocal = 1.0f;
  if (p.rope_part.scale != nullptr) reciprocal = given_scale(*p.rope_part.scale).reciprocal;
  wait_for_previous_kernels();
  let_next_kernel_start();
  if (p.num_units == 0) return;
  const PendingIndex index = load_position(), slot = load_slot();
  const MlaRows& rows = is_k ? p.k : p.q;
  Unit<T, kPiece> unit = load_pieces<T, kAligned>(rows.x + t * rows.x_token + head * rows.x_head, place);
  __syncwarp();  // keeps the assembler from moving the loads of data after the wait for the position
  if (p.k_norm.placement != NormPlacement::none && warp == p.latent_warps) normalise_k<T, kAligned>(p, lane, is_k, place, unit);
  const MlaToken token = resolve(index, slot);
  if (token.padding | (number >= p.num_units)) return;
  if (token.zero) {
    unit = {};
  } else if (token.rotated && p.rope.rotary_dim > 0) {
    const UnitAngles<kPiece> angles = angles_at<kAligned>(p.rope, t, index.value(p.position_step), place.pair);
    UnitValues<kPiece> values = widen<T, kPiece>(unit);
    rotate<kPiece>(values, angles, p.rope.style);
    unit = narrow<T, kPiece>(values);
  }
  if (rows.y != nullptr) store_pieces<T, kAligned>(rows.y + t * rows.y_token + head * rows.y_head, place, unit);
  if (is_k && token.reaches_cache && p.rope_part.data != nullptr) {
    store_entry<T, kAligned>(p.rope_part, p.dtype, entry_of(p, p.rope_part, token), place, unit, reciprocal);
  }
}

}  // namespace prologue::cuda
