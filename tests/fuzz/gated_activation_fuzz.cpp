// kernels/token_ops/gated_activation.h with any struct.
#include <prologue/kernels/token_ops/gated_activation.h>

#include "tests/fuzz/operation.h"

using namespace prologue;
using namespace prologue::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Tally tally("gated_activation");
  Choices choices(data, size);
  MemoryMap map(choices);
  GatedActivationParams p;
  p.num_tokens = choices.size(0, 6);
  p.width = choices.size(1, 70);
  p.dtype = activation_type(choices);
  p.activation = choices.enumerator(Activation::gelu_tanh);
  const int64_t element = dtype_size(p.dtype), count = times(p.num_tokens, p.width);
  map.array("gate_up", p.gate_up, dense(times(2, count), element), Use::read, float_type_of(p.dtype));
  map.array("out", p.out, dense(count, element), Use::write);
  if (!map.allocate()) return 0;

  map.freeze();
  if (p.num_tokens == 0) map.forgive();
  map.permit(p.out, 0, times(count, element));
  const Status status = gated_activation(p, execution(choices));
  map.check(status);
  tally.count(status.ok());
  return 0;
}
