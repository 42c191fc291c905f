// blockIdx.x is the token; threadIdx.x the lane, that is the unit (head_unit.cuh), within a head; the rows threadIdx.y of all
// blockIdx.y walk the heads of q, k and v, kUnits neighbouring heads of one tensor each: a thread keeps its cos and sin for them.
//
// Instances for what is common, lean in parameters and instructions: each demands exactly what its features name. What they
// cannot do, general_prologue_kernel.cuh does. A call's time is one chain of loads, index -> row of cos and sin, so the kernel is
// written in the order of that chain: ask for the indices, ask for the data and constants, turn the indices into addresses and
// ask for cos and sin, and do all that needs neither (bias, norm, scales) while those are on their way.
#pragma once

#include <cstdint>

#include <prologue/kernels/attention_prologue/lean_place.cuh>
#include <prologue/kernels/attention_prologue/prologue_args.cuh>
#include <prologue/kernels/base/head_unit.cuh>

namespace prologue::cuda {

// Of a block. What a thread with several heads keeps for them must leave room for five blocks on an SM (64 registers).
constexpr int max_threads(int units) { return units == 1 ? 256 : 192; }
constexpr int blocks_per_sm(int units) { return units == 1 ? 1 : 5; }

// Whether lanes work together: a head's are then a power of two of one warp, warps are full, and each keeps to one tensor.
constexpr bool padded(int features) { return (features & (kNorm | kComputedScales | kDerived)) != 0; }

// What a head needs beside its data.
template <class T, int V>
struct HeadConstants {
  Unit<T, V> bias;
  Unit<T, V> weight;
  float scale = 1.0f;
};

template <class T, int V, int kFeatures>
__device__ inline HeadConstants<T, V> load_constants(const ArgsOf<kFeatures>& p, int which, uint32_t head,
                                                     const UnitPlace& place) {
  HeadConstants<T, V> constants;
  if constexpr ((kFeatures & kBias) != 0) {
    const uint32_t bytes = static_cast<uint32_t>(p.layout.head_dim) * static_cast<uint32_t>(sizeof(T));
    constants.bias = load_unit<false, T, V>(p.steps[which].bias + head * bytes, place);
  }
  if constexpr ((kFeatures & kNorm) != 0) {
    constants.weight = load_unit<false, T, V>(p.steps[which].weight + head * p.steps[which].weight_head, place);
  }
  if constexpr ((kFeatures & kGivenScales) != 0) {
    const char* scale = p.steps[which].scale;
    if (scale != nullptr) constants.scale = *reinterpret_cast<const float*>(scale + head * p.steps[which].scale_head);
  }
  return constants;
}

// x -> x / root mean square * (offset + weight). All threads of a warp must be here, for q or k.
template <class T, int V>
__device__ inline void normalise(UnitValues<V>& values, const StepArgs& steps, const Unit<T, V>& weight, bool inside) {
  float squares[2 * V];
  square<V>(values, squares);
  const HeadLanes lanes = {kWholeWarp, static_cast<int>(blockDim.x)};
  const float sum = sum_halves(lanes, inside ? tree<V>(squares) : 0.0f, inside ? tree<V>(squares + V) : 0.0f);
  multiply<V>(values, inverse_root_mean(sum, steps.inverse_count, steps.eps));
  multiply_weight<T, V>(values, weight, steps.weight_offset);
}

template <class T, int V, int kUnits, int kHints, int kFeatures>
__global__ void __launch_bounds__(max_threads(kUnits), blocks_per_sm(kUnits))
    attention_prologue_kernel(const __grid_constant__ ArgsOf<kFeatures> p) {
  constexpr bool kStreamingLoads = (kHints & kStreamLoads) != 0;
  constexpr bool kStreamingStores = (kHints & kStreamStores) != 0;
  constexpr bool kBiased = (kFeatures & kBias) != 0;
  constexpr bool kNormed = (kFeatures & kNorm) != 0;
  constexpr bool kGiven = (kFeatures & kGivenScales) != 0, kComputed = (kFeatures & kComputedScales) != 0;
  const uint32_t t = blockIdx.x;

  PendingPlace<kFeatures, V> pending;
  pending.ask(p, t);

  UnitPlace place;
  bool inside = true;  // idle lanes do what lane 0 does, but store nothing: a load that waits for a comparison comes late
  if constexpr ((kFeatures & kLayouts) != 0) {
    place = place_unit<V>(static_cast<int>(threadIdx.x), p.layout);
  } else {
    const int half = p.layout.head_dim / 2;
    int at = static_cast<int>(threadIdx.x) * V;
    if constexpr (padded(kFeatures)) inside = at < half, at = inside ? at : 0;
    place = {at, half + at, at, true, true};
  }
  if constexpr ((kFeatures & kStreams) != 0) pending.ask_axes(p, place.pair);

  // A block keeps to one tensor where a thread has one head. Rows past the last head read the last.
  const uint32_t index = kUnits == 1 ? blockIdx.y : blockIdx.y * blockDim.y + threadIdx.y;
  const int which = (index >= p.k_begin) + (index >= p.v_begin);
  const uint32_t in_tensor = index - (which == 2 ? p.v_begin : which == 1 ? p.k_begin : 0);
  const int first_head = static_cast<int>(kUnits == 1 ? in_tensor * blockDim.y + threadIdx.y : in_tensor * kUnits);
  const auto& tensor = p.tensors[which];
  const bool is_q = which == 0;
  bool turns = which != 2;
  if constexpr ((kFeatures & kLayouts) != 0) {
    turns = turns & (place.pair >= 0);
  } else if constexpr (kFeatures != 0) {
    turns = turns & (p.layout.rotary_dim > 0);
  }

  Unit<T, V> data[kUnits];
  HeadConstants<T, V> constants;
  const char* in = tensor.in + times(tensor.in_token, t);
  const auto existing = [&](int n) { return static_cast<uint32_t>(min(first_head + n, tensor.heads - 1)); };
#pragma unroll
  for (int n = 0; n < kUnits; ++n) data[n] = load_unit<kStreamingLoads, T, V>(in + existing(n) * tensor.in_head, place);
  if constexpr (kUnits == 1) constants = load_constants<T, V, kFeatures>(p, which, existing(0), place);

  // Everything is on its way before the first wait: a barrier keeps the assembler from moving loads behind it, and the branch
  // that records what is wrong with an index keeps it from waiting before them.
  const bool records = (blockIdx.y | threadIdx.y | threadIdx.x) == 0;
  __syncwarp();
  if constexpr (kUnits == 1) pending.ask_slot(p, t);
  const LeanPosition position = pending.resolve_position(p, t);

  UnitAngles<V> angles;
  if (turns) angles = pending.angles(p, position, place.pair);
  if constexpr (kUnits > 1) pending.ask_slot(p, t);
  const LeanSlot slot = pending.resolve_slot(p);

  const uint32_t page = is_q ? 0 : slot.page, offset = is_q ? t : slot.offset;
  char* out = tensor.out + times(tensor.out_page, page) + times(tensor.out_token, offset);
  const bool writes = inside & !position.padding & (is_q | (slot.reaches_cache & !position.outside));
#pragma unroll
  for (int n = 0; n < kUnits; ++n) {
    const uint32_t head = static_cast<uint32_t>(first_head + n);
    const bool stores = writes & (first_head + n < tensor.heads);
    char* to = out + head * tensor.out_head;
    // Where there are many tokens they come out of the L1, and registers are dearer than waiting.
    if constexpr (kUnits > 1) constants = load_constants<T, V, kFeatures>(p, which, existing(n), place);
    UnitValues<V> values = widen<T, V>(data[n]);
    if constexpr (kBiased) add_bias<T, V>(values, constants.bias);
    if constexpr (kNormed) {
      if (which != 2) normalise<T, V>(values, p.steps[which], constants.weight, inside);
    }
    if (turns) rotate<V>(values, angles, (kFeatures & kLayouts) != 0 ? p.layout.style : RopeStyle::neox);
    if constexpr (kGiven || kComputed) {
      const auto& steps = p.steps[which];
      if (steps.store != StoreAs::native) {
        const KvType type = static_cast<KvType>(static_cast<int>(steps.store) - 1);
        HeadScale scale;
        if constexpr (kComputed) {
          const HeadLanes lanes = {kWholeWarp, static_cast<int>(blockDim.x)};
          scale = computed_scale(largest_over(lanes, largest_magnitude<V>(values)), kv_largest(type));
          if (position.outside) scale = {0.0f, 0.0f};
          if (stores & (threadIdx.x == 0)) {
            *reinterpret_cast<float*>(steps.scale + times(steps.scale_page, page) + times(steps.scale_token, offset) +
                                      head * steps.scale_head) = scale.scale;
          }
        } else {
          scale = given_scale(constants.scale);
          if (position.outside) scale.reciprocal = 0.0f;
        }
        multiply<V>(values, scale.reciprocal);
        UnitBytes<V> bytes = to_8_bits<V>(values, type);
        if (scale.reciprocal == 0.0f) bytes = {};  // whatever the values are
        if (stores) store_unit_8<V>(to, place, bytes);
        continue;
      }
    }
    if (kBiased || which != 2) {
      if (kBiased || kNormed || turns) data[n] = narrow<T, V>(values);
    }
    if (position.outside) data[n] = {};
    if (stores) {
      if (kStreamingStores && is_q) {
        store_unit<true, T, V>(to, place, data[n]);
      } else {
        store_unit<false, T, V>(to, place, data[n]);
      }
    }
  }
  const FaultCode fault = position.outside ? FaultCode::position_out_of_range : slot.fault;
  if (__builtin_expect((fault != FaultCode::none) & !position.padding & records, 0)) report_fault(p, t, fault);
}

}  // namespace prologue::cuda
