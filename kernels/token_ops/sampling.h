// Chooses the next token of each row from its logits.
//
//   logits  [num_rows, vocab_size] float32, row stride logits_stride
//   rows    [num_rows]             one SamplingRow per row, on the device
//   tokens  [num_rows]             int32, written
//
// A row with temperature 0 is greedy: the largest logit is chosen; of equal logits, the lower id. NaN logits are never chosen; if
// all logits of a row are NaN, id 0 is. Otherwise p = softmax(logits / temperature), and tokens are ordered by (logit descending,
// id ascending). Then these filters apply in this order, each to the tokens that the previous one kept, with p renormalised:
//   top_k  > 0: the first top_k tokens
//   top_p  < 1: the shortest prefix whose probability reaches top_p (at least one token)
//   min_p  > 0: tokens with p >= min_p * max(p)
// One of the kept tokens is drawn with probability proportional to p by the Gumbel-max rule:
//   argmax_i  logit_i / temperature - log(-log(u_i)),   u_i = (r_i + 1/2) 2^-32,
//   r_i = word 0 of Philox4x32-10(key = seed, counter = (position, i)), both as low word, high word
// The random number of a token depends only on (seed, position, token id). So the same seed makes the same choice whatever else
// is in the batch and in any order of evaluation. Backends agree as far as their logits do.
//
// The probability mass for top_p is summed in 64-bit fixed point (units of 2^-40), so the sum does not depend on its order.
// SamplingRow values are on the device and cannot be checked before the launch. Outside their range they mean: temperature < 0 or
// NaN: greedy; top_p <= 0 or NaN: keep one token; min_p > 1: 1; min_p NaN: off.
// num_rows = 0 is a no-op. Never allocates or synchronises; no host round trip.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/execution.h>

namespace prologue {

struct SamplingRow {
  float temperature = 0.0f;  // >= 0; 0 = greedy
  int32_t top_k = 0;         // <= 0 = off
  float top_p = 1.0f;        // (0, 1]; 1 = off
  float min_p = 0.0f;        // [0, 1]; 0 = off
  uint64_t seed = 0;
  int64_t position = 0;      // of the chosen token in its sequence; the counter of the random numbers
};

struct SamplingParams {
  int64_t num_rows = 0;
  int64_t vocab_size = 0;
  const float* logits = nullptr;
  int64_t logits_stride = 0;
  const SamplingRow* rows = nullptr;
  int32_t* tokens = nullptr;
};

PROLOGUE_API Status sample(const SamplingParams& params, const Execution& execution);

}  // namespace prologue
