#include <algorithm>

#include <prologue/kernels/base/host/parallel.h>
#include <prologue/kernels/token_ops/backends.h>
#include <prologue/kernels/token_ops/logprobs_math.h>

namespace prologue::cpu {

namespace {

void row_logprobs(const LogprobsParams& p, int64_t r) {
  const float* logits = p.logits + r * p.logits_stride;
  const int32_t vocab_size = static_cast<int32_t>(p.vocab_size);
  float* logprobs = p.logprobs + r * (p.top + 1);
  int32_t* ids = p.ids + r * (p.top + 1);

  // Holds the rank keys of the first tokens, sorted. It holds one even if none is wanted: the sum needs the largest logit.
  uint64_t first[kMaxTopLogprobs] = {};
  const int64_t wanted = std::max<int64_t>(p.top, 1);
  for (int32_t token = 0; token < vocab_size; ++token) {
    const uint64_t key = logprob_rank_key(logits[token], token);
    if (key <= first[wanted - 1]) continue;
    int64_t at = wanted - 1;
    for (; at > 0 && first[at - 1] < key; --at) first[at] = first[at - 1];
    first[at] = key;
  }
  const float largest = ranked_logit(logits[ranked_token(first[0])]);

  uint64_t mass = 0;
  for (int32_t token = 0; token < vocab_size; ++token) mass += logprob_mass(logits[token], largest);
  const double log_sum = log_of_mass(mass);

  for (int64_t i = 0; i <= p.top; ++i) {
    int32_t token = i == 0 ? p.tokens[r] : first[i - 1] == 0 ? -1 : ranked_token(first[i - 1]);
    if (token < 0 || token >= vocab_size) token = -1;
    ids[i] = token;
    logprobs[i] = token < 0 ? -INFINITY : logprob_of(logits[token], largest, log_sum);
  }
}

}  // namespace

Status logprobs(const LogprobsParams& params, const Execution& execution) {
  parallel_for(params.num_rows, execution.num_threads, [&](int64_t r) { row_logprobs(params, r); });
  return {};
}

}  // namespace prologue::cpu
