#include "tests/oracle/paged_attention.h"

#include <algorithm>
#include <cmath>

namespace prologue::test::oracle {
namespace {

template <class T>
bool query_rows_are_valid(const AttentionInputs<T>& in, size_t s) {
  const int64_t begin = in.cu_seqlens_q[s], end = in.cu_seqlens_q[s + 1];
  if (begin < 0 || end < begin || end > in.num_tokens) return false;
  return end - begin <= (static_cast<int64_t>(s) < in.num_decode_seqs ? 1 : in.max_seqlen_q);
}

// Returns the sum of term(i) for i below `count`, as four sums that do not wait for each other.
template <class Term>
double sum_of(int64_t count, const Term& term) {
  double sums[4] = {};
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (int64_t part = 0; part < 4; ++part) sums[part] += term(i + part);
  }
  for (; i < count; ++i) sums[0] += term(i);
  return sums[0] + sums[1] + (sums[2] + sums[3]);
}

}  // namespace

template <class T>
QueryRowFaults query_row_faults(const AttentionInputs<T>& in) {
  const std::vector<int32_t>& cu_seqlens_q = in.cu_seqlens_q;
  const int64_t num_tokens = in.num_tokens;
  QueryRowFaults faults;
  faults.unspecified = num_tokens;
  for (int64_t t = 0; t < num_tokens; ++t) {
    if (t < cu_seqlens_q[0]) faults.rows.insert(t);
  }
  for (size_t s = 0; s + 1 < cu_seqlens_q.size(); ++s) {
    const int64_t begin = cu_seqlens_q[s], end = cu_seqlens_q[s + 1];
    if (end < begin) faults.unspecified = std::clamp<int64_t>(end, 0, faults.unspecified);
    if (query_rows_are_valid(in, s)) continue;
    bool any = s == 0 && begin > 0 && num_tokens > 0;
    for (int64_t t = std::max<int64_t>(0, begin); t < std::min(end, num_tokens); ++t) any = faults.rows.insert(t).second || any;
    if (!any) faults.sequences.push_back(std::clamp<int64_t>(end, 0, num_tokens));
  }
  return faults;
}

template <class T>
std::vector<Reference> paged_attention(const AttentionInputs<T>& in, const Allowance& allowance) {
  const int64_t v_width = in.v_width();
  std::vector<Reference> out(static_cast<size_t>(in.num_tokens * in.num_q_heads * v_width), Reference{std::nan(""), 0.0});
  const auto at = [](const std::vector<T>& values, int64_t i) {
    return static_cast<double>(to_float(values[static_cast<size_t>(i)]));
  };
  for (const int64_t row : query_row_faults(in).rows) {
    std::fill_n(&out[static_cast<size_t>(row * in.num_q_heads * v_width)], in.num_q_heads * v_width, Reference{0.0, 0.0});
  }
  const double unit = kDefaultSteps * std::ldexp(1.0, -24);
  const double score_units = 2.0 + std::max(16.0, std::sqrt(static_cast<double>(in.head_dim))) + allowance.score_units;
  for (size_t s = 0; s < in.seq_lens.size(); ++s) {
    if (!query_rows_are_valid(in, s)) continue;
    const int64_t begin = in.cu_seqlens_q[s], rows = in.cu_seqlens_q[s + 1] - begin;
    // Returns the sequence's pages: its row, or a slice.
    std::vector<int32_t> pages;
    bool bad_length = false;
    if (in.kv_indptr.empty()) {
      const auto row = in.block_table.begin() + static_cast<int64_t>(s) * in.block_table_stride;
      pages.assign(row, row + in.max_pages_per_seq);
    } else {
      const int64_t from = in.kv_indptr[s], to = in.kv_indptr[s + 1];
      bad_length = from < 0 || from > to || to > static_cast<int64_t>(in.kv_indices.size());
      if (!bad_length) pages.assign(in.kv_indices.begin() + from, in.kv_indices.begin() + to);
    }
    int64_t length = std::max<int64_t>(0, in.seq_lens[s]);
    if (in.kv_last_page_len.empty()) {
      bad_length = false;
    } else {
      const int64_t in_last = in.kv_last_page_len[s];
      length = pages.empty() ? 0 : (static_cast<int64_t>(pages.size()) - 1) * in.page_size + in_last;
      bad_length = bad_length || (!pages.empty() && (in_last < 1 || in_last > in.page_size));
      if (bad_length) length = rows;  // no row attends to nothing
    }
    const int64_t slots = in.ring_size > 0 ? std::min(length, in.ring_size) : length;
    const bool too_long = bad_length || slots > static_cast<int64_t>(pages.size()) * in.page_size;
    const auto place_of = [&](int64_t p) { return in.ring_size > 0 ? p % in.ring_size : p; };
    const auto page_of = [&](int64_t p) -> int64_t { return pages[static_cast<size_t>(place_of(p) / in.page_size)]; };
    const auto lowest = [&](int64_t limit) {  // by definition: step back while the position is visible
      if (in.window == 0 && in.chunk == 0) return int64_t{0};
      int64_t first = std::max<int64_t>(0, limit - 1);
      const auto visible = [&](int64_t p) {
        return p >= 0 && (in.window == 0 || p > limit - 1 - in.window) &&
               (in.chunk == 0 || p / in.chunk == (limit - 1) / in.chunk);
      };
      while (visible(first - 1)) --first;
      return first;
    };
    // Whatever any row needs, once for all of them.
    const int64_t first = lowest(std::max<int64_t>(0, length - rows + 1));
    const int64_t positions = too_long || rows == 0 ? 0 : std::max<int64_t>(0, length - first);
    std::vector<bool> bad(static_cast<size_t>(positions));
    for (int64_t p = 0; p < positions; ++p) {
      const int64_t page = page_of(first + p);
      bad[static_cast<size_t>(p)] = page < 0 || page >= in.num_pages;
    }
    for (int64_t head = 0; head < in.num_kv_heads; ++head) {
      std::vector<double> keys(static_cast<size_t>(positions * in.head_dim)), values(static_cast<size_t>(positions * v_width));
      std::vector<double> key_magnitudes(keys.size()), value_magnitudes(values.size());
      const auto magnitude_of = [&](double x, double zero_point) { return std::fabs(x - zero_point) + std::fabs(zero_point); };
      for (int64_t p = 0; p < positions; ++p) {
        if (bad[static_cast<size_t>(p)]) continue;
        const int64_t page = page_of(first + p), offset = place_of(first + p) % in.page_size;
        const int64_t place = page * in.page_stride + offset * in.token_stride + head * in.head_stride;
        const bool by_sums = allowance.zero_points_by_sums;
        const double key_zero_point = by_sums && in.key_zero_point ? in.key_zero_point(page, offset, head) : 0.0;
        const double value_zero_point = by_sums && in.value_zero_point ? in.value_zero_point(page, offset, head) : 0.0;
        for (int64_t d = 0; d < in.head_dim; ++d) {
          const double x = in.key ? in.key(page, offset, head, d) : at(in.k, place + d);
          keys[static_cast<size_t>(p * in.head_dim + d)] = x;
          key_magnitudes[static_cast<size_t>(p * in.head_dim + d)] = magnitude_of(x, key_zero_point);
        }
        for (int64_t d = 0; d < v_width; ++d) {
          const double x = in.value ? in.value(page, offset, head, d) : at(in.v, place + d);
          values[static_cast<size_t>(p * v_width + d)] = x;
          value_magnitudes[static_cast<size_t>(p * v_width + d)] = magnitude_of(x, value_zero_point);
        }
      }
      const int64_t group = in.num_q_heads / in.num_kv_heads;
      for (int64_t j = 0; j < rows; ++j) {
        const int64_t limit = length - rows + j + 1, low = lowest(limit) - first;
        for (int64_t h = head * group; h < (head + 1) * group; ++h) {
          Reference* row = &out[static_cast<size_t>(((begin + j) * in.num_q_heads + h) * v_width)];
          std::fill_n(row, v_width, Reference{0.0, 0.0});
          if (limit <= 0 || too_long) continue;
          if (std::any_of(bad.begin() + low, bad.begin() + (limit - first), [](bool b) { return b; })) continue;
          std::vector<double> score, magnitude, q(static_cast<size_t>(in.head_dim));
          for (int64_t d = 0; d < in.head_dim; ++d) {
            q[static_cast<size_t>(d)] = at(in.q, (begin + j) * in.q_token_stride + h * in.q_head_stride + d);
          }
          for (int64_t p = low; p < limit - first; ++p) {
            const double* const k = &keys[static_cast<size_t>(p * in.head_dim)];
            const double* const k_magnitude = &key_magnitudes[static_cast<size_t>(p * in.head_dim)];
            const double dot = sum_of(in.head_dim, [&](int64_t d) { return q[static_cast<size_t>(d)] * k[d]; });
            const double sum =
                sum_of(in.head_dim, [&](int64_t d) { return std::fabs(q[static_cast<size_t>(d)]) * k_magnitude[d]; });
            double scaled = in.scale * dot;
            if (std::fabs(scaled) > std::numeric_limits<float>::max()) scaled *= std::numeric_limits<double>::infinity();
            score.push_back(in.soft_cap > 0.0 ? in.soft_cap * std::tanh(scaled / in.soft_cap) : scaled);
            magnitude.push_back(std::isinf(scaled) ? 0.0 : std::fabs(in.scale) * sum);  // an infinity is exact
          }
          double maximum = *std::max_element(score.begin(), score.end());
          double total = 0.0, of_sink = 0.0, sink_size = 0.0;
          if (!in.sinks.empty() && std::isfinite(in.sinks[static_cast<size_t>(h)])) {
            const double sink = in.sinks[static_cast<size_t>(h)], largest_score = std::fabs(maximum);
            maximum = std::max(maximum, sink);
            total = of_sink = std::exp(sink - maximum);
            sink_size = std::fabs(sink) + (std::isinf(largest_score) ? 0.0 : largest_score);
          }
          if (std::isinf(maximum) && maximum < 0.0) continue;  // no key has a weight: zeros
          for (double& x : score) total += x = std::exp(x - maximum);
          for (size_t p = 0; p < score.size(); ++p) {
            const double* const v = &values[(static_cast<size_t>(low) + p) * static_cast<size_t>(v_width)];
            const double weight = score[p] / total;
            for (int64_t d = 0; d < v_width; ++d) row[d].value += weight * v[d];
          }
          for (size_t p = 0; p < score.size(); ++p) {
            const double* const v = &values[(static_cast<size_t>(low) + p) * static_cast<size_t>(v_width)];
            const double* const v_magnitude = &value_magnitudes[(static_cast<size_t>(low) + p) * static_cast<size_t>(v_width)];
            const double relative = score_units / kDefaultSteps * (1.0 + magnitude[p] + sink_size) + allowance.probability / unit;
            const double weight = score[p] / total;
            const double of_weight = weight * relative + allowance.least_probability / unit / total;
            const double of_value = of_weight + weight * allowance.value / unit;
            for (int64_t d = 0; d < v_width; ++d) {
              row[d].scale +=
                  std::fabs(v[d]) * of_value + v_magnitude[d] * weight + std::fabs(row[d].value) * (of_weight + weight);
            }
          }
          for (int64_t d = 0; d < v_width; ++d) {
            row[d].scale += std::fabs(row[d].value) * of_sink * (1.0 + score_units / kDefaultSteps * (1.0 + sink_size)) / total;
          }
        }
      }
    }
  }
  return out;
}

template QueryRowFaults query_row_faults(const AttentionInputs<float>&);
template QueryRowFaults query_row_faults(const AttentionInputs<Float16>&);
template QueryRowFaults query_row_faults(const AttentionInputs<BFloat16>&);
template std::vector<Reference> paged_attention(const AttentionInputs<float>&, const Allowance&);
template std::vector<Reference> paged_attention(const AttentionInputs<Float16>&, const Allowance&);
template std::vector<Reference> paged_attention(const AttentionInputs<BFloat16>&, const Allowance&);

}  // namespace prologue::test::oracle
