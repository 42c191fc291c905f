// This file has the activations, written once for all backends. activation.h has the formulas.
#pragma once

#include <prologue/kernels/base/shared/erf.h>
#include <prologue/kernels/base/shared/sigmoid.h>
#include <prologue/kernels/token_ops/activation.h>

namespace prologue {

template <Activation KIND>
PROLOGUE_HOST_DEVICE inline float activate(float x) {
  static_assert(KIND != Activation::clamped_swiglu, "it is more than a factor of `up`");
  if constexpr (KIND == Activation::silu) {
    return x * sigmoid_f32(x);
  } else if constexpr (KIND == Activation::gelu_tanh) {
    constexpr float kTwoSqrt2OverPi = 1.5957691216f;  // 1 + tanh(y) = 2 / (1 + exp(-2 y)), which does not cancel
    return x * sigmoid_f32(kTwoSqrt2OverPi * (x + 0.044715f * x * x * x));
  } else if constexpr (KIND == Activation::gelu) {
    return 0.5f * x * (1.0f + erf_f32(x * 0.70710678f));
  } else {
    const float positive = x < 0.0f ? 0.0f : x;
    return KIND == Activation::relu ? positive : positive * positive;
  }
}

template <Activation KIND>
PROLOGUE_HOST_DEVICE inline float activate_gated(float gate, float up, float limit, float alpha) {
  if constexpr (KIND == Activation::clamped_swiglu) {
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up < -limit ? -limit : up;
    return (up + 1.0f) * (gate * sigmoid_f32(alpha * gate));
  } else {
    return activate<KIND>(gate) * up;
  }
}

template <Activation KIND>
struct ActivationConstant {
  static constexpr Activation value = KIND;
};

// Calls f with an ActivationConstant: a loop or a kernel for each kind.
template <class F>
auto with_activation(Activation kind, const F& f) {
  switch (kind) {
    case Activation::gelu_tanh: return f(ActivationConstant<Activation::gelu_tanh>());
    case Activation::gelu: return f(ActivationConstant<Activation::gelu>());
    case Activation::relu: return f(ActivationConstant<Activation::relu>());
    case Activation::relu2: return f(ActivationConstant<Activation::relu2>());
    case Activation::clamped_swiglu: return f(ActivationConstant<Activation::clamped_swiglu>());
    case Activation::silu: break;
  }
  return f(ActivationConstant<Activation::silu>());
}

}  // namespace prologue
