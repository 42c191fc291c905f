// blockIdx.x is the token; threadIdx.x the lane, that is the unit (head_unit.cuh), within a head; the rows threadIdx.y of all
// blockIdx.y walk the heads of q, k and v, kUnits neighbouring heads of one tensor each: a thread keeps its cos and sin for them.
//
// Instances with steps, with few parameters and instructions. Each runs exactly the steps that its features name; kAnySteps
// decides them at run time. general_schedule.cuh runs the calls that they cannot run, plain_schedule.cuh those without
// steps. With few tokens the time is one chain of loads, index -> row of cos and sin. So the kernel is written in the
// order of that chain: load the indices; load the data and constants; convert the position to an address and load cos and sin;
// while these loads are in flight, do everything that needs neither (bias, norm, scales). With many tokens the number of
// instructions limits: what the lanes of a head compute together, they compute for all heads of a thread at once.
#pragma once

#include <cstdint>

#include <prologue/kernels/attention_prologue/prologue_args.h>
#include <prologue/kernels/attention_prologue/head_steps.cuh>
#include <prologue/kernels/attention_prologue/lean_token.cuh>
#include <prologue/kernels/base/device/head_unit.cuh>

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
  if (vector < 8 || (hints & kEvictFirstStores) == 0) return {256, 1};  // few tokens, or heads of more than 64 lanes
  return {64, features == kAxes || features == kDerived ? 18 : 16};
}

// Whether lanes work together: a head's are then a power of two of one warp, warps are full, and each keeps to one tensor.
constexpr bool padded(int features) { return (features & (kNorm | kComputedScales | kDerived | kAnySteps)) != 0; }

// What is the same in all threads of a warp, told so to the compiler: shuffles behind it need not look who is there.
__device__ inline bool uniform(bool same) { return __any_sync(kWholeWarp, same) != 0; }

// Where the unit of a lane is. Idle lanes do what lane 0 does, but store nothing: a load that waits for a comparison comes late.
struct LaneUnit {
  UnitPlace place;
  bool inside;
};

template <int V, int kFeatures>
__device__ inline LaneUnit unit_of_lane(int lane, const HeadLayout& layout) {
  if constexpr ((kFeatures & kLayouts) != 0) {
    return {place_unit<V>(lane, layout), true};
  } else {
    const int half = layout.head_dim / 2, at = lane * V;
    const bool inside = !padded(kFeatures) || at < half;
    const int a = inside ? at : 0;
    return {{a, half + a, a, true, true}, inside};
  }
}

// The first head of a thread, which has kUnits neighbours of one tensor. Rows past the last head read the last.
template <int kUnits>
__device__ inline TensorHead heads_of(const LeanArgs& p, uint32_t block, uint32_t row, uint32_t rows) {
  const uint32_t index = kUnits == 1 ? block : block * rows + row;  // a block keeps to one tensor where a thread has one head
  const int which = (index >= p.k_begin) + (index >= p.v_begin);
  const uint32_t in_tensor = index - (which == 2 ? p.v_begin : which == 1 ? p.k_begin : 0);
  return {which, static_cast<int>(kUnits == 1 ? in_tensor * rows + row : in_tensor * kUnits)};
}

// What a call does with the tensor of a thread. Instances without kAnySteps know the steps at compile time.
struct LeanPlan {
  bool biased;
  bool normed;
  bool rotated;  // this unit
  bool computes_scale;
  bool has_scale;
};

// Constants of the heads that are computed at once.
template <class T, int V, int kAtOnce>
struct LeanConstants {
  Unit<T, V> bias[kAtOnce], weight;
  HeadScale scales[kAtOnce];
};

// `head(n)`: the number of head n of them.
template <class T, int V, int kAtOnce, class Head>
__device__ inline void load_constants(const LeanPlan& plan, const LeanTensor& tensor, int head_dim, const UnitPlace& place,
                                      const Head& head, LeanConstants<T, V, kAtOnce>& constants) {
  if (plan.normed) constants.weight = load_unit<false, T, V>(tensor.weight, place);
  const uint32_t bytes = static_cast<uint32_t>(head_dim) * static_cast<uint32_t>(sizeof(T));
#pragma unroll
  for (int n = 0; n < kAtOnce; ++n) {
    if (plan.biased) constants.bias[n] = load_unit<false, T, V>(tensor.bias + head(n) * bytes, place);
    if (plan.has_scale) {
      constants.scales[n].scale = *reinterpret_cast<const float*>(tensor.scale + head(n) * tensor.scale_head);
    }
  }
}

// The steps of those heads, from their unconverted data. `Angles` loads cos and sin when it is asked for them.
template <class T, int V, int kAtOnce, class Angles>
struct LeanSteps : NoSteps<T, V> {
  const LeanPlan& plan;
  const LeanTensor& tensor;
  const Unit<T, V>* data;
  const LeanConstants<T, V, kAtOnce>& constants;
  const Angles& load_angles;
  bool is_v;
  RopeStyle rope_style;

  __device__ LeanSteps(const LeanPlan& steps, const LeanTensor& in, const Unit<T, V>* loaded,
                       const LeanConstants<T, V, kAtOnce>& of_heads, const Angles& angles, bool v, RopeStyle pairs)
      : plan(steps), tensor(in), data(loaded), constants(of_heads), load_angles(angles), is_v(v), rope_style(pairs) {}

  __device__ UnitValues<V> values(int n) const { return widen<T, V>(data[n]); }
  __device__ bool biased() const { return plan.biased; }
  __device__ Unit<T, V> bias(int n) const { return constants.bias[n]; }
  __device__ NormPlacement norm() const {
    return plan.normed && uniform(!is_v) ? NormPlacement::before_rope : NormPlacement::none;
  }
  __device__ float inverse_count() const { return tensor.inverse_count; }
  __device__ float eps() const { return tensor.eps; }
  __device__ static bool weighted() { return true; }
  __device__ UnitValues<V> weight() const { return norm_factors<V>(widen<T, V>(constants.weight), tensor.weight_offset); }
  __device__ bool rotates() const { return plan.rotated; }
  __device__ UnitAngles<V> angles() const { return load_angles(); }
  __device__ RopeStyle style() const { return rope_style; }
};

// What a thread stores: its unit of the heads of one tensor, in the token's row of q or in its slot of the cache.
struct LeanStore {
  const LeanTensor& tensor;
  const UnitPlace& place;
  int first_head;
  bool is_q;
  bool writes;
  bool zero;
  uint32_t page;
  uint32_t offset;
  char* out;

  __device__ LeanStore(const LeanTensor& of, const LaneUnit& unit, const TensorHead& heads, const LeanToken& token, uint32_t t)
      : tensor(of),
        place(unit.place),
        first_head(heads.head),
        is_q(heads.tensor == 0),
        writes(unit.inside & !token.padding & (is_q | token.reaches_cache)),
        zero(token.zero),
        page(is_q ? 0 : token.page),
        offset(is_q ? t : token.offset),
        out(tensor.out + wide_product(tensor.out_page, page) + wide_product(tensor.out_token, offset)) {}

  __device__ bool stores(int n) const { return writes & (first_head + n < tensor.heads); }
  __device__ char* row(int n) const { return out + static_cast<uint32_t>(first_head + n) * tensor.out_head; }

  // `kEvictFirst`: for q.
  template <bool kEvictFirst, class T, int V>
  __device__ void store(int n, Unit<T, V> unit) const {
    if (zero) unit = {};
    if (!stores(n)) return;
    if (kEvictFirst && is_q) {
      store_unit<true, T, V>(row(n), place, unit);
    } else {
      store_unit<false, T, V>(row(n), place, unit);
    }
  }

  // kAtOnce heads from head `first` on, in 8 bits, with the scales of `constants` or with computed ones.
  template <class T, int V, int kAtOnce>
  __device__ void store_8_bits(int first, const UnitValues<V> (&values)[kAtOnce], const WarpLanes<V>& lanes, bool computes_scale,
                               LeanConstants<T, V, kAtOnce>& constants) const {
    const DType type = tensor.store;
    HeadScale(&scales)[kAtOnce] = constants.scales;
    if (computes_scale) {
      lanes.largest(
          values, [&](uint32_t largest) { return computed_scale(largest, kv_largest(type)); }, scales);
      char* scale = tensor.scale + wide_product(tensor.scale_page, page) + wide_product(tensor.scale_token, offset);
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        if (stores(first + n) & (lanes.lane == 0)) {
          *reinterpret_cast<float*>(scale + static_cast<uint32_t>(first_head + first + n) * tensor.scale_head) =
              zero ? 0.0f : scales[n].scale;
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      char* to = row(first + n);
      const UnitBytes<V> bytes = quantise<V>(values[n], zero ? 0.0f : scales[n].reciprocal, type);
      if (stores(first + n)) store_unit_8<V>(to, place, bytes);
    }
  }
};

template <class T, int V, int kUnits, int kHints, int kFeatures>
__global__ void __launch_bounds__(bounds_of(V, kUnits, kHints, kFeatures).threads, bounds_of(V, kUnits, kHints, kFeatures).blocks)
    steps_prologue_kernel(const __grid_constant__ LeanArgs p) {
  static_assert(has_steps(kFeatures));
  constexpr bool kHintedLoads = (kHints & kEvictFirstLoads) != 0;
  constexpr bool kHintedStores = (kHints & kEvictFirstStores) != 0;
  constexpr int kAtOnce = heads_at_once(kUnits, kFeatures);
  const int features = (kFeatures & kAnySteps) != 0 ? p.features : kFeatures;
  constexpr bool kWithLayouts = (kFeatures & kLayouts) != 0;  // which have no norm
  const bool scaled = (features & (kGivenScales | kComputedScales)) != 0;
  const uint32_t t = blockIdx.x;

  PendingToken<kFeatures, V, (kUnits > 1)> pending;
  pending.ask(p, t);

  const LaneUnit unit = unit_of_lane<V, kFeatures>(static_cast<int>(threadIdx.x), p.layout);
  const UnitPlace& place = unit.place;
  if constexpr ((kFeatures & kAxes) != 0) pending.ask_axes(p, max(place.pair, 0));

  const TensorHead heads = heads_of<kUnits>(p, blockIdx.y, threadIdx.y, blockDim.y);
  const LeanTensor& tensor = p.tensors[heads.tensor];
  const bool is_v = heads.tensor == 2;
  const bool computes_scale =
      (features & kComputedScales) != 0 && ((features & kGivenScales) == 0 || tensor.scale_from == ScaleFrom::computed);
  LeanPlan plan;
  plan.biased = (features & kBias) != 0;
  plan.normed = !kWithLayouts && (features & kNorm) != 0;
  plan.rotated = !is_v & (kWithLayouts ? place.pair >= 0 : p.layout.rotary_dim > 0);
  plan.computes_scale = computes_scale;
  plan.has_scale = scaled && !computes_scale && tensor.scale != nullptr;

  Unit<T, V> data[kUnits];
  LeanConstants<T, V, kAtOnce> constants;
  const char* in = tensor.in + wide_product(tensor.in_token, t);
  const auto existing = [&](int n) { return static_cast<uint32_t>(min(heads.head + n, tensor.heads - 1)); };
#pragma unroll
  for (int n = 0; n < kUnits; ++n) data[n] = load_unit<kHintedLoads, T, V>(in + existing(n) * tensor.in_head, place);
  if (kUnits == 1) load_constants(plan, tensor, p.layout.head_dim, place, existing, constants);

  // Everything is on its way before the first wait: a barrier keeps the assembler from moving loads behind it, and the branch
  // that records what is wrong with an index keeps it from waiting before them.
  __syncwarp();
  if (kUnits == 1) pending.ask_slot(p, t);
  LeanToken token = pending.resolve_position(p, t, static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x) % 32);
  constexpr bool kLateAngles = kUnits > 1 && (kFeatures & (kNorm | kAnySteps)) != 0;  // a norm needs their registers
  UnitAngles<V> angles;
  if (!kLateAngles && plan.rotated) angles = pending.angles(p, token, place.pair);
  if (kUnits == 1 && plan.has_scale) constants.scales[0].reciprocal = __frcp_rn(constants.scales[0].scale);
  if (kUnits > 1) pending.ask_slot(p, t);
  pending.resolve_slot(p, token);

  const WarpLanes<V> lanes = {static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x), unit.inside};
  const LeanStore store(tensor, unit, heads, token, t);
  const bool in_8_bits = scaled && tensor.store != DType::unset;
  constexpr bool kCopiesV = (kFeatures & (kNorm | kBias)) == kNorm;
#pragma unroll
  for (int first = 0; first < kUnits; first += kAtOnce) {
    if (kCopiesV && uniform(is_v & !in_8_bits)) {  // here, so that no other path must keep the unconverted data
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) store.store<kHintedStores, T, V>(first + n, data[first + n]);
      continue;
    }
    // Where there are many tokens they come out of the L1, and registers are dearer than waiting.
    if (kUnits > 1) {
      load_constants(
          plan, tensor, p.layout.head_dim, place, [&](int n) { return existing(first + n); }, constants);
    }
    UnitValues<V> values[kAtOnce];
    const auto load_angles = [&] { return kLateAngles ? pending.angles(p, token, place.pair) : angles; };
    const LeanSteps<T, V, kAtOnce, decltype(load_angles)> steps(plan, tensor, data + first, constants, load_angles, is_v,
                                                                kWithLayouts ? p.layout.style : RopeStyle::neox);
    finish_head<T, V>(values, steps, lanes);

    if ((features & kComputedScales) != 0 ? uniform(in_8_bits) : in_8_bits) {
      if (kUnits > 1 && plan.has_scale) {
#pragma unroll
        for (HeadScale& scale : constants.scales) scale.reciprocal = __frcp_rn(scale.scale);
      }
      store.store_8_bits<T, V>(first, values, lanes, plan.computes_scale, constants);
    } else {
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const bool changed = plan.biased | (plan.normed & !is_v) | plan.rotated;
        store.store<kHintedStores, T, V>(first + n, changed ? narrow<T, V>(values[n]) : data[first + n]);
      }
    }
  }
  const bool records = (blockIdx.y | threadIdx.y | threadIdx.x) == 0;
  if (__builtin_expect((token.fault != FaultCode::none) & !token.padding & records, 0)) {
    cuda::record_fault(p.faults, p.token_faults, t, token.fault);
  }
}

}  // namespace prologue::cuda
