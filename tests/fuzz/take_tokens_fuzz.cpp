// Calls kernels/token_ops/take_tokens.h with any struct and any indices.
#include <prologue/kernels/token_ops/take_tokens.h>

#include "tests/fuzz/operation.h"

using namespace prologue;
using namespace prologue::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Tally tally("take_tokens");
  Choices choices(data, size);
  MemoryMap map(choices);
  TakeTokensParams p;
  p.num_tokens = choices.size(0, 9);
  p.num_sampled = choices.size(0, 5);
  map.array("from", p.from, dense(p.num_tokens, 4), Use::read);
  map.array("tokens", p.tokens, dense(p.num_sampled, 4), Use::read);
  map.array("token_ids", p.token_ids, dense(p.num_tokens, 4), Use::write);
  if (!map.allocate()) return 0;
  for (int64_t i = 0; present(p.from) && i < p.num_tokens; ++i) set_index(p.from, 4, i, index_value(choices, -1, p.num_sampled));

  map.freeze();
  if (p.num_tokens == 0) map.forgive();
  map.permit(p.token_ids, 0, times(p.num_tokens, 4));
  const Status status = take_tokens(p, execution(choices));
  map.check(status);
  tally.count(status.ok());
  return 0;
}
