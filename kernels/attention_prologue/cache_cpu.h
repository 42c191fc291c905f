// Writes a finished head into its slot of the cache, converted to the cache's type.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <prologue/kernels/base/head_cpu.h>
#include <prologue/kernels/base/quantize.h>

namespace prologue::cpu {

// K or V of a paged cache; data null: not present.
struct CacheSide {
  void* data = nullptr;
  PageStrides strides;
  KvType type = KvType::f32;
  KvScaling scaling = KvScaling::none;
  float* scale = nullptr;
  PageStrides scale_strides;
};

inline CacheSide k_side(const PagedKvView& c) { return {c.k, c.k_strides, c.type, c.scaling, c.k_scale, c.k_scale_strides}; }
inline CacheSide v_side(const PagedKvView& c) { return {c.v, c.v_strides, c.type, c.scaling, c.v_scale, c.v_scale_strides}; }

inline int64_t offset_in(const PageStrides& strides, int64_t page, int64_t offset, int64_t head) {
  return page * strides.page + offset * strides.token + head * strides.head;
}

// amax -> scale, over `count` values.
inline HeadScale scale_for(const float* values, int64_t count, KvType type) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, magnitude_bits(values[i]));
  return computed_scale(largest, kv_largest(type));
}

template <KvType kType>
void quantize_values(const float* values, int64_t count, float reciprocal, uint8_t* y) {
  if constexpr (kType == KvType::int4) {
    for (int64_t i = 0; i < count; i += 2) {
      const int low = quantize(values[i], reciprocal, kType), high = quantize(values[i + 1], reciprocal, kType);
      y[i / 2] = static_cast<uint8_t>(low | high << 4);
    }
  } else {
    for (int64_t i = 0; i < count; ++i) y[i] = quantize(values[i], reciprocal, kType);
  }
}

template <class T>
void write_head(const CacheSide& side, int64_t page, int64_t offset, int64_t head, const FinishedHead<T>& finished) {
  const int64_t at = offset_in(side.strides, page, offset, head);
  const auto store_float = [&](auto type) {
    using U = decltype(type);
    U* y = static_cast<U*>(side.data) + at;
    if constexpr (std::is_same_v<U, T>) {
      store_head(finished, y);
    } else {
      narrow(finished.values, finished.width, y);
    }
  };
  HeadScale scale;
  if (side.scaling == KvScaling::tensor) scale = given_scale(side.scale[0]);
  if (side.scaling == KvScaling::head) scale = given_scale(side.scale[head]);
  if (side.scaling == KvScaling::token_head) {
    scale = scale_for(finished.values, finished.width, side.type);
    side.scale[offset_in(side.scale_strides, page, offset, head)] = scale.scale;
  }
  uint8_t* const bytes = static_cast<uint8_t*>(side.data) + (side.type == KvType::int4 ? at / 2 : at);
  const auto store_quantized = [&](auto type) {
    quantize_values<decltype(type)::value>(finished.values, finished.width, scale.reciprocal, bytes);
  };
  switch (side.type) {
    case KvType::as_dtype: return;  // a resolved type
    case KvType::f32: return store_float(float{});
    case KvType::f16: return store_float(Float16{});
    case KvType::bf16: return store_float(BFloat16{});
    case KvType::fp8_e4m3: return store_quantized(std::integral_constant<KvType, KvType::fp8_e4m3>{});
    case KvType::fp8_e5m2: return store_quantized(std::integral_constant<KvType, KvType::fp8_e5m2>{});
    case KvType::int8: return store_quantized(std::integral_constant<KvType, KvType::int8>{});
    case KvType::int4: return store_quantized(std::integral_constant<KvType, KvType::int4>{});
  }
}

}  // namespace prologue::cpu
