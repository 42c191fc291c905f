// Calls kernels/token_ops/scale_logits.h with any struct.
#include <prologue/kernels/token_ops/scale_logits.h>

#include "tests/fuzz/operation.h"

using namespace prologue;
using namespace prologue::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Tally tally("scale_logits");
  Choices choices(data, size);
  MemoryMap map(choices);
  ScaleLogitsParams p;
  p.num_rows = choices.size(0, 6);
  p.width = choices.size(1, 70);
  p.scale = choices.real(0.0625f);
  p.soft_cap = choices.chance(2) ? choices.real(30.0f) : 0.0f;
  const int64_t count = times(p.num_rows, p.width);
  const int x = map.array("x", p.x, dense(count, 4), Use::read);
  const int out = map.array("out", p.out, dense(count, 4), Use::write);
  map.in_place(out, x, choices.chance(3));
  if (!map.allocate()) return 0;

  map.freeze();
  if (p.num_rows == 0) map.forgive();
  map.permit(p.out, 0, times(count, 4));
  const Status status = scale_logits(p, execution(choices));
  map.check(status);
  tally.count(status.ok());
  return 0;
}
