// Calls kernels/rerope/rerope.h with any struct.
#include <prologue/kernels/rerope/rerope.h>

#include "tests/fuzz/operation.h"
#include "tests/fuzz/prologue_parts.h"

using namespace prologue;
using namespace prologue::fuzz;

namespace {

// Makes tables of few rows, so that positions past them are met as well.
void decode_rope(Choices& choices, MemoryMap& map, Rope& rope, int64_t head_dim) {
  rope.style = choices.enumerator(RopeStyle::interleaved);
  const int64_t pairs = std::max<int64_t>(std::min<int64_t>(head_dim, 1024) / 2, 1);
  rope.num_blocks = choices.chance(3) ? choices.size(1, 4) : 1;
  const int64_t blocks = std::clamp<int64_t>(rope.num_blocks, 1, std::min<int64_t>(pairs, 4));
  rope.rotary_dim = choices.hostile() ? choices.absurd() : 2 * blocks * choices.integer(1, std::max<int64_t>(pairs / blocks, 1));
  rope.rotary_offset = choices.chance(3) ? times(2, choices.size(0, 2)) : 0;
  rope.inverse = choices.chance(4) ? 1 : 0;
  rope.inverse_by_own_sine = choices.chance(8) ? 1 : 0;
  rope.source = choices.chance(2) ? RopeSource::table : choices.enumerator(RopeSource::angles_per_token);
  const bool given = rope_rows_are_given(rope.source);
  rope.type = rope.source == RopeSource::inv_freq ? choices.chance(2) ? DType::f32 : DType::f64 : float_type(choices);
  rope.width = choices.hostile()            ? choices.enumerator(RopeWidth::full)
               : given && choices.chance(2) ? RopeWidth::full
                                            : RopeWidth::half;
  rope.max_position = choices.size(given ? 1 : 0, 9);
  rope.past_table = choices.enumerator(PastTable::identity);
  rope.attention_factor = static_cast<double>(choices.real(1.0f));
  if (rope.source == RopeSource::theta) rope.theta = static_cast<double>(choices.real(10000.0f));
  const int64_t size = dtype_is_float(rope.type) ? dtype_size(rope.type) : 4;
  const int64_t width = rope.num_blocks > 0 ? rope.rotary_dim / rope.num_blocks : 0;
  if (rope.rotary_dim == 0) return;
  if (rope.source == RopeSource::inv_freq) map.array("inv_freq", rope.inv_freq, dense(width / 2, size), Use::read, rope.type);
  if (!given) return;
  const int64_t columns = rope.width == RopeWidth::full ? width : width / 2;
  const auto table = [&](const char* name, RopeColumns& c) {
    c.column_stride = choices.chance(4) ? choices.stride(1) : 1;
    c.row_stride = choices.stride(times(columns, c.column_stride));
    const Extent extent = {
        size, size, {{1, 0}, {rope.max_position, times(c.row_stride, size)}, {1, 0}, {columns, times(c.column_stride, size)}}};
    map.array(name, c.data, extent, Use::read, rope.type);
  };
  if (rope.source == RopeSource::angles || rope.source == RopeSource::angles_per_token) return table("angles", rope.angles);
  table("cos", rope.cos);
  table("sin", rope.sin);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Tally tally("rerope");
  Choices choices(data, size);
  MemoryMap map(choices);
  ReropeParams p;
  p.num_keys = choices.size(0, 6);
  const int64_t head_dim = choices.head_dim();
  decode_cache(choices, map, p.cache, DType::f32, choices.size(1, 3), head_dim, true, false, Use::write);
  if (!choices.hostile() && p.cache.k.format.type == DType::unset) p.cache.k.format.type = DType::f32;
  decode_rope(choices, map, p.rope, head_dim);
  p.rope.num_axes = choices.chance(2) ? 1 : choices.size(1, 4);
  if (p.rope.num_axes > 1) map.optional("pair_axis", p.rope.pair_axis, dense(p.rope.rotary_dim / 2, 1), Use::read);
  p.hadamard_block = hadamard_block(choices, head_dim);
  p.position_axis_stride = choices.stride(p.num_keys);
  p.slot_mapping.type = index_type(choices);
  p.from_positions.type = index_type(choices);
  p.to_positions.type = index_type(choices);
  map.array("slot_mapping", p.slot_mapping.data, dense(p.num_keys, index_size(p.slot_mapping)), Use::read);
  const auto positions = [&](const char* name, IndexView& view) {
    map.array(name, view.data, rows(p.rope.num_axes, p.position_axis_stride, p.num_keys, 8 * index_size(view)), Use::read);
  };
  positions("from_positions", p.from_positions);
  positions("to_positions", p.to_positions);
  if (!choices.chance(8)) map.optional("faults", p.faults, dense(1, sizeof(FaultRecord)), Use::write);
  if (choices.chance(2)) map.optional("token_faults", p.token_faults, dense(p.num_keys, 1), Use::write);
  if (!map.allocate()) return 0;
  fill_indices(choices, p.slot_mapping, p.num_keys, -1, times(std::min<int64_t>(p.cache.num_pages, 1 << 20), p.cache.page_size));
  const int64_t axes = std::min<int64_t>(p.rope.num_axes, 4);  // more are refused
  for (const IndexView* view : {&p.from_positions, &p.to_positions}) {
    for (int64_t axis = 0; present(view->data) && axis < axes; ++axis)
      for (int64_t i = 0; i < p.num_keys; ++i)
        set_index(view->data, index_size(*view), axis * p.position_axis_stride + i, index_value(choices, -1, 9));
  }

  map.freeze();
  if (p.num_keys == 0) map.forgive();
  map.permit(p.faults, 0, sizeof(FaultRecord));
  if (p.token_faults != nullptr) map.permit(p.token_faults, 0, p.num_keys);
  const bool shaped = p.cache.page_size >= 1 && dtype_is_kv(p.cache.k.format.type) && present(p.cache.k.data);
  for (int64_t i = 0; shaped && present(p.slot_mapping.data) && i < p.num_keys; ++i) {
    const int64_t slot = get_index(p.slot_mapping.data, index_size(p.slot_mapping), i);
    bool skipped = slot < 0 || slot >= times(p.cache.num_pages, p.cache.page_size);
    for (const IndexView* view : {&p.from_positions, &p.to_positions}) {
      for (int64_t axis = 0; present(view->data) && axis < axes; ++axis) {
        const int64_t position = get_index(view->data, index_size(*view), axis * p.position_axis_stride + i);
        const bool past = p.rope.max_position > 0 && position >= p.rope.max_position;
        skipped = skipped || position < 0 || (past && p.rope.past_table != PastTable::identity);
      }
    }
    if (!skipped) permit_slot(map, p.cache, DType::f32, slot, true, false);
  }
  const Status status = rerope(p, execution(choices));
  map.check(status);
  tally.count(status.ok());
  return 0;
}
