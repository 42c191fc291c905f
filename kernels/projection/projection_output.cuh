// What follows the product in a linear layer: bias, activation, residual.
#pragma once

#include <cstdint>

#include <prologue/kernels/token_ops/activation_math.h>
#include <prologue/kernels/base/device/head_unit.cuh>

namespace prologue::cuda {

struct OutputArgs {
  const char* bias = nullptr;  // null = none
  char* y = nullptr;
  int64_t y_stride = 0;  // bytes
  int32_t n = 0;         // a multiple of 16
  int32_t activates = 0;
  int32_t gated = 0;
  int32_t adds = 0;
  Activation kind = Activation::silu;
  float limit = 0.0f;
  float alpha = 0.0f;
};

template <Activation kKind>
__device__ inline float activated(const OutputArgs& o, float gate, float up) {
  if constexpr (kKind != Activation::clamped_swiglu) {
    if (o.gated == 0) return activate<kKind>(gate);
  }
  return activate_gated<kKind>(gate, up, o.limit, o.alpha);
}

__device__ inline float activated(const OutputArgs& o, float gate, float up) {
  switch (o.kind) {
    case Activation::gelu_tanh: return activated<Activation::gelu_tanh>(o, gate, up);
    case Activation::gelu: return activated<Activation::gelu>(o, gate, up);
    case Activation::relu: return activated<Activation::relu>(o, gate, up);
    case Activation::relu2: return activated<Activation::relu2>(o, gate, up);
    case Activation::clamped_swiglu: return activated<Activation::clamped_swiglu>(o, gate, up);
    case Activation::silu: break;
  }
  return activated<Activation::silu>(o, gate, up);
}

inline constexpr int kRowsAtOnce = 4;  // of a lane

// The product of kRowsAtOnce rows of the weights and a token, with its bias, as the separate operation stores it: rounded to T.
template <class T>
__device__ inline void round_product(const OutputArgs& o, int of_weights, float (&values)[kRowsAtOnce]) {
  if (o.bias != nullptr) {
    const auto bias =
        load_bytes<kRowsAtOnce* static_cast<int>(sizeof(T)), false>(o.bias + of_weights * static_cast<int64_t>(sizeof(T)));
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) values[i] += element<T, kRowsAtOnce>(bias, i);
  }
  const Packed<T, kRowsAtOnce> rounded = pack<T, kRowsAtOnce>(values);
#pragma unroll
  for (int i = 0; i < kRowsAtOnce; ++i) values[i] = element<T, kRowsAtOnce>(rounded, i);
}

// What is stored of kRowsAtOnce channels of y from `at` on, of token t.
template <class T>
__device__ inline void store_output(const OutputArgs& o, int t, int at, float (&values)[kRowsAtOnce]) {
  constexpr int kBytes = kRowsAtOnce * static_cast<int>(sizeof(T));
  char* const to = o.y + t * o.y_stride + at * static_cast<int64_t>(sizeof(T));
  Packed<T, kRowsAtOnce> stored = pack<T, kRowsAtOnce>(values);
  if (o.adds != 0) {
    const auto residual = load_bytes<kBytes, false>(to);
#pragma unroll
    for (int j = 0; j < kRowsAtOnce; ++j) {
      values[j] = element<T, kRowsAtOnce>(residual, j) + element<T, kRowsAtOnce>(stored, j);
    }
    stored = pack<T, kRowsAtOnce>(values);
  }
  store_bytes<kBytes, false>(to, stored);
}

}  // namespace prologue::cuda
