// kernels/gemm/gemm.h with any struct.
#include <prologue/kernels/gemm/gemm.h>

#include "tests/fuzz/operation.h"

using namespace prologue;
using namespace prologue::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Tally tally("gemm");
  static const std::unique_ptr<GemmContext> context = std::move(GemmContext::create(Device::cpu)).value();
  Choices choices(data, size);
  MemoryMap map(choices);
  GemmParams p;
  p.m = choices.chance(16) ? choices.integer(60, 80) : choices.size(0, 8);  // from 64 rows on another loop nest runs
  p.n = choices.size(0, 70);
  p.k = choices.size(0, 70);
  p.dtype = activation_type(choices);
  p.y_dtype = choices.hostile() ? activation_type(choices) : choices.chance(2) ? DType::f32 : p.dtype;
  p.batch_invariant = choices.chance(3);
  p.x_stride = choices.stride(p.k);
  p.y_stride = choices.stride(p.n);
  const DType type = float_type_of(p.dtype);
  const int64_t bits = 8 * dtype_size(p.dtype), y_bits = 8 * dtype_size(p.y_dtype);
  map.array("x", p.x, rows(p.m, p.x_stride, p.k, bits), Use::read, type);
  map.array("weight", p.weight, rows(p.n, p.k, p.k, bits), Use::read, type);
  if (choices.chance(2)) map.optional("bias", p.bias, dense(p.n, bits / 8), Use::read, type);
  map.array("y", p.y, rows(p.m, p.y_stride, p.n, y_bits), Use::write, float_type_of(p.y_dtype));
  if (!map.allocate()) return 0;

  map.freeze();
  if (p.m == 0 || p.n == 0) map.forgive();
  for (int64_t i = 0; present(p.y) && i < p.m; ++i) {
    map.permit(p.y, times(i, p.y_stride) * (y_bits / 8), times(p.n, y_bits / 8));
  }
  const Status status = gemm(p, *context, execution(choices));
  map.check(status);
  tally.count(status.ok());
  return 0;
}
