#include "tests/support/rotary_results.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <type_traits>

#include "tests/support/tolerance.h"

namespace prologue::test {

template <>
struct FloatFormat<double> {
  static constexpr int mantissa_bits = 52, min_exponent = -1022;
};

namespace {

template <class T>
bool matches(const RotaryCase& c, T got, const oracle::RotaryElement& want) {
  const T exact = from_double<T>(static_cast<double>(want.value));
  if (want.wanted != oracle::Wanted::rotated) {
    const T expected = want.wanted == oracle::Wanted::zero ? T{} : exact;
    return std::memcmp(&got, &expected, sizeof(T)) == 0;
  }
  constexpr long double kEpsilon = std::is_same_v<T, double> ? 0x1p-53L : 0x1p-24L;
  // A frequency that the operation computes is itself rounded, to float64.
  const long double computed = c.source == RopeSource::theta ? 0x1p-53L * want.slope : 0.0L;
  const long double tolerance =
      0.5L * static_cast<long double>(ulp<T>(static_cast<double>(want.value))) + 16.0L * kEpsilon * want.scale + computed;
  return std::fabs(static_cast<long double>(to_double(got)) - want.value) <= tolerance;
}

template <class T>
void expect_faults(const PlacedRotary<T>& placed, const oracle::RotaryOutput& want) {
  const RotaryCase& c = placed.rotary_case();
  if (c.faults) {
    const Fault fault = decode_fault(placed.faults());
    EXPECT_EQ(fault.count, want.faults.size());
    if (!want.faults.empty()) {
      EXPECT_EQ(fault.token, want.faults[0].first);
      EXPECT_EQ(static_cast<int64_t>(fault.code), want.faults[0].second);
    }
  }
  if (c.token_faults) {
    std::vector<uint8_t> flags(static_cast<size_t>(c.batch * c.seq_len), 0);
    for (const auto& [token, code] : want.faults) flags[static_cast<size_t>(token)] = static_cast<uint8_t>(code);
    EXPECT_EQ(placed.token_faults(), flags);
  }
}

}  // namespace

template <class T>
void expect_matches(const PlacedRotary<T>& placed) {
  const RotaryCase& c = placed.rotary_case();
  const oracle::RotaryOutput want = oracle::rotary(placed.input());
  int failures = 0;
  for (size_t i = 0; i < c.tensors.size(); ++i) {
    std::vector<T> buffer = placed.y(i);
    std::vector<T> rest = placed.before(i);
    const RotaryStrides& ys = placed.params().tensors[i].y_strides;
    int64_t n = 0;
    for (int64_t b = 0; b < c.batch; ++b) {
      for (int64_t s = 0; s < c.seq_len; ++s) {
        for (int64_t h = 0; h < c.tensors[i].num_heads; ++h) {
          for (int64_t d = 0; d < c.head_dim; ++d, ++n) {
            const auto at = static_cast<size_t>(b * ys.batch + s * ys.token + h * ys.head + d * ys.channel);
            const oracle::RotaryElement& element = want.y[i][static_cast<size_t>(n)];
            if (element.wanted == oracle::Wanted::untouched) continue;
            if (!matches(c, buffer[at], element) && failures++ < 5) {
              ADD_FAILURE() << "tensor " << i << " (" << b << ", " << s << ", " << h << ", " << d << "): got "
                            << to_double(buffer[at]) << ", want " << static_cast<double>(element.value) << " ("
                            << static_cast<int>(element.wanted) << ")";
            }
            rest[at] = buffer[at];
          }
        }
      }
    }
    if (!buffer.empty()) {
      EXPECT_EQ(std::memcmp(rest.data(), buffer.data(), buffer.size() * sizeof(T)), 0)
          << "tensor " << i << ": a hole was written";
    }
  }
  expect_faults(placed, want);
}

template <class T>
void expect_same_bits(const PlacedRotary<T>& got, const PlacedRotary<T>& want) {
  const RotaryCase& c = got.rotary_case();
  for (size_t i = 0; i < c.tensors.size(); ++i) {
    const std::vector<T> y = got.y(i), want_y = want.y(i);
    ASSERT_EQ(y.size(), want_y.size());
    for (size_t n = 0; n < y.size(); ++n) {
      ASSERT_EQ(std::memcmp(&y[n], &want_y[n], sizeof(T)), 0)
          << "tensor " << i << ", element " << n << ": " << to_double(y[n]) << ", not " << to_double(want_y[n]);
    }
  }
  if (c.faults) {
    EXPECT_EQ(got.faults().first, want.faults().first);
    EXPECT_EQ(got.faults().count, want.faults().count);
  }
  if (c.token_faults) {
    EXPECT_EQ(got.token_faults(), want.token_faults());
  }
}

template void expect_matches<float>(const PlacedRotary<float>&);
template void expect_matches<Float16>(const PlacedRotary<Float16>&);
template void expect_matches<BFloat16>(const PlacedRotary<BFloat16>&);
template void expect_matches<double>(const PlacedRotary<double>&);
template void expect_same_bits<float>(const PlacedRotary<float>&, const PlacedRotary<float>&);
template void expect_same_bits<Float16>(const PlacedRotary<Float16>&, const PlacedRotary<Float16>&);
template void expect_same_bits<BFloat16>(const PlacedRotary<BFloat16>&, const PlacedRotary<BFloat16>&);
template void expect_same_bits<double>(const PlacedRotary<double>&, const PlacedRotary<double>&);

}  // namespace prologue::test
