// Computes the log-probabilities of a step: of one given token of each row, and of the most likely ones.
//
//   logprob(i) = logits[i] - log(sum_j exp(logits[j]))      of the logits as given: no temperature, penalty or bias
//
//   logits    [num_rows, vocab_size] float32, row stride logits_stride
//   tokens    [num_rows]             int32, on the device: the token of entry 0, for example what sample() chose
//   ids       [num_rows, top + 1]    int32, contiguous, written
//   logprobs  [num_rows, top + 1]    float32, contiguous, written
//
// Entry 0 of a row is its token. If that is outside [0, vocab_size), its id is -1 and its logprob -infinity; nothing is recorded.
// Entries 1 to top are the most likely tokens in the order in which sample() ranks them: logit descending, id ascending. Entries past
// the vocabulary are -1 and -infinity.
//
// NaN logits count as -infinity. If one or more logits are +infinity, these share the probability equally, and all others have none.
// If all logits are -infinity, all logprobs are.
//
// With m the largest logit, a term of the sum is exp(logit - m), computed in float32 and rounded down to a multiple of 2^-40. The sum is
// an integer of 64 bits in this unit, so it does not depend on its order. Its logarithm and the difference are float64, rounded once to
// float32. |error| <= 2^-24 |logprob| + 2^-40 vocab_size + 2^-22 (1 + log(vocab_size)). CPU and CUDA give the same bits on processors
// with a fused multiply-add.
// num_rows = 0 is a no-op. Outputs must not overlap any other array. Never allocates or synchronises; safe under graph capture.
#pragma once

#include <cstdint>

#include <prologue/kernels/base/execution.h>

namespace prologue {

inline constexpr int64_t kMaxTopLogprobs = 20;

struct LogprobsParams {
  int64_t num_rows = 0;
  int64_t vocab_size = 0;
  const float* logits = nullptr;
  int64_t logits_stride = 0;
  const int32_t* tokens = nullptr;
  int64_t top = 0;  // 0 to kMaxTopLogprobs
  float* logprobs = nullptr;
  int32_t* ids = nullptr;
  uint64_t reserved[4] = {};  // zeros: docs/versioning.md
};

PROLOGUE_API Status logprobs(const LogprobsParams& params, const Execution& execution);

}  // namespace prologue
