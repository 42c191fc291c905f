// What follows the projection of a head of a token, by a warp, in the kernels that know its place before they have its sums. It does to the
// head what the prologue's lean kernels do (lean/more_steps_schedule.cuh).
#pragma once

#include <cstdint>

#include <prologue/kernels/attention_prologue/lean/more_steps_schedule.cuh>
#include <prologue/kernels/projection/finish/found_token.cuh>

namespace prologue::cuda {

// A head of q, k or v, and the token of it that a warp is at. kFeatures: with kMoreSteps, the steps are decided at run time.
template <class T, int V, int kFeatures>
class TokenHead {
 public:
  // By a warp. `row`: of the heads of q, then those of k and v. `lanes`: of a head.
  __device__ void prepare(const MoreArgs& p, int lanes, int row) {
    const int lane = threadIdx.x % 32;
    lanes_ = lanes;
    prepare_unit(p, row, lane % lanes);
    unit_.inside &= lane < lanes;  // the others do the same once more
  }
  // By a thread for itself, where no step needs the whole head.
  __device__ void prepare_unit(const MoreArgs& p, int row, int unit) {
    head_ = head_of_row(p.tensors, row);
    unit_ = unit_of_lane<V, kFeatures>(unit, p.layout);
    if constexpr (!kDecidesSteps) {
      plan_steps<kFeatures, false>(p, kFeatures, head_.tensor == 2, unit_.place, plan_);
      load_constants(
          plan_, p.tensors[head_.tensor], p.layout.head_dim, unit_.place, [&](int) { return static_cast<uint32_t>(head_.head); },
          constants_);
    }
  }
  // Asks for cos and sin of token t.
  __device__ void ask(const MoreArgs& p, const FoundToken& found, int t) {
    token_ = static_cast<uint32_t>(t);
    found_ = found;
    if (head_.tensor != 2 && p.layout.rotary_dim > 0) angles_ = load_row<V>(p, found.token.row, max(unit_.place.pair, 0));
  }
  // In place of ask().
  __device__ void take(const FoundToken& found, int t, const UnitAngles<V>& angles) {
    token_ = static_cast<uint32_t>(t);
    found_ = found;
    angles_ = angles;
  }
  __device__ const UnitPlace& place() const { return unit_.place; }

  __device__ void finish(const MoreArgs& p, const Unit<T, V>& data) const {
    const WarpLanes<V> whole = {static_cast<int>(threadIdx.x) % 32 % lanes_, lanes_, unit_.inside};
    const LeanTensor& tensor = p.tensors[head_.tensor];
    const auto angles = [&] {
      UnitAngles<V> turned = angles_;
      turn_back(p, turned);
      return turned;
    };
    UnitValues<V> values[1];
    if constexpr (kDecidesSteps) {
      MoreSteps<T, V, false, true, decltype(angles)> steps(p, head_, unit_.place, data, angles);
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
      store_heads<false, kFeatures>(store, 0, values, &data, plan_, quantised, false, whole, constants_.scales);
    }
  }

 private:
  static constexpr bool kDecidesSteps =
      (kFeatures & kMoreSteps) != 0;  // at run time; otherwise they are exactly those of kFeatures
  int lanes_ = 32;
  uint32_t token_ = 0;
  FoundToken found_ = {};
  TensorHead head_ = {};
  LaneUnit unit_ = {};
  UnitAngles<V> angles_ = {};
  LeanPlan plan_ = {};
  LeanConstants<T, V, 1> constants_ = {};
};

}  // namespace prologue::cuda
