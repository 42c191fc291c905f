// kernels/token_ops/sampling.h with any struct and any row.
#include <prologue/kernels/token_ops/sampling.h>

#include "tests/fuzz/operation.h"

using namespace prologue;
using namespace prologue::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Tally tally("sampling");
  Choices choices(data, size);
  MemoryMap map(choices);
  SamplingParams p;
  p.num_rows = choices.size(0, 4);
  p.vocab_size = choices.size(1, 100);
  p.logits_stride = choices.stride(p.vocab_size);
  map.array("logits", p.logits, rows(p.num_rows, p.logits_stride, p.vocab_size, 32), Use::read);
  Extent sampling_rows = dense(p.num_rows, sizeof(SamplingRow));
  sampling_rows.alignment = alignof(SamplingRow);
  map.array("rows", p.rows, sampling_rows, Use::read);
  map.array("tokens", p.tokens, dense(p.num_rows, 4), Use::write);
  if (!map.allocate()) return 0;
  for (int64_t i = 0; present(p.rows) && i < p.num_rows; ++i) {
    if (choices.chance(8)) continue;  // any bits
    SamplingRow row;
    row.temperature = choices.real(static_cast<float>(choices.byte()) / 64.0f);
    row.top_k = choices.hostile() ? static_cast<int32_t>(choices.bits(4)) : static_cast<int32_t>(choices.integer(0, 9));
    row.top_p = choices.real(static_cast<float>(choices.integer(1, 8)) / 8.0f);
    row.min_p = choices.real(static_cast<float>(choices.integer(0, 8)) / 8.0f);
    row.seed = choices.bits(8);
    row.position = choices.hostile() ? choices.absurd() : choices.integer(0, 100);
    std::memcpy(const_cast<char*>(reinterpret_cast<const char*>(p.rows)) + i * static_cast<int64_t>(sizeof row), &row,
                sizeof row);
  }

  map.freeze();
  if (p.num_rows == 0) map.forgive();
  map.permit(p.tokens, 0, times(p.num_rows, 4));
  const Status status = sample(p, execution(choices));
  map.check(status);
  for (int64_t i = 0; status.ok() && i < p.num_rows; ++i) {
    if (p.tokens[i] < 0 || p.tokens[i] >= p.vocab_size) fail(str_cat("token ", p.tokens[i], " of ", p.vocab_size, " was chosen"));
  }
  tally.count(status.ok());
  return 0;
}
