#include "tests/support/prologue_results.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/oracle/quantize.h"
#include "tests/support/tolerance.h"

namespace prologue::test {

namespace {

Reference as_reference(const oracle::Element& element) {
  // 2^-126: a product of small numbers may lose a part of the smallest denormal.
  return {element.value, element.scale + (element.scale > 0.0 ? 0x1p-126 : 0.0)};
}

double error_of(const oracle::Element& e) { return kDefaultSteps * (std::ldexp(e.scale, -24) + 0x1p-149); }

template <class T>
class Comparison {
 public:
  Comparison(const PlacedPrologue<T>& placed, const oracle::PrologueOutput& want)
      : placed_(placed), want_(want), case_(placed.prologue_case()), data_(placed.data()), params_(placed.params()) {
    for (const Output& output : placed.outputs()) unexplained_.push_back(placed.arena().read(output.data));
  }

  void run(bool k_is_copied) {
    expect_heads("q", params_.q_out, case_.num_q_heads, case_.head_dim, want_.q, want_.state);
    if (params_.q8_out.data != nullptr) expect_quantized_queries(params_.q8_out, case_, data_.q_scale, want_);
    if (case_.with_k) expect_heads("k_out", params_.k_out, case_.num_kv_heads, case_.head_dim, want_.k, want_.state);
    if (case_.with_v) expect_heads("v_out", params_.v_out, case_.num_kv_heads, case_.v_width(), want_.v, want_.state);
    const auto side = [&](const char* name, bool is_v, const PagedHeads& cache, const std::vector<T>& source, bool copied,
                          const std::vector<float>& given, const std::vector<oracle::Row>& rows) {
      if (cache.data == nullptr || !case_.writes_kv()) return;
      expect_cache({name, cache, placed_.cache_type(is_v), case_.page_size, case_.num_kv_heads,
                    is_v ? case_.v_width() : case_.head_dim, copied ? &source : nullptr, given, rows, want_.slot_token});
    };
    if (case_.with_k) side("k", false, params_.cache.k, data_.k, k_is_copied, data_.k_scale, want_.k);
    if (case_.with_v) side("v", true, params_.cache.v, data_.v, case_.copies_v(), data_.v_scale, want_.v);
    for (size_t i = 0; i < case_.groups.size(); ++i)
      expect_group(params_.groups[i], case_.groups[i], data_.groups[i], want_.groups[i]);

    constexpr FaultCode kCodes[] = {FaultCode::none, FaultCode::position_out_of_range, FaultCode::slot_out_of_range,
                                    FaultCode::page_out_of_range, FaultCode::sequence_too_long};
    uint64_t count = 0;
    Fault first;
    for (int64_t t = case_.num_tokens - 1; t >= 0; --t) {
      const FaultCode code = kCodes[static_cast<int>(want_.faults[static_cast<size_t>(t)])];
      if (code == FaultCode::none) continue;
      first = {code, t, ++count};
      if (params_.token_faults != nullptr) {
        EXPECT_EQ(take<uint8_t>(params_.token_faults + t), static_cast<uint8_t>(code)) << t;
      }
    }
    const Fault fault = decode_fault(placed_.faults());
    if (case_.no_faults) {
      EXPECT_EQ(fault.count, 0u);
    } else {
      EXPECT_EQ(fault.count, count);
      EXPECT_EQ(fault.token, first.token);
      EXPECT_EQ(fault.code, first.code);
    }
    for (size_t i = 0; i < unexplained_.size(); ++i) {
      expect_bits(unexplained_[i], placed_.outputs()[i].initial, placed_.outputs()[i].name);
    }
  }

 private:
  // Sums of few short numbers that an attention factor such as 0.8 multiplied lie beside boundaries of the rounding, not anywhere.
  static bool sums_short_numbers(const PrologueCase& c) {
    return (c.hadamard_block != 0 || c.v_hadamard_block != 0) && c.attention_factor != 1.0f;
  }
  bool nearly_all_round_once() const {
    const auto inexact = [](const PrologueCase& c) { return c.sigmoid || sums_short_numbers(c); };
    return !case_.per_step && !inexact(case_) && std::none_of(case_.groups.begin(), case_.groups.end(), inexact);
  }

  // Returns what the run left at a pointer into an output. It counts as explained from here on.
  std::vector<unsigned char> take_bytes(const void* pointer, int64_t count) {
    const size_t i = placed_.output_index(pointer);
    const Output& output = placed_.outputs()[i];
    const int64_t at = static_cast<const unsigned char*>(pointer) - output.data;
    const auto from = unexplained_[i].begin() + at;
    std::vector<unsigned char> bytes(from, from + count);
    std::copy_n(output.initial.begin() + at, count, from);
    return bytes;
  }
  template <class U>
  U take(const U* pointer) {
    U value;
    std::memcpy(&value, take_bytes(pointer, sizeof value).data(), sizeof value);
    return value;
  }

  void expect_heads(const char* name, const MutableHeadsView& view, int64_t heads, int64_t dim,
                    const std::vector<oracle::Row>& rows, const std::vector<oracle::TokenState>& states) {
    if (view.data == nullptr || heads == 0) return;
    std::vector<T> got;
    std::vector<Reference> reference;
    for (int64_t t = 0; t < case_.num_tokens; ++t) {
      const oracle::TokenState state = states[static_cast<size_t>(t)];
      if (state == oracle::TokenState::untouched) continue;
      for (int64_t h = 0; h < heads; ++h) {
        append_values(take_bytes(static_cast<T*>(view.data) + t * view.token_stride + h * view.head_stride,
                                 dim * static_cast<int64_t>(sizeof(T))),
                      got);
        for (int64_t i = 0; i < dim; ++i) {
          reference.push_back(state == oracle::TokenState::zero
                                  ? Reference{}
                                  : as_reference(rows[static_cast<size_t>(t)][static_cast<size_t>(h * dim + i)]));
        }
      }
    }
    expect_close(got, reference, heads * dim, name, kDefaultSteps, nearly_all_round_once());
  }

  // Compares the codes of one head under the scale that is stored beside them or was given.
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

  // `c` is the case, or one of its groups.
  void expect_quantized_queries(const QuantizedQuery& q8, const PrologueCase& c, float given,
                                const oracle::PrologueOutput& want) {
    for (int64_t t = 0; t < case_.num_tokens; ++t) {
      const oracle::TokenState state = want.state[static_cast<size_t>(t)];
      if (state == oracle::TokenState::untouched) continue;
      for (int64_t h = 0; h < c.num_q_heads; ++h) {
        const auto bytes =
            take_bytes(static_cast<unsigned char*>(q8.data) + t * q8.token_stride + h * q8.head_stride, c.head_dim);
        const bool computed = q8.scaling == KvScaling::token_head;
        const float scale = computed ? take(q8.scale + t * c.num_q_heads + h) : given;
        if (state == oracle::TokenState::zero) {
          EXPECT_EQ(bytes, std::vector<unsigned char>(bytes.size(), 0)) << "q8_out of token " << t;
          EXPECT_EQ(computed ? scale : 0.0f, 0.0f) << "q8_out of token " << t;
          continue;
        }
        expect_codes("q8_out", t, bytes, want.q[static_cast<size_t>(t)].data() + h * c.head_dim, c.head_dim,
                     c.q8_e5m2 ? oracle::Quantized::e5m2 : oracle::Quantized::e4m3, scale, computed);
      }
    }
  }

  // K, V, or a group in its cache.
  struct Side {
    const char* name;
    const PagedHeads& cache;
    DType type;
    int64_t page_size, heads, dim;
    const std::vector<T>* source;  // null: it is not copied
    const std::vector<float>& given_scales;
    const std::vector<oracle::Row>& rows;
    const std::map<int64_t, int64_t>& slot_token;

    int64_t at(const PageStrides& s, int64_t slot, int64_t head) const {
      return slot / page_size * s.page + slot % page_size * s.token + head * s.head;
    }
    const unsigned char* data(int64_t slot, int64_t head) const {
      return static_cast<const unsigned char*>(cache.data) + at(cache.strides, slot, head) * dtype_bits(type) / 8;
    }
    int64_t bytes() const { return dim * dtype_bits(type) / 8; }
    const float* scale(int64_t slot, int64_t head) const { return cache.scale + at(cache.scale_strides, slot, head); }
  };

  template <class U>
  void expect_float_cache(const Side& side) {
    std::vector<U> got;
    std::vector<Reference> reference;
    for (const auto& [slot, token] : side.slot_token) {
      for (int64_t h = 0; h < side.heads; ++h) {
        const std::vector<unsigned char> bytes = take_bytes(side.data(slot, h), side.bytes());
        if (std::is_same_v<T, U> && side.source != nullptr) {
          EXPECT_EQ(std::memcmp(bytes.data(), side.source->data() + (token * side.heads + h) * side.dim, bytes.size()), 0)
              << side.name << " is not a bitwise copy: slot " << slot << ", head " << h;
        }
        append_values(bytes, got);
        for (int64_t i = 0; i < side.dim; ++i) {
          reference.push_back(as_reference(side.rows[static_cast<size_t>(token)][static_cast<size_t>(h * side.dim + i)]));
        }
      }
    }
    expect_close(got, reference, side.heads * side.dim, side.name, kDefaultSteps, nearly_all_round_once());
  }

  // A head of a block-scaled format. The scale of each block is that of a largest value within what the oracle leaves open, and the codes are the
  // nearest ones under the scale that is stored.
  void expect_blocks(const Side& side, int64_t slot, int64_t token, int64_t head) {
    const KvFormat& format = side.cache.format;
    const bool mx = format.scaling == KvScaling::mx, packed = side.type == DType::fp4_e2m1;
    const auto type = packed ? oracle::Quantized::e2m1 : oracle::Quantized::e4m3;
    const int64_t channels = mx ? 32 : 16;
    const double tensor_scale = mx ? 1.0 : static_cast<double>(side.given_scales.front());
    const std::vector<unsigned char> bytes = take_bytes(side.data(slot, head), side.bytes());
    const oracle::Element* want = side.rows[static_cast<size_t>(token)].data() + head * side.dim;
    for (int64_t block = 0; block < side.dim / channels; ++block) {
      const uint8_t code = take(side.cache.block_scale + side.at(side.cache.scale_strides, slot, head) + block);
      double largest = 0.0, error = 0.0;
      for (int64_t i = block * channels; i < (block + 1) * channels; ++i) {
        largest = std::max(largest, std::fabs(want[i].value));
        error = std::max(error, error_of(want[i]));
      }
      const auto code_of = [&](double magnitude) {
        if (!mx) return oracle::nearest_value(magnitude / 6.0 / tensor_scale, oracle::Quantized::e4m3);
        return magnitude > 0.0 ? std::max(0.0, 127.0 + std::ilogb(magnitude) - (packed ? 2 : 8)) : 0.0;
      };
      const double low_scale = code_of(std::max(0.0, (largest - error) * (1.0 - 0x1p-22))),
                   high_scale = code_of((largest + error) * (1.0 + 0x1p-22));
      const double got_scale = mx ? code : oracle::value_of_code(code, oracle::Quantized::e4m3);
      if (!(got_scale >= low_scale && got_scale <= high_scale)) {
        ADD_FAILURE() << side.name << " of token " << token << ", block " << block << ": the scale is " << got_scale << ", not "
                      << low_scale << ".." << high_scale;
        return;
      }
      const double factor = mx ? std::ldexp(1.0, code - 127) : got_scale * tensor_scale;
      for (int64_t i = block * channels; i < (block + 1) * channels; ++i) {
        uint8_t element = bytes[static_cast<size_t>(packed ? i / 2 : i)];
        if (packed) element = i % 2 == 0 ? element & 15 : element >> 4;
        const double got = oracle::value_of_code(element, type), near = error_of(want[i]) + 0x1p-22 * std::fabs(want[i].value);
        const double low = factor == 0.0 ? 0.0 : oracle::nearest_value((want[i].value - near) / factor, type);
        const double high = factor == 0.0 ? 0.0 : oracle::nearest_value((want[i].value + near) / factor, type);
        if (got >= low && got <= high) continue;
        ADD_FAILURE() << side.name << " of token " << token << ", channel " << i << ": got " << got << " * " << factor
                      << ", want " << want[i].value << ", that is " << low << ".." << high;
        return;
      }
    }
  }

  void expect_cache(const Side& side) {
    switch (side.type) {
      case DType::f32: return expect_float_cache<float>(side);
      case DType::f16: return expect_float_cache<Float16>(side);
      case DType::bf16: return expect_float_cache<BFloat16>(side);
      default: break;
    }
    const auto type = static_cast<oracle::Quantized>(static_cast<int>(side.type) - static_cast<int>(DType::fp8_e4m3));
    const KvScaling scaling = side.cache.format.scaling;
    for (const auto& [slot, token] : side.slot_token) {
      for (int64_t h = 0; h < side.heads; ++h) {
        if (is_block_scaled(side.cache.format)) {
          expect_blocks(side, slot, token, h);
          continue;
        }
        float scale = 1.0f;
        if (scaling == KvScaling::tensor) scale = side.given_scales.front();
        if (scaling == KvScaling::head) scale = side.given_scales[static_cast<size_t>(h)];
        if (scaling == KvScaling::token_head) scale = take(side.scale(slot, h));
        const float zero_point = side.type == DType::uint4 ? take(side.scale(slot, h) + 1) : 0.0f;
        expect_codes(side.name, token, take_bytes(side.data(slot, h), side.bytes()),
                     side.rows[static_cast<size_t>(token)].data() + h * side.dim, side.dim, type, scale,
                     scaling == KvScaling::token_head, zero_point);
      }
    }
  }

  void expect_group(const HeadGroup& group, const PrologueCase& c, const PrologueData<T>& data,
                    const oracle::PrologueOutput& want) {
    expect_heads("out of a group", group.out, c.num_q_heads, c.head_dim, want.q, want.state);
    if (group.q8_out.data != nullptr) expect_quantized_queries(group.q8_out, c, data.q_scale, want);
    if (group.cache.data == nullptr) return;
    const DType type = resolve_dtype(group.cache.format.type, FloatFormat<T>::dtype);
    expect_cache(
        {"a group", group.cache, type, c.page_size, c.num_q_heads, c.head_dim, nullptr, data.k_scale, want.q, want.slot_token});
  }

  using Output = typename PlacedPrologue<T>::Output;

  const PlacedPrologue<T>& placed_;
  const oracle::PrologueOutput& want_;
  const PrologueCase& case_;
  const PrologueData<T>& data_;
  const AttentionPrologueParams& params_;
  std::vector<std::vector<unsigned char>> unexplained_;  // each output as the run left it, less what was taken
};

}  // namespace

template <class T>
void expect_matches(const PlacedPrologue<T>& placed, const oracle::PrologueOutput& want, bool k_is_copied) {
  Comparison<T>(placed, want).run(k_is_copied);
}

template <class T>
void expect_same_bits(const PlacedPrologue<T>& got, const PlacedPrologue<T>& want) {
  ASSERT_EQ(got.outputs().size(), want.outputs().size());
  for (size_t i = 0; i < got.outputs().size(); ++i) {
    expect_bits(got.arena().read(got.outputs()[i].data), want.arena().read(want.outputs()[i].data), got.outputs()[i].name);
  }
  EXPECT_EQ(got.faults().first, want.faults().first);
  EXPECT_EQ(got.faults().count, want.faults().count);
}

template void expect_matches<float>(const PlacedPrologue<float>&, const oracle::PrologueOutput&, bool);
template void expect_matches<Float16>(const PlacedPrologue<Float16>&, const oracle::PrologueOutput&, bool);
template void expect_matches<BFloat16>(const PlacedPrologue<BFloat16>&, const oracle::PrologueOutput&, bool);
template void expect_same_bits<float>(const PlacedPrologue<float>&, const PlacedPrologue<float>&);
template void expect_same_bits<Float16>(const PlacedPrologue<Float16>&, const PlacedPrologue<Float16>&);
template void expect_same_bits<BFloat16>(const PlacedPrologue<BFloat16>&, const PlacedPrologue<BFloat16>&);

}  // namespace prologue::test
