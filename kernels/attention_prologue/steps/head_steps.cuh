// This is the mathematics of one head, on values in registers: bias, norm, rotation, Hadamard transform, scale, sigmoid. The same for the CPU
// is in steps/head_steps_cpu.h.
//
// A schedule says in its `Steps` which steps there are, and loads what they need when they ask for it. Several heads of a thread
// (kHeads) share the work of the lanes. What the lanes compute together is in `Lanes` (steps/head_lanes.cuh).
#pragma once

#include <prologue/kernels/attention_prologue/steps/head_plan.h>
#include <prologue/kernels/base/shared/reciprocal_root.h>
#include <prologue/kernels/base/shared/sigmoid.h>
#include <prologue/kernels/attention_prologue/steps/head_lanes.cuh>
#include <prologue/kernels/base/device/head_unit.cuh>

namespace prologue::cuda {

// Has no step at all. A schedule's steps are derived from it and say what they have.
template <class T, int V>
struct NoSteps {
  __device__ static UnitValues<V> values(int) { return {}; }  // of head n of the kHeads: from memory, or from registers
  __device__ static bool biased() { return false; }
  __device__ static Unit<T, V> bias(int) { return {}; }

  __device__ static NormPlacement norm() { return NormPlacement::none; }
  __device__ static bool layer_norm() { return false; }     // otherwise RMS
  __device__ static bool norm_of_token() { return false; }  // then `token_sum` is that of the squares of all its heads
  __device__ static float token_sum() { return 0.0f; }
  __device__ static float inverse_count() { return 0.0f; }  // of the channels
  __device__ static float eps() { return 0.0f; }
  __device__ static bool weighted() { return false; }
  __device__ static UnitValues<V> weight() { return {}; }  // with its offset
  __device__ static bool norm_biased() { return false; }
  __device__ static UnitValues<V> norm_bias() { return {}; }

  __device__ static bool rotates() { return false; }  // this unit
  __device__ static UnitAngles<V> angles() { return {}; }
  __device__ static RopeStyle style() { return RopeStyle::neox; }

  static constexpr bool kHasEveryStep = false;  // true: those of plan(), too, which most lean kernels do not have
  __device__ static HeadPlan plan() { return {}; }

  __device__ static bool scales() { return false; }
  __device__ static float factor() { return 1.0f; }
  __device__ static HeadActivation activation() { return HeadActivation::none; }
  __device__ static bool rounds() { return false; }  // to T after each step
};

__device__ inline float inverse_root_mean(float sum, float inverse_count, float eps) {
  return reciprocal_root(fused_multiply_add(sum, inverse_count, eps));
}

template <class T, int V, int kHeads, class Steps>
__device__ inline void round_step(UnitValues<V> (&x)[kHeads], const Steps& s) {
#pragma unroll
  for (int n = 0; n < kHeads; ++n) {
    if (s.rounds()) x[n] = widen<T, V>(narrow<T, V>(x[n]));
  }
}

template <int V>
__device__ inline UnitValues<V> norm_factors(UnitValues<V> weight, float offset) {
#pragma unroll
  for (float& w : weight.x) w = norm_factor(offset, w);
  return weight;
}

// x -> (x - mean) / root mean square * (offset + weight) + bias; RMS: mean 0
template <class T, int V, int kHeads, class Steps, class Lanes>
__device__ inline void normalise(UnitValues<V> (&x)[kHeads], const Steps& s, const Lanes& lanes) {
  float inverse[kHeads];
  const auto inverse_of = [&](float sum) { return inverse_root_mean(sum, s.inverse_count(), s.eps()); };
  if (s.layer_norm()) {
    float mean[kHeads];
    lanes.sum(
        x, SumOfValues(), [&](float sum) { return multiply_rounded(sum, s.inverse_count()); }, mean);
#pragma unroll
    for (int n = 0; n < kHeads; ++n) add<V>(x[n], -mean[n]);
  }
  if (s.norm_of_token()) {
#pragma unroll
    for (int n = 0; n < kHeads; ++n) inverse[n] = inverse_of(s.token_sum());
  } else {
    lanes.sum(x, SumOfSquares(), inverse_of, inverse);
  }
#pragma unroll
  for (int n = 0; n < kHeads; ++n) {
    multiply<V>(x[n], inverse[n]);
    if (s.weighted()) multiply<V>(x[n], s.weight());
    if (s.norm_biased()) add<V>(x[n], s.norm_bias());
  }
  round_step<T, V>(x, s);
}

template <class T, int V, int kHeads, class Steps>
__device__ inline void rotate(UnitValues<V> (&x)[kHeads], const Steps& s) {
  if (!s.rotates()) return;
  const UnitAngles<V> angles = s.angles();
#pragma unroll
  for (int n = 0; n < kHeads; ++n) rotate<V>(x[n], angles, s.style());
  round_step<T, V>(x, s);
}

// Each block of channels times H / sqrt(block). Blocks and vectors are powers of two: one is a part of the other.
template <class T, int V, int kHeads, class Steps, class Lanes>
__device__ inline void hadamard_transform(UnitValues<V> (&x)[kHeads], const Steps& s, const Lanes& lanes) {
  const int block = s.plan().hadamard_block;
  if (block == 0) return;
#pragma unroll
  for (int n = 0; n < kHeads; ++n) {
#pragma unroll
    for (int distance = 1; distance < V; distance *= 2) {
      if (distance < block) butterflies<V>(x[n], distance);
    }
#pragma unroll 1
    for (int distance = V; distance < block; distance *= 2) lanes.butterflies(x[n], distance);
    multiply<V>(x[n], s.plan().hadamard_factor);
  }
  round_step<T, V>(x, s);
}

// Does the steps before the norm.
template <class T, int V, int kHeads, class Steps>
__device__ inline void begin_head(UnitValues<V> (&x)[kHeads], const Steps& s, NormPlacement norm) {
#pragma unroll
  for (int n = 0; n < kHeads; ++n) {
    x[n] = s.values(n);
    if (s.biased()) add_bias<T, V>(x[n], s.bias(n));
  }
  if (s.biased()) round_step<T, V>(x, s);
  if (norm == NormPlacement::after_rope) rotate<T, V>(x, s);
}

// Does all steps. All lanes of the head must be here.
template <class T, int V, int kHeads, class Steps, class Lanes>
__device__ inline void finish_head(UnitValues<V> (&x)[kHeads], const Steps& s, const Lanes& lanes) {
  const NormPlacement norm = s.norm();
  begin_head<T, V>(x, s, norm);
  if (norm != NormPlacement::none) normalise<T, V>(x, s, lanes);
  if (norm != NormPlacement::after_rope) rotate<T, V>(x, s);
  if constexpr (Steps::kHasEveryStep) hadamard_transform<T, V>(x, s, lanes);
  if (s.scales()) {
#pragma unroll
    for (int n = 0; n < kHeads; ++n) multiply<V>(x[n], s.factor());
    round_step<T, V>(x, s);
  }
  if (s.activation() == HeadActivation::sigmoid) {
#pragma unroll
    for (int n = 0; n < kHeads; ++n) {
#pragma unroll
      for (float& value : x[n].x) value = sigmoid_f32(value);
    }
    round_step<T, V>(x, s);
  }
}

}  // namespace prologue::cuda
