// Calls kernels/token_ops/norm.h with any struct.
#include <prologue/kernels/token_ops/norm.h>

#include "tests/fuzz/operation.h"

using namespace prologue;
using namespace prologue::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Tally tally("norm");
  Choices choices(data, size);
  MemoryMap map(choices);
  NormParams p;
  p.num_tokens = choices.size(0, 6);
  p.width = choices.size(1, 70);
  p.dtype = activation_type(choices);
  p.eps = choices.real(1e-5f);
  p.kind = choices.enumerator(NormKind::layer);
  if (choices.hostile()) {
    p.weight_type = activation_type(choices);
  } else if (choices.chance(2)) {
    p.weight_type = choices.chance(2) ? p.dtype : DType::f32;
  }
  const DType type = float_type_of(p.dtype);
  const int64_t element = dtype_size(p.dtype), bytes = times(times(p.num_tokens, p.width), element);
  const Extent matrix = dense(times(p.num_tokens, p.width), element);
  const int x = map.array("x", p.x, matrix, Use::read, type);
  if (choices.chance(2)) map.optional("residual", p.residual, matrix, Use::write, type);
  const DType weight_type = float_type_of(resolve_dtype(p.weight_type, p.dtype));
  const Extent weights = dense(p.width, dtype_size(weight_type));
  if (!choices.chance(4)) map.optional("weight", p.weight, weights, Use::read, weight_type);
  if (choices.chance(2)) map.optional("bias", p.bias, weights, Use::read, weight_type);
  const int out = map.array("out", p.out, matrix, Use::write, type);
  map.in_place(out, x, choices.chance(3));
  if (!map.allocate()) return 0;

  map.freeze();
  if (p.num_tokens == 0) map.forgive();
  map.permit(p.out, 0, bytes);
  map.permit(p.residual, 0, bytes);
  const Status status = norm(p, execution(choices));
  map.check(status);
  tally.count(status.ok());
  return 0;
}
