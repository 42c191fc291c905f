// The conversions of kernels/base/shared/quantize.h against tables of all values that the formats hold, and of all midpoints.
#include <prologue/kernels/base/shared/quantize.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/random.h"

namespace prologue::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Format {
  const char* name;
  int mantissa_bits, bias, largest_code;
  double largest;
  uint8_t (*to)(float);
  float (*from)(uint8_t);
};
const Format kFormats[] = {{"e4m3", 3, 7, 0x7e, 448.0, to_fp8_e4m3, from_fp8_e4m3},
                           {"e5m2", 2, 15, 0x7b, 57344.0, to_fp8_e5m2, from_fp8_e5m2}};

// Returns the value of a finite code, from the format's definition.
double value_of(const Format& f, int code) {
  const int exponent = code >> f.mantissa_bits, mantissa = code & ((1 << f.mantissa_bits) - 1);
  const double fraction = static_cast<double>(mantissa) / (1 << f.mantissa_bits);
  return exponent == 0 ? std::ldexp(fraction, 1 - f.bias) : std::ldexp(1.0 + fraction, exponent - f.bias);
}

TEST(Fp8, ReadsEveryCode) {
  for (const Format& f : kFormats) {
    SCOPED_TRACE(f.name);
    for (int code = 0; code <= f.largest_code; ++code) {
      EXPECT_EQ(static_cast<double>(f.from(static_cast<uint8_t>(code))), value_of(f, code)) << code;
      EXPECT_EQ(static_cast<double>(f.from(static_cast<uint8_t>(code | 0x80))), -value_of(f, code)) << code;
    }
    EXPECT_TRUE(std::isnan(f.from(0x7f)));
    EXPECT_TRUE(std::isnan(f.from(0xff)));
    EXPECT_EQ(value_of(f, f.largest_code), f.largest);
  }
  EXPECT_EQ(from_fp8_e5m2(0x7c), kInf);
  EXPECT_EQ(from_fp8_e5m2(0xfc), -kInf);
}

TEST(Fp8, RoundsEveryValueAndMidpointToNearestEven) {
  for (const Format& f : kFormats) {
    SCOPED_TRACE(f.name);
    for (int code = 0; code < f.largest_code; ++code) {
      const float low = static_cast<float>(value_of(f, code)), high = static_cast<float>(value_of(f, code + 1));
      const float middle = 0.5f * (low + high);  // exact
      const int even = code % 2 == 0 ? code : code + 1;
      for (const int sign : {0, 0x80}) {
        const auto to = [&](float x) { return static_cast<int>(f.to(sign != 0 ? -x : x)); };
        EXPECT_EQ(to(low), code | sign);
        EXPECT_EQ(to(std::nextafter(middle, 0.0f)), code | sign);
        EXPECT_EQ(to(middle), even | sign) << middle;
        EXPECT_EQ(to(std::nextafter(middle, kInf)), (code + 1) | sign);
      }
    }
  }
}

TEST(Fp8, SaturatesAndKeepsNan) {
  for (const Format& f : kFormats) {
    SCOPED_TRACE(f.name);
    const float largest = static_cast<float>(f.largest);
    const float step = static_cast<float>(f.largest - value_of(f, f.largest_code - 1));
    for (const float x : {largest, std::nextafter(largest, kInf), largest + 0.5f * step, largest + step, 1e38f, kInf}) {
      EXPECT_EQ(f.to(x), f.largest_code) << x;
      EXPECT_EQ(f.to(-x), f.largest_code | 0x80) << x;
    }
    EXPECT_EQ(f.to(kNan), 0x7f);
    EXPECT_EQ(f.to(-kNan), 0x7f);
    EXPECT_EQ(f.to(-0.0f), 0x80);
    EXPECT_EQ(f.to(std::numeric_limits<float>::denorm_min()), 0);
  }
}

TEST(Integers, RoundToNearestEvenAndClamp) {
  for (const int limit : {7, 127}) {
    for (int n = -limit - 2; n <= limit + 2; ++n) {
      const auto clamp = [&](int x) { return std::min(std::max(x, -limit), limit); };
      const float x = static_cast<float>(n);
      EXPECT_EQ(to_integer(x, limit), clamp(n));
      EXPECT_EQ(to_integer(x + 0.5f, limit), clamp(n % 2 == 0 ? n : n + 1)) << n;
      EXPECT_EQ(to_integer(std::nextafter(x + 0.5f, -kInf), limit), clamp(n)) << n;
      EXPECT_EQ(to_integer(std::nextafter(x + 0.5f, kInf), limit), clamp(n + 1)) << n;
    }
    for (const float x : {1e38f, kInf}) {
      EXPECT_EQ(to_integer(x, limit), limit);
      EXPECT_EQ(to_integer(-x, limit), -limit);
    }
    EXPECT_EQ(to_integer(kNan, limit), 0);
    EXPECT_EQ(to_integer(-kNan, limit), 0);
  }
}

TEST(ComputedScale, FollowsTheRules) {
  const auto of = [](float amax, DType type) { return computed_scale(magnitude_bits(amax), kv_largest(type)); };
  EXPECT_EQ(of(448.0f, DType::fp8_e4m3).scale, 1.0f);
  EXPECT_EQ(of(-57344.0f, DType::fp8_e5m2).scale, 1.0f);
  EXPECT_EQ(of(254.0f, DType::int8).scale, 2.0f);
  EXPECT_EQ(of(3.5f, DType::int4).scale, 0.5f);
  EXPECT_EQ(of(3.5f, DType::int4).reciprocal, 2.0f);
  for (const float x : {kNan, -kNan, kInf, -kInf}) {
    EXPECT_TRUE(std::isnan(of(x, DType::int8).scale));
    EXPECT_EQ(of(x, DType::int8).reciprocal, 0.0f);
  }
  for (const float x : {0.0f, -0.0f, 1e-40f, 1e-37f}) {  // 1 / (1e-37 / 448) has no float32
    EXPECT_EQ(of(x, DType::fp8_e4m3).scale, 0.0f) << x;
    EXPECT_EQ(of(x, DType::fp8_e4m3).reciprocal, 0.0f) << x;
  }
  EXPECT_GT(of(1e-35f, DType::fp8_e4m3).scale, 0.0f);
  EXPECT_GT(of(3.4e38f, DType::int4).reciprocal, 0.0f);
  for (const DType type : {DType::fp8_e4m3, DType::fp8_e5m2, DType::int8, DType::int4}) {
    for (const float x : {1.0f, -kInf, kNan}) EXPECT_EQ(quantize(x, 0.0f, type), 0);  // zeros, whatever was there
  }
}

// The largest element of a head always gets the largest code, and no element is off by more than half a step.
// The thresholds of docs/numerics.md: 2^-128 times the largest number of the type.
TEST(ComputedScale, HeadsThatAreTooSmallAreZeros) {
  const struct {
    DType type;
    double documented;
  } thresholds[] = {{DType::fp8_e4m3, 1.3e-36}, {DType::fp8_e5m2, 1.7e-34}, {DType::int8, 3.7e-37}, {DType::int4, 2.1e-38}};
  for (const auto& [type, documented] : thresholds) {
    SCOPED_TRACE(dtype_name(type));
    const float threshold = kv_largest(type) * 0x1p-128f;
    EXPECT_NEAR(static_cast<double>(threshold) / documented, 1.0, 0.03);
    const HeadScale lost = computed_scale(magnitude_bits(threshold), kv_largest(type));
    EXPECT_EQ(lost.scale, 0.0f);
    EXPECT_EQ(quantize(threshold, lost.reciprocal, type), 0);
    const float kept = threshold * (1.0f + 0x1p-19f);
    const HeadScale scale = computed_scale(magnitude_bits(kept), kv_largest(type));
    EXPECT_GT(scale.scale, 0.0f);
    EXPECT_NEAR(dequantize(quantize(kept, scale.reciprocal, type), scale.scale, type) / kept, 1.0f, 1e-5f);
  }
  const float range = 15.0f * 0x1p-128f;  // uint4
  EXPECT_NEAR(static_cast<double>(range) / 4.4e-38, 1.0, 0.03);
  EXPECT_EQ(asymmetric_scale(0.0f, range).scale, 0.0f);
  EXPECT_GT(asymmetric_scale(0.0f, range * (1.0f + 0x1p-19f)).scale, 0.0f);
}

TEST(ComputedScale, UsesTheWholeRange) {
  Random random(3);
  for (int round = 0; round < 20000; ++round) {
    const float amax = static_cast<float>(std::exp2(200.0 * random.uniform() - 100.0));
    for (const DType type : {DType::fp8_e4m3, DType::fp8_e5m2, DType::int8, DType::int4}) {
      const HeadScale s = computed_scale(magnitude_bits(amax), kv_largest(type));
      EXPECT_NEAR(dequantize(quantize(amax, s.reciprocal, type), s.scale, type), amax, 1e-6f * amax);
      EXPECT_NEAR(dequantize(quantize(-amax, s.reciprocal, type), s.scale, type), -amax, 1e-6f * amax);
      const float x = amax * static_cast<float>(random.uniform());
      const float step = type == DType::fp8_e4m3 ? x / 16.0f : type == DType::fp8_e5m2 ? x / 8.0f : 0.5f * s.scale;
      EXPECT_NEAR(dequantize(quantize(x, s.reciprocal, type), s.scale, type), x, 1.001f * step + 0.002f * s.scale);
    }
  }
}

TEST(OrderedBits, AreInTheOrderOfTheNumbers) {
  const float ordered[] = {-kNan, -kInf, -3.4e38f, -1.0f, -1e-40f, -0.0f, 0.0f, 1e-40f, 1.0f, 3.4e38f, kInf, kNan};
  for (size_t i = 0; i + 1 < std::size(ordered); ++i) EXPECT_LT(ordered_bits(ordered[i]), ordered_bits(ordered[i + 1])) << i;
  for (const float x : ordered) {
    const float back = from_ordered_bits(ordered_bits(x));
    EXPECT_EQ(std::memcmp(&back, &x, sizeof x), 0) << x;
  }
}

TEST(AsymmetricScale, FollowsTheRules) {
  const AsymmetricScale s = asymmetric_scale(-2.0f, 5.5f);
  EXPECT_EQ(s.scale, 0.5f);
  EXPECT_EQ(s.reciprocal, 2.0f);
  EXPECT_EQ(s.zero_point, -2.0f);
  EXPECT_EQ(quantize(-2.0f, s, DType::uint4), 0);
  EXPECT_EQ(quantize(5.5f, s, DType::uint4), 15);
  EXPECT_EQ(quantize(-1.75f, s, DType::uint4), 0);  // ties to even
  EXPECT_EQ(quantize(-1.25f, s, DType::uint4), 2);
  for (const auto& [low, high] : {std::pair{kNan, kNan}, std::pair{-kNan, 1.0f}, std::pair{0.0f, kInf}, std::pair{-kInf, kInf},
                                  std::pair{kInf, kInf}, std::pair{-3e38f, 3e38f}}) {
    EXPECT_TRUE(std::isnan(asymmetric_scale(low, high).scale)) << low << ", " << high;
    EXPECT_TRUE(std::isnan(asymmetric_scale(low, high).zero_point)) << low << ", " << high;
    EXPECT_EQ(quantize(high, asymmetric_scale(low, high), DType::uint4), 0);
  }
  for (const auto& [low, high] :
       {std::pair{0.0f, 0.0f}, std::pair{-0.0f, 0.0f}, std::pair{3.5f, 3.5f}, std::pair{1e-40f, 1e-38f}}) {
    EXPECT_EQ(asymmetric_scale(low, high).scale, 0.0f) << low;
    EXPECT_EQ(asymmetric_scale(low, high).zero_point, low);
    EXPECT_EQ(quantize(high, asymmetric_scale(low, high), DType::uint4), 0);
  }
}

// The ends of the range get the first and the last code, and no element is off by more than half a step.
TEST(AsymmetricScale, UsesTheWholeRange) {
  Random random(4);
  for (int round = 0; round < 20000; ++round) {
    const float unit = static_cast<float>(std::exp2(200.0 * random.uniform() - 100.0));
    const float low = unit * static_cast<float>(random.normal()), high = low + unit * static_cast<float>(0.1 + random.uniform());
    const AsymmetricScale s = asymmetric_scale(low, high);
    EXPECT_EQ(quantize(low, s, DType::uint4), 0);
    EXPECT_EQ(quantize(high, s, DType::uint4), 15);
    const float x = std::min(high, low + (high - low) * static_cast<float>(random.uniform()));
    const double back =
        static_cast<double>(quantize(x, s, DType::uint4)) * static_cast<double>(s.scale) + static_cast<double>(s.zero_point);
    EXPECT_NEAR(back, static_cast<double>(x), 0.5001 * static_cast<double>(s.scale)) << low << ", " << high;
  }
}

}  // namespace
}  // namespace prologue::test
