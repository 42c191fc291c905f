// The attention layer in float64, from its formulas: projection, prologue (oracle/attention_prologue.h), causal attention over
// what the cache held before and the step's own K and V, projection. Shares no code with the library and knows no pages.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/oracle/attention_prologue.h"
#include "tests/support/tolerance.h"

namespace prologue::test::oracle {

template <class T>
struct AttentionLayerInput {
  int64_t hidden_size = 0;
  std::vector<T> hidden_states;  // dense [T, hidden_size]; with qkv_weight such that every sum is exact in T
  std::vector<T> qkv_weight, output_weight, output_bias;
  oracle::PrologueInput prologue;  // all but q, k, v
  double scale = 0.0;
  std::vector<int64_t> cu_seqlens_q, cache_lens;
  // Holds what the cache held: [cache_lens[s], num_kv_heads, head_dim] of sequence s.
  std::vector<std::vector<T>> cached_k, cached_v;
};

// Returns [T, hidden_size] for expect_close() with its default steps and roundings in between; tokens of no sequence are NaN.
//
// Errors are carried along to first order, with a tenth on top: q, k and v are off by their rounding to T and by the prologue's
// sums (its oracle's scales); a score by what that does to the dot product, and by 18 units of 2^-24 * (1 + sum |terms|) of its
// own and the exponential's (oracle/paged_attention.h); a relative error d of a weight moves the result by at most weight * d *
// (|v| + |out|). `probability_error` is what a backend may add to d by rounding probabilities to 16 bits.
template <class T>
std::vector<Reference> attention_layer(AttentionLayerInput<T> in, double probability_error);

}  // namespace prologue::test::oracle
