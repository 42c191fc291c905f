// kernels/attention_prologue/stages/stages.h with any struct: add_bias, qk_norm, hadamard, query_scale and kv_write.
#include <prologue/kernels/attention_prologue/stages/stages.h>

#include "tests/fuzz/prologue_parts.h"

using namespace prologue;
using namespace prologue::fuzz;

namespace {

IndexView positions(Choices& choices) {
  IndexView view;
  view.type = index_type(choices);
  return view;
}

// Declares x and y [num_tokens, num_heads, head_dim], apart or in place, and positions that may leave rows out.
template <class Params>
void decode_rows(Choices& choices, MemoryMap& map, Params& p) {
  p.num_tokens = choices.size(0, 6);
  p.num_heads = choices.size(1, 4);
  p.head_dim = choices.head_dim();
  p.dtype = activation_type(choices);
  const HeadStrides x = head_strides(choices, p.num_tokens, p.num_heads, p.head_dim);
  const bool same = choices.chance(3);
  const HeadStrides y = same ? x : head_strides(choices, p.num_tokens, p.num_heads, p.head_dim);
  p.x = {nullptr, x.token, x.head};
  p.y = {nullptr, y.token, y.head};
  const int64_t bits = bits_of(p.dtype);
  const int in =
      map.array("x", p.x.data, view_extent(p.x, p.num_tokens, p.num_heads, p.head_dim, bits), Use::read, float_type_of(p.dtype));
  map.in_place(map.array("y", p.y.data, view_extent(p.y, p.num_tokens, p.num_heads, p.head_dim, bits), Use::write), in, same);
}

template <class Params>
void permit_y(MemoryMap& map, const Params& p) {
  for (int64_t t = 0; present(p.y.data) && t < p.num_tokens; ++t) {
    const bool padding = present(p.positions.data) && get_index(p.positions.data, index_size(p.positions), t) < 0;
    if (!padding) permit_rows(map, p.y.data, t, p.y.token_stride, p.num_heads, p.y.head_stride, p.head_dim, bits_of(p.dtype));
  }
}

bool run_add_bias(Choices& choices, MemoryMap& map) {
  AddBiasParams p;
  p.num_tokens = choices.size(0, 6);
  p.width = choices.size(1, 70);
  p.dtype = activation_type(choices);
  p.x_stride = choices.stride(p.width);
  const bool same = choices.chance(3);
  p.y_stride = same ? p.x_stride : choices.stride(p.width);
  const int64_t bits = bits_of(p.dtype);
  const DType type = float_type_of(p.dtype);
  const int x = map.array("x", p.x, rows(p.num_tokens, p.x_stride, p.width, bits), Use::read, type);
  map.array("bias", p.bias, dense(p.width, bits / 8), Use::read, type);
  map.in_place(map.array("y", p.y, rows(p.num_tokens, p.y_stride, p.width, bits), Use::write), x, same);
  if (!map.allocate()) return false;
  map.freeze();
  if (p.num_tokens == 0) map.forgive();
  for (int64_t t = 0; present(p.y) && t < p.num_tokens; ++t) permit_rows(map, p.y, t, p.y_stride, 1, 0, p.width, bits);
  const Status status = add_bias(p, execution(choices));
  map.check(status);
  return status.ok();
}

bool run_qk_norm(Choices& choices, MemoryMap& map) {
  QkNormParams p;
  decode_rows(choices, map, p);
  p.norm.kind = choices.enumerator(NormKind::layer);
  p.norm.scope = p.norm.kind == NormKind::layer && !choices.hostile() ? NormScope::head : choices.enumerator(NormScope::token);
  p.norm.eps = choices.real(1e-5f);
  p.norm.weight_offset = choices.real(1.0f);
  p.norm.weight_head_stride = choices.hostile() ? choices.absurd() : choices.chance(2) ? 0 : p.head_dim;
  const int64_t weights = times(p.norm.weight_head_stride == 0 ? 1 : p.num_heads, p.head_dim);
  p.norm.weight_type = weight_type(choices);
  const DType type = float_type_of(resolve_dtype(p.norm.weight_type, p.dtype));
  if (choices.chance(2)) map.optional("weight", p.norm.weight, dense(weights, dtype_size(type)), Use::read, type);
  if (choices.chance(2) && (p.norm.kind == NormKind::layer || choices.hostile()))
    map.optional("bias", p.norm.bias, dense(weights, dtype_size(type)), Use::read, type);
  p.positions = positions(choices);
  if (choices.chance(2)) map.optional("positions", p.positions.data, dense(p.num_tokens, index_size(p.positions)), Use::read);
  if (!map.allocate()) return false;
  fill_indices(choices, p.positions, p.num_tokens, -1, 9);
  map.freeze();
  if (p.num_tokens == 0) map.forgive();
  permit_y(map, p);
  const Status status = qk_norm(p, execution(choices));
  map.check(status);
  return status.ok();
}

bool run_hadamard(Choices& choices, MemoryMap& map) {
  HadamardParams p;
  decode_rows(choices, map, p);
  p.block = hadamard_block(choices, p.head_dim);
  p.positions = positions(choices);
  if (choices.chance(2)) map.optional("positions", p.positions.data, dense(p.num_tokens, index_size(p.positions)), Use::read);
  if (!map.allocate()) return false;
  fill_indices(choices, p.positions, p.num_tokens, -1, 9);
  map.freeze();
  if (p.num_tokens == 0) map.forgive();
  permit_y(map, p);
  const Status status = hadamard(p, execution(choices));
  map.check(status);
  return status.ok();
}

bool run_query_scale(Choices& choices, MemoryMap& map) {
  QueryScaleParams p;
  decode_rows(choices, map, p);
  p.q_scale.constant = choices.real(0.5f);
  p.q_scale.by_position = choices.enumerator(PositionScale::logn);
  p.q_scale.a = choices.real(0.5f);
  p.q_scale.b = choices.real(4.0f);
  p.positions = positions(choices);
  if (p.q_scale.by_position != PositionScale::none || choices.chance(2)) {
    map.optional("positions", p.positions.data, dense(p.num_tokens, index_size(p.positions)), Use::read);
  }
  if (!map.allocate()) return false;
  fill_indices(choices, p.positions, p.num_tokens, -1, 100);
  map.freeze();
  if (p.num_tokens == 0) map.forgive();
  permit_y(map, p);
  const Status status = query_scale(p, execution(choices));
  map.check(status);
  return status.ok();
}

bool run_kv_write(Choices& choices, MemoryMap& map) {
  KvWriteParams p;
  p.num_tokens = choices.size(0, 6);
  p.num_kv_heads = choices.size(1, 3);
  p.head_dim = choices.head_dim();
  p.dtype = activation_type(choices);
  const int64_t parts = choices.integer(0, 5), bits = bits_of(p.dtype);
  const bool has_k = parts != 1, has_v = parts != 2;
  decode_cache(choices, map, p.cache, p.dtype, p.num_kv_heads, p.head_dim, has_k, has_v, Use::write);
  const int64_t v_width = p.cache.v.head_dim > 0 ? p.cache.v.head_dim : p.head_dim;
  const auto input = [&](const char* name, HeadsView& view, int64_t width) {
    const HeadStrides s = head_strides(choices, p.num_tokens, p.num_kv_heads, width);
    view = {nullptr, s.token, s.head};
    map.optional(name, view.data, view_extent(view, p.num_tokens, p.num_kv_heads, width, bits), Use::read,
                 float_type_of(p.dtype));
  };
  if (has_k) input("k", p.k, p.head_dim);
  if (has_v) input("v", p.v, v_width);
  p.slot_mapping = positions(choices);
  p.positions = positions(choices);
  p.num_axes = choices.chance(2) ? 1 : choices.size(1, 4);
  p.position_axis_stride = choices.stride(p.num_tokens);
  p.max_position = choices.size(0, 9);
  p.past_table = choices.enumerator(PastTable::identity);
  p.slot_mapping_len = slot_mapping_len(choices, p.num_tokens);
  const int64_t slots = slots_given_of(p.slot_mapping_len, p.num_tokens);
  map.array("slot_mapping", p.slot_mapping.data, dense(slots, index_size(p.slot_mapping)), Use::read);
  if (choices.chance(2)) {
    map.optional("positions", p.positions.data,
                 rows(p.num_axes, p.position_axis_stride, p.num_tokens, 8 * index_size(p.positions)), Use::read);
  }
  if (!choices.chance(8)) map.optional("faults", p.faults, dense(1, sizeof(FaultRecord)), Use::write);
  if (!map.allocate()) return false;
  fill_indices(choices, p.slot_mapping, slots, -1, times(std::min<int64_t>(p.cache.num_pages, 1 << 20), p.cache.page_size));
  for (int64_t axis = 0; present(p.positions.data) && axis < p.num_axes; ++axis)
    for (int64_t t = 0; t < p.num_tokens; ++t)
      set_index(p.positions.data, index_size(p.positions), axis * p.position_axis_stride + t, index_value(choices, -1, 9));

  map.freeze();
  if (p.num_tokens == 0) map.forgive();
  map.permit(p.faults, 0, sizeof(FaultRecord));
  const auto stored = [&](const PagedHeads& side) {
    return side.data == nullptr || dtype_is_kv(resolve_dtype(side.format.type, p.dtype));
  };
  const bool shaped = p.cache.page_size >= 1 && p.cache.num_kv_heads == p.num_kv_heads && stored(p.cache.k) && stored(p.cache.v);
  for (int64_t t = 0; shaped && present(p.slot_mapping.data) && t < std::min(slots, p.num_tokens); ++t) {
    const int64_t slot = get_index(p.slot_mapping.data, index_size(p.slot_mapping), t);
    bool skipped = slot < 0 || slot >= times(p.cache.num_pages, p.cache.page_size);
    for (int64_t axis = 0; present(p.positions.data) && axis < p.num_axes; ++axis) {
      const int64_t position = get_index(p.positions.data, index_size(p.positions), axis * p.position_axis_stride + t);
      skipped =
          skipped || position < 0 || (p.max_position > 0 && position >= p.max_position && p.past_table != PastTable::identity);
    }
    if (!skipped)
      permit_slot(map, p.cache, p.dtype, slot, p.k.data != nullptr && present(p.cache.k.data),
                  p.v.data != nullptr && present(p.cache.v.data));
  }
  const Status status = kv_write(p, execution(choices));
  map.check(status);
  return status.ok();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Tally tally("stages");
  Choices choices(data, size);
  MemoryMap map(choices);
  using Run = bool (*)(Choices&, MemoryMap&);
  constexpr Run kRuns[] = {run_add_bias, run_qk_norm, run_hadamard, run_query_scale, run_kv_write};
  tally.count(choices.pick(kRuns)(choices, map));
  return 0;
}
