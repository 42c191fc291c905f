// Cases for paged attention over every cache: shapes, storage, layout and limits, the data made from them, their placement in an
// Arena, and the comparison with the oracle.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <prologue/kernels/base/shared/quantize.h>
#include <prologue/kernels/paged_attention/paged_attention.h>

#include "tests/oracle/paged_attention.h"
#include "tests/oracle/quantize.h"
#include "tests/support/arena.h"
#include "tests/support/random.h"
#include "tests/support/tolerance.h"

namespace prologue::test {

using oracle::AttentionInputs;

enum class KvLayout { nhd, hnd, interleaved, two_in_a_page, odd };
constexpr KvLayout kKvLayouts[] = {KvLayout::nhd, KvLayout::hnd, KvLayout::interleaved, KvLayout::two_in_a_page, KvLayout::odd};

struct AttentionSequence {
  int64_t rows;
  int64_t length;
};

struct AttentionCase {
  int64_t num_q_heads = 4, num_kv_heads = 2, head_dim = 64, v_head_dim = 0, page_size = 16;
  std::vector<AttentionSequence> sequences;
  DType type = DType::f32;
  KvScaling scaling = KvScaling::none;
  KvLayout layout = KvLayout::nhd;
  int64_t window = 0, ring_size = 0;
  float soft_cap = 0.0f;
  float scale = 0.0f;       // 0 = 1 / sqrt(head_dim)
  bool v_within_k = false;  // V is the first channels of K, as in MLA
  int64_t padding_rows = 0;

  int64_t v_width() const { return v_head_dim > 0 ? v_head_dim : head_dim; }
};

inline prologue::oracle::Quantized quantized(DType type) {
  return static_cast<prologue::oracle::Quantized>(static_cast<int>(type) - static_cast<int>(DType::fp8_e4m3));
}

// One layer's cache on the host: bytes, strides and scales.
struct AttentionCache {
  PagedKvView view;      // pointers are filled in by place()
  int64_t v_offset = 0;  // elements; K and V lie in one buffer
  std::vector<unsigned char> data;
  std::vector<float> k_scale, v_scale;

  explicit AttentionCache(const AttentionCase& c, int64_t num_pages) {
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

  int64_t element(bool is_k, int64_t page, int64_t offset, int64_t head, int64_t d) const {
    const PageStrides& s = is_k ? view.k.strides : view.v.strides;
    return (is_k ? 0 : v_offset) + page * s.page + offset * s.token + head * s.head + d;
  }
  size_t scale_index(bool is_k, int64_t page, int64_t offset, int64_t head) const {
    const PagedHeads& side = is_k ? view.k : view.v;
    const PageStrides& s = side.scale_strides;
    if (side.format.scaling == KvScaling::token_head)
      return static_cast<size_t>(page * s.page + offset * s.token + head * s.head);
    return side.format.scaling == KvScaling::head ? static_cast<size_t>(head) : 0;
  }

  // Of uint4.
  float zero_point(bool is_k, int64_t page, int64_t offset, int64_t head) const {
    return (is_k ? k_scale : v_scale)[scale_index(is_k, page, offset, head) + 1];
  }

  // One head of K or V from floats, as the cache stores it.
  void store(bool is_k, int64_t page, int64_t offset, int64_t head, const std::vector<float>& values) {
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

  // What the cache says, by the oracle's own reading of the formats.
  double value(bool is_k, int64_t page, int64_t offset, int64_t head, int64_t d) const {
    const KvFormat format = is_k ? view.k.format : view.v.format;
    const auto at = static_cast<size_t>(element(is_k, page, offset, head, d));
    if (dtype_is_activation(format.type)) {
      return with_host_type(format.type, [&](auto stored) {
        std::memcpy(static_cast<void*>(&stored), &data[at * sizeof stored], sizeof stored);
        return static_cast<double>(to_float(stored));
      });
    }
    const uint8_t code = dtype_bits(format.type) != 4 ? data[at] : static_cast<uint8_t>(data[at / 2] >> (at % 2 * 4));
    const double number = prologue::oracle::value_of_code(code, quantized(format.type));
    if (format.scaling == KvScaling::none) return number;
    const double scaled = number * static_cast<double>((is_k ? k_scale : v_scale)[scale_index(is_k, page, offset, head)]);
    return format.type == DType::uint4 ? scaled + static_cast<double>(zero_point(is_k, page, offset, head)) : scaled;
  }

  // The view over an arena's copies.
  PagedKvView place(Arena& arena) const {
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
};

// A batch over a cache of shuffled pages. Slots that no row sees hold poison (NaN as float and fp8, and as scale); block_table
// entries without a position that a row sees are absurd.
template <class T>
struct AttentionBatch {
  AttentionInputs<T> in;
  AttentionCache cache;

  AttentionBatch(const AttentionCase& c, uint64_t seed) : cache(c, count_pages(c)) {
    Random random(seed);
    in.num_q_heads = c.num_q_heads;
    in.num_kv_heads = c.num_kv_heads;
    in.head_dim = c.head_dim;
    in.v_head_dim = c.v_head_dim;
    in.page_size = c.page_size;
    in.num_pages = cache.view.num_pages;
    in.window = c.window;
    in.ring_size = c.ring_size;
    in.soft_cap = static_cast<double>(c.soft_cap);
    in.scale =
        static_cast<double>(c.scale > 0.0f ? c.scale : static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.head_dim))));
    in.cu_seqlens_q.push_back(0);
    for (const AttentionSequence& s : c.sequences) {
      in.num_tokens += s.rows;
      in.cu_seqlens_q.push_back(static_cast<int32_t>(in.num_tokens));
      in.seq_lens.push_back(static_cast<int32_t>(s.length));
      in.max_pages_per_seq = std::max(in.max_pages_per_seq, pages_of(c, s) + 1);
    }
    in.num_tokens += c.padding_rows;
    const int64_t gap = c.layout == KvLayout::odd ? 3 : 0;
    in.q_head_stride = std::max(c.head_dim, c.v_width()) + gap;
    in.q_token_stride = c.num_q_heads * in.q_head_stride + gap;
    in.q = random.normals<T>(in.num_tokens * in.q_token_stride);

    // Given scales: a head's largest number stands for 4 standard deviations.
    const float unit = c.scaling == KvScaling::none ? 1.0f : 4.0f / kv_largest(c.type);
    if (c.scaling == KvScaling::tensor || c.scaling == KvScaling::head) {
      for (std::vector<float>* scales : {&cache.k_scale, &cache.v_scale}) {
        for (float& scale : *scales) scale = unit * static_cast<float>(0.75 + 0.5 * random.uniform());
      }
    }
    std::vector<int32_t> pages(static_cast<size_t>(in.num_pages));
    std::iota(pages.begin(), pages.end(), 0);
    random.shuffle(pages);
    in.block_table_stride = in.max_pages_per_seq + 2;
    in.block_table.assign(c.sequences.size() * static_cast<size_t>(in.block_table_stride),
                          std::numeric_limits<int32_t>::min() + 7);
    size_t next_page = 0;
    for (size_t s = 0; s < c.sequences.size(); ++s) {
      const auto [rows, length] = c.sequences[s];
      const int64_t first_row_limit = std::max<int64_t>(0, length - rows + 1);
      const int64_t first = c.window > 0 ? std::max<int64_t>(0, first_row_limit - c.window) : 0;
      for (int64_t p = rows > 0 ? first : length; p < length; ++p) {
        const int64_t place = c.ring_size > 0 ? p % c.ring_size : p;
        int32_t& entry =
            in.block_table[s * static_cast<size_t>(in.block_table_stride) + static_cast<size_t>(place / c.page_size)];
        if (entry < 0) entry = pages[next_page++];
        for (int64_t h = 0; h < c.num_kv_heads; ++h) write_token(c, random, unit, entry, place % c.page_size, h);
      }
    }
    in.key = [this](int64_t page, int64_t offset, int64_t h, int64_t d) { return cache.value(true, page, offset, h, d); };
    in.value = [this](int64_t page, int64_t offset, int64_t h, int64_t d) { return cache.value(false, page, offset, h, d); };
  }
  AttentionBatch(const AttentionBatch&) = delete;

  static int64_t pages_of(const AttentionCase& c, const AttentionSequence& s) {
    const int64_t slots = c.ring_size > 0 ? std::min(s.length, c.ring_size) : s.length;
    return (slots + c.page_size - 1) / c.page_size;
  }
  static int64_t count_pages(const AttentionCase& c) {
    int64_t used = 0;
    for (const AttentionSequence& s : c.sequences) used += pages_of(c, s);
    return used + used / 2 + 1;
  }
  void write_token(const AttentionCase& c, Random& random, float unit, int64_t page, int64_t offset, int64_t head) {
    for (const bool is_k : {true, false}) {
      if (c.scaling == KvScaling::token_head) {  // now and then 0, as a head of zeros has
        float& scale = (is_k ? cache.k_scale : cache.v_scale)[cache.scale_index(is_k, page, offset, head)];
        scale = random.integer(0, 19) == 0 ? 0.0f : unit * static_cast<float>(0.5 + 1.5 * random.uniform());
        if (c.type == DType::uint4) (&scale)[1] = unit * static_cast<float>(-15.0 * random.uniform());
      }
      if (!is_k && c.v_within_k) {
        if (c.scaling == KvScaling::token_head) {
          std::copy_n(&cache.k_scale[cache.scale_index(true, page, offset, head)], c.type == DType::uint4 ? 2 : 1,
                      &cache.v_scale[cache.scale_index(false, page, offset, head)]);
        }
        continue;
      }
      std::vector<float> values(static_cast<size_t>(is_k ? c.head_dim : c.v_width()));
      for (float& value : values) value = static_cast<float>(random.normal());
      cache.store(is_k, page, offset, head, values);
    }
  }
};

template <class T>
PagedAttentionParams place_attention(Arena& arena, const AttentionInputs<T>& in, const PagedKvView& kv, Device device) {
  PagedAttentionParams p;
  p.num_tokens = in.num_tokens;
  p.num_seqs = static_cast<int64_t>(in.seq_lens.size());
  p.num_q_heads = in.num_q_heads;
  p.head_dim = in.head_dim;
  p.dtype = FloatFormat<T>::dtype;
  p.scale = static_cast<float>(in.scale);
  p.soft_cap = static_cast<float>(in.soft_cap);
  p.window = in.window;
  p.ring_size = in.ring_size;
  p.q = {arena.input(in.q), in.q_token_stride, in.q_head_stride};
  p.kv = kv;
  p.block_table = arena.input(in.block_table);
  p.block_table_stride = in.block_table_stride;
  p.max_pages_per_seq = in.max_pages_per_seq;
  p.cu_seqlens_q = arena.input(in.cu_seqlens_q);
  p.seq_lens = arena.input(in.seq_lens);
  p.max_seqlen_q = p.max_seq_len = 1;
  for (size_t s = 0; s < in.seq_lens.size(); ++s) {
    p.max_seqlen_q = std::max(p.max_seqlen_q, int64_t{in.cu_seqlens_q[s + 1]} - in.cu_seqlens_q[s]);
    p.max_seq_len = std::max<int64_t>(p.max_seq_len, in.seq_lens[s]);
  }
  p.out = {arena.output<T>(in.num_tokens * in.q_token_stride), in.q_token_stride, in.q_head_stride};
  p.workspace_bytes = paged_attention_workspace_bytes(p, device);
  if (p.workspace_bytes > 0) p.workspace = arena.workspace(p.workspace_bytes);
  return p;
}

// The rows of `out` without their strides; nothing beside them may have been written.
template <class T>
std::vector<T> rows_of(const Arena& arena, const AttentionInputs<T>& in, const PagedAttentionParams& p) {
  std::vector<T> padded = arena.read(static_cast<const T*>(p.out.data)), rows;
  for (int64_t t = 0; t < in.cu_seqlens_q.back(); ++t) {
    for (int64_t h = 0; h < in.num_q_heads; ++h) {
      const auto row = padded.begin() + t * in.q_token_stride + h * in.q_head_stride;
      rows.insert(rows.end(), row, row + in.v_width());
      std::memset(static_cast<void*>(&*row), kPoison, static_cast<size_t>(in.v_width()) * sizeof(T));
    }
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(padded.data());
  EXPECT_TRUE(std::all_of(bytes, bytes + padded.size() * sizeof(T), [](unsigned char b) { return b == kPoison; }))
      << "something beside the rows was written";
  return rows;
}

// Tensor cores take probabilities, and V where tokens have scales, in 16 bits.
template <class T>
oracle::Allowance attention_allowance(Backend backend, const AttentionInputs<T>& in, const PagedKvView& kv) {
  oracle::Allowance allowance;
  allowance.score_units = (kv.k.format.scaling == KvScaling::none ? 0.0 : 3.0) + (in.soft_cap > 0.0 ? 6.0 : 0.0);
  if (sizeof(T) == 2 && backend_device(backend) == Device::cuda) {
    allowance.probability = std::ldexp(1.0, -FloatFormat<T>::mantissa_bits - 1);
    allowance.least_probability = std::ldexp(allowance.probability, FloatFormat<T>::min_exponent);
    if (kv.k.format.scaling == KvScaling::token_head) allowance.value = allowance.probability;
  }
  return allowance;
}

template <class T>
void expect_matches_oracle(Backend backend, const AttentionInputs<T>& in, const PagedKvView& kv, const std::vector<T>& got) {
  std::vector<Reference> want = oracle::paged_attention(in, attention_allowance(backend, in, kv));
  want.resize(got.size());
  const int64_t longest = *std::max_element(in.seq_lens.begin(), in.seq_lens.end());
  expect_close(got, want, in.v_width(), "out", std::max(kDefaultSteps, std::sqrt(static_cast<double>(longest))), false);
}

}  // namespace prologue::test
