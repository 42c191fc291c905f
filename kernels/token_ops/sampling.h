// Chooses the next token of each row from its logits.
//
//   logits      [num_rows, vocab_size] float32, row stride logits_stride
//   rows        [num_rows]             one SamplingRow per row, on the device
//   tokens      [num_rows]             int32, written
//   token_ids   [num_tokens]           int32; null = no row is of a chain
//   logit_rows  [num_rows]             int32: the token of each row, 0 to num_tokens - 1; null as token_ids
//   row_faults  [num_rows]             uint8, written: FaultCode::logits_not_a_number if a logit of the row is NaN, else 0;
//                                      null = not wanted
//
// First the logits of a row are adjusted, if it has a bias or counts. Token i, which the sequence has generated n times:
//   x = logits[i]
//   x = x + bias[i]                           if bias is given
//   x = x > 0 ? x / r : x * r                 r = repetition_penalty, if counts[i] > 0: the token is in the prompt or generated
//   x = x - frequency_penalty * n             if n > 0
//   x = x - presence_penalty                  if n > 0
// Each operation is rounded to float32 and nothing is fused, so every backend has the same bits. What follows, temperature and greedy
// choice included, sees the adjusted logits. A bias of -infinity forbids a token: it is chosen only if no other token is left.
// counts[i] is 2 * n + (1 if token i is in the prompt). sample() adds 2 to the entry of the chosen token, of greedy rows, too, unless
// the row is one of a chain.
//
// Several rows may be a *chain*: the tokens of one sequence of which all but the first are drafts, guesses that are verified. Row i of a chain
// has chain = i + 1, and follows row i - 1. token_ids[logit_rows[r]] is the token of row r, so for i > 0 a draft. The row counts the drafts of
// rows 1 to i as generated, in addition to counts. Which of them are right is known when all rows are chosen, so counts of rows of a chain
// are left as they are: end_step() adds to them.
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
// NaN: greedy; top_p <= 0 or NaN: keep one token; min_p > 1: 1; min_p NaN: off; repetition_penalty not a finite number above 0: 1;
// another penalty that is not finite: 0; an entry of counts below 0: 0; one that 2 more would overflow stays. A chain outside of
// 0..kMaxChain, or that would begin before row 0, is 0; a draft of a token outside of 0..num_tokens - 1 is none.
// The arrays behind counts and bias are the caller's responsibility: counts of two rows must not overlap each other or another array
// of the call. Rows may share a bias.
// num_rows = 0 is a no-op. Never allocates or synchronises; no host round trip; safe under graph capture.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/execution.h>

namespace prologue {

inline constexpr int32_t kMaxChain = 16;  // rows

struct SamplingRow {
  float temperature = 0.0f;  // >= 0; 0 = greedy
  int32_t top_k = 0;         // <= 0 = off
  float top_p = 1.0f;        // (0, 1]; 1 = off
  float min_p = 0.0f;        // [0, 1]; 0 = off
  uint64_t seed = 0;
  int64_t position = 0;  // of the chosen token in its sequence; the counter of the random numbers
  // The penalties need counts.
  float repetition_penalty = 1.0f;  // > 0; 1 = off
  float presence_penalty = 0.0f;    // 0 = off
  float frequency_penalty = 0.0f;   // 0 = off
  int32_t chain = 0;                // 0 = none; i + 1: row i of a chain of rows; 1 to kMaxChain
  int32_t* counts = nullptr;        // [vocab_size] on the device, updated; null = no penalties
  const float* bias = nullptr;      // [vocab_size] on the device; null = none
};

struct SamplingParams {
  int64_t num_rows = 0;
  int64_t vocab_size = 0;
  const float* logits = nullptr;
  int64_t logits_stride = 0;
  const SamplingRow* rows = nullptr;
  int32_t* tokens = nullptr;
  uint8_t* row_faults = nullptr;
  bool overlaps = false;  // the launch may begin while the kernels before it in the stream run; they must not write `rows`
  int64_t num_tokens = 0;
  const int32_t* token_ids = nullptr;
  const int32_t* logit_rows = nullptr;
  uint64_t reserved[4] = {};  // zeros: docs/versioning.md
};

PROLOGUE_API Status sample(const SamplingParams& params, const Execution& execution);

}  // namespace prologue
