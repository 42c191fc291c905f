#include "tests/support/attention_batch.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include <prologue/kernels/base/shared/quantize.h>

#include "tests/support/attention_pages.h"

namespace prologue::test {
namespace {

int64_t pages_of(const AttentionCase& c, const AttentionSequence& s) {
  const int64_t slots = c.ring_size > 0 ? std::min(s.length, c.ring_size) : s.length;
  return (slots + c.page_size - 1) / c.page_size;
}

int64_t count_pages(const AttentionCase& c) {
  int64_t used = 0;
  for (const AttentionSequence& s : c.sequences) used += pages_of(c, s);
  return used + used / 2 + 1;
}

// Returns the scale that is given: a head's largest number stands for 4 standard deviations.
float base_scale_of(const KvFormat& format) { return format.scaling == KvScaling::none ? 1.0f : 4.0f / kv_largest(format.type); }

void write_token(AttentionCache& cache, const AttentionCase& c, Random& random, int64_t page, int64_t offset, int64_t head) {
  for (const bool is_k : {true, false}) {
    const KvFormat format = c.format(is_k);
    if (format.scaling == KvScaling::token_head) {  // now and then 0, as a head of zeros has
      const float base_scale = base_scale_of(format);
      float& scale = (is_k ? cache.k_scale : cache.v_scale)[cache.scale_index(is_k, page, offset, head)];
      scale = random.integer(0, 19) == 0 ? 0.0f : base_scale * static_cast<float>(0.5 + 1.5 * random.uniform());
      if (format.type == DType::uint4) (&scale)[1] = base_scale * static_cast<float>(-15.0 * random.uniform());
    }
    if (!is_k && c.v_within_k) {
      if (format.scaling == KvScaling::token_head) {
        std::copy_n(&cache.k_scale[cache.scale_index(true, page, offset, head)], scales_of_head(format),
                    &cache.v_scale[cache.scale_index(false, page, offset, head)]);
      }
      continue;
    }
    std::vector<float> values(static_cast<size_t>(is_k ? c.head_dim : c.v_width()));
    for (float& value : values) value = static_cast<float>(random.normal());
    cache.store(is_k, page, offset, head, values);
  }
}

}  // namespace

template <class T>
AttentionBatch<T>::AttentionBatch(const AttentionCase& c, uint64_t seed) : cache(c, count_pages(c)) {
  Random random(seed);
  in.num_q_heads = c.num_q_heads;
  in.num_kv_heads = c.num_kv_heads;
  in.head_dim = c.head_dim;
  in.v_head_dim = c.v_head_dim;
  in.page_size = c.page_size;
  in.num_pages = cache.view.num_pages;
  in.window = c.window;
  in.chunk = c.chunk;
  in.ring_size = c.ring_size;
  in.soft_cap = static_cast<double>(c.soft_cap);
  in.scale = static_cast<double>(c.scale > 0.0f ? c.scale : static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.head_dim))));
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

  for (const bool is_k : {true, false}) {
    const KvScaling scaling = c.format(is_k).scaling;
    if (scaling != KvScaling::tensor && scaling != KvScaling::head) continue;
    for (float& scale : is_k ? cache.k_scale : cache.v_scale) {
      scale = base_scale_of(c.format(is_k)) * static_cast<float>(0.75 + 0.5 * random.uniform());
    }
  }
  std::vector<int32_t> pages(static_cast<size_t>(in.num_pages));
  std::iota(pages.begin(), pages.end(), 0);
  random.shuffle(pages);
  in.block_table_stride = in.max_pages_per_seq + 2;
  in.block_table.assign(c.sequences.size() * static_cast<size_t>(in.block_table_stride), std::numeric_limits<int32_t>::min() + 7);
  size_t next_page = 0;
  for (size_t s = 0; s < c.sequences.size(); ++s) {
    const auto [rows, length] = c.sequences[s];
    const int64_t first_row_limit = std::max<int64_t>(0, length - rows + 1);
    const int64_t first = c.first_visible(first_row_limit);
    for (int64_t p = rows > 0 ? first : length; p < length; ++p) {
      const int64_t slot = c.ring_size > 0 ? p % c.ring_size : p;
      int32_t& entry = in.block_table[s * static_cast<size_t>(in.block_table_stride) + static_cast<size_t>(slot / c.page_size)];
      if (entry < 0) entry = pages[next_page++];
      for (int64_t h = 0; h < c.num_kv_heads; ++h) write_token(cache, c, random, entry, slot % c.page_size, h);
    }
  }
  if (c.sinks != Sinks::none) add_sinks(random, c.sinks == Sinks::of_dtype);
  in.key = [this](int64_t page, int64_t offset, int64_t h, int64_t d) { return cache.value(true, page, offset, h, d); };
  in.value = [this](int64_t page, int64_t offset, int64_t h, int64_t d) { return cache.value(false, page, offset, h, d); };
  in.key_zero_point = [this](int64_t page, int64_t offset, int64_t h) { return double{cache.zero_point(true, page, offset, h)}; };
  in.value_zero_point = [this](int64_t page, int64_t offset, int64_t h) {
    return double{cache.zero_point(false, page, offset, h)};
  };
}

template <class T>
void AttentionBatch<T>::add_sinks(Random& random, bool of_dtype) {
  const double longest = static_cast<double>(*std::max_element(in.seq_lens.begin(), in.seq_lens.end()));
  for (int64_t h = 0; h < in.num_q_heads; ++h) {
    const auto sink = static_cast<float>(std::log(1.0 + longest) + 2.0 * random.normal());
    const bool none = random.integer(0, 9) == 0;
    const float stored = of_dtype ? to_float(from_float<T>(sink)) : sink;
    in.sinks.push_back(none ? -std::numeric_limits<double>::infinity() : static_cast<double>(stored));
  }
  in.sinks_of_dtype = of_dtype;
}

template <class T>
void AttentionBatch<T>::hide_first_keys(const AttentionCase& c, bool overflow, const std::function<int64_t(int64_t)>& count_of) {
  const int64_t last = c.head_dim - 1;  // a channel that is not of V where V is within K
  if (overflow) in.scale = 0x1p115;
  for (int64_t row = 0; row < in.num_tokens * in.num_q_heads; ++row) {
    const int64_t at = row / in.num_q_heads * in.q_token_stride + row % in.num_q_heads * in.q_head_stride;
    for (int64_t d = 0; d < c.head_dim; ++d) {
      T& q = in.q[static_cast<size_t>(at + d)];
      q = from_float<T>(!overflow ? std::max(std::fabs(to_float(q)), 0x1p-10f) : d == last ? 0x1p14f : 0.0f);
    }
  }
  for (size_t s = 0; s < c.sequences.size(); ++s) {
    const int64_t length = c.sequences[s].length, count = count_of(length);
    for (int64_t p = 0; p < length; ++p) {
      const int64_t page = in.block_table[s * static_cast<size_t>(in.block_table_stride) + static_cast<size_t>(p / c.page_size)];
      if (page < 0 || page >= in.num_pages) continue;
      for (int64_t h = 0; h < c.num_kv_heads; ++h) {
        if (overflow) {
          cache.store_one(true, page, p % c.page_size, h, last, p < count ? -1e30f : 0.0f);
        } else if (p < count) {
          cache.store_one(true, page, p % c.page_size, h, last, -std::numeric_limits<float>::infinity());
        }
      }
    }
  }
}

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
  p.chunk = in.chunk;
  if (!in.sinks.empty()) {
    const std::vector<float> sinks(in.sinks.begin(), in.sinks.end());
    if (in.sinks_of_dtype) {
      std::vector<T> narrow;
      for (const float sink : sinks) narrow.push_back(from_float<T>(sink));
      p.sinks = arena.input(narrow);
    } else {
      p.sinks = arena.input(sinks), p.sinks_type = DType::f32;
    }
  }
  p.ring_size = in.ring_size;
  p.q = {arena.input(in.q), in.q_token_stride, in.q_head_stride};
  p.kv = kv;
  p.page_table = place_pages(arena, in);
  p.cu_seqlens_q = arena.input(in.cu_seqlens_q);
  if (in.kv_last_page_len.empty()) p.seq_lens = arena.input(in.seq_lens);
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

template <class T>
oracle::Allowance attention_allowance(Backend backend, const AttentionInputs<T>& in, const PagedKvView& kv) {
  oracle::Allowance allowance;
  const bool scaled = kv.k.format.scaling != KvScaling::none || kv.v.format.scaling != KvScaling::none;
  allowance.score_units = (scaled ? 3.0 : 0.0) + (in.soft_cap > 0.0 ? 6.0 : 0.0);
  allowance.zero_points_by_sums = backend_device(backend) == Device::cuda;
  if (sizeof(T) == 2 && backend_device(backend) == Device::cuda) {
    allowance.probability = std::ldexp(1.0, -FloatFormat<T>::mantissa_bits - 1);
    allowance.least_probability = std::ldexp(allowance.probability, FloatFormat<T>::min_exponent);
    if (kv.v.format.scaling == KvScaling::token_head) allowance.value = allowance.probability;
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

template struct AttentionBatch<float>;
template struct AttentionBatch<Float16>;
template struct AttentionBatch<BFloat16>;
template PagedAttentionParams place_attention(Arena&, const AttentionInputs<float>&, const PagedKvView&, Device);
template PagedAttentionParams place_attention(Arena&, const AttentionInputs<Float16>&, const PagedKvView&, Device);
template PagedAttentionParams place_attention(Arena&, const AttentionInputs<BFloat16>&, const PagedKvView&, Device);
template std::vector<float> rows_of(const Arena&, const AttentionInputs<float>&, const PagedAttentionParams&);
template std::vector<Float16> rows_of(const Arena&, const AttentionInputs<Float16>&, const PagedAttentionParams&);
template std::vector<BFloat16> rows_of(const Arena&, const AttentionInputs<BFloat16>&, const PagedAttentionParams&);
template oracle::Allowance attention_allowance(Backend, const AttentionInputs<float>&, const PagedKvView&);
template oracle::Allowance attention_allowance(Backend, const AttentionInputs<Float16>&, const PagedKvView&);
template oracle::Allowance attention_allowance(Backend, const AttentionInputs<BFloat16>&, const PagedKvView&);
template void expect_matches_oracle(Backend, const AttentionInputs<float>&, const PagedKvView&, const std::vector<float>&);
template void expect_matches_oracle(Backend, const AttentionInputs<Float16>&, const PagedKvView&, const std::vector<Float16>&);
template void expect_matches_oracle(Backend, const AttentionInputs<BFloat16>&, const PagedKvView&, const std::vector<BFloat16>&);

}  // namespace prologue::test
