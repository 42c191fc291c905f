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
  int32_t float_y = 0;   // without activation or residual
  int32_t activates = 0;
  int32_t gated = 0;
  int32_t adds = 0;
  Activation kind = Activation::silu;
  float limit = 0.0f;
  float alpha = 0.0f;
};

inline constexpr int kRowsAtOnce = 4;  // of a lane

template <Activation kKind>
__device__ inline void activate_rows(const OutputArgs& o, float (&values)[kRowsAtOnce], const float (&up)[kRowsAtOnce]) {
#pragma unroll
  for (int i = 0; i < kRowsAtOnce; ++i) {
    if constexpr (kKind == Activation::clamped_swiglu) {
      values[i] = activate_gated<kKind>(values[i], up[i], o.limit, o.alpha);
    } else {
      values[i] = activate<kKind>(values[i]) * (o.gated != 0 ? up[i] : 1.0f);
    }
  }
}

// values = act(values), or act(values) * up: all of them side by side, since each is a long chain of instructions.
__device__ inline void apply_activation(const OutputArgs& o, float (&values)[kRowsAtOnce], const float (&up)[kRowsAtOnce]) {
  switch (o.kind) {
    case Activation::gelu_tanh: return activate_rows<Activation::gelu_tanh>(o, values, up);
    case Activation::gelu: return activate_rows<Activation::gelu>(o, values, up);
    case Activation::relu: return activate_rows<Activation::relu>(o, values, up);
    case Activation::relu2: return activate_rows<Activation::relu2>(o, values, up);
    case Activation::clamped_swiglu: return activate_rows<Activation::clamped_swiglu>(o, values, up);
    case Activation::silu: break;
  }
  activate_rows<Activation::silu>(o, values, up);
}

// The product of kRowsAtOnce rows of the weights and a token, with its bias, as the separate operation stores it: rounded to y's type.
template <class T>
__device__ inline void round_product(const OutputArgs& o, int of_weights, float (&values)[kRowsAtOnce]) {
  if (o.bias != nullptr) {
    const auto bias =
        load_bytes<kRowsAtOnce* static_cast<int>(sizeof(T)), false>(o.bias + of_weights * static_cast<int64_t>(sizeof(T)));
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) values[i] += element<T, kRowsAtOnce>(bias, i);
  }
  if (o.float_y != 0) return;
  const Packed<T, kRowsAtOnce> rounded = pack<T, kRowsAtOnce>(values);
#pragma unroll
  for (int i = 0; i < kRowsAtOnce; ++i) values[i] = element<T, kRowsAtOnce>(rounded, i);
}

// kRowsAtOnce channels of y from `at` on, of token t.
template <class T>
__device__ inline char* place_of_output(const OutputArgs& o, int t, int at) {
  return o.y + t * o.y_stride + at * static_cast<int64_t>(o.float_y != 0 ? sizeof(float) : sizeof(T));
}

template <class T>
__device__ inline Packed<T, kRowsAtOnce> load_packed(const char* from) {
  return load_bytes<kRowsAtOnce * static_cast<int>(sizeof(T)), false>(from);
}

// Stores `values` there, or their sum with the residual, rounded to T.
template <class T>
__device__ inline void store_output(const OutputArgs& o, char* to, const Packed<T, kRowsAtOnce>& residual, float (&values)[kRowsAtOnce]) {
  Packed<T, kRowsAtOnce> stored = pack<T, kRowsAtOnce>(values);
  if (o.adds != 0) {
#pragma unroll
    for (int j = 0; j < kRowsAtOnce; ++j) {
      values[j] = element<T, kRowsAtOnce>(residual, j) + element<T, kRowsAtOnce>(stored, j);
    }
    stored = pack<T, kRowsAtOnce>(values);
  }
  store_bytes<kRowsAtOnce * static_cast<int>(sizeof(T)), false>(to, stored);
}

// All that follows the product, for kRowsAtOnce channels of y. product(row, sums) gives the sums of so many rows of the weights that a
// block or cluster has: `row` is their first, with `up` there are `rows` rows of gate before those of up. `at`: the first channel of y.
template <class T, class Product>
__device__ inline void finish_rows(const OutputArgs& o, int row, int rows, int at, char* to, const Packed<T, kRowsAtOnce>& residual,
                                   const Product& product) {
  float values[kRowsAtOnce];
  product(row, values);
  round_product<T>(o, at, values);
  if (o.float_y != 0) {
    *reinterpret_cast<float4*>(to) = make_float4(values[0], values[1], values[2], values[3]);
    return;
  }
  if (o.activates != 0) {
    float up[kRowsAtOnce] = {};
    if (o.gated != 0) {
      product(rows + row, up);
      round_product<T>(o, o.n + at, up);
    }
    apply_activation(o, values, up);
  }
  store_output<T>(o, to, residual, values);
}

}  // namespace prologue::cuda
