#include "tests/support/prologue_data.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/support/random.h"
#include "tests/support/tolerance.h"

namespace prologue::test {

namespace {

// Makes positions and slots as a caller gives them.
template <class T>
void make_positions_and_slots(const PrologueCase& c, Random& random, PrologueData<T>& data) {
  // Slots are a shuffled choice of more than are needed, so that holes remain.
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

// Makes sequences that together have the tokens of the case, some of none at all, and their pages.
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

}  // namespace

template <class T>
CsrPages csr_pages_of(const PrologueCase& c, const PrologueData<T>& data) {
  const std::vector<int32_t> lengths = seq_lens_of(data);
  CsrPages pages;
  pages.indptr = {0};
  for (size_t s = 0; s < data.block_table.size(); ++s) {
    std::vector<int32_t> row = data.block_table[s];
    while (!row.empty() && row.back() == INT32_MAX) row.pop_back();
    pages.indices.insert(pages.indices.end(), row.begin(), row.end());
    pages.indptr.push_back(static_cast<int32_t>(pages.indices.size()));
    const int64_t before_last = (static_cast<int64_t>(row.size()) - 1) * c.page_size;
    pages.last_page_len.push_back(static_cast<int32_t>(std::clamp<int64_t>(lengths[s] - before_last, INT32_MIN, INT32_MAX)));
  }
  Random random(c.seed + 77);
  const int64_t damage = c.bad_indices ? random.integer(0, 3) : 3;
  if (damage == 0) {
    const auto page_size = static_cast<int32_t>(c.page_size);
    const int32_t bad[] = {0, -1, page_size + 1, page_size + 1, INT32_MIN, INT32_MAX};
    for (int32_t& length : pages.last_page_len) length = random.integer(0, 1) == 0 ? bad[random.integer(0, 5)] : length;
  } else if (damage == 1) {
    const int32_t bad[] = {-1, INT32_MIN, INT32_MAX, pages.indptr.back() + 1, pages.indptr.back(), 0};
    pages.indptr[static_cast<size_t>(random.integer(0, static_cast<int64_t>(pages.indptr.size()) - 1))] =
        bad[random.integer(0, 5)];
  }
  return pages;
}

std::vector<float> make_table(int64_t max_position, int64_t rotary_dim, double base) {
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
  if (c.one_k_rope && c.k_heads() > 0) {  // the rotated channels of head 0 in all heads
    for (int64_t t = 0; t < c.num_tokens; ++t) {
      const auto first = data.k.begin() + t * c.k_heads() * c.head_dim + c.rotary_offset;
      for (int64_t h = 1; h < c.k_heads(); ++h) std::copy_n(first, c.rotary_dim, first + h * c.head_dim);
    }
  }
  data.v = c.v_is_k ? data.k : heads(c.num_tokens * c.v_heads() * c.v_width());
  if (c.bias_q) data.q_bias = random.normals<T>(c.num_q_heads * c.head_dim);
  if (c.bias_k) data.k_bias = random.normals<T>(c.k_heads() * c.head_dim);
  if (c.bias_v) data.v_bias = c.v_is_k && c.bias_k ? data.k_bias : random.normals<T>(c.v_heads() * c.v_width());
  const auto weights = [&](const CaseNorm& norm, bool wanted, int64_t num_heads) {
    if (norm.placement == NormPlacement::none || !wanted) return std::vector<float>();
    std::vector<float> made = random.normals<float>((norm.weights == Weights::per_head ? num_heads : 1) * c.head_dim);
    for (float& value : made) {
      if (!norm.float_weights) value = to_float(from_float<T>(value));
    }
    return made;
  };
  const CaseNorm of_q = c.norm_of_q(), of_k = c.norm_of_k();
  data.q_weight = weights(of_q, of_q.weights != Weights::none, c.num_q_heads);
  data.k_weight = weights(of_k, of_k.weights != Weights::none, c.num_kv_heads);
  data.q_norm_bias = weights(of_q, of_q.bias, c.num_q_heads);
  data.k_norm_bias = weights(of_k, of_k.bias, c.num_kv_heads);

  if (c.source == RopeSource::table) data.table = make_table(c.max_position, 2 * c.rope_columns());
  if (c.source == RopeSource::per_token) {
    for (int64_t i = 0; i < c.num_tokens * 2 * c.rope_columns(); ++i)
      data.table.push_back(static_cast<float>(2.0 * random.uniform() - 1.0));
  }
  with_host_type(c.rope_type, [&](auto type) {
    for (float& value : data.table) value = to_float(from_float<decltype(type)>(value));
  });
  if (c.source == RopeSource::inv_freq) {
    for (int64_t i = 0; i < c.rope_columns(); ++i) {
      data.inv_freq.push_back(
          static_cast<float>(std::pow(5e5, -2.0 * static_cast<double>(i) / static_cast<double>(2 * c.rope_columns()))));
    }
  }
  if (c.num_axes > 1 && !c.block_axes) {
    for (int64_t i = 0; i < c.rotary_dim / 2; ++i) {
      const int64_t axis = c.interleaved_axes ? i % c.num_axes : i * c.num_axes / std::max<int64_t>(c.rotary_dim / 2, 1);
      const bool wild = c.bad_indices && random.integer(0, 9) == 0;  // an axis that does not exist
      data.pair_axis.push_back(static_cast<uint8_t>(wild ? random.integer(c.num_axes, 255) : axis));
    }
  }
  make_positions_and_slots(c, random, data);
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
  if (c.scaling == KvScaling::tensor || c.scaling == KvScaling::head || c.scaling == KvScaling::nv) {
    const int64_t count = c.scaling == KvScaling::head ? c.num_kv_heads : 1;
    data.k_scale = scales(count);
    data.v_scale = scales(count);
  }
  data.q_scale = scales(1).front();
  for (PrologueCase group : c.groups) {
    group.num_tokens = c.num_tokens;
    group.seed = c.seed + 1000 * (data.groups.size() + 1);
    data.groups.push_back(make_data<T>(group));
    if (group.scaling == KvScaling::head) data.groups.back().k_scale = scales(group.num_q_heads);
  }
  return data;
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
  const auto norm = [&](const CaseNorm& of, const std::vector<float>& weight, const std::vector<float>& bias) {
    return oracle::NormInput{of.placement != NormPlacement::none,
                             of.placement == NormPlacement::after_rope,
                             of.kind == NormKind::layer,
                             of.scope == NormScope::token,
                             static_cast<double>(of.eps),
                             static_cast<double>(of.weight_offset),
                             to_doubles(weight),
                             to_doubles(bias)};
  };
  in.q_norm = norm(c.norm_of_q(), data.q_weight, data.q_norm_bias);
  in.k_norm = norm(c.norm_of_k(), data.k_weight, data.k_norm_bias);
  in.v_norm.enabled = c.v_norm;
  in.v_norm.eps = static_cast<double>(c.v_eps);
  in.rotary_dim = c.rotary_dim;
  in.rotary_offset = c.rotary_offset;
  in.num_blocks = c.num_blocks;
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
  if (c.slot_mapping_len() > 0) in.slots.resize(static_cast<size_t>(c.slot_mapping_len()));
  in.derive_slots = c.derive_slots && c.writes_cache();
  in.cu_seqlens.assign(data.cu_seqlens.begin(), data.cu_seqlens.end());
  const auto assign = [](std::vector<int64_t>& to, const std::vector<int32_t>& from) { to.assign(from.begin(), from.end()); };
  if (c.page_form == PageForm::rows) {
    for (const std::vector<int32_t>& row : data.block_table) in.block_table.emplace_back(row.begin(), row.end());
  } else {
    const CsrPages pages = csr_pages_of(c, data);
    assign(in.kv_indptr, pages.indptr);
    assign(in.kv_indices, pages.indices);
    if (c.page_form == PageForm::csr_with_lengths) assign(in.kv_last_page_len, pages.last_page_len);
  }
  if (c.page_form != PageForm::csr_with_lengths) {
    if (c.lengths_after) {
      assign(in.seq_lens, seq_lens_of(data));
    } else {
      assign(in.cache_lens, data.cache_lens);
    }
  }
  in.ring_size = c.ring_size;
  in.position_offsets = data.offsets;
  in.num_pages = data.num_pages;
  in.page_size = c.page_size;
  in.hadamard_block = c.hadamard_block;
  in.v_hadamard_block = c.v_hadamard_block;
  in.q_constant = static_cast<double>(c.q_scale.constant);
  in.q_by_position = static_cast<int>(c.q_scale.by_position);
  in.q_a = static_cast<double>(c.q_scale.a);
  in.q_b = static_cast<double>(c.q_scale.b);
  in.k_constant = static_cast<double>(c.k_constant);
  in.v_constant = static_cast<double>(c.v_constant);
  in.sigmoid = c.sigmoid;
  for (size_t i = 0; i < c.groups.size(); ++i) in.groups.push_back(oracle_input(c.groups[i], data.groups[i]));
  if (c.per_step) {
    in.step_rounding = std::ldexp(1.0, -FloatFormat<T>::mantissa_bits - 1);
    in.step_floor = std::ldexp(1.0, FloatFormat<T>::min_exponent - FloatFormat<T>::mantissa_bits - 1);
  }
  return in;
}

template CsrPages csr_pages_of<float>(const PrologueCase&, const PrologueData<float>&);
template CsrPages csr_pages_of<Float16>(const PrologueCase&, const PrologueData<Float16>&);
template CsrPages csr_pages_of<BFloat16>(const PrologueCase&, const PrologueData<BFloat16>&);
template PrologueData<float> make_data<float>(const PrologueCase&);
template PrologueData<Float16> make_data<Float16>(const PrologueCase&);
template PrologueData<BFloat16> make_data<BFloat16>(const PrologueCase&);
template oracle::PrologueInput oracle_input<float>(const PrologueCase&, const PrologueData<float>&);
template oracle::PrologueInput oracle_input<Float16>(const PrologueCase&, const PrologueData<Float16>&);
template oracle::PrologueInput oracle_input<BFloat16>(const PrologueCase&, const PrologueData<BFloat16>&);

}  // namespace prologue::test
