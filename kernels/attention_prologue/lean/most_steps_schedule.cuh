// This schedule is lean/steps_schedule.cuh with one head a thread, for what fewer models need: other norms than the RMS norm before the
// rotation, norms of partly rotated or interleaved heads, a bias of some of q, k and v, a scale of Q, k_out and v_out, the inverse
// rotation, rings, and any mixture of these with the steps and caches there. All of it is decided at run time, once for all threads of a
// warp.
#pragma once

#include <cstdint>

#include <prologue/kernels/attention_prologue/prologue_args.h>
#include <prologue/kernels/attention_prologue/steps/query_factor.h>
#include <prologue/kernels/attention_prologue/lean/steps.cuh>
#include <prologue/kernels/attention_prologue/lean/store.cuh>
#include <prologue/kernels/attention_prologue/lean/token.cuh>
#include <prologue/kernels/base/device/instructions.cuh>

namespace prologue::cuda {

// Says which steps a head has. If `kEarly`, the loads of constants are in flight before the token is known; otherwise constants are loaded
// where they are used, which takes fewer registers.
template <class T, int V, bool kEarly, bool kEvery, class Angles>
struct MostSteps : NoSteps<T, V> {
  static constexpr bool kHasEveryStep = kEvery;
  const LeanTensor& tensor;
  const MostStepsTensor& more;
  const UnitChannels& place;
  const Unit<T, V>& data;
  const Angles& load_angles;
  uint32_t head;
  bool normed, has_weight, has_norm_bias, floats, biased_head;
  bool rotated = false;  // this unit
  RopeStyle rope_style = RopeStyle::neox;
  bool scaled = false;
  float q_factor = 1.0f;
  float sum_of_token = 0.0f;
  int width;
  bool rounds_steps;
  Unit<T, V> early_bias;
  WeightUnit<T, V> early_weight;

  __device__ MostSteps(const MostStepsArgs& p, const TensorHead& at, const UnitChannels& unit, const Unit<T, V>& loaded,
                       const Angles& angles)
      : tensor(p.tensors[at.tensor]),
        more(p.more[at.tensor]),
        place(unit),
        data(loaded),
        load_angles(angles),
        head(static_cast<uint32_t>(min(at.head, tensor.heads - 1))),
        normed(uniform(more.norm != NormPlacement::none)),
        has_weight(uniform(tensor.weight != nullptr)),
        has_norm_bias(uniform(more.norm_bias != nullptr)),
        floats(uniform(more.float_weights != 0)),
        biased_head(uniform(tensor.bias != nullptr)),
        width(p.layout.head_dim),
        rounds_steps(kEvery && uniform(p.rounds != 0)) {
    if (!kEarly) return;
    if (biased_head) early_bias = load_bias();
    if (normed & has_weight) early_weight = load_weight(tensor.weight);
  }

  __device__ Unit<T, V> load_bias() const {
    return load_unit<false, T, V>(tensor.bias + head * static_cast<uint32_t>(width) * static_cast<uint32_t>(sizeof(T)), place);
  }
  __device__ WeightUnit<T, V> load_weight(const char* weights) const {
    WeightUnit<T, V> unit;
    unit.load(weights + head * more.weight_head, place, floats);
    return unit;
  }

  __device__ UnitValues<V> values(int) const { return widen<T, V>(data); }
  __device__ bool biased() const { return biased_head; }
  __device__ Unit<T, V> bias(int) const { return kEarly ? early_bias : load_bias(); }
  __device__ NormPlacement norm() const {
    if (!normed) return NormPlacement::none;
    return uniform(more.norm == NormPlacement::after_rope) ? NormPlacement::after_rope : NormPlacement::before_rope;
  }
  __device__ bool layer_norm() const { return uniform(more.kind == NormKind::layer); }
  __device__ bool norm_of_token() const { return more.scope == NormScope::token; }
  __device__ float token_sum() const { return sum_of_token; }
  __device__ float inverse_count() const { return tensor.inverse_count; }
  __device__ float eps() const { return tensor.eps; }
  __device__ bool weighted() const { return has_weight; }
  __device__ UnitValues<V> weight() const {
    const UnitValues<V> values = kEarly ? early_weight.values(floats) : load_weight(tensor.weight).values(floats);
    return norm_factors<V>(values, tensor.weight_offset);
  }
  __device__ bool norm_biased() const { return has_norm_bias; }
  __device__ UnitValues<V> norm_bias() const { return load_weight(more.norm_bias).values(floats); }
  __device__ bool rotates() const { return rotated; }
  __device__ UnitAngles<V> angles() const { return load_angles(); }
  __device__ RopeStyle style() const { return rope_style; }
  __device__ HeadPlan plan() const {
    HeadPlan steps;
    steps.hadamard_block = more.hadamard_block;
    steps.hadamard_factor = more.hadamard_factor;
    return steps;
  }
  __device__ bool scales() const { return scaled; }
  __device__ float factor() const { return q_factor; }
  __device__ bool rounds() const { return rounds_steps; }

  // If no step changes this unit, it is stored as it was loaded.
  __device__ bool changes() const { return biased_head | normed | rotated | scaled | (kEvery && more.hadamard_block != 0); }
};

// Says whether the token's position rotates this unit of a head.
template <int kFeatures, class T, int V, bool kEarly, bool kEvery, class Angles>
__device__ inline void choose_rotation(const MostStepsArgs& p, const LeanToken& token, int tensor,
                                       MostSteps<T, V, kEarly, kEvery, Angles>& steps) {
  steps.rotated = tensor != 2 && ((kFeatures & kLayouts) != 0 ? steps.place.pair >= 0 : p.layout.rotary_dim > 0);
  if (kEvery) steps.rotated &= token.rotated;
  steps.rope_style = (kFeatures & kLayouts) != 0 ? p.layout.style : RopeStyle::neox;
}

// Decides the factor of Q. `position()` returns the token's position as a number.
template <class Steps, class Position>
__device__ inline void choose_factor(const MostStepsArgs& p, int tensor, const Position& position, Steps& steps) {
  if (tensor != 0 || (p.q_scale.constant == 1.0f && p.q_scale.by_position == PositionScale::none)) return;
  steps.scaled = true;
  steps.q_factor = query_factor(p.q_scale, position());
}

// Negates the sines for the inverse rotation.
template <int V>
__device__ inline void invert_rotation(const MostStepsArgs& p, UnitAngles<V>& angles) {
  if (p.inverse == 0) return;
#pragma unroll
  for (float& sin : angles.sin) sin = -sin;
}

// Resolves the token's position, what that decides, and its slot, whose load must be in flight.
template <class T, int V, bool kEarly, bool kEvery, class Angles, int kFeatures, bool kKeep>
__device__ inline LeanToken resolve_token_of_head(const MostStepsArgs& p, PendingToken<kFeatures, V, kKeep>& pending, uint32_t t,
                                                  int lane_of_warp, int tensor, MostSteps<T, V, kEarly, kEvery, Angles>& steps,
                                                  UnitAngles<V>& angles) {
  LeanToken token = pending.resolve_position(p, t, lane_of_warp);
  choose_rotation<kFeatures>(p, token, tensor, steps);
  if (steps.rotated) {
    angles = pending.angles(p, token, steps.place.pair);
    invert_rotation(p, angles);
  }
  choose_factor(
      p, tensor, [&] { return pending.position_value(p); }, steps);
  pending.resolve_slot(p, token);
  return token;
}

// Stores the finished values of a head in the cache, q_out or q8_out, and in k_out or v_out.
template <bool kHintedStores, class T, int V, bool kEarly, bool kEvery, class Angles, class Lanes>
__device__ inline void store_head_of_token(const MostStepsArgs& p, const MostSteps<T, V, kEarly, kEvery, Angles>& steps,
                                           const UnitValues<V> (&values)[1], const LaneUnit& unit, const TensorHead& heads,
                                           const LeanToken& token, uint32_t t, const Unit<T, V>& data,
                                           const float (&given_scale)[1], const Lanes& lanes) {
  const LeanTensor& tensor = p.tensors[heads.tensor];
  const LeanStore store(tensor, unit, heads, token, t);
  const Unit<T, V> stored = steps.changes() ? narrow<T, V>(values[0]) : data;
  const MostStepsTensor& more = p.more[heads.tensor];
  if (more.second_out != nullptr) {
    char* to = more.second_out + wide_product(more.second_token, t) + steps.head * more.second_head;
    if (unit.inside & !token.padding & (heads.head < tensor.heads)) {
      store_unit<false, T, V>(to, unit.place, token.zero ? Unit<T, V>{} : stored);
    }
  }
  const bool computes = tensor.scale_from == ScaleFrom::computed;
  if (uniform(tensor.store == DType::unset)) {
    store.template store<kHintedStores, T, V>(0, stored);
  } else if (uniform(is_packed(tensor.store))) {
    store.template store_4_bits<V>(0, values, lanes, uniform(computes), given_scale);
  } else {
    store.template store_8_bits<V>(0, values, lanes, uniform(computes), given_scale);
  }
}

// Returns the lanes of a head.
template <int V, int kFeatures>
__device__ inline auto lanes_of_head(const WarpLanes<V>& whole, const UnitChannels& place, const HeadLayout& layout) {
  if constexpr ((kFeatures & kLayouts) != 0) {
    return LayoutLanes<V>{whole, place, layout};
  } else {
    return whole;
  }
}

constexpr Bounds most_bounds_of(int hints, int features) {
  if ((features & kTokenNorm) != 0) return {kMaxLanes, (hints & kEvictFirstStores) != 0 ? 2 : 1};
  return {64, (hints & kEvictFirstStores) != 0 ? 14 : 8};
}

// kEvictFirstStores stands for many tokens.
template <class T, int V, int kHints, int kFeatures>
__global__ void __launch_bounds__(most_bounds_of(kHints, kFeatures).threads, most_bounds_of(kHints, kFeatures).blocks)
    most_steps_prologue_kernel(const __grid_constant__ MostStepsArgs p) {
  static_assert((kFeatures & kMostSteps) != 0);
  wait_for_previous_kernels();  // the launch overlaps them
  constexpr bool kHintedLoads = (kHints & kEvictFirstLoads) != 0;
  constexpr bool kHintedStores = (kHints & kEvictFirstStores) != 0;
  constexpr bool kOverToken = (kFeatures & kTokenNorm) != 0;
  const uint32_t t = blockIdx.x;

  PendingToken<kFeatures, V, false> pending;
  pending.ask(p, t);

  const LaneUnit unit = unit_of_lane<V, kFeatures>(static_cast<int>(threadIdx.x), p.layout);
  const UnitChannels& place = unit.place;
  const TensorHead heads = heads_of<1, kOverToken>(p, blockIdx.y, threadIdx.y, blockDim.y);
  const LeanTensor& tensor = p.tensors[heads.tensor];

  const uint32_t head = static_cast<uint32_t>(min(heads.head, tensor.heads - 1));
  const Unit<T, V> data =
      load_unit<kHintedLoads, T, V>(tensor.in + wide_product(tensor.in_token, t) + head * tensor.in_head, place);
  UnitAngles<V> angles;
  const auto loaded_angles = [&] { return angles; };
  constexpr bool kEvery = (kFeatures & kEveryStep) != 0;
  MostSteps<T, V, !kHintedStores, kEvery, decltype(loaded_angles)> steps(p, heads, place, data, loaded_angles);
  const float given_scale[1] = {*reinterpret_cast<const float*>(tensor.scale + head * tensor.scale_head)};

  __syncwarp();  // as in lean/steps_schedule.cuh
  pending.ask_slot(p, t);
  const LeanToken token = resolve_token_of_head(p, pending, t, static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x) % 32,
                                                heads.tensor, steps, angles);

  const WarpLanes<V> whole = {static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x), unit.inside};
  const auto lanes = lanes_of_head<V, kFeatures>(whole, place, p.layout);
  if constexpr (kOverToken) steps.sum_of_token = sum_token<T, V>(p, steps, lanes, heads.tensor);
  UnitValues<V> values[1];
  finish_head<T, V>(values, steps, lanes);

  store_head_of_token<kHintedStores>(p, steps, values, unit, heads, token, t, data, given_scale, lanes);
  const bool records = (blockIdx.y | threadIdx.y | threadIdx.x) == 0;
  if (__builtin_expect((token.fault != FaultCode::none) & !token.padding & records, 0)) {
    cuda::record_fault(p.faults, p.token_faults, t, token.fault);
  }
}

}  // namespace prologue::cuda
