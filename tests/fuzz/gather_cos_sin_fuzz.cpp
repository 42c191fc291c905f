// Calls kernels/token_ops/gather_cos_sin.h with any struct.
#include <prologue/kernels/token_ops/gather_cos_sin.h>

#include "tests/fuzz/operation.h"

using namespace prologue;
using namespace prologue::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Tally tally("gather_cos_sin");
  Choices choices(data, size);
  MemoryMap map(choices);
  GatherCosSinParams p;
  p.num_tokens = choices.size(0, 6);
  p.rotary_dim = choices.head_dim();
  p.max_position = choices.size(1, 9);
  p.num_axes = choices.chance(2) ? 1 : choices.size(1, 4);
  p.past_table = choices.enumerator(PastTable::identity);
  p.positions.type = index_type(choices);
  p.position_axis_stride = choices.stride(p.num_tokens);
  const int64_t index = index_size(p.positions);
  p.type = activation_type(choices);
  map.array("cos_sin", p.cos_sin, dense(times(p.max_position, p.rotary_dim), dtype_size(float_type_of(p.type))), Use::read);
  map.array("positions", p.positions.data, rows(p.num_axes, p.position_axis_stride, p.num_tokens, 8 * index), Use::read);
  if (choices.chance(2)) map.optional("pair_axis", p.pair_axis, dense(p.rotary_dim / 2, 1), Use::read);
  map.array("out", p.out, dense(times(p.num_tokens, p.rotary_dim), 4), Use::write);
  if (!map.allocate()) return 0;
  if (present(p.positions.data)) {
    for (int64_t axis = 0; axis < std::min<int64_t>(p.num_axes, 4); ++axis)  // more are refused
      for (int64_t t = 0; t < p.num_tokens; ++t)
        set_index(p.positions.data, index, axis * p.position_axis_stride + t, index_value(choices, -1, p.max_position));
  }

  map.freeze();
  if (p.num_tokens == 0) map.forgive();
  map.permit(p.out, 0, times(times(p.num_tokens, p.rotary_dim), 4));
  const Status status = gather_cos_sin(p, execution(choices));
  map.check(status);
  tally.count(status.ok());
  return 0;
}
