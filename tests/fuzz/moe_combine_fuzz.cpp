// Calls kernels/moe/moe_combine.h with any struct.
#include <prologue/kernels/moe/moe_combine.h>

#include "tests/fuzz/operation.h"

using namespace prologue;
using namespace prologue::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Tally tally("moe_combine");
  Choices choices(data, size);
  MemoryMap map(choices);
  MoeCombineParams p;
  p.num_tokens = choices.size(0, 6);
  p.top_k = choices.size(1, 5);
  p.width = choices.size(1, 70);
  p.dtype = activation_type(choices);
  const DType type = float_type_of(p.dtype);
  const int64_t element = dtype_size(p.dtype), choices_of_all = times(p.num_tokens, p.top_k);
  const int64_t count = times(p.num_tokens, p.width);
  map.array("y", p.y, dense(times(choices_of_all, p.width), element), Use::read, type);
  if (choices.chance(2)) map.optional("expert_weights", p.expert_weights, dense(choices_of_all, 4), Use::read);
  const bool with_shared = choices.chance(2);
  const int shared = with_shared ? map.optional("shared", p.shared, dense(count, element), Use::read, type) : -1;
  const int out = map.array("out", p.out, dense(count, element), Use::write, type);
  if (with_shared) map.in_place(out, shared, choices.chance(3));
  if (!map.allocate()) return 0;

  map.freeze();
  if (p.num_tokens == 0) map.forgive();
  map.permit(p.out, 0, times(count, element));
  const Status status = moe_combine(p, execution(choices));
  map.check(status);
  tally.count(status.ok());
  return 0;
}
