// Calls kernels/token_ops/gate.h with any struct.
#include <prologue/kernels/token_ops/gate.h>

#include "tests/fuzz/operation.h"

using namespace prologue;
using namespace prologue::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Tally tally("gate");
  Choices choices(data, size);
  MemoryMap map(choices);
  GateParams p;
  p.num_tokens = choices.size(0, 6);
  p.width = choices.size(1, 70);
  p.dtype = activation_type(choices);
  p.x_stride = choices.stride(p.width);
  p.gate_stride = choices.stride(p.width);
  const bool in_gate = choices.chance(2), in_place = choices.chance(3);
  p.out_stride = in_place ? (in_gate ? p.gate_stride : p.x_stride) : choices.stride(p.width);
  const DType type = float_type_of(p.dtype);
  const int64_t element = dtype_size(p.dtype);
  const auto extent = [&](int64_t stride) { return rows(p.num_tokens, stride, p.width, 8 * element); };
  const int x = map.array("x", p.x, extent(p.x_stride), Use::read, type);
  const int gate = map.array("gate", p.gate, extent(p.gate_stride), Use::read, type);
  const int out = map.array("out", p.out, extent(p.out_stride), Use::write, type);
  map.in_place(out, x, in_place && !in_gate);
  map.in_place(out, gate, in_place && in_gate);
  if (!map.allocate()) return 0;

  map.freeze();
  if (p.num_tokens == 0) map.forgive();
  for (int64_t t = 0; present(p.out) && t < p.num_tokens; ++t) {
    map.permit(p.out, times(times(t, p.out_stride), element), times(p.width, element));
  }
  const Status status = prologue::gate(p, execution(choices));
  map.check(status);
  tally.count(status.ok());
  return 0;
}
