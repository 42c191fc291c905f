#include "tests/support/placed_prologue.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tests/support/tolerance.h"

namespace prologue::test {

namespace {

// Returns the strides of [num_tokens, heads, dim] in a buffer of its own, and how many elements that takes.
struct HeadsLayout {
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  int64_t size = 0;
};

HeadsLayout heads_layout(const PrologueCase& c, int64_t heads, int64_t dim) {
  const int64_t width = dim + c.head_padding;
  if (c.heads_first) {
    const int64_t head_stride = c.num_tokens * width + c.row_padding;
    return {width, head_stride, heads * head_stride};
  }
  const int64_t token_stride = heads * width + c.row_padding;
  return {token_stride, width, c.num_tokens * token_stride};
}

struct CachePlacement {
  PageStrides k_strides, v_strides;
  int64_t v_offset = -1;  // from the K base if both are in one buffer
  int64_t k_size = 0, v_size = 0;
};

// Sizes are in elements.
CachePlacement cache_placement(const PrologueCase& c, int64_t num_pages) {
  const int64_t h = c.num_kv_heads, d = c.head_dim, dv = c.v_width(), p = c.page_size;
  switch (c.layout) {
    case CacheLayout::nhd:
      return {nhd_strides(p, h, d), nhd_strides(p, h, dv), -1, num_pages * p * h * d, num_pages * p * h * dv};
    case CacheLayout::hnd:
      return {{h * p * d, d, p * d}, {h * p * dv, dv, p * dv}, -1, num_pages * p * h * d, num_pages * p * h * dv};
    case CacheLayout::interleaved: {
      const int64_t both = d + dv;
      const PageStrides strides = {p * h * both, h * both, both};
      return {strides, strides, d, num_pages * strides.page, 0};
    }
    case CacheLayout::odd: break;
  }
  const auto odd = [&](int64_t dim) { return PageStrides{p * (h * (dim + 2) + 6) + 10, h * (dim + 2) + 6, dim + 2}; };
  return {odd(d), odd(dv), -1, num_pages * odd(d).page, num_pages * odd(dv).page};
}

}  // namespace

IndexView place_indices(Arena& arena, const std::vector<int64_t>& values, bool wide) {
  if (wide) return index_view(arena.input(values));
  std::vector<int32_t> narrow;
  for (const int64_t value : values) narrow.push_back(static_cast<int32_t>(value));
  return index_view(arena.input(narrow));
}

template <class T>
PlacedPrologue<T>::PlacedPrologue(Backend backend, const PrologueCase& c, const PrologueData<T>& data)
    : arena_(backend),
      case_(c),
      data_(data),
      k_type_(resolve_dtype(c.kv_type.value_or(DType::unset), FloatFormat<T>::dtype)),
      v_type_(c.v_type.value_or(k_type_)) {
  params_.num_tokens = c.num_tokens;
  params_.num_q_heads = c.num_q_heads;
  params_.num_kv_heads = c.num_kv_heads;
  params_.head_dim = c.head_dim;
  params_.dtype = FloatFormat<T>::dtype;
  params_.cache.v.head_dim = c.v_head_dim;
  set_options(c, params_);
  place_inputs();
  place_weights();
  place_rope(c, data, params_.rope);
  place_positions_and_slots();
  place_outputs();
  if (c.writes_kv()) place_cache();
  place_groups();
  faults_ = arena_.inout(std::vector<FaultRecord>(1));
  if (!c.no_faults) params_.faults = faults_;
  if (c.token_faults) params_.token_faults = add_output<uint8_t>(c.num_tokens, 0, "token_faults");
}

template <class T>
std::vector<T> PlacedPrologue<T>::row(const MutableHeadsView& view, int64_t heads, int64_t dim, int64_t token) const {
  std::vector<T> values;
  for (int64_t h = 0; h < heads; ++h) {
    const std::vector<unsigned char> bytes = bytes_at(
        static_cast<T*>(view.data) + token * view.token_stride + h * view.head_stride, dim * static_cast<int64_t>(sizeof(T)));
    append_values(bytes, values);
  }
  return values;
}

template <class T>
std::vector<T> PlacedPrologue<T>::cache_row(bool is_v, int64_t slot) const {
  std::vector<T> values;
  for (int64_t h = 0; h < case_.num_kv_heads; ++h) append_values(cache_bytes(is_v, slot, h), values);
  return values;
}

template <class T>
std::vector<unsigned char> PlacedPrologue<T>::bytes_at(const void* pointer, int64_t count) const {
  const Output& output = outputs_[output_index(pointer)];
  const std::vector<unsigned char> bytes = arena_.read(output.data);
  const auto from = bytes.begin() + (static_cast<const unsigned char*>(pointer) - output.data);
  return {from, from + count};
}

template <class T>
float PlacedPrologue<T>::cache_scale(bool is_v, int64_t slot, int64_t head) const {
  float value;
  std::memcpy(&value, bytes_at(scale_of(is_v, slot, head), sizeof value).data(), sizeof value);
  return value;
}

template <class T>
float PlacedPrologue<T>::cache_zero_point(bool is_v, int64_t slot, int64_t head) const {
  float value;
  std::memcpy(&value, bytes_at(scale_of(is_v, slot, head) + 1, sizeof value).data(), sizeof value);
  return value;
}

template <class T>
const unsigned char* PlacedPrologue<T>::cache_head(bool is_v, int64_t slot, int64_t head) const {
  const PageStrides& s = is_v ? params_.cache.v.strides : params_.cache.k.strides;
  const int64_t at = slot / case_.page_size * s.page + slot % case_.page_size * s.token + head * s.head;
  return static_cast<const unsigned char*>(is_v ? params_.cache.v.data : params_.cache.k.data) +
         at * dtype_bits(cache_type(is_v)) / 8;
}

template <class T>
const float* PlacedPrologue<T>::scale_of(bool is_v, int64_t slot, int64_t head) const {
  const PageStrides& s = is_v ? params_.cache.v.scale_strides : params_.cache.k.scale_strides;
  return (is_v ? params_.cache.v.scale : params_.cache.k.scale) + slot / case_.page_size * s.page +
         slot % case_.page_size * s.token + head * s.head;
}

template <class T>
size_t PlacedPrologue<T>::output_index(const void* pointer) const {
  const auto* at = static_cast<const unsigned char*>(pointer);
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (at >= outputs_[i].data && at < outputs_[i].data + outputs_[i].initial.size()) return i;
  }
  ADD_FAILURE() << "not a pointer into an output";
  std::abort();
}

template <class T>
template <class U>
U* PlacedPrologue<T>::add_output(const std::vector<U>& values, int64_t misalign, const char* name) {
  U* data = arena_.inout(values, misalign);
  const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
  outputs_.push_back({reinterpret_cast<const unsigned char*>(data), {bytes, bytes + values.size() * sizeof(U)}, name});
  return data;
}

template <class T>
template <class U>
U* PlacedPrologue<T>::add_output(int64_t count, int64_t misalign, const char* name) {
  return add_output(poisoned<U>(count), misalign, name);
}

template <class T>
void PlacedPrologue<T>::scatter(const std::vector<T>& dense, int64_t heads, int64_t dim, int64_t token_stride,
                                int64_t head_stride, T* to) const {
  for (int64_t t = 0; t < case_.num_tokens; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      std::copy_n(dense.begin() + (t * heads + h) * dim, dim, to + t * token_stride + h * head_stride);
    }
  }
}

template <class T>
void PlacedPrologue<T>::place_inputs() {
  const PrologueCase& c = case_;
  if (c.packed) {
    const int64_t k_at = c.num_q_heads * c.head_dim, v_at = k_at + c.num_kv_heads * c.head_dim;
    const int64_t stride = v_at + (c.v_is_k ? 0 : c.num_kv_heads * c.v_width()) + c.row_padding;  // without V: [q | k]
    std::vector<T> qkv = poisoned<T>(c.num_tokens * stride);
    scatter(data_.q, c.num_q_heads, c.head_dim, stride, c.head_dim, qkv.data());
    if (c.num_tokens > 0) {
      scatter(data_.k, c.k_heads(), c.head_dim, stride, c.head_dim, qkv.data() + k_at);
      if (!c.v_is_k) scatter(data_.v, c.v_heads(), c.v_width(), stride, c.v_width(), qkv.data() + v_at);
    }
    const bool written = c.in_place || c.kv_in_place;
    set_packed_qkv(params_, written ? add_output(qkv, c.misalign, "qkv") : arena_.input(qkv, c.misalign), stride);
  } else {
    const auto place = [&](const std::vector<T>& dense, int64_t heads, int64_t dim, bool written, const char* name) -> HeadsView {
      const HeadsLayout layout = heads_layout(c, heads, dim);
      std::vector<T> values = poisoned<T>(layout.size);
      scatter(dense, heads, dim, layout.token_stride, layout.head_stride, values.data());
      return {written ? add_output(values, c.misalign, name) : arena_.input(values, c.misalign), layout.token_stride,
              layout.head_stride};
    };
    const auto place_split = [&](const std::vector<T>& dense, int64_t heads, int64_t rope_heads, HeadsView& rope) {
      const auto channels = [&](int64_t of_heads, int64_t begin, int64_t end) {
        std::vector<T> part;
        for (int64_t row = 0; row < c.num_tokens * heads; ++row) {
          if (row % heads < of_heads)
            part.insert(part.end(), dense.begin() + row * c.head_dim + begin, dense.begin() + row * c.head_dim + end);
        }
        return part;
      };
      const int64_t r = c.rotary_dim, rest = c.rotary_offset == 0 ? r : 0;
      rope = place(channels(rope_heads, c.rotary_offset, c.rotary_offset + r), rope_heads, r, false, "rope");
      return place(channels(heads, rest, rest + c.head_dim - r), heads, c.head_dim - r, false, "rest");
    };
    if (c.split_q) {
      params_.q = place_split(data_.q, c.num_q_heads, c.num_q_heads, params_.q_rope);
    } else {
      params_.q = place(data_.q, c.num_q_heads, c.head_dim, c.in_place, "q");
    }
    if (c.split_k) {
      params_.k =
          place_split(data_.k, c.k_heads(), c.one_k_rope ? std::min<int64_t>(c.k_heads(), 1) : c.k_heads(), params_.k_rope);
      if (c.one_k_rope) params_.k_rope.head_stride = 0;
    } else {
      params_.k = place(data_.k, c.k_heads(), c.head_dim, c.kv_in_place, "k");
    }
    if (!c.v_is_k) params_.v = place(data_.v, c.v_heads(), c.v_width(), c.kv_in_place, "v");
  }
  if (c.v_is_k) params_.v = params_.k;
  if (!c.with_k) params_.k.data = params_.k_rope.data = nullptr;
  if (!c.with_v) params_.v.data = nullptr;
}

template <class T>
const T* PlacedPrologue<T>::place_values(const std::vector<T>& values, int64_t misalign) {
  return values.empty() ? nullptr : arena_.input(values, misalign);
}

template <class T>
const void* PlacedPrologue<T>::place_weights(const CaseNorm& of, const std::vector<float>& values, int64_t misalign) {
  if (!of.float_weights) {
    std::vector<T> rounded;
    for (const float value : values) rounded.push_back(from_float<T>(value));
    return place_values(rounded, misalign);
  }
  return values.empty() ? nullptr : arena_.input(values, misalign / 4 * 4);
}

template <class T>
void PlacedPrologue<T>::place_weights() {
  const int64_t misalign = case_.misalign;
  params_.bias = {place_values(data_.q_bias, misalign), place_values(data_.k_bias, misalign),
                  place_values(data_.v_bias, misalign)};
  const CaseNorm of_q = case_.norm_of_q(), of_k = case_.norm_of_k();
  params_.q_norm.weight = place_weights(of_q, data_.q_weight, misalign);
  params_.q_norm.bias = place_weights(of_q, data_.q_norm_bias, misalign);
  params_.k_norm.weight = place_weights(of_k, data_.k_weight, misalign);
  params_.k_norm.bias = place_weights(of_k, data_.k_norm_bias, misalign);
}

template <class T>
void PlacedPrologue<T>::place_rope(const PrologueCase& c, const PrologueData<T>& data, Rope& r) {
  r.type = DType::f32;
  if (!data.table.empty()) {
    with_host_type(c.rope_type, [&](auto type) {
      using S = decltype(type);
      const int64_t columns = c.rope_columns(), rows = static_cast<int64_t>(data.table.size()) / (2 * columns);
      const int64_t misalign = c.misalign / static_cast<int64_t>(sizeof(S)) * static_cast<int64_t>(sizeof(S));
      const auto place = [&](int64_t begin, int64_t count, int64_t holes) -> RopeColumns {
        std::vector<S> values = poisoned<S>(rows * (count + holes));
        for (int64_t row = 0; row < rows; ++row) {
          for (int64_t i = 0; i < count; ++i) {
            values[static_cast<size_t>(row * (count + holes) + i)] =
                from_float<S>(data.table[static_cast<size_t>(row * 2 * columns + begin + i)]);
          }
        }
        return {arena_.input(values, misalign), 0, count + holes, 1};
      };
      r.type = c.rope_type;
      r.width = RopeWidth::half;
      if (c.rope_apart) {
        r.cos = place(0, columns, c.rope_holes);
        r.sin = place(columns, columns, 2 * c.rope_holes);
      } else {
        r.cos = r.sin = place(0, 2 * columns, c.rope_holes);
        r.sin.data = static_cast<const S*>(r.cos.data) + columns;
      }
    });
  }
  if (!data.inv_freq.empty()) r.inv_freq = arena_.input(data.inv_freq, c.misalign / 4 * 4);
  r.max_position = c.max_position;
  if (!data.pair_axis.empty()) r.pair_axis = arena_.input(data.pair_axis);
}

template <class T>
void PlacedPrologue<T>::place_positions_and_slots() {
  const PrologueCase& c = case_;
  TokenPlaces& places = params_.places;
  if (!c.derive_positions) {
    // The axes are apart, with absurd positions between them.
    std::vector<int64_t> spread;
    for (int64_t axis = 0; axis < c.num_axes; ++axis) {
      const auto from = data_.positions.begin() + axis * c.num_tokens;
      spread.insert(spread.end(), from, from + c.num_tokens);
      if (axis + 1 < c.num_axes) spread.insert(spread.end(), 3, INT32_MAX);
    }
    places.positions = place_indices(arena_, spread, c.int64_positions);
    places.position_axis_stride = c.num_tokens + 3;
  }
  if (c.gives_slots()) {
    places.slot_mapping = place_indices(arena_, data_.slots, c.int64_slots);  // also after slot_mapping_len: not to be used
    places.slot_mapping_len = c.slot_mapping_len();
  }
  if (!c.has_sequences()) return;
  places.num_seqs = static_cast<int64_t>(data_.cache_lens.size());
  places.cu_seqlens_q = arena_.input(data_.cu_seqlens);
  if (c.page_form == PageForm::csr_with_lengths) {
    if (!c.writes_cache()) params_.cache.page_size = c.page_size;
  } else if (c.lengths_after) {
    places.seq_lens = arena_.input(seq_lens_of(data_));
  } else {
    places.cache_lens = arena_.input(data_.cache_lens);
  }
  place_pages();
  places.ring_size = c.ring_size;
  if (!data_.offsets.empty()) places.position_offsets = place_indices(arena_, data_.offsets, c.int64_positions);
  places.position_offset_per_seq = c.offsets == Offsets::per_sequence;
}

template <class T>
void PlacedPrologue<T>::place_pages() {
  PageTable& table = params_.places.page_table;
  if (case_.page_form != PageForm::rows) {
    CsrPages pages = csr_pages_of(case_, data_);
    table.num_kv_indices = static_cast<int64_t>(pages.indices.size());
    pages.indices.insert(pages.indices.end(), 2, 0);  // readable by mistake, and wrong
    table.kv_indptr = arena_.input(pages.indptr);
    table.kv_indices = arena_.input(pages.indices);
    if (case_.page_form == PageForm::csr_with_lengths) table.kv_last_page_len = arena_.input(pages.last_page_len);
    return;
  }
  table.max_pages_per_seq = static_cast<int64_t>(data_.block_table.front().size());
  table.block_table_stride = table.max_pages_per_seq + 2;
  std::vector<int32_t> rows;
  for (const std::vector<int32_t>& pages : data_.block_table) {
    rows.insert(rows.end(), pages.begin(), pages.end());
    rows.insert(rows.end(), 2, 0);
  }
  table.block_table = arena_.input(rows);
}

template <class T>
void PlacedPrologue<T>::place_outputs() {
  const PrologueCase& c = case_;
  const auto place = [&](int64_t heads, int64_t dim, const char* name) -> MutableHeadsView {
    const HeadsLayout layout = heads_layout(c, heads, dim);
    return {add_output<T>(layout.size, c.misalign, name), layout.token_stride, layout.head_stride};
  };
  const auto itself = [](const HeadsView& view) {
    return MutableHeadsView{const_cast<void*>(view.data), view.token_stride, view.head_stride};
  };
  if (c.q8) {
    const HeadsLayout layout = heads_layout(c, c.num_q_heads, c.head_dim);
    QuantizedQuery& q8 = params_.q8_out;
    q8 = {add_output<unsigned char>(layout.size, c.misalign, "q8_out"), layout.token_stride, layout.head_stride, *c.q8, nullptr};
    if (c.q8_e5m2) q8.type = DType::fp8_e5m2;
    q8.scale = *c.q8 == KvScaling::tensor ? arena_.input(std::vector<float>{data_.q_scale})
                                          : add_output<float>(c.num_tokens * c.num_q_heads, 0, "q8_out.scale");
  } else if (c.num_q_heads > 0) {
    params_.q_out = c.in_place ? itself(params_.q) : place(c.num_q_heads, c.head_dim, "q_out");
  }
  if (c.k_out && c.k_heads() > 0) params_.k_out = c.kv_in_place ? itself(params_.k) : place(c.num_kv_heads, c.head_dim, "k_out");
  if (c.v_out && c.v_heads() > 0) params_.v_out = c.kv_in_place ? itself(params_.v) : place(c.num_kv_heads, c.v_width(), "v_out");
}

template <class T>
void PlacedPrologue<T>::place_cache() {
  const PrologueCase& c = case_;
  PagedKvView& cache = params_.cache;
  const CachePlacement placement = cache_placement(c, data_.num_pages);
  const auto add_side = [&](int64_t size, DType type, const char* name) {
    const int64_t bits = dtype_bits(type), element = std::max<int64_t>(bits / 8, 1);
    return add_output<unsigned char>(size * bits / 8, c.misalign / element * element, name);
  };
  unsigned char* k = add_side(placement.k_size, k_type_, "K cache");
  unsigned char* v =
      placement.v_offset >= 0 ? k + placement.v_offset * dtype_bits(k_type_) / 8 : add_side(placement.v_size, v_type_, "V cache");
  cache.k.data = c.with_k ? k : nullptr;
  cache.v.data = c.with_v ? v : nullptr;
  if (c.kv_type) cache.k.format.type = cache.v.format.type = *c.kv_type;
  if (c.v_type) cache.v.format.type = *c.v_type;
  cache.num_pages = data_.num_pages;
  cache.page_size = c.page_size;
  cache.num_kv_heads = c.num_kv_heads;
  cache.k.head_dim = c.head_dim;
  cache.k.strides = placement.k_strides;
  cache.v.strides = placement.v_strides;
  cache.k.format.scaling = cache.v.format.scaling = c.scaling;
  if (c.scaling == KvScaling::token_head) {
    const auto numbers = [](DType type) { return type == DType::uint4 ? 2 : 1; };  // scale, zero point
    const int64_t h = c.num_kv_heads, of_k = numbers(k_type_), of_v = numbers(v_type_);
    cache.k.scale_strides = {c.page_size * h * of_k, h * of_k, of_k};
    cache.v.scale_strides = {c.page_size * (h + 1) * of_v + 3, of_v, c.page_size * of_v};
    cache.k.scale = add_output<float>(data_.num_pages * c.page_size * h * of_k, 0, "K scales");
    cache.v.scale = add_output<float>(data_.num_pages * cache.v.scale_strides.page, 0, "V scales");
  } else if (c.scaling == KvScaling::tensor || c.scaling == KvScaling::head || c.scaling == KvScaling::nv) {
    cache.k.scale = arena_.input(data_.k_scale);
    cache.v.scale = arena_.input(data_.v_scale);
  }
  if (is_block_scaled(cache.k.format)) {
    const int64_t h = c.num_kv_heads, channels = block_channels(cache.k.format), of_k = c.head_dim / channels,
                  of_v = c.v_width() / channels;
    cache.k.scale_strides = {c.page_size * h * of_k, h * of_k, of_k};
    cache.v.scale_strides = {c.page_size * (h + 1) * of_v + 3, of_v, c.page_size * of_v};
    cache.k.block_scale = add_output<uint8_t>(data_.num_pages * c.page_size * h * of_k, 0, "K block scales");
    cache.v.block_scale = add_output<uint8_t>(data_.num_pages * cache.v.scale_strides.page, 0, "V block scales");
  }
}

template <class T>
HeadGroup PlacedPrologue<T>::place_group(const PrologueCase& c, const PrologueData<T>& data) {
  const int64_t tokens = case_.num_tokens, heads = c.num_q_heads, width = c.head_dim;
  HeadGroup group;
  group.num_heads = heads, group.head_dim = width;
  set_options(c, group);
  PrologueCase of_tokens = c;
  of_tokens.num_tokens = tokens;
  const int64_t columns = c.packed ? 2 * width : width, begin = columns - width;
  const HeadsLayout layout = heads_layout(of_tokens, heads, columns);
  std::vector<T> values = poisoned<T>(layout.size);
  if (tokens > 0) scatter(data.q, heads, width, layout.token_stride, layout.head_stride, values.data() + begin);
  T* const in = c.in_place ? add_output(values, c.misalign, "in of a group") : const_cast<T*>(arena_.input(values, c.misalign));
  group.in = {in + begin, layout.token_stride, layout.head_stride};
  group.bias = place_values(data.q_bias, c.misalign);
  group.norm.weight = place_weights(c.norm_of_q(), data.q_weight, c.misalign);
  group.norm.bias = place_weights(c.norm_of_q(), data.q_norm_bias, c.misalign);
  place_rope(c, data, group.rope);
  const HeadsLayout of_out = heads_layout(of_tokens, heads, width);
  if (c.in_place) {
    group.out = {in + begin, layout.token_stride, layout.head_stride};
  } else if (c.k_out && !c.q8) {
    group.out = {add_output<T>(of_out.size, c.misalign, "out of a group"), of_out.token_stride, of_out.head_stride};
  }
  if (c.q8) {
    QuantizedQuery& q8 = group.q8_out;
    q8 = {add_output<unsigned char>(of_out.size, c.misalign, "q8_out of a group"), of_out.token_stride, of_out.head_stride, *c.q8,
          nullptr};
    if (c.q8_e5m2) q8.type = DType::fp8_e5m2;
    q8.scale = *c.q8 == KvScaling::tensor ? arena_.input(std::vector<float>{data.q_scale})
                                          : add_output<float>(tokens * heads, 0, "q8_out.scale of a group");
  }
  if (!c.cached) return group;
  const DType type = resolve_dtype(c.kv_type.value_or(DType::unset), FloatFormat<T>::dtype);
  const int64_t slots = data_.num_pages * case_.page_size, pages = (slots + c.page_size - 1) / c.page_size;
  PrologueCase of_cache = of_tokens;
  of_cache.num_kv_heads = heads;
  CachePlacement placement = cache_placement(of_cache, pages);
  if (c.scales_in_page) placement.k_strides.page += c.page_size * heads * 4, placement.k_size = pages * placement.k_strides.page;
  const int64_t bits = dtype_bits(type), element = std::max<int64_t>(bits / 8, 1);
  group.cache.data = add_output<unsigned char>(
      placement.k_size * bits / 8, (c.scales_in_page ? c.misalign / 4 * 4 : c.misalign) / element * element, "cache of a group");
  group.cache.strides = placement.k_strides;
  group.cache.head_dim = c.seed % 2 == 0 ? width : 0;
  if (c.kv_type) group.cache.format.type = *c.kv_type;
  group.cache.format.scaling = c.scaling;
  if (pages != data_.num_pages) group.num_pages = pages;
  if (c.page_size != case_.page_size) group.page_size = c.page_size;
  if (c.scales_in_page) {
    group.cache.scale = reinterpret_cast<float*>(static_cast<unsigned char*>(group.cache.data) + c.page_size * heads * width);
    group.cache.scale_strides = {placement.k_strides.page / 4, heads, 1};
  } else if (c.scaling == KvScaling::token_head) {
    const int64_t numbers = type == DType::uint4 ? 2 : 1;
    group.cache.scale_strides = {c.page_size * (heads + 1) * numbers + 3, numbers, c.page_size * numbers};
    group.cache.scale = add_output<float>(pages * group.cache.scale_strides.page, 0, "scales of a group's cache");
  } else if (c.scaling != KvScaling::none) {
    group.cache.scale = arena_.input(data.k_scale);
  }
  return group;
}

template <class T>
void PlacedPrologue<T>::place_groups() {
  for (size_t i = 0; i < case_.groups.size(); ++i) groups_.push_back(place_group(case_.groups[i], data_.groups[i]));
  if (groups_.empty()) return;
  params_.groups = groups_.data();
  params_.num_groups = static_cast<int64_t>(groups_.size());
  params_.cache.num_pages = data_.num_pages;
  params_.cache.page_size = case_.page_size;
}

template class PlacedPrologue<float>;
template class PlacedPrologue<Float16>;
template class PlacedPrologue<BFloat16>;

}  // namespace prologue::test
