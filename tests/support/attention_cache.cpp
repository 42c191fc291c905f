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
  view.k.format = c.format(true);
  view.v.format = c.format(false);
  view.num_pages = num_pages;
  view.page_size = c.page_size;
  view.num_kv_heads = c.num_kv_heads;
  view.k.head_dim = c.head_dim;
  view.v.head_dim = c.v_head_dim;
  const int64_t p = c.page_size, h = c.num_kv_heads, k = c.head_dim, v = c.v_width();
  const int64_t k_bits = dtype_bits(view.k.format.type), v_bits = dtype_bits(view.v.format.type);
  // Where K and V alternate, each begins at a multiple of the other's elements, too.
  const auto bytes_of = [&](int64_t elements, int64_t bits) {
    const int64_t bytes = elements * bits / 8;
    return k_bits == v_bits ? bytes : (bytes + 15) / 16 * 16;
  };
  const auto apart = [&] {
    v_offset = bytes_of(num_pages * p * h * k, k_bits);
    return v_offset + num_pages * p * h * v * v_bits / 8;
  };
  const auto bytes = [&]() -> int64_t {
    switch (c.layout) {
      case KvLayout::nhd:
        view.k.strides = {p * h * k, h * k, k};
        view.v.strides = {p * h * v, h * v, v};
        return apart();
      case KvLayout::hnd:
        view.k.strides = {p * h * k, k, p * k};
        view.v.strides = {p * h * v, v, p * v};
        return apart();
      case KvLayout::interleaved: {  // K and V of a head side by side
        v_offset = bytes_of(k, k_bits);
        const int64_t both = v_offset + bytes_of(v, v_bits);
        const auto strides_of = [&](int64_t bits) {
          return PageStrides{p * h * both * 8 / bits, h * both * 8 / bits, both * 8 / bits};
        };
        view.k.strides = strides_of(k_bits), view.v.strides = strides_of(v_bits);
        return num_pages * p * h * both;
      }
      case KvLayout::two_in_a_page: {  // [page, K or V, token, head]
        v_offset = bytes_of(p * h * k, k_bits);
        const int64_t both = v_offset + bytes_of(p * h * v, v_bits);
        view.k.strides = {both * 8 / k_bits, h * k, k};
        view.v.strides = {both * 8 / v_bits, h * v, v};
        return num_pages * both;
      }
      default: break;
    }
    // odd: nothing is aligned; types of 4 bits want even strides
    const int64_t gap = k_bits == 4 ? 2 : 1, v_gap = v_bits == 4 ? 2 : 1;
    view.k.strides = {(p * h * (k + gap) + 3 * gap), h * (k + gap), k + gap};
    view.v.strides = {p * h * (v + 3 * v_gap) + v_gap, v + 3 * v_gap, p * (v + 3 * v_gap)};
    v_offset = bytes_of(num_pages * view.k.strides.page, k_bits) + v_gap * v_bits / 8;
    return v_offset + num_pages * view.v.strides.page * v_bits / 8;
  }();
  if (c.v_within_k) {
    view.v.strides = view.k.strides;
    v_offset = 0;
  }
  data.assign(static_cast<size_t>(bytes), kPoison);
  const auto place_scales = [&](PagedHeads& side, std::vector<float>& scales, int64_t gap, bool heads_first) {
    const int64_t n = scales_of_head(side.format);  // scale, zero point
    const int64_t row = p * h + gap;
    int64_t count = 0;
    if (side.format.scaling == KvScaling::tensor) count = 1;
    if (side.format.scaling == KvScaling::head) count = h;
    if (side.format.scaling == KvScaling::token_head) count = num_pages * row * n;
    scales.assign(static_cast<size_t>(count), std::numeric_limits<float>::quiet_NaN());
    side.scale_strides = heads_first ? PageStrides{row * n, n, p * n} : PageStrides{row * n, h * n, n};
  };
  place_scales(view.k, k_scale, 3, false);
  place_scales(view.v, v_scale, 2, true);
}

int64_t AttentionCache::element(bool is_k, int64_t page, int64_t offset, int64_t head, int64_t d) const {
  const PageStrides& s = is_k ? view.k.strides : view.v.strides;
  return page * s.page + offset * s.token + head * s.head + d;
}

size_t AttentionCache::scale_index(bool is_k, int64_t page, int64_t offset, int64_t head) const {
  const PagedHeads& side = is_k ? view.k : view.v;
  const PageStrides& s = side.scale_strides;
  if (side.format.scaling == KvScaling::token_head) return static_cast<size_t>(page * s.page + offset * s.token + head * s.head);
  return side.format.scaling == KvScaling::head ? static_cast<size_t>(head) : 0;
}

void AttentionCache::store(bool is_k, int64_t page, int64_t offset, int64_t head, const std::vector<float>& values) {
  for (size_t d = 0; d < values.size(); ++d) store_one(is_k, page, offset, head, static_cast<int64_t>(d), values[d]);
}

void AttentionCache::store_one(bool is_k, int64_t page, int64_t offset, int64_t head, int64_t d, float value) {
  const KvFormat format = is_k ? view.k.format : view.v.format;
  const float scale =
      format.scaling == KvScaling::none ? 1.0f : (is_k ? k_scale : v_scale)[scale_index(is_k, page, offset, head)];
  unsigned char* const first = data.data() + (is_k ? 0 : v_offset);
  const auto at = static_cast<size_t>(element(is_k, page, offset, head, d));
  if (dtype_is_activation(format.type)) {
    with_host_type(format.type, [&](auto type) {
      const auto stored = from_float<decltype(type)>(value);
      std::memcpy(first + at * sizeof stored, &stored, sizeof stored);
    });
    return;
  }
  const float reciprocal = scale == 0.0f ? 0.0f : 1.0f / scale;
  const uint8_t code = format.type == DType::uint4
                           ? quantize(value, {{scale, reciprocal}, zero_point(is_k, page, offset, head)}, format.type)
                           : quantize(value, reciprocal, format.type);
  if (dtype_bits(format.type) != 4) {
    first[at] = code;
    return;
  }
  unsigned char& byte = first[at / 2];
  byte = static_cast<unsigned char>(at % 2 == 0 ? (byte & 0xf0) | code : (byte & 0x0f) | code << 4);
}

double AttentionCache::value(bool is_k, int64_t page, int64_t offset, int64_t head, int64_t d) const {
  const KvFormat format = is_k ? view.k.format : view.v.format;
  const unsigned char* const first = data.data() + (is_k ? 0 : v_offset);
  const auto at = static_cast<size_t>(element(is_k, page, offset, head, d));
  if (dtype_is_activation(format.type)) {
    return with_host_type(format.type, [&](auto stored) {
      std::memcpy(static_cast<void*>(&stored), first + at * sizeof stored, sizeof stored);
      return static_cast<double>(to_float(stored));
    });
  }
  const uint8_t code = dtype_bits(format.type) != 4 ? first[at] : static_cast<uint8_t>(first[at / 2] >> (at % 2 * 4));
  const double number = oracle::value_of_code(code, quantized(format.type));
  if (format.scaling == KvScaling::none) return number;
  const double scaled = number * static_cast<double>((is_k ? k_scale : v_scale)[scale_index(is_k, page, offset, head)]);
  return scaled + static_cast<double>(zero_point(is_k, page, offset, head));
}

PagedKvView AttentionCache::place(Arena& arena) const {
  PagedKvView placed = view;
  auto* bytes = arena.input(data);
  placed.k.data = bytes;
  placed.v.data = bytes + v_offset;
  if (!k_scale.empty()) placed.k.scale = arena.input(k_scale);
  if (!v_scale.empty()) placed.v.scale = arena.input(v_scale);
  return placed;
}

}  // namespace prologue::test
