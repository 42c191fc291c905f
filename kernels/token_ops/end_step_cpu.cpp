#include <algorithm>

#include <prologue/kernels/token_ops/backends.h>
#include <prologue/kernels/token_ops/end_step_sequence.h>

namespace prologue::cpu {

// A step has only a few thousand bytes here, so one thread is enough.
Status end_step(const EndStepParams& p, const Execution&) {
  for (int64_t s = 0; s < p.num_seqs; ++s) {
    p.seq_faults[s] = 0;
    for (int64_t t = row_at(p, s); t < row_at(p, s + 1) && p.seq_faults[s] == 0; ++t) p.seq_faults[s] = p.token_faults[t];
  }
  std::fill_n(p.token_faults, p.num_tokens, uint8_t{0});
  if (p.advance != 0) {
    for (int64_t s = 0; s < p.num_seqs; ++s) advance_sequence(p, s);
  }
  for (int64_t r = 0; r < p.num_rows; ++r) count_chain(p, r);
  return {};
}

}  // namespace prologue::cpu
