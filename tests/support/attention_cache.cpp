#include "tests/support/attention_cache.h"

#include <cstring>
#include <limits>

#include <prologue/kernels/base/shared/quantize.h>

#include "tests/oracle/quantize.h"

namespace prologue::test {

namespace {

oracle::Quantized quantized(DType type) {
  return static_cast<oracle::Quantized>(static_cast<int>(type) - static_cast<int>(DType::fp8_e4m3));
}

}  // namespace

AttentionCache::AttentionCache(const AttentionCase& c, int64_t num_pages) {
  view.k.format = view.v.format = {c.type, c.scaling};
  view.num_pages = num_pages;
  view.page_size = c.page_size;
  view.num_kv_heads = c.num_kv_heads;
  view.k.head_dim = c.head_dim;
  view.v.head_dim = c.v_head_dim;
  const int64_t p = c.page_size, h = c.num_kv_heads, k = c.head_dim, v = c.v_width();
  int64_t elements = 0;
  switch (c.layout) {
    case KvLayout::nhd:
      view.k.strides = {p * h * k, h * k, k};
      view.v.strides = {p * h * v, h * v, v};
      v_offset = num_pages * p * h * k;
      elements = num_pages * p * h * (k + v);
      break;
    case KvLayout::hnd:
      view.k.strides = {p * h * k, k, p * k};
      view.v.strides = {p * h * v, v, p * v};
      v_offset = num_pages * p * h * k;
      elements = num_pages * p * h * (k + v);
      break;
    case KvLayout::interleaved:  // K and V of a head side by side
      view.k.strides = view.v.strides = {p * h * (k + v), h * (k + v), k + v};
      v_offset = k;
      elements = num_pages * p * h * (k + v);
      break;
    case KvLayout::two_in_a_page:  // [page, K or V, token, head]
      view.k.strides = {p * h * (k + v), h * k, k};
      view.v.strides = {p * h * (k + v), h * v, v};
      v_offset = p * h * k;
      elements = num_pages * p * h * (k + v);
      break;
    case KvLayout::odd: {  // nothing is aligned; types of 4 bits want even strides
      const int64_t gap = dtype_bits(c.type) == 4 ? 2 : 1;
      view.k.strides = {(p * h * (k + gap) + 3 * gap), h * (k + gap), k + gap};
      view.v.strides = {p * h * (v + 3 * gap) + gap, v + 3 * gap, p * (v + 3 * gap)};
      v_offset = num_pages * view.k.strides.page + gap;
      elements = v_offset + num_pages * view.v.strides.page;
      break;
    }
  }
  if (c.v_within_k) {
    view.v.strides = view.k.strides;
    v_offset = 0;
  }
  data.assign(static_cast<size_t>((elements * dtype_bits(c.type) + 7) / 8), kPoison);
  const int64_t n = c.type == DType::uint4 ? 2 : 1;  // scale, zero point
  const auto scale_count = [&] {
    if (c.scaling == KvScaling::tensor) return int64_t{1};
    if (c.scaling == KvScaling::head) return h;
    return c.scaling == KvScaling::token_head ? (num_pages * p * h + num_pages * 3) * n : 0;
  }();
  k_scale.assign(static_cast<size_t>(scale_count), std::numeric_limits<float>::quiet_NaN());
  v_scale = k_scale;
  view.k.scale_strides = {(p * h + 3) * n, h * n, n};
  view.v.scale_strides = {(p * h + 2) * n, n, p * n};
}

int64_t AttentionCache::element(bool is_k, int64_t page, int64_t offset, int64_t head, int64_t d) const {
  const PageStrides& s = is_k ? view.k.strides : view.v.strides;
  return (is_k ? 0 : v_offset) + page * s.page + offset * s.token + head * s.head + d;
}

size_t AttentionCache::scale_index(bool is_k, int64_t page, int64_t offset, int64_t head) const {
  const PagedHeads& side = is_k ? view.k : view.v;
  const PageStrides& s = side.scale_strides;
  if (side.format.scaling == KvScaling::token_head) return static_cast<size_t>(page * s.page + offset * s.token + head * s.head);
  return side.format.scaling == KvScaling::head ? static_cast<size_t>(head) : 0;
}

void AttentionCache::store(bool is_k, int64_t page, int64_t offset, int64_t head, const std::vector<float>& values) {
  const KvFormat format = is_k ? view.k.format : view.v.format;
  const float scale =
      format.scaling == KvScaling::none ? 1.0f : (is_k ? k_scale : v_scale)[scale_index(is_k, page, offset, head)];
  for (size_t d = 0; d < values.size(); ++d) {
    const auto at = static_cast<size_t>(element(is_k, page, offset, head, static_cast<int64_t>(d)));
    if (dtype_is_activation(format.type)) {
      with_host_type(format.type, [&](auto type) {
        const auto stored = from_float<decltype(type)>(values[d]);
        std::memcpy(&data[at * sizeof stored], &stored, sizeof stored);
      });
    } else {
      const float reciprocal = scale == 0.0f ? 0.0f : 1.0f / scale;
      const uint8_t code = format.type == DType::uint4
                               ? quantize(values[d], {{scale, reciprocal}, zero_point(is_k, page, offset, head)}, format.type)
                               : quantize(values[d], reciprocal, format.type);
      if (dtype_bits(format.type) != 4) {
        data[at] = code;
      } else {
        unsigned char& byte = data[at / 2];
        byte = static_cast<unsigned char>(at % 2 == 0 ? (byte & 0xf0) | code : (byte & 0x0f) | code << 4);
      }
    }
  }
}

double AttentionCache::value(bool is_k, int64_t page, int64_t offset, int64_t head, int64_t d) const {
  const KvFormat format = is_k ? view.k.format : view.v.format;
  const auto at = static_cast<size_t>(element(is_k, page, offset, head, d));
  if (dtype_is_activation(format.type)) {
    return with_host_type(format.type, [&](auto stored) {
      std::memcpy(static_cast<void*>(&stored), &data[at * sizeof stored], sizeof stored);
      return static_cast<double>(to_float(stored));
    });
  }
  const uint8_t code = dtype_bits(format.type) != 4 ? data[at] : static_cast<uint8_t>(data[at / 2] >> (at % 2 * 4));
  const double number = oracle::value_of_code(code, quantized(format.type));
  if (format.scaling == KvScaling::none) return number;
  const double scaled = number * static_cast<double>((is_k ? k_scale : v_scale)[scale_index(is_k, page, offset, head)]);
  return format.type == DType::uint4 ? scaled + static_cast<double>(zero_point(is_k, page, offset, head)) : scaled;
}

PagedKvView AttentionCache::place(Arena& arena) const {
  PagedKvView placed = view;
  auto* bytes = arena.input(data);
  placed.k.data = bytes;
  placed.v.data = bytes + v_offset * dtype_bits(view.k.format.type) / 8;
  if (!k_scale.empty()) {
    placed.k.scale = arena.input(k_scale);
    placed.v.scale = arena.input(v_scale);
  }
  return placed;
}

}  // namespace prologue::test
