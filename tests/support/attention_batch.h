// This file has the batch of an AttentionCase: its data, its placement in an Arena, and the comparison with the oracle.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <prologue/kernels/paged_attention/paged_attention.h>

#include "tests/oracle/paged_attention.h"
#include "tests/support/arena.h"
#include "tests/support/attention_cache.h"
#include "tests/support/attention_case.h"
#include "tests/support/random.h"
#include "tests/support/tolerance.h"

namespace prologue::test {

using oracle::AttentionInputs;

// Describes a batch over a cache of shuffled pages. Slots that no row sees hold poison (NaN as float and fp8, and as scale); block_table
// entries without a position that a row sees are absurd.
template <class T>
struct AttentionBatch {
  AttentionInputs<T> in;
  AttentionCache cache;

  AttentionBatch(const AttentionCase& c, uint64_t seed);
  AttentionBatch(const AttentionBatch&) = delete;

  // The sinks are as large as the other terms of the softmax; now and then there are none.
  void add_sinks(Random& random, bool of_dtype);

  // Gives scores of -infinity to the keys of a sequence before position count_of(its length): by an infinity in K (float types), or by
  // products that leave float32 when they are scaled (all but uint4); all other scores are 0 then.
  void hide_first_keys(const AttentionCase& c, bool overflow, const std::function<int64_t(int64_t)>& count_of);
};

template <class T>
PagedAttentionParams place_attention(Arena& arena, const AttentionInputs<T>& in, const PagedKvView& kv, Device device);

// Returns the rows of `out` without their strides; nothing beside them may have been written.
template <class T>
std::vector<T> rows_of(const Arena& arena, const AttentionInputs<T>& in, const PagedAttentionParams& p);

// Tensor cores take probabilities, and V where tokens have scales, in 16 bits. CUDA applies zero points to sums.
template <class T>
oracle::Allowance attention_allowance(Backend backend, const AttentionInputs<T>& in, const PagedKvView& kv);

template <class T>
void expect_matches_oracle(Backend backend, const AttentionInputs<T>& in, const PagedKvView& kv, const std::vector<T>& got);

}  // namespace prologue::test
