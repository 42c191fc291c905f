// A call of rerope: its cache, positions and rope, placed in an arena. The suite and the differential of CPU and CUDA share it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include <prologue/kernels/base/str_cat.h>
#include <prologue/kernels/rerope/rerope.h>

#include "tests/support/arena.h"
#include "tests/support/random.h"

namespace prologue::test {

struct ReropeCase {
  DType type = DType::f32;
  KvScaling scaling = KvScaling::none;
  int64_t num_heads = 2, head_dim = 16, num_pages = 5, page_size = 4, num_keys = 9;
  int64_t rotary_dim = 16, rotary_offset = 0, num_blocks = 1;
  RopeStyle style = RopeStyle::neox;
  RopeSource source = RopeSource::table;
  RopeWidth width = RopeWidth::half;
  DType table_type = DType::f32;
  double factor = 1.0;            // in the table's rows
  double attention_factor = 1.0;  // of the rope
  bool inverse = false, own_sine = false;
  int64_t num_axes = 1;
  bool pair_axis = false, one_row = false;  // one_row: all axes share the positions
  int64_t hadamard_block = 0;
  bool heads_first = false;  // HND
  int64_t hole = 0;          // elements between rows of the cache
  int64_t misalign = 0;      // bytes of the cache
  bool int64_indices = false;
  bool bad = false;  // some slots and positions
  PastTable past_table = PastTable::record;
  int64_t max_position = 50;  // of tables; else a bound, 0 = none
  uint64_t seed = 1;

  bool rows_given() const { return rope_rows_are_given(source); }
  std::string describe() const {
    return str_cat(dtype_name(type), " scaling=", static_cast<int>(scaling), " keys=", num_keys, " heads=", num_heads,
                   " D=", head_dim, " r=", rotary_dim, " offset=", rotary_offset, " blocks=", num_blocks, " ",
                   rope_style_name(style), " source=", static_cast<int>(source), " width=", static_cast<int>(width), " ",
                   dtype_name(table_type), " factor=", factor, "*", attention_factor, inverse ? " inverse" : "",
                   own_sine ? " own sine" : "", " axes=", num_axes, pair_axis ? " pair_axis" : "", one_row ? " one row" : "",
                   " hadamard=", hadamard_block, heads_first ? " HND" : "", " hole=", hole, " misalign=", misalign,
                   int64_indices ? " int64" : "", bad ? " bad" : "", " past=", static_cast<int>(past_table),
                   " max=", max_position, " seed=", seed);
  }
};

class PlacedRerope {
 public:
  PlacedRerope(Backend backend, const ReropeCase& of) : c(of), arena(backend), random_(of.seed) {
    place_cache();
    place_rope();
    place_keys();
    p.hadamard_block = c.hadamard_block;
    p.faults = arena.inout(std::vector<FaultRecord>(1));
    p.token_faults = arena.inout(std::vector<uint8_t>(static_cast<size_t>(c.num_keys)));
  }

  Status run() {
    return arena.run([&](const Execution& execution) { return rerope(p, execution); });
  }

  // Where element 0 of a head, and its scale, are.
  int64_t element_at(int64_t slot, int64_t head) const { return at(p.cache.k.strides, slot, head); }
  int64_t scale_at(int64_t slot, int64_t head) const {
    switch (c.scaling) {
      case KvScaling::head: return head;
      case KvScaling::token_head: return at(p.cache.k.scale_strides, slot, head);
      default: return 0;
    }
  }
  int64_t position(const std::vector<int64_t>& positions, int64_t axis, int64_t key) const {
    const int64_t row = axis < c.num_axes && !c.one_row ? axis : 0;
    return positions[static_cast<size_t>(row * c.num_keys + key)];
  }

  ReropeCase c;
  Arena arena;
  ReropeParams p;
  std::vector<uint8_t> bytes;  // of the cache, before
  std::vector<float> scales;
  std::vector<double> cos, sin;  // as the rope has them, [max_position, columns]
  std::vector<double> frequencies;
  std::vector<uint8_t> axes;  // of the pairs
  std::vector<int64_t> slots, from, to;
  int64_t columns = 0;

 private:
  int64_t at(const PageStrides& s, int64_t slot, int64_t head) const {
    return slot / c.page_size * s.page + slot % c.page_size * s.token + head * s.head;
  }

  PageStrides strides(int64_t width) const {
    const int64_t inner = width + c.hole;
    if (c.heads_first) return {c.num_heads * c.page_size * inner + 2 * c.hole, inner, c.page_size * inner};
    return {c.page_size * c.num_heads * inner + 2 * c.hole, c.num_heads * inner, inner};
  }

  template <class T>
  void fill_floats(int64_t count) {
    const std::vector<T> values = random_.normals<T>(count);
    bytes.resize(values.size() * sizeof(T));
    std::memcpy(bytes.data(), static_cast<const void*>(values.data()), bytes.size());
  }

  void place_cache() {
    PagedHeads& k = p.cache.k;
    p.cache.num_pages = c.num_pages, p.cache.page_size = c.page_size, p.cache.num_kv_heads = c.num_heads;
    k.head_dim = c.head_dim, k.format = {c.type, c.scaling}, k.strides = strides(c.head_dim);
    const int64_t count = c.num_pages * k.strides.page, bits = dtype_bits(c.type);
    if (c.type == DType::f32) fill_floats<float>(count);
    if (c.type == DType::f16) fill_floats<Float16>(count);
    if (c.type == DType::bf16) fill_floats<BFloat16>(count);
    if (bits <= 8) {
      for (int64_t i = 0; i < count * bits / 8; ++i) {
        uint8_t code = static_cast<uint8_t>(random_.integer(0, 255));
        if (c.type == DType::fp8_e4m3 || c.type == DType::fp8_e5m2) code &= 0xbb;  // no NaN, no infinity
        if (c.type == DType::int8 && code == 0x80) code = 0;
        if (c.type == DType::int4 && (code & 0x0f) == 0x08) code &= 0xf0;
        if (c.type == DType::int4 && (code & 0xf0) == 0x80) code &= 0x0f;
        bytes.push_back(code);
      }
    }
    k.data = arena.inout(bytes, c.misalign);
    if (c.scaling == KvScaling::none) return;
    int64_t num_scales = c.scaling == KvScaling::tensor ? 1 : c.num_heads;
    if (c.scaling == KvScaling::token_head) {
      k.scale_strides = strides(scales_of_head(k.format));
      num_scales = c.num_pages * k.scale_strides.page;
    }
    for (int64_t i = 0; i < num_scales; ++i) scales.push_back(static_cast<float>(0.01 + 0.1 * random_.uniform()));
    k.scale = c.scaling == KvScaling::token_head ? arena.inout(scales) : arena.input(scales);
  }

  template <class T>
  const void* place_table(std::vector<double>& values) {
    std::vector<T> stored;
    for (double& value : values) {
      if constexpr (std::is_same_v<T, double>) {
        stored.push_back(value);
      } else {
        stored.push_back(from_float<T>(static_cast<float>(value)));
        value = static_cast<double>(to_float(stored.back()));
      }
    }
    return arena.input(stored);
  }
  const void* place_as_type(std::vector<double>& values) {
    if (c.table_type == DType::f16) return place_table<Float16>(values);
    if (c.table_type == DType::bf16) return place_table<BFloat16>(values);
    if (c.table_type == DType::f64) return place_table<double>(values);
    return place_table<float>(values);
  }

  void place_rope() {
    Rope& rope = p.rope;
    rope.style = c.style, rope.rotary_dim = c.rotary_dim, rope.rotary_offset = c.rotary_offset, rope.num_blocks = c.num_blocks;
    rope.inverse = c.inverse, rope.inverse_by_own_sine = c.own_sine;
    rope.source = c.source, rope.type = c.table_type, rope.width = c.rows_given() ? c.width : RopeWidth::unset;
    rope.attention_factor = c.attention_factor, rope.max_position = c.max_position, rope.past_table = c.past_table;
    rope.num_axes = c.num_axes;
    const int64_t pairs = c.rotary_dim / (2 * c.num_blocks);
    columns = c.width == RopeWidth::full ? 2 * pairs : pairs;
    for (int64_t i = 0; i < pairs; ++i)
      frequencies.push_back(std::pow(100.0, -static_cast<double>(i) / static_cast<double>(pairs)));
    if (c.source == RopeSource::theta) rope.theta = 100.0;
    if (c.source == RopeSource::inv_freq) rope.inv_freq = place_as_type(frequencies);
    if (c.rows_given()) {
      std::vector<double> angles;
      for (int64_t row = 0; row < c.max_position; ++row) {
        for (int64_t column = 0; column < columns; ++column) {  // the two channels of a pair differ a little
          const bool neox = c.style == RopeStyle::neox;
          const int64_t pair = columns == pairs ? column : neox ? column % pairs : column / 2;
          const bool second = columns != pairs && (neox ? column >= pairs : column % 2 == 1);
          angles.push_back(static_cast<double>(row) * frequencies[static_cast<size_t>(pair)] + (second ? 0.25 : 0.0));
        }
      }
      if (c.source == RopeSource::angles) rope.angles = {place_as_type(angles), 0, columns, 1};
      for (const double angle : angles) cos.push_back(c.factor * std::cos(angle)), sin.push_back(c.factor * std::sin(angle));
      if (c.source == RopeSource::table) {
        rope.cos = {place_as_type(cos), 0, columns, 1};
        rope.sin = {place_as_type(sin), 0, columns, 1};
      }
    }
    for (int64_t i = 0; i < c.rotary_dim / 2; ++i) {
      const int64_t axis = c.num_axes == 1 ? 0 : c.pair_axis ? (i == 0 ? 200 : i * 7 % c.num_axes) : i / pairs;
      axes.push_back(static_cast<uint8_t>(axis));
    }
    if (c.pair_axis) rope.pair_axis = arena.input(axes);
  }

  IndexView place_indices(const std::vector<int64_t>& values) {
    if (c.int64_indices) return index_view(arena.input(values));
    std::vector<int32_t> narrow;
    for (const int64_t value : values) narrow.push_back(static_cast<int32_t>(std::clamp<int64_t>(value, INT32_MIN, INT32_MAX)));
    return index_view(arena.input(narrow));
  }

  void place_keys() {
    p.num_keys = c.num_keys;
    std::vector<int64_t> all(static_cast<size_t>(c.num_pages * c.page_size));
    std::iota(all.begin(), all.end(), 0);
    random_.shuffle(all);
    slots.assign(all.begin(), all.begin() + c.num_keys);
    const int64_t bound = c.max_position > 0 ? c.max_position : 5000;
    for (std::vector<int64_t>* positions : {&from, &to}) {
      for (int64_t i = 0; i < (c.one_row ? 1 : c.num_axes) * c.num_keys; ++i) positions->push_back(random_.integer(0, bound - 1));
    }
    for (int64_t i = 0; c.bad && i < c.num_keys; ++i) {
      const auto key = static_cast<size_t>(i);
      const int64_t last = static_cast<int64_t>(from.size()) - c.num_keys;  // the last axis
      switch (i % 7) {
        case 1: slots[key] = -1 - i; break;
        case 2: slots[key] = c.num_pages * c.page_size + i; break;
        case 3: from[key] = -3; break;
        case 4: to[static_cast<size_t>(last + i)] = c.max_position > 0 ? bound : -1; break;
        case 5: from[static_cast<size_t>(last + i)] = c.max_position > 0 ? bound + 7 : -1; break;
        case 6:
          for (size_t n = key; n < from.size(); n += static_cast<size_t>(c.num_keys)) to[n] = from[n];
          break;
        default: break;
      }
    }
    p.slot_mapping = place_indices(slots);
    p.from_positions = place_indices(from);
    p.to_positions = place_indices(to);
    p.position_axis_stride = c.one_row ? 0 : c.num_keys;
  }

  Random random_;
};

}  // namespace prologue::test
