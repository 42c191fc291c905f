// blockIdx.x is the token; threadIdx.x the lane, that is the unit (head_unit.cuh), within a head; the rows threadIdx.y of all
// blockIdx.y walk the heads of q, k and v, kUnits neighbouring heads of one tensor each: a thread keeps its cos and sin for them.
//
// These instances have steps, and few parameters and instructions. Each runs exactly the steps that its features name; kCommonSteps decides
// them at run time. lean/most_steps_schedule.cuh and general/schedule.cuh run the calls that they cannot run, lean/plain_schedule.cuh those
// without steps. With few tokens the time is one chain of loads, index -> row of cos and sin. So the kernel is written in the order of that
// chain: load the indices; load the data and constants; convert the position to an address and load cos and sin; while these loads are in
// flight, do everything that needs neither (bias, norm, scales). With many tokens the number of instructions limits: what the lanes of a
// head compute together, they compute for all heads of a thread at once.
#pragma once

#include <cstdint>

#include <prologue/kernels/attention_prologue/prologue_args.h>
#include <prologue/kernels/attention_prologue/lean/steps.cuh>
#include <prologue/kernels/attention_prologue/lean/store.cuh>
#include <prologue/kernels/attention_prologue/lean/token.cuh>
#include <prologue/kernels/base/device/instructions.cuh>

namespace prologue::cuda {

// Says how many heads of a thread are computed at once: what its lanes do together, they then do once, which pays for the registers.
constexpr int heads_at_once(int units, int features) {
  return (features & (kNorm | kComputedScales | kCommonSteps | kFourBits)) != 0 ? units : 1;
}

constexpr Bounds bounds_of(int vector, int units, int hints, int features) {
  const bool mixed = (features & kNorm) != 0 && (features & ~(kNorm | kBias)) != 0;
  if (units > 1) return {192, mixed || (features & (kComputedScales | kCommonSteps | kFourBits)) != 0 ? 4 : 5};
  if (vector < 8 || (hints & kEvictFirstStores) == 0) return {256, 1};  // few tokens, or heads of more than 64 lanes
  return {64, features == kAxes || features == kDerived ? 18 : 16};
}

// With few tokens the order in which loads start decides, and the assembler's choice of what waits for what: the order was measured for
// each instance (docs/tuning/prologue.md). Constants that are indexed by the tensor are the slowest of all, so the loads of indices had
// better be in flight before them.
enum class LoadOrder {
  slot_last,      // position, data, slot
  slot_first,     // position, slot, data
  indices_apart,  // the same, with a barrier behind the slot
  unit_first,     // the same, once it is known which heads and channels a thread has
};

constexpr LoadOrder order_of(int vector, int units, int hints, int features) {
  const bool few_tokens = vector < 8 || (hints & kEvictFirstStores) == 0;
  if (units > 1) return LoadOrder::slot_last;
  if (features == kBias) return LoadOrder::indices_apart;
  if (features == (kBias | kNorm)) return LoadOrder::slot_first;
  if (!few_tokens) return LoadOrder::slot_last;
  if (features == kNorm || features == kCommonSteps) return LoadOrder::slot_first;
  if (features == kComputedScales) return vector < 8 ? LoadOrder::unit_first : LoadOrder::indices_apart;
  if ((features & kNorm) != 0 && (features & kDerived) != 0 && vector < 8) return LoadOrder::indices_apart;
  return LoadOrder::slot_last;
}

template <class T, int V, int kUnits, int kHints, int kFeatures>
__global__ void __launch_bounds__(bounds_of(V, kUnits, kHints, kFeatures).threads, bounds_of(V, kUnits, kHints, kFeatures).blocks)
    steps_prologue_kernel(const __grid_constant__ LeanArgs p) {
  static_assert(has_steps(kFeatures) && (kFeatures & kMostSteps) == 0);
  wait_for_previous_kernels();  // the launch overlaps them
  constexpr bool kHintedLoads = (kHints & kEvictFirstLoads) != 0;
  constexpr bool kHintedStores = (kHints & kEvictFirstStores) != 0;
  constexpr int kAtOnce = heads_at_once(kUnits, kFeatures);
  const int features = (kFeatures & kCommonSteps) != 0 ? p.features : kFeatures;
  constexpr bool kWithLayouts = (kFeatures & kLayouts) != 0;  // which have no norm
  constexpr bool kFromTensor = (kFeatures & kFourBits) != 0;  // whether scales are computed, and whether there are any
  const bool scaled = kFromTensor || (features & (kGivenScales | kComputedScales)) != 0;
  constexpr bool kGroups = (kHints & kTokenGroups) != 0;
  TensorHead heads;
  uint32_t t = blockIdx.x;
  if constexpr (kGroups) t = token_of_group(p, heads);

  constexpr LoadOrder kOrder = order_of(V, kUnits, kHints, kFeatures);
  PendingToken<kFeatures, V, (kUnits > 1)> pending;
  if (kOrder != LoadOrder::unit_first) pending.ask(p, t);
  if (kOrder == LoadOrder::slot_first || kOrder == LoadOrder::indices_apart) pending.ask_slot(p, t);
  if (kOrder == LoadOrder::indices_apart) __syncwarp();

  const LaneUnit unit = unit_of_lane<V, kFeatures>(static_cast<int>(threadIdx.x), p.layout);
  const UnitChannels& place = unit.place;
  if constexpr (!kGroups) heads = heads_of<kUnits>(p, blockIdx.y, threadIdx.y, blockDim.y);
  if (kOrder == LoadOrder::unit_first) {
    pending.ask(p, t);
    pending.ask_slot(p, t);
    __syncwarp();
  }
  if constexpr ((kFeatures & kAxes) != 0) pending.ask_axes(p, max(place.pair, 0));

  const LeanTensor& tensor = p.tensors[heads.tensor];
  const bool is_v = heads.tensor == 2;
  const bool computes_scale = kFromTensor ? tensor.scale_from == ScaleFrom::computed
                                          : (features & kComputedScales) != 0 &&
                                                ((features & kGivenScales) == 0 || tensor.scale_from == ScaleFrom::computed);
  LeanPlan plan;
  plan_steps<kFeatures, true>(p, features, is_v, place, plan);

  Unit<T, V> data[kUnits];
  LeanConstants<T, V, kAtOnce> constants;
  const char* in = tensor.in + wide_product(tensor.in_token, t);
  const auto existing = [&](int n) { return static_cast<uint32_t>(min(heads.head + n, tensor.heads - 1)); };
#pragma unroll
  for (int n = 0; n < kUnits; ++n) data[n] = load_unit<kHintedLoads, T, V>(in + existing(n) * tensor.in_head, place);
  if (kUnits == 1) load_constants(plan, tensor, p.layout.head_dim, place, existing, constants);

  // All loads are in flight before the first wait: a barrier keeps the assembler from moving loads after it, and the branch that records
  // what is wrong with an index keeps it from waiting before them.
  __syncwarp();
  if (kUnits == 1 && kOrder == LoadOrder::slot_last) pending.ask_slot(p, t);
  LeanToken token;
  if constexpr (kGroups && (kFeatures & kDerived) != 0) {  // the threads of a warp have several tokens
    token = pending.resolve_position_alone(p);
  } else {
    token = pending.resolve_position(p, t, static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x) % 32);
  }
  constexpr bool kLateAngles = kUnits > 1 && (kFeatures & (kNorm | kCommonSteps)) != 0;  // a norm needs their registers
  UnitAngles<V> angles;
  constexpr bool kMayNotRotate = (kFeatures & (kLayouts | kAxes | kDerived)) != 0;  // the others read a row even if they do not
  if (!kLateAngles && (kMayNotRotate ? plan.rotated : !is_v)) angles = pending.angles(p, token, place.pair);
  if (kUnits > 1) pending.ask_slot(p, t);
  pending.resolve_slot(p, token);

  const WarpLanes<V> lanes = {static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x), unit.inside};
  const LeanStore store(tensor, unit, heads, token, t);
  const bool quantised = scaled && tensor.store != DType::unset;
  constexpr bool kCopiesV = (kFeatures & (kNorm | kBias)) == kNorm;
#pragma unroll
  for (int first = 0; first < kUnits; first += kAtOnce) {
    if (kCopiesV && uniform(is_v & !quantised)) {  // here, so that no other path must keep the unconverted data
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) store.store<kHintedStores, T, V>(first + n, data[first + n]);
      continue;
    }
    // With many tokens the constants come out of the L1, and registers are dearer than waiting.
    if (kUnits > 1) {
      load_constants(
          plan, tensor, p.layout.head_dim, place, [&](int n) { return existing(first + n); }, constants);
    }
    UnitValues<V> values[kAtOnce];
    const auto load_angles = [&] { return kLateAngles ? pending.angles(p, token, place.pair) : angles; };
    const LeanSteps<T, V, kAtOnce, decltype(load_angles)> steps(plan, tensor, data + first, constants, load_angles, is_v,
                                                                kWithLayouts ? p.layout.style : RopeStyle::neox);
    finish_head<T, V>(values, steps, lanes);

    if (store_quantised<kFeatures>(store, first, values, quantised, computes_scale, lanes, constants.scales)) continue;
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const bool changed = kCopiesV || plan.biased | plan.normed | plan.rotated;
      store.store<kHintedStores, T, V>(first + n, changed ? narrow<T, V>(values[n]) : data[first + n]);
    }
  }
  const bool records = kGroups ? records_faults(p, heads) : (blockIdx.y | threadIdx.y | threadIdx.x) == 0;
  if (__builtin_expect((token.fault != FaultCode::none) & !token.padding & records, 0)) {
    cuda::record_fault(p.faults, p.token_faults, t, token.fault);
  }
}

}  // namespace prologue::cuda
