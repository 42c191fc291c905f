// blockIdx.x is the token; threadIdx.x the lane, that is the unit (head_unit.cuh), within a head; the rows threadIdx.y of all
// blockIdx.y walk the heads of q, k and v, kUnits of them each, so that a thread keeps its cos and sin for all its heads.
//
// Instances for what is common, lean in parameters and instructions; what they cannot do, general_prologue_kernel.cuh does.
#pragma once

#include <cstdint>

#include <prologue/kernels/attention_prologue/prologue_args.cuh>
#include <prologue/kernels/attention_prologue/token_place.cuh>
#include <prologue/kernels/base/head_unit.cuh>

namespace prologue::cuda {

// Which accesses are marked as streaming: what they touch is the first to leave the L2.
inline constexpr int kStreamNothing = 0;
inline constexpr int kStreamLoads = 1;   // q, k and v as they come in
inline constexpr int kStreamStores = 2;  // q as it goes out; attention reads K and V next

// What an instance can do beyond turning whole heads in neox pairs by a table, at given positions.
inline constexpr int kLayouts = 1;    // any style, rotary_dim and rotary_offset
inline constexpr int kBias = 2;       // bias of q, k and v
inline constexpr int kNorm = 4;       // RMS norm over the head before the rotation; neox over whole heads, or no rotation
inline constexpr int kQuantised = 8;  // 8-bit caches and q8_out, with scales given or computed
inline constexpr int kPlaces = 16;    // derived places, several streams, cos and sin per token

inline constexpr int kMaxThreads = 256;

// Whether lanes work together: a head's are then a power of two of one warp, and warps are full.
constexpr bool padded(int features) { return (features & (kNorm | kQuantised | kPlaces)) != 0; }

template <int kFeatures>
using ArgsOf = std::conditional_t<(kFeatures & ~kLayouts) == 0, CoreArgs<uint32_t>, FullArgs<uint32_t>>;

// Which tensor a row of the grid works on, and the head within it.
struct HeadPlace {
  int tensor;
  int head;
};

template <class Stride>
__device__ inline HeadPlace place_head(const CoreArgs<Stride>& p, int row) {
  if (row < p.tensors[0].heads) return {0, row};
  row -= p.tensors[0].heads;
  return row < p.tensors[1].heads ? HeadPlace{1, row} : HeadPlace{2, row - p.tensors[1].heads};
}

// 32 x 32 -> 64 bits, one instruction.
__device__ inline uint64_t times(uint32_t x, uint32_t y) { return static_cast<uint64_t>(x) * y; }

// cos and sin of a unit's pairs from the rows of a table that its streams stand at.
template <int V>
__device__ inline UnitAngles<V> angles_of_streams(const float* table, int rotary_dim, int pair, const int64_t* positions,
                                                  const uint8_t* pair_axis) {
  UnitAngles<V> angles;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const int axis = pair_axis[pair + i];
    const int64_t position = axis == 0 ? positions[0] : axis == 1 ? positions[1] : axis == 2 ? positions[2] : positions[3];
    const float* row = table + position * rotary_dim + pair + i;
    angles.cos[i] = row[0];
    angles.sin[i] = row[rotary_dim / 2];
  }
  return angles;
}

// 64 registers a thread let 1024 tokens run in one wave on 132 SMs.
template <class T, int V, int kUnits, int kHints, int kFeatures>
__global__ void __launch_bounds__(kMaxThreads, kUnits > 1 && (kFeatures & ~kLayouts) == 0 ? 4 : 1)
    attention_prologue_kernel(const __grid_constant__ ArgsOf<kFeatures> p) {
  constexpr bool kStreamingLoads = (kHints & kStreamLoads) != 0;
  constexpr bool kStreamingStores = (kHints & kStreamStores) != 0;
  constexpr bool kPadded = padded(kFeatures);
  constexpr uint32_t kSize = sizeof(T);
  const uint32_t t = blockIdx.x;
  const int unit = static_cast<int>(threadIdx.x);

  // The chain position -> table row -> result is the longest: it starts first, and every load of data is on its way before its
  // first answer. Padding rows are read too (they are rows of the same arrays), but nothing is made of them.
  PendingIndex pending_position, pending_slot;
  if constexpr ((kFeatures & kPlaces) == 0) {
    pending_position = load_index(p.positions, p.position_step, t);
    pending_slot = load_index(p.slots, p.slot_step, t);
  }

  UnitPlace place;
  if constexpr ((kFeatures & kLayouts) != 0) {
    place = place_unit<V>(unit, p.layout);
  } else {
    const int half = p.layout.head_dim / 2;
    const bool inside = !kPadded || unit * V < half;
    place = {unit * V, half + unit * V, unit * V, inside, inside};
  }
  bool rotated = true;  // without features every head is turned, in full
  if constexpr ((kFeatures & kLayouts) != 0) {
    rotated = place.pair >= 0;
  } else if constexpr (kFeatures != 0) {
    rotated = place.has_a & (p.layout.rotary_dim > 0);
  }

  // A block keeps to one tensor where a thread has one head.
  HeadPlace at[kUnits];
  bool active[kUnits];
  Unit<T, V> data[kUnits], bias, weight;
  float given = 1.0f;
  // Constants of a head: on their way with the data where a thread has one head; where it has more, registers are dearer.
  const auto load_constants = [&](const HeadPlace& head) {
    if constexpr ((kFeatures & (kBias | kNorm | kQuantised)) != 0) {
      const auto& extras = p.extras[head.tensor];
      if ((kFeatures & kBias) != 0 && extras.bias != nullptr) {
        bias = load_unit<false, T, V>(extras.bias + static_cast<uint32_t>(head.head * p.layout.head_dim) * kSize, place);
      }
      if ((kFeatures & kNorm) != 0 && extras.weight != nullptr) {
        weight = load_unit<false, T, V>(extras.weight + static_cast<uint32_t>(head.head) * extras.weight_head, place);
      }
      if ((kFeatures & kQuantised) != 0 && extras.scale_from == ScaleFrom::given) {
        given = *reinterpret_cast<const float*>(extras.scale + static_cast<uint32_t>(head.head) * extras.scale_head);
      }
    }
  };
#pragma unroll
  for (int n = 0; n < kUnits; ++n) {
    // Threads without a head read one that exists: a load that waits for a comparison comes late.
    if constexpr (kUnits == 1) {
      const int tensor = (blockIdx.y >= p.k_block) + (blockIdx.y >= p.v_block);
      const uint32_t first_block = tensor == 2 ? p.v_block : tensor == 1 ? p.k_block : 0;
      const int head = static_cast<int>((blockIdx.y - first_block) * blockDim.y + threadIdx.y);
      const int heads = p.tensors[tensor].heads;
      active[n] = head < heads;
      at[n] = {tensor, min(head, heads - 1)};
      rotated = rotated & (tensor != 2);
    } else {
      const int row = static_cast<int>((n * gridDim.y + blockIdx.y) * blockDim.y + threadIdx.y);
      const int rows = p.tensors[0].heads + p.tensors[1].heads + p.tensors[2].heads;
      active[n] = row < rows;
      at[n] = place_head(p, min(row, rows - 1));
    }
    const auto& tensor = p.tensors[at[n].tensor];
    const char* head = tensor.in + times(tensor.in_token, t) + static_cast<uint32_t>(at[n].head) * tensor.in_head;
    data[n] = load_unit<kStreamingLoads, T, V>(head, place);
    if constexpr (kUnits == 1) load_constants(at[n]);
  }

  __syncwarp();  // keeps the assembler from moving loads of data behind the wait for the position

  // What is wrong with an index is rare: it costs a few selections, and a branch to where it is recorded.
  bool padding = false, outside = false, reaches_cache = true;
  uint32_t page = 0, offset = 0;
  FaultCode fault = FaultCode::none;
  UnitAngles<V> angles;
  const auto load_row = [&](uint64_t row) {
    const char* cos =
        reinterpret_cast<const char*>(p.cos_sin + place.pair) + row * static_cast<uint32_t>(p.layout.rotary_dim * 4);
    angles = load_angles<V>(reinterpret_cast<const float*>(cos), reinterpret_cast<const float*>(cos + p.layout.rotary_dim * 2));
  };
  if constexpr ((kFeatures & kPlaces) == 0) {
    padding = pending_position.negative();
    outside = pending_position.at_least(p.max_position, p.position_step);
    if (rotated) load_row(outside ? 0 : pending_position.low);
    const bool beyond = !pending_slot.negative() & pending_slot.at_least(p.num_slots, p.slot_step);
    reaches_cache = !(padding | outside | beyond | pending_slot.negative());
    if (!padding & (outside | beyond)) fault = outside ? FaultCode::position_out_of_range : FaultCode::slot_out_of_range;
    page = page_of(p, pending_slot.low);
    offset = pending_slot.low - page * p.page_size;
  } else {
    const bool per_token = p.places.source == CosSinSource::per_token;
    if (per_token && rotated) load_row(t);
    const TokenPlace token = place_token(p, t);
    padding = token.guard.padding;
    if (padding) return;
    outside = !token.guard.position_ok;
    reaches_cache = token.guard.slot >= 0;
    fault = token.guard.fault;
    page = static_cast<uint32_t>(token.page);
    offset = token.offset;
    if (!per_token && !outside && rotated) {
      if (p.places.pair_axis != nullptr) {
        angles = angles_of_streams<V>(p.cos_sin, p.layout.rotary_dim, place.pair, token.positions, p.places.pair_axis);
      } else {
        load_row(static_cast<uint64_t>(token.positions[0]));
      }
    }
  }
  if (__builtin_expect((fault != FaultCode::none) & ((blockIdx.y | threadIdx.y | threadIdx.x) == 0), 0))
    report_fault(p, t, fault);

  HeadLanes lanes;
  if constexpr (kPadded) {
    lanes = head_lanes(static_cast<int>(blockDim.x), static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x));
  }
#pragma unroll
  for (int n = 0; n < kUnits; ++n) {
    const bool is_q = at[n].tensor == 0;
    if (!active[n] | padding | (!is_q & !reaches_cache)) return;  // what follows is K and V too
    const auto& tensor = p.tensors[at[n].tensor];
    char* to = tensor.out + times(tensor.out_page, is_q ? 0 : page) + times(tensor.out_token, is_q ? t : offset) +
               static_cast<uint32_t>(at[n].head) * tensor.out_head;
    const bool turns = kUnits == 1 ? rotated : (at[n].tensor != 2) & rotated;
    if constexpr ((kFeatures & ~kLayouts & ~kPlaces) == 0) {
      if (turns) {
        UnitValues<V> values = widen<T, V>(data[n]);
        rotate<V>(values, angles, (kFeatures & kLayouts) != 0 ? p.layout.style : RopeStyle::neox);
        data[n] = narrow<T, V>(values);
      }
    } else {
      if constexpr (kUnits > 1) load_constants(at[n]);
      const auto& extras = p.extras[at[n].tensor];
      UnitValues<V> values = widen<T, V>(data[n]);
      bool changed = turns;
      if ((kFeatures & kBias) != 0 && extras.bias != nullptr) {
        add_bias<T, V>(values, bias);
        changed = true;
      }
      if constexpr ((kFeatures & kNorm) != 0) {
        if (extras.norm != NormStep::none) {
          float squares[2 * V];
          square<V>(values, squares);
          const float sum = sum_halves(lanes, tree<V>(squares), tree<V>(squares + V));
          multiply<V>(values, inverse_root_mean(sum, extras.inverse_count, extras.eps));
          if (extras.weight != nullptr) multiply_weight<T, V>(values, weight, extras.weight_offset);
          changed = true;
        }
      }
      if (turns) rotate<V>(values, angles, (kFeatures & kLayouts) != 0 ? p.layout.style : RopeStyle::neox);
      if constexpr ((kFeatures & kQuantised) != 0) {
        if (extras.store != StoreAs::native) {
          const KvType type = static_cast<KvType>(static_cast<int>(extras.store) - 1);
          HeadScale scale;
          if (outside) {
            scale = {0.0f, 0.0f};
          } else if (extras.scale_from == ScaleFrom::computed) {
            scale = computed_scale(largest_over(lanes, largest_magnitude<V>(values)), kv_largest(type));
          } else if (extras.scale_from == ScaleFrom::given) {
            scale = given_scale(given);
          }
          if (extras.scale_from == ScaleFrom::computed && unit == 0) {
            *reinterpret_cast<float*>(extras.scale + times(extras.scale_page, is_q ? 0 : page) +
                                      times(extras.scale_token, is_q ? t : offset) +
                                      static_cast<uint32_t>(at[n].head) * extras.scale_head) = scale.scale;
          }
          if (scale.reciprocal == 0.0f) {
            values = {};
          } else {
            multiply<V>(values, scale.reciprocal);
          }
          if (place.has_a) store_bytes<V, false>(to + place.a, to_8_bits<V>(values.x, type));
          if (place.has_b) store_bytes<V, false>(to + place.b, to_8_bits<V>(values.x + V, type));
          continue;
        }
      }
      if (changed) data[n] = narrow<T, V>(values);
    }
    if (outside) data[n] = {};
    if (kStreamingStores && is_q) {
      store_unit<true, T, V>(to, place, data[n]);
    } else {
      store_unit<false, T, V>(to, place, data[n]);
    }
  }
}

}  // namespace prologue::cuda
