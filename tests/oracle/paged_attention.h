// Computes attention over a paged cache in float64, from the definition.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <set>
#include <vector>

#include "tests/support/tolerance.h"

namespace prologue::test::oracle {

template <class T>
struct AttentionInputs {
  int64_t num_tokens = 0, num_q_heads = 0, num_kv_heads = 0, head_dim = 0, page_size = 0, num_pages = 0, max_pages_per_seq = 0;
  int64_t v_head_dim = 0;                        // 0 = head_dim
  int64_t window = 0, chunk = 0, ring_size = 0;  // 0 = none
  double scale = 0.0, soft_cap = 0.0;            // soft_cap 0 = none
  std::vector<double> sinks;                     // [num_q_heads], -infinity: none; empty: none of all heads
  bool sinks_of_dtype = false;                   // as T; otherwise as float
  std::vector<T> q;                              // [num_tokens, num_q_heads, head_dim] with these strides
  int64_t q_token_stride = 0, q_head_stride = 0;
  std::vector<T> k, v;  // strides as given
  int64_t page_stride = 0, token_stride = 0, head_stride = 0;
  // Replaces k and v: returns channel d of a head of token `offset` of `page`, as it is in the cache.
  std::function<double(int64_t page, int64_t offset, int64_t head, int64_t d)> key, value;
  // Returns the part of a head's elements that is the same for all channels; null: none.
  std::function<double(int64_t page, int64_t offset, int64_t head)> key_zero_point, value_zero_point;
  std::vector<int32_t> block_table;  // [num_seqs, block_table_stride]
  int64_t block_table_stride = 0;
  std::vector<int32_t> kv_indptr, kv_indices;  // not empty: in place of block_table
  std::vector<int32_t> kv_last_page_len;       // not empty: in place of the values of seq_lens
  std::vector<int32_t> cu_seqlens_q, seq_lens;
  int64_t max_seqlen_q = std::numeric_limits<int32_t>::max();
  int64_t num_decode_seqs = 0;

  int64_t v_width() const { return v_head_dim > 0 ? v_head_dim : head_dim; }
};

// Says what a backend may do beyond float32 arithmetic: relative errors of the probabilities and of V (rounded to 16 bits), an absolute one
// of the probabilities (where 16 bits end) relative to the largest, and further roundings of a score (scales, the soft cap), in units of
// 2^-24 of sum |scale q k|. With zero points by sums, elements x = y + zero point go into sums in these two parts: what counts as |x| where
// sums are rounded is |y| + |zero point|.
struct Allowance {
  double probability = 0.0;
  double least_probability = 0.0;
  double value = 0.0;
  double score_units = 0.0;
  bool zero_points_by_sums = false;
};

// What cu_seqlens_q says wrongly. `rows` become zeros, each one fault; `sequences` have no such row, and are one fault each, under
// the token that is given. From `unspecified` on, rows may belong to several sequences.
struct QueryRowFaults {
  std::set<int64_t> rows;
  std::vector<int64_t> sequences;
  int64_t unspecified = 0;
};

template <class T>
QueryRowFaults query_row_faults(const AttentionInputs<T>& in);

// Returns [num_tokens, num_q_heads, v_head_dim]; rows that nothing is written to have a NaN value.
//
// The result is sum_p w_p v_p / sum_p w_p. A relative error d_p of w_p moves it by p_p d_p (v_p - out), so that the error is at
// most sum_p p_p |d_p| (|v_p| + |out|), besides the rounding of the last sum itself. d_p is the absolute error of the score's
// exponent (the dot product over c_p = scale * sum |q k|, as a random walk of head_dim steps: sqrt(head_dim) units of 2^-24 *
// c_p, at least 16, and a rounding of score - maximum, at most 2 c_p) and the error of exp (2 units). A soft cap only shrinks
// errors of the score, and adds its own. A sink is a position with v = 0 and c_p = |sink|; if it is the maximum, the exponents of
// the others lose that much too. All of it goes into the scale, in units of kDefaultSteps * 2^-24.
template <class T>
std::vector<Reference> paged_attention(const AttentionInputs<T>& in, const Allowance& allowance = {});

}  // namespace prologue::test::oracle
