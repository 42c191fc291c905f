#include "tests/support/placed_mla.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "tests/oracle/mla_prologue.h"
#include "tests/support/tolerance.h"

namespace prologue::test {

namespace {

template <class T>
double to_double(T x) {
  return static_cast<double>(to_float(x));
}

template <class T>
std::vector<double> widened(const T* x, int64_t count) {
  std::vector<double> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = to_double(x[i]);
  return values;
}

KvFormat format_of(MlaCacheKind kind) {
  switch (kind) {
    case MlaCacheKind::float32: return {DType::f32, KvScaling::none};
    case MlaCacheKind::float16: return {DType::f16, KvScaling::none};
    case MlaCacheKind::fp8: return {DType::fp8_e4m3, KvScaling::none};
    case MlaCacheKind::fp8_tensor: return {DType::fp8_e4m3, KvScaling::tensor};
    case MlaCacheKind::e5m2_tensor: return {DType::fp8_e5m2, KvScaling::tensor};
    default: return {};
  }
}

}  // namespace

std::string describe(const MlaCase& c) {
  return str_cat("T=", c.num_tokens, " heads=", c.num_q_heads, " rank=", c.kv_lora_rank, " rope=", c.qk_rope_head_dim,
                 c.latent ? "" : " no latent", c.k ? "" : " no k", " norm=", static_cast<int>(c.norm),
                 " k_norm=", static_cast<int>(c.k_norm), " offset=", c.weight_offset, " ",
                 c.rotates ? rope_style_name(c.style) : "no rotation", " source=", static_cast<int>(c.source), " ",
                 dtype_name(c.table_type), c.inverse ? " inverse" : "", " past=", static_cast<int>(c.past_table),
                 " cache=", static_cast<int>(c.cache), " page=", c.page_size, c.int64_positions ? " i64" : " i32",
                 c.int64_slots ? " i64" : " i32", c.positions ? "" : " no positions", " missing=", c.missing_slots,
                 c.outputs ? "" : " no outputs", c.in_place ? " in place" : "", " padding=", c.padding,
                 c.misaligned ? " misaligned" : "", c.overlaps ? " overlaps" : "", " seed=", c.seed);
}

template <class T>
typename PlacedMla<T>::Rows PlacedMla<T>::make_rows(int64_t num_heads, int64_t width, bool output, const void*& x, void*& y) {
  Rows rows;
  const int64_t misalign = c_.misaligned ? static_cast<int64_t>(sizeof(T)) : 0;
  rows.x_head = width + c_.padding;
  rows.x_stride = num_heads * rows.x_head + c_.padding;
  rows.x = random_.normals<T>(c_.num_tokens * rows.x_stride, 2.0);
  rows.y_head = c_.in_place ? rows.x_head : width + 2 * c_.padding;
  rows.y_stride = c_.in_place ? rows.x_stride : num_heads * rows.y_head;
  if (c_.in_place) {
    T* const both = arena_.inout(rows.x, misalign);
    x = both;
    rows.before = rows.x;
    if (output) y = rows.y = both;
    return rows;
  }
  x = arena_.input(rows.x, misalign);
  if (output) {
    y = rows.y = arena_.output<T>(c_.num_tokens * rows.y_stride, misalign);
    rows.before = poisoned<T>(c_.num_tokens * rows.y_stride);
  }
  return rows;
}

template <class T>
void PlacedMla<T>::make_cache() {
  if (c_.cache == MlaCacheKind::none) return;
  MlaPrologueParams& p = params_;
  p.cache.page_size = c_.page_size;
  p.cache.num_pages = (c_.num_tokens + c_.page_size - 1) / c_.page_size + 2;
  num_slots_ = p.cache.num_pages * c_.page_size;
  const KvFormat format = format_of(c_.cache);
  const int64_t size = dtype_size(resolve_dtype(format.type, p.dtype)), both = c_.kv_lora_rank + c_.qk_rope_head_dim;
  const int64_t misalign = c_.misaligned ? std::max<int64_t>(size, c_.cache == MlaCacheKind::record ? 4 : 1) : 0;
  const auto allocate = [&](int64_t entry, int64_t element, int64_t& page_stride, int64_t& token_stride) {  // in elements
    token_stride = entry + c_.padding;
    page_stride = c_.page_size * token_stride + c_.padding;
    return arena_.output<uint8_t>(p.cache.num_pages * page_stride * element, misalign);
  };
  int64_t page_stride = 0, token_stride = 0;
  switch (c_.cache) {
    case MlaCacheKind::record: {
      // Strides are in bytes, multiples of 4.
      token_stride = c_.kv_lora_rank + c_.kv_lora_rank / 32 + 2 * c_.qk_rope_head_dim + 4 * c_.padding;
      page_stride = c_.page_size * token_stride + 4 * c_.padding;
      entries_ = arena_.output<uint8_t>(p.cache.num_pages * page_stride, misalign);
      set_mla_records(p, entries_, page_stride, token_stride);
      return;
    }
    case MlaCacheKind::apart:
    case MlaCacheKind::only_latent:
    case MlaCacheKind::only_rope:
      if (c_.cache != MlaCacheKind::only_rope) {
        entries_ = allocate(c_.kv_lora_rank, size, page_stride, token_stride);
        p.cache.latent = {entries_, {}, page_stride, token_stride};
      }
      if (c_.cache != MlaCacheKind::only_latent) {
        rope_entries_ = allocate(c_.qk_rope_head_dim, size, page_stride, token_stride);
        p.cache.rope = {rope_entries_, {}, page_stride, token_stride};
      }
      return;
    default: break;
  }
  if (format.scaling == KvScaling::tensor) scale_ = 0.0371f;
  const float* scale = format.scaling == KvScaling::tensor ? arena_.input(std::vector<float>{scale_}) : nullptr;
  entries_ = allocate(both, size, page_stride, token_stride);
  set_mla_entries(p, entries_, format.type, scale, page_stride, token_stride);
}

template <class T>
void PlacedMla<T>::make_indices() {
  const int64_t n = c_.num_tokens;
  std::vector<int64_t> free_slots(static_cast<size_t>(num_slots_));
  for (int64_t i = 0; i < num_slots_; ++i) free_slots[static_cast<size_t>(i)] = i;
  random_.shuffle(free_slots);
  for (int64_t t = 0; t < n; ++t) {
    int64_t position = c_.positions ? random_.integer(0, c_.max_position - 1) : 0;
    int64_t slot = num_slots_ > 0 ? free_slots[static_cast<size_t>(t)] : -1;
    if (c_.bad_tokens && n > 2) {
      const int64_t kind = random_.integer(0, 19);
      if (kind == 0 && c_.positions) position = c_.int64_positions ? INT64_MIN : -1;
      if (kind == 1 && c_.positions) position = c_.int64_positions ? int64_t{1} << 40 : c_.max_position;
      if (kind == 2) slot = -1;
      if (kind == 3) slot = c_.int64_slots ? INT64_MAX : num_slots_;
    }
    positions_.push_back(position);
    slots_.push_back(slot);
  }
  const auto place = [&](const std::vector<int64_t>& values, bool wide) {
    if (wide) return index_view(arena_.input(values));
    return index_view(arena_.input(std::vector<int32_t>(values.begin(), values.end())));
  };
  if (c_.positions) params_.positions = place(positions_, c_.int64_positions);
  if (c_.cache == MlaCacheKind::none) return;
  params_.slot_mapping_len = c_.missing_slots > 0 ? n - c_.missing_slots : 0;
  params_.slot_mapping = place(slots_, c_.int64_slots);  // good slots after its end: nothing may be written there
  for (int64_t t = n - c_.missing_slots; t < n; ++t) slots_[static_cast<size_t>(t)] = -1;
}

template <class T>
PlacedMla<T>::PlacedMla(Backend backend, const MlaCase& c) : c_(c), random_(c.seed), arena_(backend) {
  MlaPrologueParams& p = params_;
  p.num_tokens = c.num_tokens, p.num_q_heads = c.num_q_heads;
  p.kv_lora_rank = c.kv_lora_rank, p.qk_rope_head_dim = c.qk_rope_head_dim;
  p.dtype = FloatFormat<T>::dtype;
  p.overlaps = c.overlaps;
  if (c.latent) {
    latent_ = make_rows(1, c.kv_lora_rank, c.outputs, p.kv_c, p.kv_c_out);
    p.kv_c_stride = latent_.x_stride, p.kv_c_out_stride = latent_.y_stride;
  }
  if (c.k) {
    k_ = make_rows(1, c.qk_rope_head_dim, c.outputs, p.k_pe, p.k_pe_out);
    p.k_pe_stride = k_.x_stride, p.k_pe_out_stride = k_.y_stride;
  }
  if (c.num_q_heads > 0) {
    q_ = make_rows(c.num_q_heads, c.qk_rope_head_dim, true, p.q_pe.data, p.q_pe_out.data);
    p.q_pe.token_stride = q_.x_stride, p.q_pe.head_stride = q_.x_head;
    p.q_pe_out.token_stride = q_.y_stride, p.q_pe_out.head_stride = q_.y_head;
  }
  const auto make_norm = [&](MlaNorm kind, int64_t width, HeadNorm& norm, std::vector<double>& of_oracle) {
    if (kind != MlaNorm::none) {
      norm.placement = NormPlacement::before_rope;
      norm.weight_offset = c.weight_offset;
    }
    if (kind == MlaNorm::weight) {
      const std::vector<T> weight = random_.normals<T>(width);
      of_oracle = widened(weight.data(), width);
      norm.weight = arena_.input(weight, c.misaligned ? static_cast<int64_t>(sizeof(T)) : 0);
    } else if (kind == MlaNorm::float_weight) {
      const std::vector<float> weight = random_.normals<float>(width);
      of_oracle = widened(weight.data(), width);
      norm.weight = arena_.input(weight);
      norm.weight_type = DType::f32;
    }
  };
  make_norm(c.norm, c.kv_lora_rank, p.kv_c_norm, weight_);
  make_norm(c.k_norm, c.qk_rope_head_dim, p.k_pe_norm, k_weight_);
  p.rope.style = c.style;
  p.rope.past_table = c.past_table;
  if (c.rotates) {
    const int64_t pairs = c.qk_rope_head_dim / 2;
    p.rope.rotary_dim = c.qk_rope_head_dim;
    p.rope.inverse = c.inverse ? 1 : 0;
    if (c.source == RopeSource::inv_freq) {
      for (int64_t i = 0; i < pairs; ++i) {
        inv_freq_.push_back(static_cast<float>(std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(pairs))));
      }
      p.rope.source = c.source, p.rope.type = DType::f32;
      p.rope.attention_factor = 1.25;
      p.rope.inv_freq = arena_.input(inv_freq_);
      p.rope.max_position = c.max_position;
    } else {
      const int64_t rows = c.source == RopeSource::table ? c.max_position : c.num_tokens;
      with_host_type(c.table_type, [&](auto type) {
        using U = decltype(type);
        std::vector<U> table(static_cast<size_t>(rows * 2 * pairs));
        for (int64_t i = 0; i < rows * pairs; ++i) {
          const double angle = 7.0 * random_.uniform();
          const int64_t at = i / pairs * 2 * pairs + i % pairs;
          table[static_cast<size_t>(at)] = from_float<U>(static_cast<float>(std::cos(angle)));
          table[static_cast<size_t>(at + pairs)] = from_float<U>(static_cast<float>(std::sin(angle)));
          cos_.push_back(to_double(table[static_cast<size_t>(at)]));
          sin_.push_back(to_double(table[static_cast<size_t>(at + pairs)]));
        }
        const void* const data = arena_.input(table, c.misaligned ? static_cast<int64_t>(sizeof(U)) : 0);
        if (c.source == RopeSource::table) {
          set_cos_sin_table(p.rope, data, c.table_type, rows);
        } else {
          set_cos_sin_rows(p.rope, data, c.table_type);
        }
      });
    }
  }
  make_cache();
  make_indices();
  p.faults = faults_ = arena_.inout(std::vector<FaultRecord>(1));
  p.token_faults = token_faults_ = arena_.inout(std::vector<uint8_t>(static_cast<size_t>(c.num_tokens), 0));
}

template <class T>
Status PlacedMla<T>::run() {
  return arena_.run([&](const Execution& execution) { return mla_prologue(params_, execution); });
}

template <class T>
std::vector<unsigned char> PlacedMla<T>::bytes() const {
  std::vector<unsigned char> all;
  for (const Arena::Written& array : arena_.written()) all.insert(all.end(), array.bytes.begin(), array.bytes.end());
  return all;
}

template <class T>
void PlacedMla<T>::expect_matches() const {
  using oracle::MlaStand;
  const MlaPrologueParams& p = params_;
  const int64_t pairs = c_.qk_rope_head_dim / 2;
  const bool caches = (c_.latent && p.cache.latent.data != nullptr) || (c_.k && p.cache.rope.data != nullptr);
  const int64_t bound = c_.rotates && c_.source != RopeSource::per_token ? c_.max_position : 0;
  int failures = 0;
  const auto failed = [&](const char* what, int64_t t, int64_t i, double got, double want) {
    if (failures++ < 5) ADD_FAILURE() << what << " (" << t << ", " << i << "): got " << got << ", want " << want;
  };
  std::vector<T> latent_out, k_out, q_out;
  if (latent_.y != nullptr) latent_out = arena_.read(latent_.y);
  if (k_.y != nullptr) k_out = arena_.read(k_.y);
  if (q_.y != nullptr) q_out = arena_.read(q_.y);
  std::vector<T> latent_rest = latent_.before, k_rest = k_.before, q_rest = q_.before;
  std::vector<uint8_t> cache, rope_cache;
  if (entries_ != nullptr) cache = arena_.read(entries_);
  if (rope_entries_ != nullptr) rope_cache = arena_.read(rope_entries_);
  std::vector<uint8_t> cache_rest(cache.size(), kPoison), rope_rest(rope_cache.size(), kPoison);

  // Compares a row of an output: each element is compared, and marked in `rest`. `exact` says that it is a copy.
  const auto check_row = [&](const char* what, int64_t t, const T* x, const std::vector<T>& out, std::vector<T>& rest, int64_t at,
                             const std::vector<oracle::MlaValue>& want, bool exact, bool zero) {
    for (size_t i = 0; i < want.size(); ++i) {
      const T got = out[static_cast<size_t>(at) + i];
      rest[static_cast<size_t>(at) + i] = got;
      if (zero || exact) {
        const T expected = zero ? T{} : x[i];
        if (std::memcmp(&got, &expected, sizeof(T)) != 0)
          failed(what, t, static_cast<int64_t>(i), to_double(got), to_double(expected));
        continue;
      }
      const double tolerance = 0.5 * ulp<T>(want[i].value) + kDefaultSteps * 0x1p-24 * want[i].scale;
      if (!(std::fabs(to_double(got) - want[i].value) <= tolerance)) {
        failed(what, t, static_cast<int64_t>(i), to_double(got), want[i].value);
      }
    }
  };
  // Compares `count` elements of the cache at byte `at` with `values` (of T) in the format.
  const auto check_entry = [&](const char* what, int64_t t, std::vector<uint8_t>& bytes, std::vector<uint8_t>& rest, int64_t at,
                               const T* values, int64_t count, KvFormat format) {
    const uint8_t* const got = bytes.data() + at;
    const DType type = resolve_dtype(format.type, p.dtype);
    int64_t size = count * dtype_size(type);
    if (format.scaling == KvScaling::token_head) {
      const oracle::MlaRecord record = oracle::mla_record(widened(values, count));
      for (int64_t i = 0; i < count; ++i) {
        const double value = oracle::value_of_code(got[i], oracle::Quantized::e4m3);
        if (value != record.values[static_cast<size_t>(i)]) failed(what, t, i, value, record.values[static_cast<size_t>(i)]);
      }
      for (size_t i = 0; i < record.scales.size(); ++i) {
        float scale;
        std::memcpy(&scale, got + count + static_cast<int64_t>(i * sizeof scale), sizeof scale);
        if (scale != record.scales[i])
          failed("the scale", t, static_cast<int64_t>(i), static_cast<double>(scale), static_cast<double>(record.scales[i]));
      }
      size += count / 32;
    } else if (dtype_is_fp8(type)) {
      const auto kind = type == DType::fp8_e4m3 ? oracle::Quantized::e4m3 : oracle::Quantized::e5m2;
      const std::vector<double> want = oracle::mla_codes(widened(values, count), scale_, kind);
      for (int64_t i = 0; i < count; ++i) {
        const double value = oracle::value_of_code(got[i], kind);
        if (value != want[static_cast<size_t>(i)]) failed(what, t, i, value, want[static_cast<size_t>(i)]);
      }
    } else {
      with_host_type(type, [&](auto stored) {
        using U = decltype(stored);
        for (int64_t i = 0; i < count; ++i) {
          U value;
          std::memcpy(static_cast<void*>(&value), got + i * static_cast<int64_t>(sizeof value), sizeof value);
          const U want = from_float<U>(to_float(values[i]));
          if (std::memcmp(&value, &want, sizeof value) != 0) failed(what, t, i, to_double(value), to_double(want));
        }
      });
    }
    std::copy_n(got, size, rest.begin() + at);
  };

  Fault first;
  std::vector<uint8_t> codes(static_cast<size_t>(c_.num_tokens), 0);
  const bool empty = !c_.latent && !c_.k && c_.num_q_heads == 0;  // then nothing is looked at
  for (int64_t t = 0; !empty && t < c_.num_tokens; ++t) {
    const int64_t position = positions_[static_cast<size_t>(t)];
    const int64_t slot = caches ? slots_[static_cast<size_t>(t)] : -1;
    const oracle::MlaPlace place = oracle::mla_place(position, slot, bound, static_cast<int>(c_.past_table), num_slots_);
    if (place.fault_code != 0) {
      codes[static_cast<size_t>(t)] = static_cast<uint8_t>(place.fault_code);
      if (first.count++ == 0) first.token = t, first.code = static_cast<FaultCode>(place.fault_code);
    }
    if (place.stand == MlaStand::padding) continue;
    const bool zero = place.stand == MlaStand::zeros, turns = c_.rotates && place.stand == MlaStand::rotated;
    std::vector<double> cos, sin;
    for (int64_t i = 0; turns && i < pairs; ++i) {
      if (c_.source == RopeSource::inv_freq) {
        const double angle = static_cast<double>(position) * static_cast<double>(inv_freq_[static_cast<size_t>(i)]);
        cos.push_back(1.25 * std::cos(angle)), sin.push_back(1.25 * std::sin(angle));
      } else {
        const int64_t at = (c_.source == RopeSource::per_token ? t : position) * pairs + i;
        cos.push_back(cos_[static_cast<size_t>(at)]), sin.push_back(sin_[static_cast<size_t>(at)]);
      }
      if (c_.inverse) sin.back() = -sin.back();
    }
    const auto rotated = [&](const std::vector<oracle::MlaValue>& values) {
      return turns ? oracle::mla_rotate(values, c_.style == RopeStyle::interleaved, cos, sin) : values;
    };
    const auto values_of = [&](const T* x) {
      std::vector<oracle::MlaValue> values;
      for (const double value : widened(x, c_.qk_rope_head_dim)) values.push_back({value, std::fabs(value)});
      return values;
    };
    if (!latent_out.empty()) {
      const T* const x = &latent_.x[static_cast<size_t>(t * latent_.x_stride)];
      const bool normed = c_.norm != MlaNorm::none;
      const auto want = oracle::mla_norm(widened(x, c_.kv_lora_rank), weight_, static_cast<double>(c_.weight_offset),
                                         static_cast<double>(p.kv_c_norm.eps));
      check_row("latent", t, x, latent_out, latent_rest, t * latent_.y_stride, want, !normed, zero);
    }
    if (!k_out.empty()) {
      const T* const x = &k_.x[static_cast<size_t>(t * k_.x_stride)];
      std::vector<oracle::MlaValue> values = values_of(x);
      if (c_.k_norm != MlaNorm::none) {
        values = oracle::mla_norm(widened(x, c_.qk_rope_head_dim), k_weight_, static_cast<double>(c_.weight_offset),
                                  static_cast<double>(p.k_pe_norm.eps));
        for (oracle::MlaValue& v : values) v.scale += 0.5 * ulp<T>(v.value) / (kDefaultSteps * 0x1p-24);  // it is rounded to T
      }
      const bool copied = !turns && c_.k_norm == MlaNorm::none;
      check_row("k_pe", t, x, k_out, k_rest, t * k_.y_stride, rotated(values), copied, zero);
    }
    for (int64_t h = 0; h < c_.num_q_heads; ++h) {
      const T* const x = &q_.x[static_cast<size_t>(t * q_.x_stride + h * q_.x_head)];
      check_row("q_pe", t, x, q_out, q_rest, t * q_.y_stride + h * q_.y_head, rotated(values_of(x)), !turns, zero);
    }
    if (place.slot < 0 || !c_.outputs) continue;
    const int64_t page = place.slot / c_.page_size, offset = place.slot % c_.page_size;
    const auto entry_at = [&](const MlaCachePart& part, const uint8_t* data) {
      const int64_t size = dtype_size(resolve_dtype(part.format.type, p.dtype));
      return static_cast<const uint8_t*>(part.data) - data + (page * part.page_stride + offset * part.token_stride) * size;
    };
    if (c_.latent && p.cache.latent.data != nullptr) {
      check_entry("cached latent", t, cache, cache_rest, entry_at(p.cache.latent, entries_),
                  &latent_out[static_cast<size_t>(t * latent_.y_stride)], c_.kv_lora_rank, p.cache.latent.format);
    }
    if (c_.k && p.cache.rope.data != nullptr) {
      const bool apart = rope_entries_ != nullptr;
      check_entry("cached k_pe", t, apart ? rope_cache : cache, apart ? rope_rest : cache_rest,
                  entry_at(p.cache.rope, apart ? rope_entries_ : entries_), &k_out[static_cast<size_t>(t * k_.y_stride)],
                  c_.qk_rope_head_dim, p.cache.rope.format);
    }
  }
  const auto same = [](const auto& a, const auto& b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]) == 0);
  };
  EXPECT_TRUE(latent_out.empty() || same(latent_out, latent_rest)) << "a hole of kv_c_out was written";
  EXPECT_TRUE(k_out.empty() || same(k_out, k_rest)) << "a hole of k_pe_out was written";
  EXPECT_TRUE(q_out.empty() || same(q_out, q_rest)) << "a hole of q_pe_out was written";
  if (c_.outputs) {
    EXPECT_TRUE(same(cache, cache_rest)) << "a hole of the cache was written";
    EXPECT_TRUE(same(rope_cache, rope_rest)) << "a hole of the cache of k_pe was written";
  }
  const Fault fault = decode_fault(arena_.read(faults_)[0]);
  const bool record = first.count > 0;
  EXPECT_EQ(fault.count, first.count);
  EXPECT_EQ(fault.token, record ? first.token : -1);
  EXPECT_EQ(fault.code, first.code);
  EXPECT_EQ(arena_.read(token_faults_), codes);
}

template class PlacedMla<float>;
template class PlacedMla<Float16>;
template class PlacedMla<BFloat16>;

}  // namespace prologue::test
