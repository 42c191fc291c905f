#include <prologue/kernels/token_ops/backends.h>

namespace prologue::cpu {

// A step has only a few thousand ids, so one thread is enough.
Status take_tokens(const TakeTokensParams& p, const Execution&) {
  for (int64_t t = 0; t < p.num_tokens; ++t) {
    const int32_t from = p.from[t];
    if (from >= 0) p.token_ids[t] = from < p.num_sampled ? p.tokens[from] : -1;
  }
  return {};
}

}  // namespace prologue::cpu
