// Writes a finished head into its slot of the cache, converted to the cache's type.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <prologue/kernels/base/host/head_cpu.h>
#include <prologue/kernels/base/shared/block_scale.h>
#include <prologue/kernels/base/shared/quantize.h>

namespace prologue::cpu {

inline int64_t offset_in(const PageStrides& strides, int64_t page, int64_t offset, int64_t head) {
  return page * strides.page + offset * strides.token + head * strides.head;
}

// Makes a scale from the amax of `count` values.
inline HeadScale scale_for(const float* values, int64_t count, DType type) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, magnitude_bits(values[i]));
  return computed_scale(largest, kv_largest(type));
}

inline AsymmetricScale asymmetric_scale_for(const float* values, int64_t count) {
  uint32_t smallest = ordered_bits(values[0]), largest = smallest;
  for (int64_t i = 1; i < count; ++i) {
    smallest = std::min(smallest, ordered_bits(values[i]));
    largest = std::max(largest, ordered_bits(values[i]));
  }
  return asymmetric_scale(from_ordered_bits(smallest), from_ordered_bits(largest));
}

template <DType kType>
void quantize_values(const float* values, int64_t count, float reciprocal, uint8_t* y) {
  for (int64_t i = 0; i < count; ++i) y[i] = quantize(values[i], reciprocal, kType);
}

// Two codes of a 4-bit type share a byte.
template <DType kType>
void quantize_values(const float* values, int64_t count, const AsymmetricScale& scale, uint8_t* y) {
  for (int64_t i = 0; i < count; i += 2) {
    const int low = quantize(values[i], scale, kType), high = quantize(values[i + 1], scale, kType);
    y[i / 2] = static_cast<uint8_t>(low | high << 4);
  }
}

// Stores a head of `count` values in a block-scaled format: its codes, and the scale of each block.
inline void store_blocks(const PagedHeads& side, int64_t page, int64_t offset, int64_t head, const float* values, int64_t count) {
  const KvFormat format = side.format;
  const int64_t at = offset_in(side.strides, page, offset, head), channels = block_channels(format), num_blocks = count / channels;
  const bool packed = dtype_bits(format.type) == 4;
  uint8_t* const codes = static_cast<uint8_t*>(side.data) + (packed ? at / 2 : at);
  uint8_t* const scales = side.block_scale + page * side.scale_strides.page + head * side.scale_strides.head;
  const float tensor_scale = tensor_scale_of(format, side.scale);
  for (int64_t block = 0; block < num_blocks; ++block) {
    const float* const x = values + block * channels;
    uint32_t largest = 0;
    for (int64_t i = 0; i < channels; ++i) largest = std::max(largest, magnitude_bits(x[i]));
    const BlockScale scale = block_scale_of(largest, format, tensor_scale);
    scales[block_scale_offset(side.block_scale_layout, side.scale_strides.token, offset, block, num_blocks)] = scale.code;
    const auto code = [&](int64_t i) { return quantize_in_block(x[i], scale.reciprocal, format.type); };
    uint8_t* const y = codes + (packed ? block * channels / 2 : block * channels);
    for (int64_t i = 0; !packed && i < channels; ++i) y[i] = code(i);
    for (int64_t i = 0; packed && i < channels; i += 2) y[i / 2] = static_cast<uint8_t>(code(i) | code(i + 1) << 4);
  }
}

// `side` is K or V of a cache, with its type resolved.
template <class T>
void write_head(const PagedHeads& side, int64_t page, int64_t offset, int64_t head, const FinishedHead<T>& finished) {
  const auto [cache_type, scaling] = side.format;
  if (is_block_scaled(side.format)) return store_blocks(side, page, offset, head, finished.values, finished.width);
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
  AsymmetricScale scale;  // its zero point: 0 except for uint4
  HeadScale& symmetric = scale;
  if (scaling == KvScaling::tensor) symmetric = given_scale(side.scale[0]);
  if (scaling == KvScaling::head) symmetric = given_scale(side.scale[head]);
  if (scaling == KvScaling::token_head) {
    float* const stored = side.scale + offset_in(side.scale_strides, page, offset, head);
    if (cache_type == DType::uint4) {
      scale = asymmetric_scale_for(finished.values, finished.width);
      stored[1] = scale.zero_point;
    } else {
      symmetric = scale_for(finished.values, finished.width, cache_type);
    }
    stored[0] = scale.scale;
  }
  uint8_t* const bytes = static_cast<uint8_t*>(side.data) + (dtype_bits(cache_type) == 4 ? at / 2 : at);
  const auto store_quantized = [&](auto type) {
    quantize_values<decltype(type)::value>(finished.values, finished.width, scale.reciprocal, bytes);
  };
  const auto store_packed = [&](auto type) {
    quantize_values<decltype(type)::value>(finished.values, finished.width, scale, bytes);
  };
  switch (cache_type) {
    case DType::f32: return store_float(float{});
    case DType::f16: return store_float(Float16{});
    case DType::bf16: return store_float(BFloat16{});
    case DType::fp8_e4m3: return store_quantized(std::integral_constant<DType, DType::fp8_e4m3>{});
    case DType::fp8_e5m2: return store_quantized(std::integral_constant<DType, DType::fp8_e5m2>{});
    case DType::int8: return store_quantized(std::integral_constant<DType, DType::int8>{});
    case DType::int4: return store_packed(std::integral_constant<DType, DType::int4>{});
    case DType::uint4: return store_packed(std::integral_constant<DType, DType::uint4>{});
    default: return;  // not a cache's type
  }
}

}  // namespace prologue::cpu
