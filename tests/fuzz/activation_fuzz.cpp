// Calls kernels/token_ops/activation.h with any struct.
#include <prologue/kernels/token_ops/activation.h>

#include "tests/fuzz/operation.h"

using namespace prologue;
using namespace prologue::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Tally tally("activation");
  Choices choices(data, size);
  MemoryMap map(choices);
  ActivationParams p;
  p.num_tokens = choices.size(0, 6);
  p.width = choices.size(1, 70);
  p.dtype = activation_type(choices);
  p.kind = choices.enumerator(Activation::clamped_swiglu);
  p.gated = p.kind == Activation::clamped_swiglu ? !choices.hostile() : choices.chance(2);
  p.groups = choices.chance(3) ? choices.size(1, 4) : 1;
  p.limit = choices.real(7.0f);
  p.alpha = choices.real(1.702f);
  const int64_t element = dtype_size(p.dtype), out_width = times(p.groups, p.width), count = times(p.num_tokens, out_width);
  const int64_t columns = times(p.gated ? 2 : 1, out_width);
  p.x_stride = choices.stride(columns);
  map.array("x", p.x, rows(p.num_tokens, p.x_stride, columns, 8 * element), Use::read, float_type_of(p.dtype));
  map.array("out", p.out, dense(count, element), Use::write);
  if (!map.allocate()) return 0;

  map.freeze();
  if (p.num_tokens == 0) map.forgive();
  map.permit(p.out, 0, times(count, element));
  const Status status = activation(p, execution(choices));
  map.check(status);
  tally.count(status.ok());
  return 0;
}
