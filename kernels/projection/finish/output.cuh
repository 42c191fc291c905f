// Finishes a linear layer: bias, activation, residual. The part for the device comes first, then the part for the host.
#pragma once

#include <cstdint>

#include <prologue/kernels/token_ops/activation_math.h>
#include <prologue/kernels/base/device/head_unit.cuh>
#include <prologue/kernels/projection/launch.cuh>

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

// ---- on the host ------------------------------------------------------------------------------------------------------------

inline bool is_gated(const ProjectionParams& p) { return p.activation.given != 0 && p.activation.gated; }

inline Product product_of(const ProjectionParams& p) {
  return {p.dtype, p.num_tokens, is_gated(p) ? 2 * p.n : p.n, p.k, p.x, p.x_stride, p.norm, p.weight};
}

// Says whether a product's kernel can do what follows it.
inline bool can_finish(const ProjectionParams& p) {
  const int64_t y_bytes = kRowsAtOnce * dtype_size(resolve_dtype(p.y_dtype, p.dtype));  // that are stored at once
  return !p.batch_invariant && p.n % 16 == 0 && p.n <= INT32_MAX / 4 && p.y_stride % kRowsAtOnce == 0 &&
         is_aligned(p.y, y_bytes) && is_aligned(p.bias, 8);
}

inline OutputArgs output_of(const ProjectionParams& p) {
  OutputArgs o;
  o.bias = static_cast<const char*>(p.bias);
  o.y = static_cast<char*>(p.y);
  o.y_stride = p.y_stride * dtype_size(resolve_dtype(p.y_dtype, p.dtype));
  o.float_y = resolve_dtype(p.y_dtype, p.dtype) == DType::f32 ? 1 : 0;
  o.n = static_cast<int32_t>(p.n);
  o.activates = p.activation.given != 0 ? 1 : 0;
  o.gated = is_gated(p) ? 1 : 0;
  o.adds = p.adds != 0 ? 1 : 0;
  o.by_8 = p.y_stride % 8 == 0 && is_aligned(p.y, 16) && is_aligned(p.bias, 16) ? 1 : 0;
  o.kind = p.activation.kind;
  o.limit = p.activation.limit;
  o.alpha = p.activation.alpha;
  return o;
}

template <class ProductArgs>
Launch output_launch(void (*kernel)(ProductArgs, OutputArgs), const ProductArgs& product, const ProjectionParams& p) {
  Launch l = launch_of("projection", kernel, product, output_of(p));
  l.overlaps = p.overlaps;
  return l;
}

// These are the ways with this finisher, in the order in which they are asked.
extern const Way<ProjectionParams> kVectorOutput, kRingOutput, kRegistersOutput, kTilesOutput;
inline constexpr const Way<ProjectionParams>* kOutputWays[] = {&kVectorOutput, &kRingOutput, &kRegistersOutput, &kTilesOutput};

}  // namespace prologue::cuda
