// kernels/token_ops/logprobs.h with any struct and any tokens.
#include <prologue/kernels/token_ops/logprobs.h>

#include "tests/fuzz/operation.h"

using namespace prologue;
using namespace prologue::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Tally tally("logprobs");
  Choices choices(data, size);
  MemoryMap map(choices);
  LogprobsParams p;
  p.num_rows = choices.size(0, 4);
  p.vocab_size = choices.size(1, 100);
  p.logits_stride = choices.stride(p.vocab_size);
  p.top = choices.size(0, kMaxTopLogprobs);
  const int64_t entries = times(p.num_rows, plus(p.top, 1));
  map.array("logits", p.logits, rows(p.num_rows, p.logits_stride, p.vocab_size, 32), Use::read);
  map.array("tokens", p.tokens, dense(p.num_rows, 4), Use::read);
  map.array("logprobs", p.logprobs, dense(entries, 4), Use::write);
  map.array("ids", p.ids, dense(entries, 4), Use::write);
  if (!map.allocate()) return 0;
  for (int64_t i = 0; present(p.tokens) && i < p.num_rows; ++i) set_index(p.tokens, 4, i, index_value(choices, -1, p.vocab_size));

  map.freeze();
  if (p.num_rows == 0) map.forgive();
  map.permit(p.logprobs, 0, times(entries, 4));
  map.permit(p.ids, 0, times(entries, 4));
  const Status status = logprobs(p, execution(choices));
  map.check(status);
  for (int64_t i = 0; status.ok() && i < entries; ++i) {
    if (p.ids[i] < -1 || p.ids[i] >= p.vocab_size) fail(str_cat("id ", p.ids[i], " of ", p.vocab_size, " is returned"));
    if (!(p.logprobs[i] <= 1e-4f)) fail(str_cat("a logprob is ", p.logprobs[i]));
  }
  tally.count(status.ok());
  return 0;
}
