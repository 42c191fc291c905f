// This file has a block-scaled cache on the host, written and read by the definitions of the formats: an oracle that shares no code with the
// library.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <prologue/kernels/base/views.h>

#include "tests/support/arena.h"
#include "tests/support/tolerance.h"

namespace prologue::test {

inline constexpr KvFormat kMxfp8 = {DType::fp8_e4m3, KvScaling::mx}, kMxfp4 = {DType::fp4_e2m1, KvScaling::mx},
                          kNvfp4 = {DType::fp4_e2m1, KvScaling::nv};

// The values of the codes without a sign, in order.
inline const std::vector<double>& magnitudes(DType type) {
  static const std::vector<double> kE2m1 = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0};
  static const std::vector<double> kE4m3 = [] {  // all but the NaN
    std::vector<double> values;
    for (int code = 0; code < 127; ++code) {
      const int exponent = code >> 3, mantissa = code & 7;
      values.push_back(exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10));
    }
    return values;
  }();
  return type == DType::fp4_e2m1 ? kE2m1 : kE4m3;
}

// Returns the code whose value is nearest, the even one of two, and the largest for what is too large.
inline uint8_t nearest_code(double x, DType type) {
  const std::vector<double>& values = magnitudes(type);
  const double magnitude = std::fabs(x);
  size_t best = 0;
  for (size_t code = 1; code < values.size(); ++code) {
    const double now = std::fabs(values[code] - magnitude), before = std::fabs(values[best] - magnitude);
    if (now < before || (now == before && code % 2 == 0)) best = code;
  }
  if (magnitude >= values.back()) best = values.size() - 1;
  const uint8_t sign = type == DType::fp4_e2m1 ? 8 : 0x80;
  return static_cast<uint8_t>(best | (std::signbit(x) ? sign : 0));
}

inline double value_of(uint8_t code, DType type) {
  const uint8_t sign = type == DType::fp4_e2m1 ? 8 : 0x80;
  const size_t magnitude = static_cast<size_t>(code & (sign - 1));
  const std::vector<double>& values = magnitudes(type);
  if (magnitude >= values.size()) return std::nan("");
  return (code & sign) != 0 ? -values[magnitude] : values[magnitude];
}

struct Block {
  uint8_t scale;
  std::vector<uint8_t> codes;
};

// Stores a block by the rules of KvFormat.
inline Block stored_block(const float* x, const KvFormat& format, float tensor_scale) {
  const bool mx = format.scaling == KvScaling::mx;
  const int count = mx ? 32 : 16;
  Block block = {0, std::vector<uint8_t>(static_cast<size_t>(count), 0)};
  float amax = 0.0f;
  for (int i = 0; i < count; ++i) {
    if (!std::isfinite(x[i])) {
      block.scale = mx ? 255 : 0x7f;
      return block;
    }
    amax = std::max(amax, std::fabs(x[i]));
  }
  if (mx) {
    const int largest_exponent = format.type == DType::fp8_e4m3 ? 8 : 2;
    if (amax > 0.0f) block.scale = static_cast<uint8_t>(std::max(0, 127 + std::ilogb(amax) - largest_exponent));
    for (int i = 0; i < count; ++i) {
      const double quotient = std::ldexp(static_cast<double>(x[i]), 127 - block.scale);
      block.codes[static_cast<size_t>(i)] = nearest_code(quotient, format.type);
    }
    return block;
  }
  const float reciprocal_of_tensor = 1.0f / tensor_scale;
  const float wanted = amax / 6.0f * reciprocal_of_tensor;
  const uint8_t scale = nearest_code(static_cast<double>(wanted), DType::fp8_e4m3);
  const float step = tensor_scale * static_cast<float>(value_of(scale, DType::fp8_e4m3));
  const float reciprocal = 1.0f / step;
  if (!std::isfinite(reciprocal)) return block;
  block.scale = scale;
  for (int i = 0; i < count; ++i) {
    block.codes[static_cast<size_t>(i)] = nearest_code(static_cast<double>(x[i] * reciprocal), DType::fp4_e2m1);
  }
  return block;
}

inline double factor_of(uint8_t scale, const KvFormat& format, float tensor_scale) {
  if (format.scaling == KvScaling::mx) return scale == 255 ? std::nan("") : std::ldexp(1.0, scale - 127);
  return value_of(scale, DType::fp8_e4m3) * static_cast<double>(tensor_scale);
}

enum class Layout { nhd, hnd, vllm_page, vllm_page_interleaved };

// Returns the numbers of a side on the host: data, scales of blocks and of the tensor. Data and scales of a page may be one buffer.
struct HostSide {
  KvFormat format;
  int64_t head_dim = 0;
  PageStrides strides, scale_strides;  // in elements, and as PagedHeads has them
  BlockScaleLayout layout = BlockScaleLayout::linear;
  std::vector<uint8_t> data, block_scale;  // vllm_page: both are in the cache's one buffer
  std::vector<float> scale;
  int64_t data_at = 0, scale_at = 0;  // in that buffer
};

struct HostCache {
  static constexpr int64_t kHeads = 2;
  int64_t pages, page_size;
  HostSide k, v;
  std::vector<uint8_t> page_buffer;  // [K data, K scales, V data, V scales] of each page

  HostCache(const KvFormat& k_format, const KvFormat& v_format, int64_t k_dim, int64_t v_dim, Layout layout,
            int64_t num_pages = 3, int64_t slots_of_page = 8)
      : pages(num_pages), page_size(slots_of_page) {
    k.format = k_format, v.format = v_format, k.head_dim = k_dim, v.head_dim = v_dim;
    const bool one_buffer = layout == Layout::vllm_page || layout == Layout::vllm_page_interleaved;
    if (layout == Layout::vllm_page_interleaved) v.layout = BlockScaleLayout::interleaved_4_tokens;
    const auto blocks_of = [](const HostSide& side) {
      return is_block_scaled(side.format) ? side.head_dim / block_channels(side.format) : 0;
    };
    const auto bytes_of = [](const HostSide& side) { return side.head_dim * dtype_bits(side.format.type) / 8; };
    const int64_t rows = page_size * kHeads;
    const int64_t page_bytes = rows * (bytes_of(k) + blocks_of(k) + bytes_of(v) + blocks_of(v));
    int64_t at = 0;
    for (HostSide* side : {&k, &v}) {
      const int64_t per_byte = dtype_bits(side->format.type) == 4 ? 2 : 1, d = side->head_dim, n = blocks_of(*side);
      const int64_t size = std::max<int64_t>(dtype_bits(side->format.type) / 8, 1);
      const int64_t page = one_buffer ? page_bytes * per_byte / size : rows * d, scale_page = one_buffer ? page_bytes : rows * n;
      if (layout == Layout::nhd) {
        side->strides = {page, kHeads * d, d}, side->scale_strides = {scale_page, kHeads * n, n};
      } else {
        side->strides = {page, d, page_size * d}, side->scale_strides = {scale_page, n, page_size * n};
      }
      if (!is_block_scaled(side->format)) side->scale_strides = nhd_strides(page_size, kHeads, 1);
      side->data_at = at, side->scale_at = at + rows * bytes_of(*side);
      at += rows * (bytes_of(*side) + n);
      if (!one_buffer) {
        side->data.assign(static_cast<size_t>(pages * rows * bytes_of(*side)), kPoison);
        side->block_scale.assign(static_cast<size_t>(pages * rows * n), kPoison);
        side->data_at = side->scale_at = 0;
      }
      if (side->format.scaling == KvScaling::nv) side->scale = {side == &k ? 0.75f : 0.037f};
      if (side->format.scaling == KvScaling::token_head) side->scale.assign(static_cast<size_t>(pages * rows), 0.02f);
    }
    if (one_buffer) page_buffer.assign(static_cast<size_t>(pages * page_bytes), kPoison);
  }

  float tensor_scale(const HostSide& side) const { return side.format.scaling == KvScaling::nv ? side.scale[0] : 1.0f; }
  uint8_t* data_of(HostSide& side) { return page_buffer.empty() ? side.data.data() : page_buffer.data() + side.data_at; }
  uint8_t* scales_of(HostSide& side) {
    return page_buffer.empty() ? side.block_scale.data() : page_buffer.data() + side.scale_at;
  }

  // The place of a block's scale: vLLM's formula for the interleaved one.
  uint8_t& scale_of(HostSide& side, int64_t slot, int64_t head, int64_t block) {
    const int64_t page = slot / page_size, t = slot % page_size, n = side.head_dim / block_channels(side.format);
    int64_t row = t, column = block;
    if (side.layout == BlockScaleLayout::interleaved_4_tokens) {
      row = t / 4 * 4 + block / (n / 4);
      column = block % (n / 4) * 4 + t % 4;
    }
    const PageStrides& s = side.scale_strides;
    return scales_of(side)[page * s.page + row * s.token + head * s.head + column];
  }
  void set_code(HostSide& side, int64_t slot, int64_t head, int64_t channel, uint8_t code) {
    const int64_t at = element(side, slot, head, channel);
    if (dtype_bits(side.format.type) != 4) {
      data_of(side)[at] = code;
      return;
    }
    uint8_t& byte = data_of(side)[at / 2];
    byte = static_cast<uint8_t>(at % 2 == 0 ? (byte & 0xf0) | code : (byte & 0x0f) | code << 4);
  }
  int64_t element(const HostSide& side, int64_t slot, int64_t head, int64_t channel) const {
    return slot / page_size * side.strides.page + slot % page_size * side.strides.token + head * side.strides.head + channel;
  }

  // Stores a head as the operation should.
  void store(HostSide& side, int64_t slot, int64_t head, const float* x) {
    const int64_t channels = block_channels(side.format);
    for (int64_t block = 0; block < side.head_dim / channels; ++block) {
      const Block stored = stored_block(x + block * channels, side.format, tensor_scale(side));
      scale_of(side, slot, head, block) = stored.scale;
      for (int64_t i = 0; i < channels; ++i)
        set_code(side, slot, head, block * channels + i, stored.codes[static_cast<size_t>(i)]);
    }
  }
  double value(HostSide& side, int64_t slot, int64_t head, int64_t channel) {
    const int64_t at = element(side, slot, head, channel);
    const DType type = side.format.type;
    const uint8_t byte = data_of(side)[dtype_bits(type) == 4 ? at / 2 : at];
    if (type == DType::int8) return static_cast<int8_t>(byte) * 0.02;
    const uint8_t code = dtype_bits(type) == 4 ? static_cast<uint8_t>(at % 2 == 0 ? byte & 15 : byte >> 4) : byte;
    const uint8_t scale = scale_of(side, slot, head, channel / block_channels(side.format));
    return value_of(code, type) * factor_of(scale, side.format, tensor_scale(side));
  }
};

// Holds a HostCache in an arena.
struct PlacedCache {
  PagedKvView view;
  uint8_t *k = nullptr, *k_scale = nullptr, *v = nullptr, *v_scale = nullptr, *buffer = nullptr;

  PlacedCache(Arena& arena, const HostCache& host) {
    if (!host.page_buffer.empty()) buffer = arena.inout(host.page_buffer);
    const auto place = [&](const HostSide& side, PagedHeads& heads, uint8_t*& data, uint8_t*& scales) {
      data = buffer != nullptr ? buffer + side.data_at : arena.inout(side.data);
      heads.data = data;
      heads.head_dim = side.head_dim;
      heads.format = side.format;
      heads.strides = side.strides;
      heads.scale_strides = side.scale_strides;
      heads.block_scale_layout = side.layout;
      if (is_block_scaled(side.format)) {
        scales = buffer != nullptr ? buffer + side.scale_at : arena.inout(side.block_scale);
        heads.block_scale = scales;
      }
      if (!side.scale.empty()) heads.scale = arena.input(side.scale);
    };
    place(host.k, view.k, k, k_scale);
    place(host.v, view.v, v, v_scale);
    view.num_pages = host.pages, view.page_size = host.page_size, view.num_kv_heads = HostCache::kHeads;
  }
};

struct FormatCase {
  KvFormat k, v;
  int64_t k_dim, v_dim;
  Layout layout;
};

// The error of a weight, relative to it. Tensor cores take weights in 16 bits.
template <class T>
double steps_of(Backend backend) {
  return sizeof(T) == 2 && backend_device(backend) == Device::cuda ? std::ldexp(1.0, 24 - 11) : 16.0 * kDefaultSteps;
}

}  // namespace prologue::test
