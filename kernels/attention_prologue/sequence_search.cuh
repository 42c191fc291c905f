// Finds the sequence of a token, by a warp or by one thread.
#pragma once

#include <cstdint>

#include <prologue/kernels/attention_prologue/token_args.h>

namespace prologue::cuda {

// Returns the sequence of token t: the last s with cu_seqlens_q[s] <= t, or num_seqs for a token after the last one. The whole warp works
// for one token. In a step of single tokens s = t, in one of a single sequence s = 0: that guess costs one trip to memory; other steps are
// searched 32 ways at a time. `lane` is that of the warp.
__device__ inline TokenSequence search_sequence(const SequenceArgs& p, int64_t t, int lane) {
  // The invariant is that the answer, the number of i in [1, num_seqs] with cu_seqlens_q[i] <= t, is in [low, high].
  int low = 0, high = p.num_seqs;
  while (low < high) {
    const int step = (high - low + 31) / 32;
    const int at = low + (lane + 1) * step;
    const uint32_t below = __ballot_sync(0xffffffffu, at <= high && p.cu_seqlens_q[at] <= t);
    const int steps = __popc(below);
    low += steps * step;
    high = min(high, low + step - 1);
  }
  return low < p.num_seqs ? sequence_at(p, low) : TokenSequence{p.num_seqs, 0, 0, 0};
}

// Does the same by one thread, whose neighbours search for other tokens.
__device__ inline TokenSequence bisect_sequences(const SequenceArgs& p, int64_t t) {
  int low = 0, high = p.num_seqs;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (p.cu_seqlens_q[middle] <= t) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low < p.num_seqs ? sequence_at(p, low) : TokenSequence{p.num_seqs, 0, 0, 0};
}

__device__ inline TokenSequence find_sequence(const SequenceArgs& p, int64_t t, int lane) {
  if (p.num_seqs <= 0) return {p.num_seqs, 0, 0, 0};
  const TokenSequence guess = sequence_at(p, static_cast<int>(min(t, static_cast<int64_t>(p.num_seqs) - 1)));
  return guess.begin <= t && t < guess.end ? guess : search_sequence(p, t, lane);
}

}  // namespace prologue::cuda
