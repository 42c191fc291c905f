// Cases for the prologue and its stages: a description of shapes, layout and indices, the data made from it, its placement in an
// Arena, and the comparison with the oracle.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include <prologue/kernels/attention_prologue/attention_prologue.h>

#include "tests/oracle/attention_prologue.h"
#include "tests/support/arena.h"
#include "tests/support/random.h"
#include "tests/support/tolerance.h"

namespace prologue::test {

enum class Values { normal, denormal, huge };
enum class CacheLayout { nhd, hnd, interleaved, odd };  // interleaved: K and V of a head side by side; odd: strides with holes

struct PrologueCase {
  int64_t num_tokens = 5;
  int64_t num_q_heads = 8;
  int64_t num_kv_heads = 2;
  int64_t head_dim = 64;
  int64_t rotary_dim = 64;
  RopeStyle style = RopeStyle::neox;
  bool bias_q = false, bias_k = false, bias_v = false;
  bool packed = true;
  bool in_place = false;
  int64_t row_padding = 0;   // elements behind each packed row, or each row of q, k, v, q_out
  int64_t head_padding = 0;  // elements behind each head (separate buffers)
  bool heads_first = false;  // q, k, v, q_out as [heads, tokens, head_dim] (separate buffers)
  int64_t misalign = 0;      // bytes, of every buffer but the index arrays
  int64_t page_size = 16;
  CacheLayout layout = CacheLayout::nhd;
  bool int64_positions = false, int64_slots = true;
  int64_t max_position = 40;
  bool bad_indices = true;  // negative and too large positions and slots among the good ones
  Values values = Values::normal;
  uint64_t seed = 1;

  std::string describe() const {
    std::string text = str_cat("T=", num_tokens, " Hq=", num_q_heads, " Hkv=", num_kv_heads, " D=", head_dim, " r=", rotary_dim,
                               " ", rope_style_name(style), " bias=", bias_q, bias_k, bias_v);
    return text + str_cat(" packed=", packed, " in_place=", in_place, " row_padding=", row_padding,
                          " head_padding=", head_padding, " heads_first=", heads_first, " misalign=", misalign,
                          " page=", page_size, " layout=", static_cast<int>(layout), " pos64=", int64_positions,
                          " slot64=", int64_slots, " values=", static_cast<int>(values), " seed=", seed);
  }
};

// Everything of a case that does not depend on where it lies.
template <class T>
struct PrologueData {
  std::vector<T> q, k, v;                 // dense [T, heads, D]
  std::vector<T> q_bias, k_bias, v_bias;  // empty: none
  std::vector<float> table;
  std::vector<int64_t> positions, slots;
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

template <class T>
PrologueData<T> make_data(const PrologueCase& c) {
  Random random(c.seed);
  const double normal_max = sizeof(T) == 4 || FloatFormat<T>::mantissa_bits == 7 ? 1e38 : 2e4;
  const auto heads = [&](int64_t count) {
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
  data.k = heads(c.num_tokens * c.num_kv_heads * c.head_dim);
  data.v = heads(c.num_tokens * c.num_kv_heads * c.head_dim);
  if (c.bias_q) data.q_bias = random.normals<T>(c.num_q_heads * c.head_dim);
  if (c.bias_k) data.k_bias = random.normals<T>(c.num_kv_heads * c.head_dim);
  if (c.bias_v) data.v_bias = random.normals<T>(c.num_kv_heads * c.head_dim);
  data.table = make_table(c.max_position, c.rotary_dim);

  // Slots: a shuffled choice of more than are needed, so that holes remain.
  data.num_pages = (2 * c.num_tokens + c.page_size) / c.page_size + 1;
  std::vector<int64_t> all(static_cast<size_t>(data.num_pages * c.page_size));
  std::iota(all.begin(), all.end(), 0);
  random.shuffle(all);
  data.slots.assign(all.begin(), all.begin() + c.num_tokens);
  for (int64_t t = 0; t < c.num_tokens; ++t) data.positions.push_back(random.integer(0, c.max_position - 1));
  if (c.num_tokens > 0) data.positions.front() = 0;
  if (c.num_tokens > 1) data.positions.back() = c.max_position - 1;
  if (c.bad_indices && c.num_tokens > 3) {
    const auto any = [&] { return static_cast<size_t>(random.integer(0, c.num_tokens - 1)); };
    const int64_t huge = c.int64_slots ? int64_t{1} << 40 : INT32_MAX;
    const int64_t far = c.int64_positions ? int64_t{1} << 40 : INT32_MAX;
    for (int64_t i = 0; i < std::max<int64_t>(1, c.num_tokens / 16); ++i) {
      data.slots[any()] = -1;
      data.slots[any()] = data.num_pages * c.page_size + (i % 2 == 0 ? 0 : huge - data.num_pages * c.page_size);
      data.positions[any()] = i % 2 == 0 ? -1 : INT32_MIN;
      data.positions[any()] = i % 2 == 0 ? c.max_position : far;
    }
  }
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
  in.rotary_dim = c.rotary_dim;
  in.interleaved = c.style == RopeStyle::interleaved;
  in.q = to_doubles(data.q);
  in.k = to_doubles(data.k);
  in.v = to_doubles(data.v);
  in.q_bias = to_doubles(data.q_bias);
  in.k_bias = to_doubles(data.k_bias);
  in.v_bias = to_doubles(data.v_bias);
  in.table = to_doubles(data.table);
  in.max_position = c.max_position;
  in.positions = data.positions;
  in.slots = data.slots;
  in.num_slots = data.num_pages * c.page_size;
  return in;
}

inline IndexView place_indices(Arena& arena, const std::vector<int64_t>& values, bool wide) {
  if (wide) return arena.input(values);
  std::vector<int32_t> narrow;
  for (const int64_t value : values) narrow.push_back(static_cast<int32_t>(value));
  return arena.input(narrow);
}

// A tensor of heads laid out with strides: where element (t, h, 0) lies, and how many elements that takes.
struct HeadsLayout {
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  int64_t size = 0;

  int64_t at(int64_t token, int64_t head) const { return token * token_stride + head * head_stride; }
};

inline HeadsLayout heads_layout(const PrologueCase& c, int64_t heads) {
  const int64_t width = c.head_dim + c.head_padding;
  if (c.heads_first) {
    const int64_t head_stride = c.num_tokens * width + c.row_padding;
    return {width, head_stride, heads * head_stride};
  }
  const int64_t token_stride = heads * width + c.row_padding;
  return {token_stride, width, c.num_tokens * token_stride};
}

template <class T>
void scatter(const PrologueCase& c, const std::vector<T>& dense, int64_t heads, int64_t token_stride, int64_t head_stride,
             T* to) {
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      std::copy_n(dense.begin() + (t * heads + h) * c.head_dim, c.head_dim, to + t * token_stride + h * head_stride);
    }
  }
}

template <class T>
std::vector<T> poisoned(int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  if (count > 0) std::memset(static_cast<void*>(values.data()), kPoison, values.size() * sizeof(T));
  return values;
}

struct CachePlacement {
  PageStrides k_strides, v_strides;
  int64_t v_offset = 0;  // from the K base when both share a buffer, otherwise -1
  int64_t size = 0;      // elements of each buffer
};

inline CachePlacement cache_placement(const PrologueCase& c, int64_t num_pages) {
  const int64_t h = c.num_kv_heads, d = c.head_dim, p = c.page_size;
  switch (c.layout) {
    case CacheLayout::nhd: return {nhd_strides(p, h, d), nhd_strides(p, h, d), -1, num_pages * p * h * d};
    case CacheLayout::hnd: return {{h * p * d, d, p * d}, {h * p * d, d, p * d}, -1, num_pages * p * h * d};
    case CacheLayout::interleaved:
      return {{p * h * 2 * d, h * 2 * d, 2 * d}, {p * h * 2 * d, h * 2 * d, 2 * d}, d, num_pages * p * h * 2 * d};
    case CacheLayout::odd: break;
  }
  const PageStrides odd = {p * (h * (d + 2) + 6) + 10, h * (d + 2) + 6, d + 2};
  return {odd, odd, -1, num_pages * odd.page};
}

// A case in an arena: parameters that point into it, and the outputs after the run.
template <class T>
class PlacedPrologue {
 public:
  PlacedPrologue(Backend backend, const PrologueCase& c, const PrologueData<T>& data)
      : arena_(backend), case_(c), data_(data), cache_(cache_placement(c, data.num_pages)) {
    params_.num_tokens = c.num_tokens;
    params_.num_q_heads = c.num_q_heads;
    params_.num_kv_heads = c.num_kv_heads;
    params_.head_dim = c.head_dim;
    params_.dtype = FloatFormat<T>::dtype;
    q_layout_ = heads_layout(c, c.num_q_heads);
    if (c.packed) {
      place_packed();
    } else {
      place_apart();
    }
    if (!data.q_bias.empty()) params_.bias.q = arena_.input(data.q_bias, c.misalign);
    if (!data.k_bias.empty()) params_.bias.k = arena_.input(data.k_bias, c.misalign);
    if (!data.v_bias.empty()) params_.bias.v = arena_.input(data.v_bias, c.misalign);
    params_.rotation.style = c.style;
    params_.rotation.rotary_dim = c.rotary_dim;
    params_.rotation.cos_sin = c.rotary_dim == 0 ? nullptr : arena_.input(data.table, c.misalign / 4 * 4);
    params_.rotation.max_position = c.max_position;
    params_.places.positions = place_indices(arena_, data.positions, c.int64_positions);
    params_.places.slot_mapping = place_indices(arena_, data.slots, c.int64_slots);

    k_cache_ = arena_.template output<T>(cache_.size, c.misalign);
    v_cache_ = cache_.v_offset >= 0 ? nullptr : arena_.template output<T>(cache_.size, c.misalign);
    params_.cache.k = k_cache_;
    params_.cache.v = cache_.v_offset >= 0 ? k_cache_ + cache_.v_offset : v_cache_;
    params_.cache.type = kv_type_of(FloatFormat<T>::dtype);
    params_.cache.num_pages = data.num_pages;
    params_.cache.page_size = c.page_size;
    params_.cache.num_kv_heads = c.num_kv_heads;
    params_.cache.head_dim = c.head_dim;
    params_.cache.k_strides = cache_.k_strides;
    params_.cache.v_strides = cache_.v_strides;
    faults_ = arena_.inout(std::vector<FaultRecord>(1));
    params_.faults = faults_;
  }

  Arena& arena() { return arena_; }
  AttentionPrologueParams& params() { return params_; }
  Status run() {
    return arena_.run([&](const Execution& execution) { return attention_prologue(params_, execution); });
  }
  Status run(const Arena::Operation& operation) { return arena_.run(operation); }

  // The q_out buffer (in place: q's), and both caches, with everything between the rows.
  std::vector<T> q_bits() const { return arena_.read(q_buffer_); }
  std::vector<T> k_bits() const { return arena_.read(k_cache_); }
  std::vector<T> v_bits() const { return v_cache_ == nullptr ? std::vector<T>() : arena_.read(v_cache_); }
  FaultRecord faults() const { return arena_.read(faults_).front(); }

  std::vector<T> q_row(int64_t token) const {
    const std::vector<T> bits = q_bits();
    std::vector<T> row;
    for (int64_t h = 0; h < case_.num_q_heads; ++h) {
      const auto from = bits.begin() + token * params_.q_out.token_stride + h * params_.q_out.head_stride;
      row.insert(row.end(), from, from + case_.head_dim);
    }
    return row;
  }
  std::vector<T> cache_row(bool is_v, int64_t slot) const {
    const std::vector<T> bits = is_v && v_cache_ != nullptr ? v_bits() : k_bits();
    std::vector<T> row;
    for (int64_t h = 0; h < case_.num_kv_heads; ++h) {
      const auto from = bits.begin() + cache_index(is_v, slot, h);
      row.insert(row.end(), from, from + case_.head_dim);
    }
    return row;
  }

  // Everything the operation may have written against the oracle, and that nothing else changed.
  void expect_matches(const oracle::PrologueOutput& want, bool k_is_copied = false) {
    std::vector<T> q = q_bits();
    std::vector<T> q_before = q_initial_;
    std::vector<T> got;
    std::vector<Reference> reference;
    for (int64_t t = 0; t < case_.num_tokens; ++t) {
      const oracle::QRow state = want.q_state[static_cast<size_t>(t)];
      for (int64_t i = 0; i < case_.num_q_heads * case_.head_dim; ++i) {
        const size_t at = static_cast<size_t>(t * params_.q_out.token_stride + i / case_.head_dim * params_.q_out.head_stride +
                                              i % case_.head_dim);
        if (state == oracle::QRow::untouched) continue;
        got.push_back(q[at]);
        reference.push_back(state == oracle::QRow::zero ? Reference{}
                                                        : as_reference(want.q[static_cast<size_t>(t)][static_cast<size_t>(i)]));
        q[at] = q_before[at];  // what remains must be as before
      }
    }
    expect_close(got, reference, case_.num_q_heads * case_.head_dim, "q");
    expect_bits(q, q_before, "q_out outside the written rows");

    std::vector<T> k = k_bits();
    std::vector<T> v = v_bits();
    got.clear();
    reference.clear();
    std::vector<T> got_v;
    std::vector<Reference> reference_v;
    for (const auto& [slot, row] : want.k) {
      for (int64_t i = 0; i < case_.num_kv_heads * case_.head_dim; ++i) {
        const int64_t h = i / case_.head_dim;
        T& from_k = k[static_cast<size_t>(cache_index(false, slot, h) + i % case_.head_dim)];
        T& from_v = (v.empty() ? k : v)[static_cast<size_t>(cache_index(true, slot, h) + i % case_.head_dim)];
        got.push_back(from_k);
        got_v.push_back(from_v);
        reference.push_back(as_reference(row[static_cast<size_t>(i)]));
        reference_v.push_back(as_reference(want.v.at(slot)[static_cast<size_t>(i)]));
        const size_t source = static_cast<size_t>(want.slot_token.at(slot) * case_.num_kv_heads * case_.head_dim + i);
        if (data_.v_bias.empty()) {
          EXPECT_EQ(std::memcmp(&from_v, &data_.v[source], sizeof(T)), 0)
              << "V is not a bitwise copy: slot " << slot << ", channel " << i;
        }
        if (k_is_copied) {
          EXPECT_EQ(std::memcmp(&from_k, &data_.k[source], sizeof(T)), 0)
              << "K is not a bitwise copy: slot " << slot << ", channel " << i;
        }
        std::memset(static_cast<void*>(&from_k), kPoison, sizeof(T));
        std::memset(static_cast<void*>(&from_v), kPoison, sizeof(T));
      }
    }
    expect_close(got, reference, case_.num_kv_heads * case_.head_dim, "k");
    expect_close(got_v, reference_v, case_.num_kv_heads * case_.head_dim, "v");
    expect_bits(k, poisoned<T>(static_cast<int64_t>(k.size())), "K cache outside the named slots");
    expect_bits(v, poisoned<T>(static_cast<int64_t>(v.size())), "V cache outside the named slots");

    const Fault fault = decode_fault(faults());
    EXPECT_EQ(fault.count, static_cast<uint64_t>(want.fault_count));
    EXPECT_EQ(fault.token, want.fault_token);
    const FaultCode code = want.fault_is_position ? FaultCode::position_out_of_range : FaultCode::slot_out_of_range;
    EXPECT_EQ(fault.code, want.fault_count == 0 ? FaultCode::none : code);
  }

  static void expect_bits(const std::vector<T>& got, const std::vector<T>& want, const char* what) {
    ASSERT_EQ(got.size(), want.size()) << what;
    if (got.empty() || std::memcmp(got.data(), want.data(), got.size() * sizeof(T)) == 0) return;
    for (size_t i = 0; i < got.size(); ++i) {
      if (std::memcmp(&got[i], &want[i], sizeof(T)) == 0) continue;
      ADD_FAILURE() << what << ": element " << i << " of " << got.size() << " is " << to_float(got[i]) << ", not "
                    << to_float(want[i]);
      return;
    }
  }

 private:
  static Reference as_reference(const oracle::Element& element) {
    // 2^-126: a product of small numbers may lose a part of the smallest denormal.
    return {element.value, element.scale + (element.scale > 0.0 ? 0x1p-126 : 0.0)};
  }

  int64_t cache_index(bool is_v, int64_t slot, int64_t head) const {
    const PageStrides& s = is_v ? cache_.v_strides : cache_.k_strides;
    const int64_t base = is_v && cache_.v_offset >= 0 ? cache_.v_offset : 0;
    return base + slot / case_.page_size * s.page + slot % case_.page_size * s.token + head * s.head;
  }

  void place_packed() {
    const PrologueCase& c = case_;
    const int64_t row = (c.num_q_heads + 2 * c.num_kv_heads) * c.head_dim + c.row_padding;
    std::vector<T> qkv = poisoned<T>(c.num_tokens * row);
    scatter(c, data_.q, c.num_q_heads, row, c.head_dim, qkv.data());
    scatter(c, data_.k, c.num_kv_heads, row, c.head_dim, qkv.data() + c.num_q_heads * c.head_dim);
    scatter(c, data_.v, c.num_kv_heads, row, c.head_dim, qkv.data() + (c.num_q_heads + c.num_kv_heads) * c.head_dim);
    T* buffer = c.in_place ? arena_.inout(qkv, c.misalign) : arena_.input(qkv, c.misalign);
    set_packed_qkv(params_, buffer, row);
    place_q_out(buffer, qkv, row, c.head_dim);
  }

  void place_apart() {
    const PrologueCase& c = case_;
    const HeadsLayout kv = heads_layout(c, c.num_kv_heads);
    std::vector<T> q = poisoned<T>(q_layout_.size), k = poisoned<T>(kv.size), v = poisoned<T>(kv.size);
    scatter(c, data_.q, c.num_q_heads, q_layout_.token_stride, q_layout_.head_stride, q.data());
    scatter(c, data_.k, c.num_kv_heads, kv.token_stride, kv.head_stride, k.data());
    scatter(c, data_.v, c.num_kv_heads, kv.token_stride, kv.head_stride, v.data());
    T* q_buffer = c.in_place ? arena_.inout(q, c.misalign) : arena_.input(q, c.misalign);
    params_.q = {q_buffer, q_layout_.token_stride, q_layout_.head_stride};
    params_.k = {arena_.input(k, c.misalign), kv.token_stride, kv.head_stride};
    params_.v = {arena_.input(v, c.misalign), kv.token_stride, kv.head_stride};
    place_q_out(q_buffer, q, q_layout_.token_stride, q_layout_.head_stride);
  }

  void place_q_out(T* q_buffer, const std::vector<T>& q_values, int64_t token_stride, int64_t head_stride) {
    if (case_.in_place) {
      q_buffer_ = q_buffer;
      q_initial_ = q_values;
      params_.q_out = {q_buffer, token_stride, head_stride};
    } else {
      q_initial_ = poisoned<T>(q_layout_.size);
      q_buffer_ = arena_.inout(q_initial_, case_.misalign);
      params_.q_out = {q_buffer_, q_layout_.token_stride, q_layout_.head_stride};
    }
  }

  Arena arena_;
  PrologueCase case_;
  PrologueData<T> data_;
  CachePlacement cache_;
  HeadsLayout q_layout_;
  AttentionPrologueParams params_;
  T* q_buffer_ = nullptr;
  T* k_cache_ = nullptr;
  T* v_cache_ = nullptr;
  FaultRecord* faults_ = nullptr;
  std::vector<T> q_initial_;
};

// The curated list: every dimension is varied from a base, then a few dozen seeded mixtures of all of them.
inline std::vector<PrologueCase> prologue_cases() {
  std::vector<PrologueCase> cases;
  const auto add = [&](auto&& change) {
    PrologueCase c;
    c.seed = cases.size() + 1;
    change(c);
    cases.push_back(c);
  };
  for (const int64_t n : {0, 1, 2, 31, 32, 33, 257}) add([&](PrologueCase& c) { c.num_tokens = n; });
  for (const int64_t n : {700, 5000}) {  // every mapping of the CUDA backend
    add([&](PrologueCase& c) {
      c.num_tokens = n, c.head_dim = 8, c.rotary_dim = 8, c.num_q_heads = 2, c.num_kv_heads = 1, c.page_size = 64;
    });
  }
  for (const auto& [q, kv] : {std::pair{4, 4}, {16, 4}, {32, 4}, {8, 1}, {71, 1}, {3, 5}}) {
    add([&, hq = q, hkv = kv](PrologueCase& c) { c.num_q_heads = hq, c.num_kv_heads = hkv; });
  }
  for (const int64_t page : {1, 3, 64}) add([&](PrologueCase& c) { c.page_size = page; });
  for (const RopeStyle style : {RopeStyle::neox, RopeStyle::interleaved}) {
    for (const int64_t d : {2, 46, 64, 72, 80, 96, 112, 128, 160, 192, 256}) {
      for (const int64_t r : {int64_t{0}, int64_t{2}, int64_t{16}, int64_t{32}, int64_t{64}, int64_t{72}, int64_t{96}, d}) {
        if (r > d || (r == d && (d == 2 || d == 64 || d == 72 || d == 96))) continue;
        if (r == 0 && style == RopeStyle::interleaved) continue;
        add([&](PrologueCase& c) { c.style = style, c.head_dim = d, c.rotary_dim = r, c.num_q_heads = 4; });
      }
    }
  }
  for (int bits = 1; bits < 8; ++bits) {
    add([&](PrologueCase& c) { c.bias_q = (bits & 1) != 0, c.bias_k = (bits & 2) != 0, c.bias_v = (bits & 4) != 0; });
  }
  for (const CacheLayout layout : {CacheLayout::hnd, CacheLayout::interleaved, CacheLayout::odd}) {
    add([&](PrologueCase& c) { c.layout = layout; });
  }
  for (const Values values : {Values::denormal, Values::huge})
    add([&](PrologueCase& c) { c.values = values, c.num_tokens = 17; });
  add([](PrologueCase& c) { c.int64_positions = true, c.int64_slots = false; });

  Random random(2026);
  for (int i = 0; i < 60; ++i) {
    add([&](PrologueCase& c) {
      const auto coin = [&] { return random.integer(0, 1) == 1; };
      c.num_tokens = random.integer(1, 40);
      c.num_kv_heads = random.integer(1, 4);
      c.num_q_heads = c.num_kv_heads * random.integer(1, 8);
      c.head_dim = 2 * random.integer(1, 128);
      c.rotary_dim = coin() ? c.head_dim : 2 * random.integer(0, c.head_dim / 2);
      c.style = coin() ? RopeStyle::neox : RopeStyle::interleaved;
      c.bias_q = coin(), c.bias_k = coin(), c.bias_v = coin();
      c.packed = coin();
      c.in_place = coin();
      c.row_padding = coin() ? random.integer(0, 9) : 0;
      c.head_padding = !c.packed && coin() ? random.integer(0, 9) : 0;
      c.heads_first = !c.packed && coin();
      c.misalign = coin() ? 2 * random.integer(0, 8) : 0;
      c.page_size = random.integer(1, 20);
      c.layout = static_cast<CacheLayout>(random.integer(0, 3));
      c.int64_positions = coin(), c.int64_slots = coin();
    });
  }
  return cases;
}

// 32-bit elements cannot lie at odd halves of their size.
template <class T>
PrologueCase fit_to_type(PrologueCase c) {
  c.misalign = c.misalign / static_cast<int64_t>(sizeof(T)) * static_cast<int64_t>(sizeof(T));
  return c;
}

}  // namespace prologue::test
