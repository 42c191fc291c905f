#include <prologue/kernels/token_ops/backends.h>
#include <prologue/kernels/token_ops/gather_cos_sin_row.h>

namespace prologue::cpu {

// A step has only a few thousand floats: one thread.
Status gather_cos_sin(const GatherCosSinParams& p, const Execution&) {
  for (int64_t t = 0; t < p.num_tokens; ++t) {
    const bool identity = gathers_identity(p, t);
    for (int64_t i = 0; i < p.rotary_dim / 2; ++i) gather_pair(p, t, i, identity);
  }
  return {};
}

}  // namespace prologue::cpu
