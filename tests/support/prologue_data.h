// This file has the data of a PrologueCase, independent of its memory layout, and the same data as the oracle takes it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <prologue/kernels/base/dtype.h>

#include "tests/oracle/attention_prologue.h"
#include "tests/support/prologue_case.h"

namespace prologue::test {

template <class T>
struct PrologueData {
  std::vector<T> q, k, v;                                           // dense [T, heads, D]
  std::vector<T> q_bias, k_bias, v_bias;                            // empty: none, here and below
  std::vector<float> q_weight, k_weight, q_norm_bias, k_norm_bias;  // numbers of T, unless the norm has float_weights
  std::vector<float> table;                                         // cos, then sin, of rope_columns() each; or the rows of the tokens
  std::vector<float> inv_freq;
  std::vector<uint8_t> pair_axis;
  std::vector<int64_t> positions;  // [num_axes, T]
  std::vector<int64_t> slots;
  std::vector<int32_t> cu_seqlens, cache_lens;
  std::vector<std::vector<int32_t>> block_table;
  std::vector<int64_t> offsets;
  std::vector<float> k_scale, v_scale;  // given ones
  float q_scale = 0.0f;
  int64_t num_pages = 0;
  std::vector<PrologueData<T>> groups;  // q, q_bias, q_weight, q_norm_bias, what rotates them; k_scale is that of their cache
};

// Rows of cosines, then sines: [max_position, rotary_dim].
std::vector<float> make_table(int64_t max_position, int64_t rotary_dim, double base = 10000.0);

// The lengths of the sequences after the step, as far as int32 holds them.
template <class T>
std::vector<int32_t> seq_lens_of(const PrologueData<T>& data) {
  std::vector<int32_t> lengths;
  for (size_t s = 0; s < data.cache_lens.size(); ++s) {
    const int64_t length = int64_t{data.cache_lens[s]} + data.cu_seqlens[s + 1] - data.cu_seqlens[s];
    lengths.push_back(static_cast<int32_t>(std::clamp<int64_t>(length, INT32_MIN, INT32_MAX)));
  }
  return lengths;
}

// Holds the pages as CSR: those that a sequence needs, without what fills its row of the block table. Some are bad if the case says so.
struct CsrPages {
  std::vector<int32_t> indptr, indices, last_page_len;
};
template <class T>
CsrPages csr_pages_of(const PrologueCase& c, const PrologueData<T>& data);

// T is float, Float16 or BFloat16, here and below. The same seed gives the same data.
template <class T>
PrologueData<T> make_data(const PrologueCase& c);

template <class T>
oracle::PrologueInput oracle_input(const PrologueCase& c, const PrologueData<T>& data);

template <class T>
std::vector<double> to_doubles(const std::vector<T>& values) {
  std::vector<double> out;
  out.reserve(values.size());
  for (const T& value : values) out.push_back(static_cast<double>(to_float(value)));
  return out;
}

}  // namespace prologue::test
