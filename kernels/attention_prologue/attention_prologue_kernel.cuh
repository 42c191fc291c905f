// blockIdx.x is the token; threadIdx.x the lane, that is the unit (head_unit.cuh), within a head; the rows threadIdx.y of all
// blockIdx.y walk the heads of q, k and v, kUnits neighbouring heads of one tensor each: a thread keeps its cos and sin for them.
//
// Instances with steps, with few parameters and instructions. Each runs exactly the steps that its features name; kAnySteps
// decides them at run time. general_prologue_kernel.cuh runs the calls that they cannot run, plain_prologue_kernel.cuh those
// without steps. With few tokens the time is one chain of loads, index -> row of cos and sin. So the kernel is written in the
// order of that chain: load the indices; load the data and constants; convert the position to an address and load cos and sin;
// while these loads are in flight, do everything that needs neither (bias, norm, scales). With many tokens the number of
// instructions limits: what the lanes of a head compute together, they compute for all heads of a thread at once.
#pragma once

#include <cstdint>

#include <prologue/kernels/attention_prologue/lean_place.cuh>
#include <prologue/kernels/attention_prologue/prologue_args.cuh>
#include <prologue/kernels/base/head_unit.cuh>

namespace prologue::cuda {

// The heads of a thread that are computed at once: sharing the work of the lanes pays for the registers.
constexpr int heads_at_once(int units, int features) {
  return (features & (kNorm | kComputedScales | kAnySteps)) != 0 ? units : 1;
}

// Of a block, and blocks of an SM, as many as its registers leave room for: a spilt one costs more than another block brings.
struct Bounds {
  int threads;
  int blocks;
};

constexpr Bounds bounds_of(int vector, int units, int hints, int features) {
  const bool mixed = (features & kNorm) != 0 && (features & ~(kNorm | kBias)) != 0;
  if (units > 1) return {192, mixed || (features & (kComputedScales | kAnySteps)) != 0 ? 4 : 5};
  if (vector < 8 || (hints & kStreamStores) == 0) return {256, 1};  // few tokens, or heads of more than 64 lanes
  return {64, features == kStreams || features == kDerived ? 18 : 16};
}

// Whether lanes work together: a head's are then a power of two of one warp, warps are full, and each keeps to one tensor.
constexpr bool padded(int features) { return (features & (kNorm | kComputedScales | kDerived | kAnySteps)) != 0; }

// What is the same in all threads of a warp, told so to the compiler: shuffles behind it need not look who is there.
__device__ inline bool uniform(bool same) { return __any_sync(kWholeWarp, same) != 0; }

// The lanes of a head; those of 128 channels are worth code of their own, without a branch at each step.
template <int V, class F>
__device__ inline auto with_lanes(const F& f) {
  constexpr int kUsual = 64 / V;
  const int lanes = static_cast<int>(blockDim.x);
  return lanes == kUsual ? f(HeadLanes{kWholeWarp, kUsual}) : f(HeadLanes{kWholeWarp, lanes});
}

// 1 / root mean square of each head. All threads of a warp must be here, for q or k.
template <int V, int kUnits>
__device__ inline void inverse_root_means(const UnitValues<V> (&values)[kUnits], const LeanTensor& tensor, bool inside,
                                          float (&inverse)[kUnits]) {
  const uint32_t mask = inside ? 0xffffffffu : 0;  // a selection that the compiler does not make a branch of
  const auto masked = [&](float x) { return __uint_as_float(__float_as_uint(x) & mask); };
  float halves[2 * kUnits];
#pragma unroll
  for (int n = 0; n < kUnits; ++n) {
    float squares[2 * V];
    square<V>(values[n], squares);
    halves[2 * n] = masked(tree<V>(squares));
    halves[2 * n + 1] = masked(tree<V>(squares + V));
  }
  const float sum = with_lanes<V>([&](const HeadLanes& lanes) {
    if constexpr (kUnits == 1) {
      return sum_halves(lanes, halves[0], halves[1]);
    } else {
      const float half = reduce_several(lanes, halves, [](float x, float y) { return add_rounded(x, y); });
      return add_rounded(half, __shfl_xor_sync(lanes.mask, half, 1));
    }
  });
  const float mine = inverse_root_mean(sum, tensor.inverse_count, tensor.eps);
#pragma unroll
  for (int n = 0; n < kUnits; ++n) {
    inverse[n] = kUnits == 1 ? mine : __shfl_sync(kWholeWarp, mine, 2 * n, static_cast<int>(blockDim.x));
  }
}

// The scale of each head. All threads of a warp must be here.
template <int V, int kUnits>
__device__ inline void compute_scales(const UnitValues<V> (&values)[kUnits], DType type, HeadScale (&scales)[kUnits]) {
  uint32_t largest[kUnits];
#pragma unroll
  for (int n = 0; n < kUnits; ++n) largest[n] = largest_magnitude<V>(values[n]);
  const uint32_t mine_largest = with_lanes<V>(
      [&](const HeadLanes& lanes) { return reduce_several(lanes, largest, [](uint32_t x, uint32_t y) { return max(x, y); }); });
  const HeadScale mine = computed_scale(mine_largest, kv_largest(type));
#pragma unroll
  for (int n = 0; n < kUnits; ++n) {
    scales[n] = mine;
    if constexpr (kUnits > 1) {
      scales[n].scale = __shfl_sync(kWholeWarp, mine.scale, n, static_cast<int>(blockDim.x));
      scales[n].reciprocal = __shfl_sync(kWholeWarp, mine.reciprocal, n, static_cast<int>(blockDim.x));
    }
  }
}

template <class T, int V, int kUnits, int kHints, int kFeatures>
__global__ void __launch_bounds__(bounds_of(V, kUnits, kHints, kFeatures).threads, bounds_of(V, kUnits, kHints, kFeatures).blocks)
    attention_prologue_kernel(const __grid_constant__ LeanArgs p) {
  static_assert(has_steps(kFeatures));
  constexpr bool kStreamingLoads = (kHints & kStreamLoads) != 0;
  constexpr bool kStreamingStores = (kHints & kStreamStores) != 0;
  constexpr int kAtOnce = heads_at_once(kUnits, kFeatures);
  const int features = (kFeatures & kAnySteps) != 0 ? p.features : kFeatures;
  constexpr bool kWithLayouts = (kFeatures & kLayouts) != 0;  // which have no norm
  const bool biased = (features & kBias) != 0, normed = !kWithLayouts && (features & kNorm) != 0;
  const bool scaled = (features & (kGivenScales | kComputedScales)) != 0;
  const uint32_t t = blockIdx.x;

  PendingPlace<kFeatures, V, (kUnits > 1)> pending;
  pending.ask(p, t);

  UnitPlace place;
  bool inside = true;  // idle lanes do what lane 0 does, but store nothing: a load that waits for a comparison comes late
  if constexpr (kWithLayouts) {
    place = place_unit<V>(static_cast<int>(threadIdx.x), p.layout);
  } else {
    const int half = p.layout.head_dim / 2;
    int at = static_cast<int>(threadIdx.x) * V;
    if (padded(kFeatures)) inside = at < half, at = inside ? at : 0;
    place = {at, half + at, at, true, true};
  }
  if constexpr ((kFeatures & kStreams) != 0) pending.ask_axes(p, max(place.pair, 0));

  // A block keeps to one tensor where a thread has one head. Rows past the last head read the last.
  const uint32_t index = kUnits == 1 ? blockIdx.y : blockIdx.y * blockDim.y + threadIdx.y;
  const int which = (index >= p.k_begin) + (index >= p.v_begin);
  const uint32_t in_tensor = index - (which == 2 ? p.v_begin : which == 1 ? p.k_begin : 0);
  const int first_head = static_cast<int>(kUnits == 1 ? in_tensor * blockDim.y + threadIdx.y : in_tensor * kUnits);
  const LeanTensor& tensor = p.tensors[which];
  const bool is_q = which == 0, is_v = which == 2;
  const bool turns = !is_v & (kWithLayouts ? place.pair >= 0 : p.layout.rotary_dim > 0);

  Unit<T, V> data[kUnits], bias[kAtOnce], weight;
  HeadScale scales[kAtOnce];
  const bool computes =
      (features & kComputedScales) != 0 && ((features & kGivenScales) == 0 || tensor.scale_from == ScaleFrom::computed);
  const bool has_scale = scaled && !computes && tensor.scale != nullptr;
  const char* in = tensor.in + times(tensor.in_token, t);
  const auto existing = [&](int n) { return static_cast<uint32_t>(min(first_head + n, tensor.heads - 1)); };
  const auto load_constants = [&](int first) {
    if (normed) weight = load_unit<false, T, V>(tensor.weight, place);
    const uint32_t bytes = static_cast<uint32_t>(p.layout.head_dim) * static_cast<uint32_t>(sizeof(T));
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      if (biased) bias[n] = load_unit<false, T, V>(tensor.bias + existing(first + n) * bytes, place);
      if (has_scale) scales[n].scale = *reinterpret_cast<const float*>(tensor.scale + existing(first + n) * tensor.scale_head);
    }
  };
#pragma unroll
  for (int n = 0; n < kUnits; ++n) data[n] = load_unit<kStreamingLoads, T, V>(in + existing(n) * tensor.in_head, place);
  if (kUnits == 1) load_constants(0);

  // Everything is on its way before the first wait: a barrier keeps the assembler from moving loads behind it, and the branch
  // that records what is wrong with an index keeps it from waiting before them.
  __syncwarp();
  if (kUnits == 1) pending.ask_slot(p, t);
  const LeanPosition position = pending.resolve_position(p, t);
  constexpr bool kLateAngles = kUnits > 1 && (kFeatures & (kNorm | kAnySteps)) != 0;  // a norm needs their registers
  UnitAngles<V> angles;
  if (!kLateAngles && turns) angles = pending.angles(p, position, place.pair);
  if (kUnits == 1 && has_scale) scales[0].reciprocal = __frcp_rn(scales[0].scale);
  if (kUnits > 1) pending.ask_slot(p, t);
  const LeanSlot slot = pending.resolve_slot(p);

  const uint32_t page = is_q ? 0 : slot.page, offset = is_q ? t : slot.offset;
  char* out = tensor.out + times(tensor.out_page, page) + times(tensor.out_token, offset);
  const bool writes = inside & !position.padding & (is_q | (slot.reaches_cache & !position.outside));
  const bool in_8_bits = scaled && tensor.store != DType::unset;
  constexpr bool kCopiesV = (kFeatures & (kNorm | kBias)) == kNorm;
#pragma unroll
  for (int first = 0; first < kUnits; first += kAtOnce) {
    const auto stores = [&](int n) { return writes & (first_head + first + n < tensor.heads); };
    const auto row = [&](int n) { return out + static_cast<uint32_t>(first_head + first + n) * tensor.out_head; };
    const auto write = [&](int n, Unit<T, V> unit) {
      if (position.outside) unit = {};
      if (!stores(n)) return;
      if (kStreamingStores && is_q) {
        store_unit<true, T, V>(row(n), place, unit);
      } else {
        store_unit<false, T, V>(row(n), place, unit);
      }
    };
    if (kCopiesV && uniform(is_v & !in_8_bits)) {  // here, so that no other path must keep the unconverted data
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) write(n, data[first + n]);
      continue;
    }
    // Where there are many tokens they come out of the L1, and registers are dearer than waiting.
    if (kUnits > 1) load_constants(first);
    UnitValues<V> values[kAtOnce];
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      values[n] = widen<T, V>(data[first + n]);
      if (biased) add_bias<T, V>(values[n], bias[n]);
    }
    if (normed && uniform(!is_v)) {
      float inverse[kAtOnce];
      inverse_root_means<V, kAtOnce>(values, tensor, inside, inverse);
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        multiply<V>(values[n], inverse[n]);
        multiply_weight<T, V>(values[n], weight, tensor.weight_offset);
      }
    }
    if (kLateAngles && turns) angles = pending.angles(p, position, place.pair);
    if (turns) {
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) rotate<V>(values[n], angles, kWithLayouts ? p.layout.style : RopeStyle::neox);
    }

    if ((features & kComputedScales) != 0 ? uniform(in_8_bits) : in_8_bits) {
      const DType type = tensor.store;
      if (kUnits > 1 && has_scale) {
#pragma unroll
        for (int n = 0; n < kAtOnce; ++n) scales[n].reciprocal = __frcp_rn(scales[n].scale);
      }
      if (computes) {
        compute_scales<V, kAtOnce>(values, type, scales);
        char* scale = tensor.scale + times(tensor.scale_page, page) + times(tensor.scale_token, offset);
#pragma unroll
        for (int n = 0; n < kAtOnce; ++n) {
          if (stores(n) & (threadIdx.x == 0)) {
            *reinterpret_cast<float*>(scale + static_cast<uint32_t>(first_head + first + n) * tensor.scale_head) =
                position.outside ? 0.0f : scales[n].scale;
          }
        }
      }
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const float reciprocal = position.outside ? 0.0f : scales[n].reciprocal;
        multiply<V>(values[n], reciprocal);
        UnitBytes<V> bytes = to_8_bits<V>(values[n], type);
        if (reciprocal == 0.0f) bytes = {};  // whatever the values are
        if (stores(n)) store_unit_8<V>(row(n), place, bytes);
      }
    } else {
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        write(n, biased | normed | turns ? narrow<T, V>(values[n]) : data[first + n]);
      }
    }
  }
  const FaultCode fault = position.outside ? FaultCode::position_out_of_range : slot.fault;
  const bool records = (blockIdx.y | threadIdx.y | threadIdx.x) == 0;
  if (__builtin_expect((fault != FaultCode::none) & !position.padding & records, 0)) report_fault(p, t, fault);
}

}  // namespace prologue::cuda
