// Cases for the prologue and its stages: a description of shapes, features, layout and indices, the data made from it, its
// placement in an Arena, and the comparison with the oracle.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include <prologue/kernels/attention_prologue/attention_prologue.h>

#include "tests/oracle/attention_prologue.h"
#include "tests/oracle/quantize.h"
#include "tests/support/arena.h"
#include "tests/support/random.h"
#include "tests/support/tolerance.h"

namespace prologue::test {

enum class Values { normal, coarse, denormal, huge };   // coarse: as normal, of few bits, and made much faster
enum class CacheLayout { nhd, hnd, interleaved, odd };  // interleaved: K and V of a head side by side; odd: strides with holes
enum class Weights { none, shared, per_head };
enum class Offsets { none, one, per_sequence };

struct PrologueCase {
  int64_t num_tokens = 5;
  int64_t num_q_heads = 8;  // 0: no Q
  int64_t num_kv_heads = 2;
  int64_t head_dim = 64;
  int64_t v_head_dim = 0;  // 0: head_dim
  bool with_k = true, with_v = true;
  bool v_is_k = false;  // V taken from K

  bool bias_q = false, bias_k = false, bias_v = false;
  NormPlacement norm = NormPlacement::none;
  NormKind norm_kind = NormKind::rms;
  NormScope norm_scope = NormScope::head;
  Weights weights = Weights::shared;
  std::optional<Weights> k_weights;  // none: as Q's
  bool norm_bias = false;
  float weight_offset = 0.0f, eps = 1e-6f;
  bool v_norm = false;
  float v_eps = 1e-3f;

  int64_t rotary_dim = 64;
  int64_t rotary_offset = 0;
  RopeStyle style = RopeStyle::neox;
  bool inverse = false;
  RopeSource source = RopeSource::table;
  float attention_factor = 1.0f;
  int64_t num_axes = 1;
  bool interleaved_axes = false;  // pairs take their axes in turn; otherwise in sections
  int64_t max_position = 40;
  PastTable past_table = PastTable::record;
  bool no_faults = false;  // `faults` is null

  QueryScale q_scale;
  bool per_step = false;

  bool derive_positions = false, derive_slots = false;
  int64_t ring_size = 0;
  Offsets offsets = Offsets::none;
  bool int64_positions = false, int64_slots = true;  // and offsets as positions
  bool bad_indices = true;                           // negative and too large ones among the good ones, axes too
  bool extremes = false;                             // the ends of the types in cu_seqlens_q, cache_lens and offsets

  bool packed = true;
  bool in_place = false;     // q_out is q
  int64_t row_padding = 0;   // elements behind each packed row, or each row of q, k, v, q_out
  int64_t head_padding = 0;  // elements behind each head (separate buffers)
  bool heads_first = false;  // q, k, v, q_out as [heads, tokens, head_dim] (separate buffers)
  int64_t misalign = 0;      // bytes, of every buffer but the index arrays
  std::optional<KvScaling> q8;
  bool k_out = false, v_out = false;
  bool kv_in_place = false;  // k_out is k, v_out is v
  bool cached = true;

  std::optional<DType> kv_type;  // none: the type of the case
  KvScaling scaling = KvScaling::none;
  int64_t page_size = 16;
  CacheLayout layout = CacheLayout::nhd;
  bool token_faults = false;
  Values values = Values::normal;
  uint64_t seed = 1;

  int64_t v_width() const { return v_head_dim > 0 ? v_head_dim : head_dim; }
  int64_t k_heads() const { return with_k ? num_kv_heads : 0; }
  int64_t v_heads() const { return with_v ? num_kv_heads : 0; }
  bool writes_cache() const { return cached && num_kv_heads > 0 && (with_k || with_v); }
  bool has_sequences() const { return derive_positions || derive_slots; }
  Weights weights_of_k() const { return k_weights.value_or(weights); }
  bool copies_v() const { return !bias_v && !v_norm; }

  std::string describe() const {
    std::string text = str_cat("T=", num_tokens, " Hq=", num_q_heads, " Hkv=", num_kv_heads, " D=", head_dim, " Dv=", v_head_dim,
                               " k=", with_k, " v=", with_v, " v_is_k=", v_is_k, " bias=", bias_q, bias_k, bias_v);
    text += str_cat(" norm=", static_cast<int>(norm), "/", static_cast<int>(norm_kind), "/", static_cast<int>(norm_scope), "/",
                    static_cast<int>(weights), static_cast<int>(weights_of_k()), "/", norm_bias, " offset=", weight_offset,
                    " v_norm=", v_norm);
    text += str_cat(" r=", rotary_dim, "@", rotary_offset, " ", rope_style_name(style), " inverse=", inverse,
                    " source=", static_cast<int>(source), " factor=", attention_factor, " axes=", num_axes,
                    interleaved_axes ? "i" : "s", " max=", max_position, "/", static_cast<int>(past_table),
                    " q_scale=", q_scale.constant, "/", static_cast<int>(q_scale.by_position));
    text += str_cat(" per_step=", per_step, " derive=", derive_positions, derive_slots, " ring=", ring_size,
                    " offsets=", static_cast<int>(offsets), " pos64=", int64_positions, " slot64=", int64_slots,
                    " bad=", bad_indices, extremes);
    text += str_cat(" packed=", packed, " in_place=", in_place, kv_in_place, " row_padding=", row_padding,
                    " head_padding=", head_padding, " heads_first=", heads_first, " misalign=", misalign);
    text += str_cat(" q8=", q8 ? static_cast<int>(*q8) : -1, " out=", k_out, v_out, " cached=", cached,
                    " kv=", kv_type ? dtype_name(*kv_type) : "dtype", "/", static_cast<int>(scaling), " page=", page_size,
                    " layout=", static_cast<int>(layout), " flags=", token_faults, " values=", static_cast<int>(values),
                    " seed=", seed);
    return text;
  }
};

// The data of a case, independent of its memory layout.
template <class T>
struct PrologueData {
  std::vector<T> q, k, v;                 // dense [T, heads, D]
  std::vector<T> q_bias, k_bias, v_bias;  // empty: none, here and below
  std::vector<T> q_weight, k_weight, q_norm_bias, k_norm_bias;
  std::vector<float> table;  // or the rows of the tokens
  std::vector<float> inv_freq;
  std::vector<uint8_t> pair_axis;
  std::vector<int64_t> positions;  // [num_axes, T]
  std::vector<int64_t> slots;
  std::vector<int32_t> cu_seqlens, cache_lens;
  std::vector<std::vector<int32_t>> block_table;
  std::vector<int64_t> offsets;
  std::vector<float> k_scale, v_scale;  // given ones
  float q_scale = 0.0f;
  int64_t num_pages = 0;
};

inline std::vector<float> make_table(int64_t max_position, int64_t rotary_dim, double base = 10000.0) {
  std::vector<float> table(static_cast<size_t>(max_position * rotary_dim));
  for (int64_t p = 0; p < max_position; ++p) {
    for (int64_t i = 0; i < rotary_dim / 2; ++i) {
      const double angle =
          static_cast<double>(p) * std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dim));
      table[static_cast<size_t>(p * rotary_dim + i)] = static_cast<float>(std::cos(angle));
      table[static_cast<size_t>(p * rotary_dim + rotary_dim / 2 + i)] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

// Positions and slots as they are given.
template <class T>
void make_places(const PrologueCase& c, Random& random, PrologueData<T>& data) {
  // Slots: a shuffled choice of more than are needed, so that holes remain.
  data.num_pages = (2 * c.num_tokens + c.page_size) / c.page_size + 1;
  std::vector<int64_t> all(static_cast<size_t>(data.num_pages * c.page_size));
  std::iota(all.begin(), all.end(), 0);
  random.shuffle(all);
  data.slots.assign(all.begin(), all.begin() + c.num_tokens);
  const int64_t entries = c.num_axes * c.num_tokens;
  for (int64_t i = 0; i < entries; ++i) data.positions.push_back(random.integer(0, std::max<int64_t>(c.max_position, 1) - 1));
  if (c.num_tokens > 0) data.positions.front() = 0;
  if (c.num_tokens > 1) data.positions.back() = c.max_position - 1;
  if (!c.bad_indices || c.num_tokens <= 3) return;
  const auto any = [&] { return static_cast<size_t>(random.integer(0, c.num_tokens - 1)); };
  const auto any_position = [&] { return static_cast<size_t>(random.integer(0, entries - 1)); };
  const int64_t huge = c.int64_slots ? int64_t{1} << 40 : INT32_MAX;
  const int64_t far = c.int64_positions ? int64_t{1} << 40 : INT32_MAX;
  for (int64_t i = 0; i < std::max<int64_t>(1, c.num_tokens / 16); ++i) {
    data.slots[any()] = -1;
    data.slots[any()] = data.num_pages * c.page_size + (i % 2 == 0 ? 0 : huge - data.num_pages * c.page_size);
    data.positions[any_position()] = i % 2 == 0 ? -1 : INT32_MIN;
    data.positions[any_position()] = i % 2 == 0 ? c.max_position : far;
  }
}

// Sequences that together have the tokens of the case, some of none at all, and their pages.
template <class T>
void make_sequences(const PrologueCase& c, Random& random, PrologueData<T>& data) {
  data.cu_seqlens = {0};
  const int64_t used =
      c.bad_indices && c.num_tokens > 4 ? c.num_tokens - random.integer(0, 2) : c.num_tokens;  // the rest is padding
  while (data.cu_seqlens.back() < used) {
    const int64_t rows =
        std::min(random.integer(0, 1) == 0 ? random.integer(0, 2) : random.integer(1, 12), used - data.cu_seqlens.back());
    data.cu_seqlens.push_back(data.cu_seqlens.back() + static_cast<int32_t>(rows));
  }
  const int64_t num_seqs = std::max<int64_t>(static_cast<int64_t>(data.cu_seqlens.size()) - 1, 1);
  if (data.cu_seqlens.size() == 1) data.cu_seqlens.push_back(0);
  int64_t longest = 1, total = 0;
  std::vector<int64_t> pages;
  for (int64_t s = 0; s < num_seqs; ++s) {
    const int64_t rows = data.cu_seqlens[static_cast<size_t>(s) + 1] - data.cu_seqlens[static_cast<size_t>(s)];
    data.cache_lens.push_back(static_cast<int32_t>(random.integer(0, 3 * c.page_size)));
    const int64_t length = c.ring_size > 0 ? c.ring_size : data.cache_lens.back() + rows;
    pages.push_back((length + c.page_size - 1) / c.page_size);
    longest = std::max(longest, pages.back());
    total += pages.back();
    data.offsets.push_back(random.integer(-1, 1) * random.integer(0, 5));
  }
  if (c.offsets != Offsets::per_sequence) data.offsets.resize(c.offsets == Offsets::one ? 1 : 0);
  data.num_pages = total + 2;
  std::vector<int32_t> all(static_cast<size_t>(data.num_pages));
  std::iota(all.begin(), all.end(), 0);
  random.shuffle(all);
  for (int64_t s = 0; s < num_seqs; ++s) {
    std::vector<int32_t> row(static_cast<size_t>(longest), INT32_MAX);
    for (int64_t i = 0; i < pages[static_cast<size_t>(s)]; ++i) {
      row[static_cast<size_t>(i)] = all.back();
      all.pop_back();
    }
    data.block_table.push_back(row);
  }
  const auto any = [&] { return static_cast<size_t>(random.integer(0, num_seqs - 1)); };
  if (c.extremes) {
    const int64_t far[] = {INT64_MIN, INT64_MAX, INT64_MIN + 1, INT64_MAX - 4, INT32_MIN, INT32_MAX};
    for (int64_t& offset : data.offsets) offset = far[random.integer(c.int64_positions ? 0 : 4, 5)];
    if (random.integer(0, 1) == 0) data.cu_seqlens.front() = INT32_MIN;
    data.cache_lens[any()] = random.integer(0, 1) == 0 ? INT32_MIN : INT32_MAX;
  }
  if (!c.bad_indices) return;
  switch (random.integer(0, 4)) {
    case 0: data.block_table[any()].back() = -1; break;
    case 1: data.block_table[any()].front() = static_cast<int32_t>(data.num_pages); break;
    case 2: {  // beyond its row
      int32_t& length = data.cache_lens[any()];
      length = static_cast<int32_t>(std::min<int64_t>(int64_t{length} + 2 * c.page_size, INT32_MAX));
      break;
    }
    case 3: data.cache_lens[any()] = random.integer(0, 1) == 0 ? -3 : INT32_MAX; break;
    default: break;
  }
}

template <class T>
PrologueData<T> make_data(const PrologueCase& c) {
  Random random(c.seed);
  const double normal_max = sizeof(T) == 4 || FloatFormat<T>::mantissa_bits == 7 ? 1e38 : 2e4;
  const auto heads = [&](int64_t count) {
    if (c.values == Values::coarse) {
      std::vector<T> values(static_cast<size_t>(count));
      for (T& value : values)
        value = from_float<T>(static_cast<float>(static_cast<int64_t>(random.bits() >> 56) - 128) * 0x1p-6f);
      return values;
    }
    std::vector<T> values = random.normals<T>(count);
    if (c.values == Values::normal) return values;
    for (T& value : values) {
      const double smallest = std::ldexp(1.0, FloatFormat<T>::min_exponent - FloatFormat<T>::mantissa_bits);
      const double x = c.values == Values::huge ? (2.0 * random.uniform() - 1.0) * normal_max
                                                : smallest * static_cast<double>(random.integer(-100, 100));
      value = from_float<T>(static_cast<float>(x));
    }
    return values;
  };
  PrologueData<T> data;
  data.q = heads(c.num_tokens * c.num_q_heads * c.head_dim);
  data.k = heads(c.num_tokens * c.k_heads() * c.head_dim);
  data.v = c.v_is_k ? data.k : heads(c.num_tokens * c.v_heads() * c.v_width());
  if (c.bias_q) data.q_bias = random.normals<T>(c.num_q_heads * c.head_dim);
  if (c.bias_k) data.k_bias = random.normals<T>(c.k_heads() * c.head_dim);
  if (c.bias_v) data.v_bias = c.v_is_k && c.bias_k ? data.k_bias : random.normals<T>(c.v_heads() * c.v_width());
  if (c.norm != NormPlacement::none) {
    const auto values = [&](bool wanted, Weights kind, int64_t num_heads) {
      return random.normals<T>(!wanted ? 0 : (kind == Weights::per_head ? num_heads : 1) * c.head_dim);
    };
    const Weights of_q = c.weights, of_k = c.weights_of_k();
    data.q_weight = values(of_q != Weights::none, of_q, c.num_q_heads);
    data.k_weight = values(of_k != Weights::none, of_k, c.num_kv_heads);
    data.q_norm_bias = values(c.norm_bias, of_q, c.num_q_heads);
    data.k_norm_bias = values(c.norm_bias, of_k, c.num_kv_heads);
  }

  if (c.source == RopeSource::table) data.table = make_table(c.max_position, c.rotary_dim);
  if (c.source == RopeSource::per_token) {
    for (int64_t i = 0; i < c.num_tokens * c.rotary_dim; ++i)
      data.table.push_back(static_cast<float>(2.0 * random.uniform() - 1.0));
  }
  if (c.source == RopeSource::inv_freq) {
    for (int64_t i = 0; i < c.rotary_dim / 2; ++i) {
      data.inv_freq.push_back(
          static_cast<float>(std::pow(5e5, -2.0 * static_cast<double>(i) / static_cast<double>(c.rotary_dim))));
    }
  }
  if (c.num_axes > 1) {
    for (int64_t i = 0; i < c.rotary_dim / 2; ++i) {
      const int64_t axis = c.interleaved_axes ? i % c.num_axes : i * c.num_axes / std::max<int64_t>(c.rotary_dim / 2, 1);
      const bool wild = c.bad_indices && random.integer(0, 9) == 0;  // an axis that does not exist
      data.pair_axis.push_back(static_cast<uint8_t>(wild ? random.integer(c.num_axes, 255) : axis));
    }
  }
  make_places(c, random, data);
  if (c.derive_positions) data.positions.clear();
  if (c.derive_slots) data.slots.clear();
  if (c.has_sequences()) {
    const int64_t pages = data.num_pages;
    make_sequences(c, random, data);
    data.num_pages = std::max(data.num_pages, pages);
  }
  if (!c.writes_cache()) data.slots.clear();

  const auto scales = [&](int64_t count) {
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>(std::exp2(4.0 * random.uniform() - 7.0)));
    return values;
  };
  if (c.scaling == KvScaling::tensor || c.scaling == KvScaling::head) {
    const int64_t count = c.scaling == KvScaling::tensor ? 1 : c.num_kv_heads;
    data.k_scale = scales(count);
    data.v_scale = scales(count);
  }
  data.q_scale = scales(1).front();
  return data;
}

template <class T>
std::vector<double> to_doubles(const std::vector<T>& values) {
  std::vector<double> out;
  out.reserve(values.size());
  for (const T& value : values) out.push_back(static_cast<double>(to_float(value)));
  return out;
}

template <class T>
oracle::PrologueInput oracle_input(const PrologueCase& c, const PrologueData<T>& data) {
  oracle::PrologueInput in;
  in.num_tokens = c.num_tokens;
  in.num_q_heads = c.num_q_heads;
  in.num_kv_heads = c.num_kv_heads;
  in.head_dim = c.head_dim;
  in.v_head_dim = c.v_head_dim;
  in.with_k = c.k_heads() > 0;
  in.with_v = c.v_heads() > 0;
  in.q = to_doubles(data.q);
  in.k = to_doubles(data.k);
  in.v = to_doubles(data.v);
  in.q_bias = to_doubles(data.q_bias);
  in.k_bias = to_doubles(data.k_bias);
  in.v_bias = to_doubles(data.v_bias);
  const auto norm = [&](const std::vector<T>& weight, const std::vector<T>& bias) {
    return oracle::NormInput{c.norm != NormPlacement::none,
                             c.norm == NormPlacement::after_rope,
                             c.norm_kind == NormKind::layer,
                             c.norm_scope == NormScope::token,
                             static_cast<double>(c.eps),
                             static_cast<double>(c.weight_offset),
                             to_doubles(weight),
                             to_doubles(bias)};
  };
  in.q_norm = norm(data.q_weight, data.q_norm_bias);
  in.k_norm = norm(data.k_weight, data.k_norm_bias);
  in.v_norm.enabled = c.v_norm;
  in.v_norm.eps = static_cast<double>(c.v_eps);
  in.rotary_dim = c.rotary_dim;
  in.rotary_offset = c.rotary_offset;
  in.interleaved = c.style == RopeStyle::interleaved;
  in.inverse = c.inverse;
  in.table = to_doubles(data.table);
  in.table_per_token = c.source == RopeSource::per_token;
  in.inv_freq = to_doubles(data.inv_freq);
  in.attention_factor = static_cast<double>(c.attention_factor);
  in.num_axes = c.num_axes;
  if (c.source != RopeSource::per_token) in.pair_axis.assign(data.pair_axis.begin(), data.pair_axis.end());
  in.max_position = c.max_position;
  in.identity_past_table = c.past_table == PastTable::identity;
  in.positions = data.positions;
  in.slots = data.slots;
  in.derive_slots = c.derive_slots && c.writes_cache();
  in.cu_seqlens.assign(data.cu_seqlens.begin(), data.cu_seqlens.end());
  in.cache_lens.assign(data.cache_lens.begin(), data.cache_lens.end());
  for (const std::vector<int32_t>& row : data.block_table) in.block_table.emplace_back(row.begin(), row.end());
  in.ring_size = c.ring_size;
  in.position_offsets = data.offsets;
  in.num_pages = data.num_pages;
  in.page_size = c.page_size;
  in.q_constant = static_cast<double>(c.q_scale.constant);
  in.q_by_position = static_cast<int>(c.q_scale.by_position);
  in.q_a = static_cast<double>(c.q_scale.a);
  in.q_b = static_cast<double>(c.q_scale.b);
  if (c.per_step) {
    in.step_rounding = std::ldexp(1.0, -FloatFormat<T>::mantissa_bits - 1);
    in.step_floor = std::ldexp(1.0, FloatFormat<T>::min_exponent - FloatFormat<T>::mantissa_bits - 1);
  }
  return in;
}

inline IndexView place_indices(Arena& arena, const std::vector<int64_t>& values, bool wide) {
  if (wide) return index_view(arena.input(values));
  std::vector<int32_t> narrow;
  for (const int64_t value : values) narrow.push_back(static_cast<int32_t>(value));
  return index_view(arena.input(narrow));
}

// Strides of [num_tokens, heads, dim] in a buffer of its own, and how many elements that takes.
struct HeadsLayout {
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  int64_t size = 0;
};

inline HeadsLayout heads_layout(const PrologueCase& c, int64_t heads, int64_t dim) {
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
  int64_t v_offset = -1;  // from the K base when both share a buffer
  int64_t k_size = 0, v_size = 0;
};

// In elements.
inline CachePlacement cache_placement(const PrologueCase& c, int64_t num_pages) {
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

// A case in an arena: parameters that point into it, and the outputs after the run.
template <class T>
class PlacedPrologue {
 public:
  PlacedPrologue(Backend backend, const PrologueCase& c, const PrologueData<T>& data)
      : arena_(backend), case_(c), data_(data), type_(resolve_dtype(c.kv_type.value_or(DType::unset), FloatFormat<T>::dtype)) {
    params_.num_tokens = c.num_tokens;
    params_.num_q_heads = c.num_q_heads;
    params_.num_kv_heads = c.num_kv_heads;
    params_.head_dim = c.head_dim;
    params_.dtype = FloatFormat<T>::dtype;
    params_.cache.v.head_dim = c.v_head_dim;
    place_inputs();
    place_weights();
    place_rotation();
    place_places();
    params_.q_scale = c.q_scale;
    params_.rounding = c.per_step ? Rounding::per_step : Rounding::once;
    place_outputs();
    if (c.writes_cache()) place_cache();
    faults_ = arena_.inout(std::vector<FaultRecord>(1));
    if (!c.no_faults) params_.faults = faults_;
    if (c.token_faults) params_.token_faults = add_image<uint8_t>(c.num_tokens, 0, "token_faults");
  }

  Arena& arena() { return arena_; }
  AttentionPrologueParams& params() { return params_; }
  Status run() {
    return run([&](const Execution& execution) { return attention_prologue(params_, execution); });
  }
  Status run(const Arena::Operation& operation) { return arena_.run(operation); }

  FaultRecord faults() const { return arena_.read(faults_).front(); }

  // Heads of a token in q_out, k_out or v_out.
  std::vector<T> row(const MutableHeadsView& view, int64_t heads, int64_t dim, int64_t token) const {
    std::vector<T> values;
    for (int64_t h = 0; h < heads; ++h) {
      const std::vector<unsigned char> bytes = bytes_at(
          static_cast<T*>(view.data) + token * view.token_stride + h * view.head_stride, dim * static_cast<int64_t>(sizeof(T)));
      append(bytes, values);
    }
    return values;
  }
  std::vector<T> q_row(int64_t token) const { return row(params_.q_out, case_.num_q_heads, case_.head_dim, token); }
  // Of a cache of the case's own type.
  std::vector<T> cache_row(bool is_v, int64_t slot) const {
    std::vector<T> values;
    for (int64_t h = 0; h < case_.num_kv_heads; ++h) append(cache_bytes(is_v, slot, h), values);
    return values;
  }
  // What lies at a pointer into an output.
  std::vector<unsigned char> bytes_at(const void* pointer, int64_t count) const {
    const Image& image = image_of(pointer);
    const std::vector<unsigned char> bytes = arena_.read(image.data);
    const auto from = bytes.begin() + (static_cast<const unsigned char*>(pointer) - image.data);
    return {from, from + count};
  }
  // A head of the cache as stored.
  std::vector<unsigned char> cache_bytes(bool is_v, int64_t slot, int64_t head) const {
    return bytes_at(cache_head(is_v, slot, head), cache_head_bytes(is_v));
  }
  float cache_scale(bool is_v, int64_t slot, int64_t head) const { return float_at(scale_of(is_v, slot, head)); }
  float cache_zero_point(bool is_v, int64_t slot, int64_t head) const { return float_at(scale_of(is_v, slot, head) + 1); }

  // That every byte of every output is as in `other`, which has the same case.
  void expect_same_bits(const PlacedPrologue& other) const {
    ASSERT_EQ(images_.size(), other.images_.size());
    for (size_t i = 0; i < images_.size(); ++i) {
      expect_bits(arena_.read(images_[i].data), other.arena_.read(other.images_[i].data), images_[i].name);
    }
    EXPECT_EQ(faults().first, other.faults().first);
    EXPECT_EQ(faults().count, other.faults().count);
  }

  // Everything the operation may have written against the oracle, and that nothing else changed.
  void expect_matches(const oracle::PrologueOutput& want, bool k_is_copied = false) {
    for (Image& image : images_) image.now = arena_.read(image.data);
    expect_heads("q", params_.q_out, case_.num_q_heads, case_.head_dim, want, want.q);
    if (params_.q8_out.data != nullptr) expect_quantized_queries(want);
    if (case_.with_k) expect_heads("k_out", params_.k_out, case_.num_kv_heads, case_.head_dim, want, want.k);
    if (case_.with_v) expect_heads("v_out", params_.v_out, case_.num_kv_heads, case_.v_width(), want, want.v);
    if (case_.with_k && params_.cache.k.data != nullptr) expect_cache(false, want, want.k, k_is_copied);
    if (case_.with_v && params_.cache.v.data != nullptr) expect_cache(true, want, want.v, case_.copies_v());

    constexpr FaultCode kCodes[] = {FaultCode::none, FaultCode::position_out_of_range, FaultCode::slot_out_of_range,
                                    FaultCode::page_out_of_range, FaultCode::sequence_too_long};
    uint64_t count = 0;
    Fault first;
    for (int64_t t = case_.num_tokens - 1; t >= 0; --t) {
      const FaultCode code = kCodes[static_cast<int>(want.faults[static_cast<size_t>(t)])];
      if (code == FaultCode::none) continue;
      first = {code, t, ++count};
      if (params_.token_faults != nullptr) {
        EXPECT_EQ(take<uint8_t>(params_.token_faults + t), static_cast<uint8_t>(code)) << t;
      }
    }
    const Fault fault = decode_fault(faults());
    if (case_.no_faults) {
      EXPECT_EQ(fault.count, 0u);
    } else {
      EXPECT_EQ(fault.count, count);
      EXPECT_EQ(fault.token, first.token);
      EXPECT_EQ(fault.code, first.code);
    }
    for (const Image& image : images_) expect_bits(image.now, image.initial, image.name);
  }

  template <class U>
  static void expect_bits(const std::vector<U>& got, const std::vector<U>& want, const char* what) {
    ASSERT_EQ(got.size(), want.size()) << what;
    if (got.empty() || std::memcmp(got.data(), want.data(), got.size() * sizeof(U)) == 0) return;
    for (size_t i = 0; i < got.size(); ++i) {
      if (std::memcmp(&got[i], &want[i], sizeof(U)) == 0) continue;
      ADD_FAILURE() << what << ": element " << i << " of " << got.size() << " is " << as_number(got[i]) << ", not "
                    << as_number(want[i]);
      return;
    }
  }

 private:
  // A buffer that may be written to: what it held, and (while it is compared) what of it is not explained yet.
  struct Image {
    const unsigned char* data;
    std::vector<unsigned char> initial;
    std::vector<unsigned char> now;
    const char* name;
  };

  template <class U>
  static double as_number(const U& value) {
    if constexpr (std::is_arithmetic_v<U>) {
      return static_cast<double>(value);
    } else {
      return static_cast<double>(to_float(value));
    }
  }
  static void append(const std::vector<unsigned char>& bytes, std::vector<T>& values) {
    const size_t before = values.size();
    values.resize(before + bytes.size() / sizeof(T));
    std::memcpy(static_cast<void*>(values.data() + before), bytes.data(), bytes.size());
  }

  static Reference as_reference(const oracle::Element& element) {
    // 2^-126: a product of small numbers may lose a part of the smallest denormal.
    return {element.value, element.scale + (element.scale > 0.0 ? 0x1p-126 : 0.0)};
  }
  static double error_of(const oracle::Element& e) { return kDefaultSteps * (std::ldexp(e.scale, -24) + 0x1p-149); }

  // ---- placing ----

  template <class U>
  U* add_image(const std::vector<U>& values, int64_t misalign, const char* name) {
    U* data = arena_.inout(values, misalign);
    const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
    images_.push_back({reinterpret_cast<const unsigned char*>(data), {bytes, bytes + values.size() * sizeof(U)}, {}, name});
    return data;
  }
  template <class U>
  U* add_image(int64_t count, int64_t misalign, const char* name) {
    return add_image(poisoned<U>(count), misalign, name);
  }

  void scatter(const std::vector<T>& dense, int64_t heads, int64_t dim, int64_t token_stride, int64_t head_stride, T* to) const {
    for (int64_t t = 0; t < case_.num_tokens; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        std::copy_n(dense.begin() + (t * heads + h) * dim, dim, to + t * token_stride + h * head_stride);
      }
    }
  }

  void place_inputs() {
    const PrologueCase& c = case_;
    if (c.packed) {
      const int64_t k_at = c.num_q_heads * c.head_dim, v_at = k_at + c.num_kv_heads * c.head_dim;
      const int64_t stride = v_at + c.num_kv_heads * c.v_width() + c.row_padding;
      std::vector<T> qkv = poisoned<T>(c.num_tokens * stride);
      scatter(data_.q, c.num_q_heads, c.head_dim, stride, c.head_dim, qkv.data());
      scatter(data_.k, c.k_heads(), c.head_dim, stride, c.head_dim, qkv.data() + k_at);
      if (!c.v_is_k) scatter(data_.v, c.v_heads(), c.v_width(), stride, c.v_width(), qkv.data() + v_at);
      const bool written = c.in_place || c.kv_in_place;
      set_packed_qkv(params_, written ? add_image(qkv, c.misalign, "qkv") : arena_.input(qkv, c.misalign), stride);
    } else {
      const auto place = [&](const std::vector<T>& dense, int64_t heads, int64_t dim, bool written,
                             const char* name) -> HeadsView {
        const HeadsLayout layout = heads_layout(c, heads, dim);
        std::vector<T> values = poisoned<T>(layout.size);
        scatter(dense, heads, dim, layout.token_stride, layout.head_stride, values.data());
        return {written ? add_image(values, c.misalign, name) : arena_.input(values, c.misalign), layout.token_stride,
                layout.head_stride};
      };
      params_.q = place(data_.q, c.num_q_heads, c.head_dim, c.in_place, "q");
      params_.k = place(data_.k, c.k_heads(), c.head_dim, c.kv_in_place, "k");
      if (!c.v_is_k) params_.v = place(data_.v, c.v_heads(), c.v_width(), c.kv_in_place, "v");
    }
    if (c.v_is_k) params_.v = params_.k;
    if (!c.with_k) params_.k.data = nullptr;
    if (!c.with_v) params_.v.data = nullptr;
  }

  void place_weights() {
    const auto place = [&](const std::vector<T>& values) -> const T* {
      return values.empty() ? nullptr : arena_.input(values, case_.misalign);
    };
    params_.bias = {place(data_.q_bias), place(data_.k_bias), place(data_.v_bias)};
    const auto norm = [&](Weights weights, const auto& weight, const auto& bias) {
      return HeadNorm{case_.norm,
                      case_.norm_kind,
                      case_.norm_scope,
                      case_.eps,
                      case_.weight_offset,
                      place(weight),
                      weights == Weights::per_head ? case_.head_dim : 0,
                      place(bias)};
    };
    params_.q_norm = norm(case_.weights, data_.q_weight, data_.q_norm_bias);
    params_.k_norm = norm(case_.weights_of_k(), data_.k_weight, data_.k_norm_bias);
    if (case_.v_norm) params_.v_norm.placement = NormPlacement::before_rope, params_.v_norm.eps = case_.v_eps;
  }

  void place_rotation() {
    const PrologueCase& c = case_;
    Rope& r = params_.rope;
    r.style = c.style;
    r.rotary_dim = c.rotary_dim;
    r.rotary_offset = c.rotary_offset;
    r.inverse = c.inverse;
    r.source = c.source;
    r.type = DType::f32;
    if (!data_.table.empty()) {
      set_cos_sin_table(r, arena_.input(data_.table, c.misalign / 4 * 4), DType::f32, 0);
      r.source = c.source;
    }
    if (!data_.inv_freq.empty()) {
      r.inv_freq = arena_.input(data_.inv_freq, c.misalign / 4 * 4);
      r.attention_factor = static_cast<double>(c.attention_factor);
    }
    r.max_position = c.max_position;
    r.past_table = c.past_table;
    r.num_axes = c.num_axes;
    if (!data_.pair_axis.empty()) r.pair_axis = arena_.input(data_.pair_axis);
  }

  void place_places() {
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
    if (c.writes_cache() && !c.derive_slots) places.slot_mapping = place_indices(arena_, data_.slots, c.int64_slots);
    if (!c.has_sequences()) return;
    places.num_seqs = static_cast<int64_t>(data_.cache_lens.size());
    places.cu_seqlens_q = arena_.input(data_.cu_seqlens);
    places.cache_lens = arena_.input(data_.cache_lens);
    places.max_pages_per_seq = static_cast<int64_t>(data_.block_table.front().size());
    places.block_table_stride = places.max_pages_per_seq + 2;
    std::vector<int32_t> table;
    for (const std::vector<int32_t>& pages : data_.block_table) {
      table.insert(table.end(), pages.begin(), pages.end());
      table.insert(table.end(), 2, 0);  // readable by mistake, and wrong
    }
    places.block_table = arena_.input(table);
    places.ring_size = c.ring_size;
    if (!data_.offsets.empty()) places.position_offsets = place_indices(arena_, data_.offsets, c.int64_positions);
    places.position_offset_per_seq = c.offsets == Offsets::per_sequence;
  }

  void place_outputs() {
    const PrologueCase& c = case_;
    const auto place = [&](int64_t heads, int64_t dim, const char* name) -> MutableHeadsView {
      const HeadsLayout layout = heads_layout(c, heads, dim);
      return {add_image<T>(layout.size, c.misalign, name), layout.token_stride, layout.head_stride};
    };
    const auto itself = [](const HeadsView& view) {
      return MutableHeadsView{const_cast<void*>(view.data), view.token_stride, view.head_stride};
    };
    if (c.q8) {
      const HeadsLayout layout = heads_layout(c, c.num_q_heads, c.head_dim);
      QuantizedQuery& q8 = params_.q8_out;
      q8 = {add_image<unsigned char>(layout.size, c.misalign, "q8_out"), layout.token_stride, layout.head_stride, *c.q8, nullptr};
      q8.scale = *c.q8 == KvScaling::tensor ? arena_.input(std::vector<float>{data_.q_scale})
                                            : add_image<float>(c.num_tokens * c.num_q_heads, 0, "q8_out.scale");
    } else if (c.num_q_heads > 0) {
      params_.q_out = c.in_place ? itself(params_.q) : place(c.num_q_heads, c.head_dim, "q_out");
    }
    if (c.k_out && c.k_heads() > 0)
      params_.k_out = c.kv_in_place ? itself(params_.k) : place(c.num_kv_heads, c.head_dim, "k_out");
    if (c.v_out && c.v_heads() > 0)
      params_.v_out = c.kv_in_place ? itself(params_.v) : place(c.num_kv_heads, c.v_width(), "v_out");
  }

  void place_cache() {
    const PrologueCase& c = case_;
    PagedKvView& cache = params_.cache;
    const CachePlacement placement = cache_placement(c, data_.num_pages);
    const int64_t bits = dtype_bits(type_);
    const int64_t element = std::max<int64_t>(bits / 8, 1);
    const int64_t misalign = c.misalign / element * element;
    unsigned char* k = add_image<unsigned char>(placement.k_size * bits / 8, misalign, "K cache");
    unsigned char* v = placement.v_offset >= 0 ? k + placement.v_offset * bits / 8
                                               : add_image<unsigned char>(placement.v_size * bits / 8, misalign, "V cache");
    cache.k.data = c.with_k ? k : nullptr;
    cache.v.data = c.with_v ? v : nullptr;
    if (c.kv_type) cache.k.format.type = cache.v.format.type = *c.kv_type;
    cache.num_pages = data_.num_pages;
    cache.page_size = c.page_size;
    cache.num_kv_heads = c.num_kv_heads;
    cache.k.head_dim = c.head_dim;
    cache.k.strides = placement.k_strides;
    cache.v.strides = placement.v_strides;
    cache.k.format.scaling = cache.v.format.scaling = c.scaling;
    if (c.scaling == KvScaling::token_head) {
      const int64_t h = c.num_kv_heads, n = type_ == DType::uint4 ? 2 : 1;  // scale, zero point
      cache.k.scale_strides = {c.page_size * h * n, h * n, n};
      cache.v.scale_strides = {c.page_size * (h + 1) * n + 3, n, c.page_size * n};
      cache.k.scale = add_image<float>(data_.num_pages * c.page_size * h * n, 0, "K scales");
      cache.v.scale = add_image<float>(data_.num_pages * cache.v.scale_strides.page, 0, "V scales");
    } else if (c.scaling != KvScaling::none) {
      cache.k.scale = arena_.input(data_.k_scale);
      cache.v.scale = arena_.input(data_.v_scale);
    }
  }

  // ---- looking at results ----

  const unsigned char* cache_head(bool is_v, int64_t slot, int64_t head) const {
    const PageStrides& s = is_v ? params_.cache.v.strides : params_.cache.k.strides;
    const int64_t at = slot / case_.page_size * s.page + slot % case_.page_size * s.token + head * s.head;
    return static_cast<const unsigned char*>(is_v ? params_.cache.v.data : params_.cache.k.data) + at * dtype_bits(type_) / 8;
  }
  int64_t cache_head_bytes(bool is_v) const { return (is_v ? case_.v_width() : case_.head_dim) * dtype_bits(type_) / 8; }
  const float* scale_of(bool is_v, int64_t slot, int64_t head) const {
    const PageStrides& s = is_v ? params_.cache.v.scale_strides : params_.cache.k.scale_strides;
    return (is_v ? params_.cache.v.scale : params_.cache.k.scale) + slot / case_.page_size * s.page +
           slot % case_.page_size * s.token + head * s.head;
  }

  const Image& image_of(const void* pointer) const {
    const auto* at = static_cast<const unsigned char*>(pointer);
    for (const Image& image : images_) {
      if (at >= image.data && at < image.data + image.initial.size()) return image;
    }
    ADD_FAILURE() << "not a pointer into an output";
    std::abort();
  }
  float float_at(const float* pointer) const {
    float value;
    std::memcpy(&value, bytes_at(pointer, sizeof value).data(), sizeof value);
    return value;
  }
  // What lies there now; it counts as explained from here on.
  std::vector<unsigned char> take_bytes(const void* pointer, int64_t count) {
    Image& image = const_cast<Image&>(image_of(pointer));
    const int64_t at = static_cast<const unsigned char*>(pointer) - image.data;
    std::vector<unsigned char> bytes(image.now.begin() + at, image.now.begin() + at + count);
    std::copy_n(image.initial.begin() + at, count, image.now.begin() + at);
    return bytes;
  }
  template <class U>
  U take(const U* pointer) {
    U value;
    std::memcpy(&value, take_bytes(pointer, sizeof value).data(), sizeof value);
    return value;
  }

  void expect_heads(const char* name, const MutableHeadsView& view, int64_t heads, int64_t dim,
                    const oracle::PrologueOutput& want, const std::vector<oracle::Row>& rows) {
    if (view.data == nullptr || heads == 0) return;
    std::vector<T> got;
    std::vector<Reference> reference;
    for (int64_t t = 0; t < case_.num_tokens; ++t) {
      const oracle::TokenState state = want.state[static_cast<size_t>(t)];
      if (state == oracle::TokenState::untouched) continue;
      for (int64_t h = 0; h < heads; ++h) {
        append(take_bytes(static_cast<T*>(view.data) + t * view.token_stride + h * view.head_stride,
                          dim * static_cast<int64_t>(sizeof(T))),
               got);
        for (int64_t i = 0; i < dim; ++i) {
          reference.push_back(state == oracle::TokenState::zero
                                  ? Reference{}
                                  : as_reference(rows[static_cast<size_t>(t)][static_cast<size_t>(h * dim + i)]));
        }
      }
    }
    expect_close(got, reference, heads * dim, name, kDefaultSteps, !case_.per_step);
  }

  // The codes of one head under the scale that is stored beside them or was given.
  void expect_codes(const char* name, int64_t token, const std::vector<unsigned char>& bytes, const oracle::Element* want,
                    int64_t dim, oracle::Quantized type, float scale, bool computed, float zero_point = 0.0f) {
    double largest = 0.0, largest_error = 0.0, low_end = want[0].value, high_end = low_end;
    for (int64_t i = 0; i < dim; ++i) {
      largest = std::max(largest, std::fabs(want[i].value));
      largest_error = std::max(largest_error, error_of(want[i]));
      low_end = std::min(low_end, want[i].value);
      high_end = std::max(high_end, want[i].value);
    }
    const bool asymmetric = type == oracle::Quantized::uint4;
    if (asymmetric) {
      const double zero = static_cast<double>(zero_point), range = high_end - low_end, got = 15.0 * static_cast<double>(scale);
      const bool none = scale == 0.0f && range < 4.5e-38 + 2.0 * largest_error;  // 1 / (range / 15) has no float32
      if (!(std::fabs(zero - low_end) <= largest_error) ||
          !(none || std::fabs(got - range) <= 2.0 * largest_error + 0x1p-22 * range)) {
        ADD_FAILURE() << name << " of token " << token << ": the zero point is " << zero_point << ", the smallest value "
                      << low_end << "; 15 steps are " << got << ", the range is " << range;
        return;
      }
    } else if (computed) {
      const double got = static_cast<double>(scale) * oracle::largest_value(type);
      if (!(std::fabs(got - largest) <= largest_error + 0x1p-22 * largest)) {
        ADD_FAILURE() << name << " of token " << token << ": the scale makes " << got
                      << " of the largest code, the largest value is " << largest;
        return;
      }
    }
    for (int64_t i = 0; i < dim; ++i) {
      const bool packed = type == oracle::Quantized::int4 || asymmetric;
      uint8_t code = bytes[static_cast<size_t>(packed ? i / 2 : i)];
      if (packed) code = i % 2 == 0 ? code & 15 : code >> 4;
      const double got = oracle::value_of_code(code, type);
      double low = 0.0, high = 0.0;
      if (scale != 0.0f) {
        const double value = want[i].value - static_cast<double>(zero_point);
        const double error = error_of(want[i]) + 0x1p-22 * std::fabs(value);  // the reciprocal and the product round too
        low = oracle::nearest_value((value - error) / static_cast<double>(scale), type);
        high = oracle::nearest_value((value + error) / static_cast<double>(scale), type);
      }
      if (got >= low && got <= high) continue;
      ADD_FAILURE() << name << " of token " << token << ", channel " << i << ": got " << got << " * " << scale << " + "
                    << zero_point << ", want " << want[i].value << ", that is " << low << ".." << high;
      return;
    }
  }

  void expect_quantized_queries(const oracle::PrologueOutput& want) {
    const QuantizedQuery& q8 = params_.q8_out;
    for (int64_t t = 0; t < case_.num_tokens; ++t) {
      const oracle::TokenState state = want.state[static_cast<size_t>(t)];
      if (state == oracle::TokenState::untouched) continue;
      for (int64_t h = 0; h < case_.num_q_heads; ++h) {
        const auto bytes =
            take_bytes(static_cast<unsigned char*>(q8.data) + t * q8.token_stride + h * q8.head_stride, case_.head_dim);
        const bool computed = q8.scaling == KvScaling::token_head;
        const float scale = computed ? take(q8.scale + t * case_.num_q_heads + h) : data_.q_scale;
        if (state == oracle::TokenState::zero) {
          EXPECT_EQ(bytes, std::vector<unsigned char>(bytes.size(), 0)) << "q8_out of token " << t;
          EXPECT_EQ(computed ? scale : 0.0f, 0.0f) << "q8_out of token " << t;
          continue;
        }
        expect_codes("q8_out", t, bytes, want.q[static_cast<size_t>(t)].data() + h * case_.head_dim, case_.head_dim,
                     oracle::Quantized::e4m3, scale, computed);
      }
    }
  }

  template <class U>
  void expect_float_cache(bool is_v, const oracle::PrologueOutput& want, const std::vector<oracle::Row>& rows, bool copied) {
    const int64_t dim = is_v ? case_.v_width() : case_.head_dim;
    const std::vector<T>& source = is_v ? data_.v : data_.k;
    std::vector<U> got;
    std::vector<Reference> reference;
    for (const auto& [slot, token] : want.slot_token) {
      for (int64_t h = 0; h < case_.num_kv_heads; ++h) {
        const std::vector<unsigned char> bytes = take_bytes(cache_head(is_v, slot, h), cache_head_bytes(is_v));
        if (std::is_same_v<T, U> && copied) {
          EXPECT_EQ(std::memcmp(bytes.data(), source.data() + (token * case_.num_kv_heads + h) * dim, bytes.size()), 0)
              << (is_v ? "V" : "K") << " is not a bitwise copy: slot " << slot << ", head " << h;
        }
        const size_t before = got.size();
        got.resize(before + static_cast<size_t>(dim));
        std::memcpy(static_cast<void*>(got.data() + before), bytes.data(), bytes.size());
        for (int64_t i = 0; i < dim; ++i) {
          reference.push_back(as_reference(rows[static_cast<size_t>(token)][static_cast<size_t>(h * dim + i)]));
        }
      }
    }
    expect_close(got, reference, case_.num_kv_heads * dim, is_v ? "v" : "k", kDefaultSteps, !case_.per_step);
  }

  void expect_cache(bool is_v, const oracle::PrologueOutput& want, const std::vector<oracle::Row>& rows, bool copied) {
    switch (type_) {
      case DType::f32: return expect_float_cache<float>(is_v, want, rows, copied);
      case DType::f16: return expect_float_cache<Float16>(is_v, want, rows, copied);
      case DType::bf16: return expect_float_cache<BFloat16>(is_v, want, rows, copied);
      default: break;
    }
    const auto type = static_cast<oracle::Quantized>(static_cast<int>(type_) - static_cast<int>(DType::fp8_e4m3));
    const int64_t dim = is_v ? case_.v_width() : case_.head_dim;
    for (const auto& [slot, token] : want.slot_token) {
      for (int64_t h = 0; h < case_.num_kv_heads; ++h) {
        const std::vector<float>& given = is_v ? data_.v_scale : data_.k_scale;
        float scale = 1.0f;
        if (case_.scaling == KvScaling::tensor) scale = given.front();
        if (case_.scaling == KvScaling::head) scale = given[static_cast<size_t>(h)];
        if (case_.scaling == KvScaling::token_head) scale = take(scale_of(is_v, slot, h));
        const float zero_point = type_ == DType::uint4 ? take(scale_of(is_v, slot, h) + 1) : 0.0f;
        expect_codes(is_v ? "v" : "k", token, take_bytes(cache_head(is_v, slot, h), cache_head_bytes(is_v)),
                     rows[static_cast<size_t>(token)].data() + h * dim, dim, type, scale, case_.scaling == KvScaling::token_head,
                     zero_point);
      }
    }
  }

  Arena arena_;
  PrologueCase case_;
  PrologueData<T> data_;
  DType type_;
  AttentionPrologueParams params_;
  FaultRecord* faults_ = nullptr;
  std::vector<Image> images_;
};

// 32-bit elements cannot lie at odd halves of their size.
template <class T>
PrologueCase fit_to_type(PrologueCase c) {
  c.misalign = c.misalign / static_cast<int64_t>(sizeof(T)) * static_cast<int64_t>(sizeof(T));
  return c;
}

// The cases of tests/support/prologue_cases.cpp: those that rotary and kv_write share, one or more for every feature, and any
// number of random ones over the whole struct.
const std::vector<PrologueCase>& prologue_cases();
const std::vector<PrologueCase>& feature_cases();
PrologueCase random_case(uint64_t seed);

}  // namespace prologue::test
