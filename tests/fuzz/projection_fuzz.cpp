// Calls kernels/projection/projection.h with any struct.
#include <prologue/kernels/projection/projection.h>

#include <algorithm>
#include <memory>

#include "tests/fuzz/operation.h"
#include "tests/fuzz/projection_parts.h"

using namespace prologue;
using namespace prologue::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Tally tally("projection");
  static const std::unique_ptr<GemmContext> context = std::move(GemmContext::create(Device::cpu)).value();
  Choices choices(data, size);
  MemoryMap map(choices);
  ProjectionParams p;
  p.num_tokens = choices.size(0, 8);
  p.n = choices.size(1, 70);
  p.k = choices.size(1, 70);
  p.dtype = activation_type(choices);
  p.batch_invariant = choices.chance(3);
  p.overlaps = choices.chance(2);
  p.adds = choices.chance(2) ? 1 : 0;
  if (choices.chance(2)) {
    p.activation.given = 1;
    p.activation.kind = choices.enumerator(Activation::clamped_swiglu);
    p.activation.gated = choices.chance(2) || p.activation.kind == Activation::clamped_swiglu;
    p.activation.limit = choices.real(7.0f);
    p.activation.alpha = choices.real(1.702f);
  }
  const bool may_be_float = p.activation.given == 0 && p.adds == 0;
  if (choices.hostile()) {
    p.y_dtype = activation_type(choices);
  } else if (may_be_float && choices.chance(2)) {
    p.y_dtype = DType::f32;
  }
  decode_norm(choices, map, p.norm, p.k, p.dtype);
  p.x_stride = p.norm.given != 0 && !choices.hostile() ? p.k : choices.stride(p.k);
  p.y_stride = p.activation.given != 0 && p.adds == 0 && !choices.hostile() ? p.n : choices.stride(p.n);
  const int64_t columns = p.activation.given != 0 && p.activation.gated ? times(2, p.n) : p.n;
  const DType type = float_type_of(p.dtype);
  const DType y_dtype = resolve_dtype(p.y_dtype, p.dtype);
  const int64_t bits = 8 * dtype_size(p.dtype), y_bits = 8 * dtype_size(y_dtype);
  map.array("x", p.x, rows(p.num_tokens, p.x_stride, p.k, bits), Use::read, type);
  map.array("weight", p.weight, rows(columns, p.k, p.k, bits), Use::read, type);
  if (choices.chance(2)) map.optional("bias", p.bias, dense(columns, bits / 8), Use::read, type);
  map.array("y", p.y, rows(p.num_tokens, p.y_stride, p.n, y_bits), Use::write, float_type_of(y_dtype));
  decode_workspace(choices, map, projection_workspace_bytes(p), p.workspace, p.workspace_bytes);
  if (!map.allocate()) return 0;

  map.freeze();
  if (p.num_tokens == 0) map.forgive();
  map.permit(p.workspace, 0, p.workspace_bytes);
  for (int64_t t = 0; present(p.y) && t < p.num_tokens; ++t) {
    map.permit(p.y, times(t, p.y_stride) * (y_bits / 8), times(p.n, y_bits / 8));
  }
  const Status status = projection(p, *context, execution(choices));
  map.check(status);
  tally.count(status.ok());
  return 0;
}
