// The lean schedules with steps have this in common: which heads a thread has, what is planned for them, and the steps of
// steps/head_steps.cuh from constants that were loaded early.
#pragma once

#include <cstdint>

#include <prologue/kernels/attention_prologue/prologue_args.h>
#include <prologue/kernels/attention_prologue/steps/head_steps.cuh>
#include <prologue/kernels/base/device/head_unit.cuh>

namespace prologue::cuda {

// Bounds the threads of a block, and the blocks of an SM: there are as many as registers leave room for, since a spilt register costs more
// than another block brings.
struct Bounds {
  int threads;
  int blocks;
};

// Tells the compiler that `same` is the same in all threads of a warp: shuffles after it need not find out which threads are there.
__device__ inline bool uniform(bool same) { return __any_sync(kWholeWarp, same) != 0; }

// This is the unit of a lane. Idle lanes do what lane 0 does, but store nothing: a load that waits for a comparison comes late.
struct LaneUnit {
  UnitChannels place;
  bool inside;
};

template <int V, int kFeatures>
__device__ inline LaneUnit unit_of_lane(int lane, const HeadLayout& layout) {
  if constexpr ((kFeatures & kLayouts) != 0) {
    return {channels_of_unit<V>(lane, layout), true};
  } else {
    const int half = layout.head_dim / 2, at = lane * V;
    const bool inside = !padded(kFeatures) || at < half;
    const int a = inside ? at : 0;
    return {{a, half + a, a, true, true}, inside};
  }
}

// Returns the first head of a thread, which has kUnits neighbouring heads of one tensor. Rows past the last head read the last. If
// `kMixed`, a block works on several tensors, as it does if a thread has several heads.
template <int kUnits, bool kMixed = (kUnits > 1), class Args>
__device__ inline TensorHead heads_of(const Args& p, uint32_t block, uint32_t row, uint32_t rows) {
  const uint32_t index = kMixed ? block * rows + row : block;
  const int which = (index >= p.k_begin) + (index >= p.v_begin);
  const uint32_t in_tensor = index - (which == 2 ? p.v_begin : which == 1 ? p.k_begin : 0);
  return {which, static_cast<int>(kMixed ? in_tensor * kUnits : in_tensor * rows + row)};
}

// Returns the token of a thread, and sets its head, where blockIdx.x is a group of tokens. Rows without a token have a head past the last, of a
// token that there is.
template <class Args>
__device__ inline uint32_t token_of_group(const Args& p, TensorHead& at) {
  at = heads_of<1>(p, blockIdx.y, threadIdx.y, blockDim.y);
  const TokenGroup& group = p.group;
  const uint32_t heads = static_cast<uint32_t>(p.tensors[at.tensor].heads);
  const uint32_t inverse_heads = at.tensor == 0 ? group.inverse_q_heads : group.inverse_kv_heads;
  const GroupRow row = row_of_group(static_cast<uint32_t>(at.head), heads, inverse_heads);
  const uint32_t t = blockIdx.x * group.tokens + row.token;
  const bool exists = (row.token < group.tokens) & (t < group.num_tokens);
  at.head = static_cast<int>(exists ? row.head : heads);
  return min(t, group.num_tokens - 1);
}

// Whether a thread is the one that records what is wrong with its token: the first unit of the first head.
template <class Args>
__device__ inline bool records_faults(const Args& p, const TensorHead& at) {
  const uint32_t begin = at.tensor == 2 ? p.v_begin : at.tensor == 1 ? p.k_begin : 0;
  return (threadIdx.x == 0) & (at.head == 0) & (begin == 0);
}

// A unit of a norm's weights or biases, which are float32 or of T.
template <class T, int V>
struct WeightUnit {
  Unit<float, V> words;  // of T: the first of them

  __device__ void load(const char* weights, const UnitChannels& place, bool floats) {
    if (floats) {
      words = load_unit<false, float, V>(weights, place);
    } else if constexpr (sizeof(T) < sizeof(float)) {
      const Unit<T, V> narrow = load_unit<false, T, V>(weights, place);
#pragma unroll
      for (int i = 0; i < Packed<T, V>::kWords; ++i) words.a.words[i] = narrow.a.words[i], words.b.words[i] = narrow.b.words[i];
    }
  }

  __device__ UnitValues<V> values(bool floats) const {
    if constexpr (sizeof(T) < sizeof(float)) {
      if (!floats) {
        Unit<T, V> narrow;
#pragma unroll
        for (int i = 0; i < Packed<T, V>::kWords; ++i) narrow.a.words[i] = words.a.words[i], narrow.b.words[i] = words.b.words[i];
        return widen<T, V>(narrow);
      }
    }
    return widen<float, V>(words);
  }
};

// Returns the sum of the squares of all heads of a token, in a block that has all heads of q and k as rows from 0 and from k_begin on.
template <class T, int V, class Args, class Steps, class Lanes>
__device__ inline float sum_token(const Args& p, const Steps& steps, const Lanes& lanes, int tensor) {
  __shared__ float of_rows[kMaxLanes];
  UnitValues<V> values[1];
  begin_head<T, V>(values, steps, steps.norm());
  float sum[1];
  lanes.sum(
      values, SumOfSquares(), [](float x) { return x; }, sum);
  if (threadIdx.x == 0) of_rows[threadIdx.y] = sum[0];
  __syncthreads();
  if (tensor == 2) return 0.0f;
  const float* of_heads = of_rows + (tensor == 1 ? p.k_begin : 0);
  const int heads = p.tensors[tensor].heads;
  constexpr int kEach = 8;  // loads in flight at once
  float total = 0.0f;
#pragma unroll 1
  for (int first = 0; first < heads; first += kEach) {
    float sums[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) sums[i] = first + i < heads ? of_heads[first + i] : 0.0f;
#pragma unroll
    for (int i = 0; i < kEach; ++i) total = add_rounded(total, sums[i]);  // squares: adding 0 changes nothing
  }
  return total;
}

// Says what a call does with the tensor of a thread. Instances without kCommonSteps know the steps at compile time.
struct LeanPlan {
  bool biased;
  bool normed;
  bool rotated;  // this unit
  bool loads_scale;
};

// Plans the steps of a unit. `features` are kFeatures, or with kCommonSteps those that the call needs. If kNormsV, `normed` is set for V
// too, whose norm weights are then loaded and not used: no load waits until the tensor is known.
template <int kFeatures, bool kNormsV>
__device__ inline void plan_steps(const LeanArgs& p, int features, bool is_v, const UnitChannels& place, LeanPlan& plan) {
  constexpr bool kWithLayouts = (kFeatures & kLayouts) != 0;  // which have no norm
  plan.biased = (features & kBias) != 0;
  plan.normed = !kWithLayouts && (features & kNorm) != 0 && (kNormsV || !is_v);
  plan.rotated = !is_v & (kWithLayouts ? place.pair >= 0 : p.layout.rotary_dim > 0);
  plan.loads_scale = (kFeatures & kFourBits) != 0 || (features & kGivenScales) != 0;  // used or not: no load waits to know
}

// The constants of the heads that are computed at once.
template <class T, int V, int kAtOnce>
struct LeanConstants {
  Unit<T, V> bias[kAtOnce], weight;
  float scales[kAtOnce];
};

// Loads what the plan needs. `head(n)` returns the number of head n of those at once.
template <class T, int V, int kAtOnce, class Head>
__device__ inline void load_constants(const LeanPlan& plan, const LeanTensor& tensor, int head_dim, const UnitChannels& place,
                                      const Head& head, LeanConstants<T, V, kAtOnce>& constants) {
  if (plan.normed) constants.weight = load_unit<false, T, V>(tensor.weight, place);
  const uint32_t bytes = static_cast<uint32_t>(head_dim) * static_cast<uint32_t>(sizeof(T));
#pragma unroll
  for (int n = 0; n < kAtOnce; ++n) {
    if (plan.biased) constants.bias[n] = load_unit<false, T, V>(tensor.bias + head(n) * bytes, place);
    if (plan.loads_scale) constants.scales[n] = *reinterpret_cast<const float*>(tensor.scale + head(n) * tensor.scale_head);
  }
}

// Says which steps those heads have, from their unconverted data. Calling `Angles` loads cos and sin.
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

}  // namespace prologue::cuda
