// Finishes the heads of q, k and v: it does what the prologue's lean kernels do (lean/most_steps_schedule.cuh) to a head that the product's
// kernel has in registers. The token's position and slot are found, and cos and sin loaded, before the sums are there. head_launch.cuh is the
// part for the host.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include <prologue/kernels/attention_prologue/prologue_args.h>
#include <prologue/kernels/attention_prologue/lean/most_steps_schedule.cuh>

namespace prologue::cuda {

// Holds a token's position and slot, found once for all of its heads.
struct FoundToken {
  LeanToken token;
  int64_t position;
};

// A thread finds a token's position and slot by itself. A token past the last one is padding. Whether positions are derived is read at run
// time; the kernels that use this have no position axes.
__device__ inline FoundToken find_token(const MostStepsArgs& p, int num_tokens, int t, bool records) {
  FoundToken found = {};
  found.token.padding = true;
  if (t >= num_tokens) return found;
  const auto at = static_cast<uint32_t>(t);
  constexpr int kGiven = kMostSteps | kEveryStep, kAnyVector = 8;  // nothing here depends on either
  if ((p.features & kDerived) != 0) {
    PendingToken<kGiven | kDerived, kAnyVector, false> pending;
    pending.ask(p, at);
    found.token = pending.resolve_position_alone(p);
    pending.resolve_slot(p, found.token);
    found.position = pending.position_value(p);
  } else {
    PendingToken<kGiven, kAnyVector, false> pending;
    pending.ask(p, at);
    pending.ask_slot(p, at);
    found.token = pending.resolve_position(p, at, 0);
    pending.resolve_slot(p, found.token);
    found.position = pending.position_value(p);
  }
  const bool faulty = found.token.fault != FaultCode::none && !found.token.padding;
  if (__builtin_expect(faulty & records, 0)) cuda::record_fault(p.faults, p.token_faults, at, found.token.fault);
  return found;
}

// Returns what another lane has found.
__device__ inline FoundToken found_by_lane(const FoundToken& found, int lane) {
  static_assert(std::is_trivially_copyable_v<FoundToken> && sizeof(FoundToken) % 4 == 0);
  uint32_t words[sizeof(FoundToken) / 4];
  memcpy(words, &found, sizeof words);
#pragma unroll
  for (uint32_t& word : words) word = __shfl_sync(0xffffffffu, word, lane);
  FoundToken there;
  memcpy(&there, words, sizeof words);
  return there;
}

// Finishes a head of q, k or v of one token after another. If kFeatures has kMostSteps, the steps are decided at run time.
template <class T, int V, int kFeatures>
class TokenHead {
 public:
  // All lanes of a warp call it. `head` counts the heads of q, then those of k and v; a head has `lanes` lanes.
  __device__ void prepare(const MostStepsArgs& p, int lanes, int head) {
    const int lane = threadIdx.x % 32;
    lanes_ = lanes;
    prepare_unit(p, head, lane % lanes);
    unit_.inside &= lane < lanes;  // the others do the same once more
  }
  // A thread calls it for its own unit (base/device/head_unit.cuh), where no step needs the whole head.
  __device__ void prepare_unit(const MostStepsArgs& p, int head, int unit) {
    head_ = head_of_row(p.tensors, head);
    unit_ = unit_of_lane<V, kFeatures>(unit, p.layout);
    if constexpr (!kDecidesSteps) {
      plan_steps<kFeatures, false>(p, kFeatures, head_.tensor == 2, unit_.place, plan_);
      load_constants(
          plan_, p.tensors[head_.tensor], p.layout.head_dim, unit_.place, [&](int) { return static_cast<uint32_t>(head_.head); },
          constants_);
    }
  }
  // Loads cos and sin of token t.
  __device__ void load_token(const MostStepsArgs& p, const FoundToken& found, int t) {
    token_ = static_cast<uint32_t>(t);
    found_ = found;
    if (head_.tensor != 2 && p.layout.rotary_dim > 0) angles_ = load_row<V>(p, found.token.row, max(unit_.place.pair, 0));
  }
  // Takes the place of load_token() where cos and sin have been loaded.
  __device__ void set_token(const FoundToken& found, int t, const UnitAngles<V>& angles) {
    token_ = static_cast<uint32_t>(t);
    found_ = found;
    angles_ = angles;
  }
  __device__ const UnitChannels& place() const { return unit_.place; }

  // The steps of the prologue and the store, from the product `data`.
  __device__ void finish(const MostStepsArgs& p, const Unit<T, V>& data) const {
    const WarpLanes<V> whole = {static_cast<int>(threadIdx.x) % 32 % lanes_, lanes_, unit_.inside};
    const LeanTensor& tensor = p.tensors[head_.tensor];
    const auto angles = [&] {
      UnitAngles<V> rotation = angles_;
      invert_rotation(p, rotation);
      return rotation;
    };
    UnitValues<V> values[1];
    if constexpr (kDecidesSteps) {
      MostSteps<T, V, false, true, decltype(angles)> steps(p, head_, unit_.place, data, angles);
      const float given_scale[1] = {
          *reinterpret_cast<const float*>(tensor.scale + static_cast<uint32_t>(head_.head) * tensor.scale_head)};
      choose_rotation<kFeatures>(p, found_.token, head_.tensor, steps);
      choose_factor(
          p, head_.tensor, [&] { return found_.position; }, steps);
      const auto lanes = lanes_of_head<V, kFeatures>(whole, unit_.place, p.layout);
      finish_head<T, V>(values, steps, lanes);
      store_head_of_token<false>(p, steps, values, unit_, head_, found_.token, token_, data, given_scale, lanes);
    } else {
      const LeanSteps<T, V, 1, decltype(angles)> steps(plan_, tensor, &data, constants_, angles, head_.tensor == 2,
                                                       (kFeatures & kLayouts) != 0 ? p.layout.style : RopeStyle::neox);
      finish_head<T, V>(values, steps, whole);
      const LeanStore store(tensor, unit_, head_, found_.token, token_);
      const bool quantised = plan_.loads_scale && tensor.store != DType::unset;
      if (!store_quantised<kFeatures>(store, 0, values, quantised, false, whole, constants_.scales)) {
        store.store<false, T, V>(0, plan_.biased | plan_.normed | plan_.rotated ? narrow<T, V>(values[0]) : data);
      }
    }
  }

 private:
  // The steps are decided at run time; otherwise they are exactly those of kFeatures.
  static constexpr bool kDecidesSteps = (kFeatures & kMostSteps) != 0;
  int lanes_ = 32;
  uint32_t token_ = 0;
  FoundToken found_ = {};
  TensorHead head_ = {};
  LaneUnit unit_ = {};
  UnitAngles<V> angles_ = {};
  LeanPlan plan_ = {};
  LeanConstants<T, V, 1> constants_ = {};
};

// ---- a head that meets in a warp --------------------------------------------------------------------------------------------

// Returns a lane's part of a head, whose product is `rows` times `factor`, as the separate projection would store it.
template <class T, int V>
__device__ inline Unit<T, V> unit_of_rows(const float* rows, float factor, const UnitChannels& place) {
  float a_values[V] = {}, b_values[V] = {};
  const auto load = [&](int row, float(&values)[V]) {
    const Bytes<4 * V> loaded = load_bytes<4 * V, false>(rows + row);
#pragma unroll
    for (int i = 0; i < V; ++i) values[i] = element<float, V>(loaded, i) * factor;
  };
  if (place.has_a) load(place.a, a_values);
  if (place.has_b) load(place.b, b_values);
  return {pack<T, V>(a_values), pack<T, V>(b_values)};
}

// Starts the loads of token t's position and slot.
template <class Pending>
__device__ inline void ask_token(const MostStepsArgs& p, Pending& pending, uint32_t t) {
  pending.ask(p, t);
  pending.ask_slot(p, t);
}

// A warp finishes a head of the tokens token_in(slot), for slots first, first + step, ... below `end`; the first one is asked for already.
// gather(slot, place) returns a lane's part of the head's product. `head` counts the heads of q, then those of k and v; a head has so many lanes.
// If kRehearses, the warp does all of it once before, with a product of zeros, and stores nothing: the instructions are in the cache then.
template <class T, int V, int kFeatures, bool kRehearses, class Pending, class TokenIn, class Gather>
__device__ __forceinline__ void finish_heads(const MostStepsArgs& p, Pending& pending, int head, int num_lanes, int first,
                                             int end, int step, const TokenIn& token_in, const Gather& gather) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const TensorHead at = head_of_row(p.tensors, head);
  LaneUnit unit = unit_of_lane<V, kFeatures>(lane % num_lanes, p.layout);
  unit.inside &= lane < num_lanes;  // the others do the same once more
  if constexpr ((kFeatures & kAxes) != 0) pending.ask_axes(p, max(unit.place.pair, 0));
  Unit<T, V> data;
  UnitAngles<V> angles;
  const auto loaded_angles = [&] { return angles; };
  constexpr bool kEvery = (kFeatures & kEveryStep) != 0;
  MostSteps<T, V, true, kEvery, decltype(loaded_angles)> steps(p, at, unit.place, data, loaded_angles);
  const float given_scale[1] = {*reinterpret_cast<const float*>(
      p.tensors[at.tensor].scale + static_cast<uint32_t>(at.head) * p.tensors[at.tensor].scale_head)};
  const auto lanes = lanes_of_head<V, kFeatures>(WarpLanes<V>{lane % num_lanes, num_lanes, unit.inside}, unit.place, p.layout);
#pragma unroll 1
  for (int next = kRehearses ? first - step : first; next < end; next += step) {
    const bool rehearses = kRehearses && next < first;
    const int slot = rehearses ? first : next;
    const uint32_t t = token_in(slot);
    if (next > first || (kRehearses && next == first)) ask_token(p, pending, t);
    const LeanToken token = resolve_token_of_head(p, pending, t, lane, at.tensor, steps, angles);
    data = {};
    if (!rehearses) data = gather(slot, unit.place);
    UnitValues<V> values[1];
    finish_head<T, V>(values, steps, lanes);
    LaneUnit stored = unit;
    stored.inside &= !rehearses;
    store_head_of_token<false>(p, steps, values, stored, at, token, t, data, given_scale, lanes);
    const bool records = (head | lane) == 0 && !rehearses;
    if (__builtin_expect((token.fault != FaultCode::none) & !token.padding & records, 0)) {
      cuda::record_fault(p.faults, p.token_faults, t, token.fault);
    }
  }
}

}  // namespace prologue::cuda
