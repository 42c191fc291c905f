// Attention over a paged cache in float64, from the definition.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/support/tolerance.h"

namespace prologue::test::oracle {

template <class T>
struct AttentionInputs {
  int64_t num_tokens = 0, num_q_heads = 0, num_kv_heads = 0, head_dim = 0, page_size = 0, num_pages = 0, max_pages_per_seq = 0;
  double scale = 0.0;
  std::vector<T> q;  // [num_tokens, num_q_heads, head_dim] with these strides
  int64_t q_token_stride = 0, q_head_stride = 0;
  std::vector<T> k, v;  // strides as given
  int64_t page_stride = 0, token_stride = 0, head_stride = 0;
  std::vector<int32_t> block_table;  // [num_seqs, block_table_stride]
  int64_t block_table_stride = 0;
  std::vector<int32_t> cu_seqlens_q, seq_lens;
};

// [num_tokens, num_q_heads, head_dim]; rows that nothing is written to have a NaN value.
//
// The result is sum_p w_p v_p / sum_p w_p. A relative error d_p of w_p moves it by p_p d_p (v_p - out), so that the error is at
// most sum_p p_p |d_p| (|v_p| + |out|), besides the rounding of the last sum itself. d_p is the absolute error of the score's
// exponent (the dot product over c_p = scale * sum |q k|, as a random walk of head_dim <= 256 steps: 16 units of 2^-24 * c_p,
// and a rounding of score - maximum, at most 2 c_p) and the error of exp (2 units): within 18 units of 2^-24 * (1 + c_p).
// `probability_error` is what a backend may add to d_p by rounding probabilities to 16 bits. All of it goes into the scale,
// in units of kDefaultSteps * 2^-24.
template <class T>
std::vector<Reference> paged_attention(const AttentionInputs<T>& in, double probability_error = 0.0) {
  std::vector<Reference> out(static_cast<size_t>(in.num_tokens * in.num_q_heads * in.head_dim), Reference{std::nan(""), 0.0});
  const auto at = [](const std::vector<T>& values, int64_t i) {
    return static_cast<double>(to_float(values[static_cast<size_t>(i)]));
  };
  const double unit = kDefaultSteps * std::ldexp(1.0, -24);
  for (size_t s = 0; s < in.seq_lens.size(); ++s) {
    const int64_t begin = in.cu_seqlens_q[s], rows = in.cu_seqlens_q[s + 1] - begin, length = in.seq_lens[s];
    for (int64_t j = 0; j < rows; ++j) {
      const int64_t visible = length - rows + j + 1;
      for (int64_t h = 0; h < in.num_q_heads; ++h) {
        Reference* row = &out[static_cast<size_t>(((begin + j) * in.num_q_heads + h) * in.head_dim)];
        std::fill_n(row, in.head_dim, Reference{0.0, 0.0});
        bool fault = length > in.max_pages_per_seq * in.page_size;
        for (int64_t p = 0; p < visible && !fault; p += in.page_size) {
          const int32_t page =
              in.block_table[s * static_cast<size_t>(in.block_table_stride) + static_cast<size_t>(p / in.page_size)];
          fault = page < 0 || page >= in.num_pages;
        }
        if (visible <= 0 || fault) continue;
        std::vector<double> score, magnitude;
        std::vector<int64_t> place;
        for (int64_t p = 0; p < visible; ++p) {
          const int64_t page =
              in.block_table[s * static_cast<size_t>(in.block_table_stride) + static_cast<size_t>(p / in.page_size)];
          place.push_back(page * in.page_stride + p % in.page_size * in.token_stride +
                          h / (in.num_q_heads / in.num_kv_heads) * in.head_stride);
          double dot = 0.0, sum = 0.0;
          for (int64_t d = 0; d < in.head_dim; ++d) {
            const double term = at(in.q, (begin + j) * in.q_token_stride + h * in.q_head_stride + d) * at(in.k, place.back() + d);
            dot += term;
            sum += std::fabs(term);
          }
          score.push_back(in.scale * dot);
          magnitude.push_back(std::fabs(in.scale) * sum);
        }
        const double maximum = *std::max_element(score.begin(), score.end());
        double total = 0.0;
        for (double& x : score) total += x = std::exp(x - maximum);
        for (int64_t d = 0; d < in.head_dim; ++d) {
          for (size_t p = 0; p < score.size(); ++p) row[d].value += score[p] / total * at(in.v, place[p] + d);
          for (size_t p = 0; p < score.size(); ++p) {
            const double reach = std::fabs(at(in.v, place[p] + d)) + std::fabs(row[d].value);
            row[d].scale += score[p] / total * reach * (1.0 + 18.0 / 16.0 * (1.0 + magnitude[p]) + probability_error / unit);
          }
        }
      }
    }
  }
  return out;
}

}  // namespace prologue::test::oracle
