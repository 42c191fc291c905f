// Finishes a linear layer: bias, activation, residual. output_launch.cuh is the part for the host.
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
  int32_t by_8 = 0;  // bias and y can be read and written 8 channels at a time
  Activation kind = Activation::silu;
  float limit = 0.0f;
  float alpha = 0.0f;
};

inline constexpr int kRowsAtOnce = 4;  // of a lane, where it has more than one

template <Activation kKind, int kCount>
__device__ inline void activate_rows(const OutputArgs& o, float (&values)[kCount], const float (&up)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if constexpr (kKind == Activation::clamped_swiglu) {
      values[i] = activate_gated<kKind>(values[i], up[i], o.limit, o.alpha);
    } else {
      values[i] = activate<kKind>(values[i]) * (o.gated != 0 ? up[i] : 1.0f);
    }
  }
}

template <class T, int kCount = kRowsAtOnce>
__device__ inline Packed<T, kCount> load_packed(const char* from) {
  return load_bytes<kCount* static_cast<int>(sizeof(T)), false>(from);
}

// values = act(values), or act(values) * up: all of them side by side, since each is a long chain of instructions.
template <int kCount>
__device__ inline void apply_activation(const OutputArgs& o, float (&values)[kCount], const float (&up)[kCount]) {
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

// The product of some rows of the weights and a token, with its bias, as the separate operation stores it: rounded to y's type.
template <class T, int kCount>
__device__ inline void round_product(const OutputArgs& o, int of_weights, float (&values)[kCount]) {
  if (o.bias != nullptr) {
    const auto bias = load_packed<T, kCount>(o.bias + of_weights * static_cast<int64_t>(sizeof(T)));
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] += element<T, kCount>(bias, i);
  }
  if (o.float_y != 0) return;
  const Packed<T, kCount> rounded = pack<T, kCount>(values);
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = element<T, kCount>(rounded, i);
}

// Returns the address of channel `at` of y, of token t.
template <class T>
__device__ inline char* address_of_output(const OutputArgs& o, int t, int at) {
  return o.y + t * o.y_stride + at * static_cast<int64_t>(o.float_y != 0 ? sizeof(float) : sizeof(T));
}

// Stores `values` there, or their sum with the residual, rounded to T.
template <class T, int kCount>
__device__ inline void store_output(const OutputArgs& o, char* to, const Packed<T, kCount>& residual, float (&values)[kCount]) {
  Packed<T, kCount> stored = pack<T, kCount>(values);
  if (o.adds != 0) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) values[j] = element<T, kCount>(residual, j) + element<T, kCount>(stored, j);
    stored = pack<T, kCount>(values);
  }
  store_bytes<kCount* static_cast<int>(sizeof(T)), false>(to, stored);
}

// Does all that follows the product, for kCount channels of y. product(row, sums) gives the sums of so many rows of the weights that a
// block or cluster has. `row` is their first; with `up` there are `rows` rows of gate before those of up. `at` is the first channel of y.
template <class T, int kCount = kRowsAtOnce, class Product>
__device__ inline void finish_rows(const OutputArgs& o, int row, int rows, int at, char* to, const Packed<T, kCount>& residual,
                                   const Product& product) {
  float values[kCount];
  product(row, values);
  round_product<T>(o, at, values);
  if (o.float_y != 0) {
    store_bytes<kCount* static_cast<int>(sizeof(float)), false>(to, pack<float, kCount>(values));
    return;
  }
  if (o.activates != 0) {
    float up[kCount] = {};
    if (o.gated != 0) {
      product(rows + row, up);
      round_product<T>(o, o.n + at, up);
    }
    apply_activation(o, values, up);
  }
  store_output<T, kCount>(o, to, residual, values);
}

}  // namespace prologue::cuda
