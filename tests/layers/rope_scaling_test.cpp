// The rope schemes. Chain of trust: transformers' own values (tests/golden/rope_scaling) hold the long double oracle's formulas
// and, to the last bit, the float32 `reference`; the oracle holds `exact`.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <string>

#include <prologue/layers/rope/rope_table.h>

#include "tests/oracle/rope_scaling.h"
#include "tests/support/source_path.h"

#if __has_include(<nlohmann/json.hpp>)
#include <nlohmann/json.hpp>
#define PROLOGUE_HAS_JSON 1
#else
#define PROLOGUE_HAS_JSON 0
#endif

namespace prologue {
namespace {

RopeConfig config(int64_t rotary_dim, double theta, RopeScaling scaling = DefaultRope{}) {
  RopeConfig result;
  result.rotary_dim = rotary_dim;
  result.theta = theta;
  result.scaling = std::move(scaling);
  return result;
}

RopeFrequencies frequencies(const RopeConfig& config, int64_t length, RopePrecision precision) {
  auto result = rope_frequencies(config, length, precision);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? *result : RopeFrequencies{};
}

YarnRope yarn(double factor, int64_t original) {
  YarnRope result;
  result.factor = factor;
  result.original_max_position = original;
  return result;
}

#if PROLOGUE_HAS_JSON

using Json = nlohmann::json;

const Json& golden() {
  static const Json json = Json::parse(std::ifstream(test::source_path("tests/golden/rope_scaling/rope_scaling.json")));
  return json;
}

std::vector<float> floats(const std::string& hexadecimal) {
  std::vector<float> result;
  for (size_t at = 0; at < hexadecimal.size(); at += 8) {
    result.push_back(std::bit_cast<float>(static_cast<uint32_t>(std::stoul(hexadecimal.substr(at, 8), nullptr, 16))));
  }
  return result;
}

std::optional<double> maybe(const Json& json, const char* key) {
  return json.contains(key) ? std::optional(json[key].get<double>()) : std::nullopt;
}

RopeScaling scaling(const Json& json) {
  const std::string type = json["rope_type"];
  const int64_t original = json.value("original_max_position_embeddings", int64_t{0});
  if (type == "default") return DefaultRope{};
  if (type == "linear") return LinearRope{json["factor"]};
  if (type == "dynamic") return DynamicNtkRope{json["factor"], json["max_position"]};
  if (type == "yarn") {
    return YarnRope{json["factor"],
                    original,
                    json.value("beta_fast", 32.0),
                    json.value("beta_slow", 1.0),
                    json.value("mscale", 0.0),
                    json.value("mscale_all_dim", 0.0),
                    maybe(json, "attention_factor"),
                    json.value("truncate", true)};
  }
  if (type == "longrope") {
    const double stretch = json["max_position"].get<double>() / static_cast<double>(original);
    return LongRope{json["short_factor"],
                    json["long_factor"],
                    original,
                    json.value("factor", stretch),
                    maybe(json, "attention_factor"),
                    maybe(json, "attention_factor")};
  }
  if (type == "llama3") return Llama3Rope{json["factor"], json["low_freq_factor"], json["high_freq_factor"], original};
  EXPECT_EQ(type, "proportional");
  return ProportionalRope{json["partial_rotary_factor"], json.value("factor", 1.0)};
}

struct GoldenCase {
  std::string name;
  std::string scheme;
  RopeConfig config;
  int64_t sequence_length;
  double attention_factor;
  std::vector<float> inv_freq;
  std::vector<float> scalar_inv_freq;  // by torch's scalar code
  std::vector<float> table;            // at golden()["positions"]; may be empty
};

std::vector<GoldenCase> golden_cases() {
  std::vector<GoldenCase> result;
  for (const Json& json : golden()["cases"]) {
    for (const Json& entry : json["lengths"]) {
      const int64_t length = entry["sequence_length"];
      result.push_back({str_cat(json["name"].get<std::string>(), ", length ", length), json["rope_type"],
                        config(json["rotary_dim"], json["theta"], scaling(json)), length, entry["attention_factor"],
                        floats(entry["inv_freq"]), floats(entry.value("inv_freq_scalar", entry["inv_freq"].get<std::string>())),
                        floats(entry.value("table", ""))});
    }
  }
  return result;
}

TEST(RopeScaling, OracleAgreesWithTransformers) {
  for (const GoldenCase& test : golden_cases()) {
    const std::vector<test::oracle::Wide> want = test::oracle::rope_inv_freq(test.config, test.sequence_length);
    ASSERT_EQ(want.size(), test.inv_freq.size()) << test.name;
    for (size_t i = 0; i < want.size(); ++i) {
      const auto value = static_cast<double>(want[i]);
      EXPECT_NEAR(value, static_cast<double>(test.inv_freq[i]), 2e-6 * value) << test.name << ", pair " << i;
    }
  }
}

TEST(RopeScaling, ExactAgreesWithTheOracle) {
  for (GoldenCase& test : golden_cases()) {
    for (const bool with_factors : {false, true}) {
      if (with_factors) test.config.freq_factors.assign(test.inv_freq.size(), 1.7f);
      const std::vector<test::oracle::Wide> want = test::oracle::rope_inv_freq(test.config, test.sequence_length);
      const RopeFrequencies got = frequencies(test.config, test.sequence_length, RopePrecision::exact);
      ASSERT_EQ(got.inv_freq.size(), want.size()) << test.name;
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_NEAR(got.inv_freq[i], static_cast<double>(want[i]), static_cast<double>(1e-14L * want[i]))
            << test.name << ", pair " << i;
      }
      EXPECT_NEAR(got.attention_factor, test.attention_factor, 1e-15) << test.name;
    }
  }
}

// The result is bit for bit what torch's scalar code computes. The powf of its vector code is off by an ulp here and there, and a division
// after it can make two of one: what differs is counted.
TEST(RopeScaling, ReferenceIsTransformersBitForBitButForItsVectorPow) {
  struct Count {
    int entries = 0;
    int by_one_ulp = 0;
    int by_two = 0;
    bool operator==(const Count&) const = default;
  };
  std::map<std::string, Count> counts;
  for (const GoldenCase& test : golden_cases()) {
    const RopeFrequencies got = frequencies(test.config, test.sequence_length, RopePrecision::reference);
    ASSERT_EQ(got.inv_freq.size(), test.inv_freq.size()) << test.name;
    EXPECT_EQ(got.attention_factor, test.attention_factor) << test.name;
    Count& count = counts[test.scheme];
    for (size_t i = 0; i < got.inv_freq.size(); ++i) {
      const auto value = static_cast<float>(got.inv_freq[i]);
      ASSERT_EQ(static_cast<double>(value), got.inv_freq[i]) << test.name << ", pair " << i;
      EXPECT_EQ(value, test.scalar_inv_freq[i]) << test.name << ", pair " << i;
      const int64_t ulps = std::abs(std::bit_cast<int32_t>(value) - int64_t{std::bit_cast<int32_t>(test.inv_freq[i])});
      EXPECT_LE(ulps, test.name.starts_with("synthetic") ? 2 : 1) << test.name << ", pair " << i;
      count.entries += 1;
      count.by_one_ulp += ulps == 1 ? 1 : 0;
      count.by_two += ulps == 2 ? 1 : 0;
    }
  }
  const std::map<std::string, Count> want = {{"default", {138, 1, 0}},     {"linear", {228, 1, 1}},   {"dynamic", {576, 6, 0}},
                                             {"yarn", {276, 6, 0}},        {"longrope", {336, 7, 0}}, {"llama3", {224, 0, 0}},
                                             {"proportional", {320, 1, 0}}};
  for (const auto& [scheme, count] : counts) {
    EXPECT_TRUE(count == want.at(scheme)) << scheme << ": of " << count.entries << " entries " << count.by_one_ulp
                                          << " differ by one ulp, " << count.by_two << " by two";
  }
  EXPECT_EQ(counts.size(), want.size());
}

TEST(RopeScaling, TablesAreTransformersWithinOneRounding) {
  const std::vector<int64_t> positions = golden()["positions"];
  for (const GoldenCase& test : golden_cases()) {
    if (test.table.empty()) continue;
    // Their frequencies are given verbatim: an ulp of a frequency grows with the position.
    const VerbatimRope verbatim{{test.inv_freq.begin(), test.inv_freq.end()}, test.attention_factor};
    const RopeFrequencies given = frequencies(config(test.config.rotary_dim, 10000.0, verbatim), 0, RopePrecision::reference);
    const auto table = rope_cos_sin(given, positions.back() + 1, RopePrecision::reference);
    ASSERT_TRUE(table.ok()) << table.status().message();
    const double tolerance = test.attention_factor <= 1.0 ? 6e-8 : 1.2e-7;  // half of an ulp of values above 1 is as much
    const auto dim = static_cast<size_t>(test.config.rotary_dim);
    for (size_t p = 0; p < positions.size(); ++p) {
      for (size_t i = 0; i < dim; ++i) {
        EXPECT_NEAR((*table)[static_cast<size_t>(positions[p]) * dim + i], test.table[p * dim + i], tolerance)
            << test.name << ", position " << positions[p] << ", entry " << i;
      }
    }
  }
}

TEST(RopeScaling, SoftmaxFactorIsDeepSeeks) {
  for (const Json& json : golden()["softmax"]) {
    YarnRope rope = yarn(json["factor"], 4096);
    rope.mscale_all_dim = json["mscale_all_dim"];
    EXPECT_NEAR(yarn_softmax_factor(rope), json["scale"].get<double>(), 1e-15);
  }
}

#else
TEST(RopeScaling, Goldens) { GTEST_SKIP() << "the goldens are JSON, and nlohmann-json is not installed"; }
#endif

TEST(RopeScaling, OnlyDynamicAndLongRopeDependOnTheLength) {
  const std::vector<double> ones(8, 1.0), twos(8, 2.0);
  LongRope longrope{ones, twos, 64, 1.0, 1.5, 2.5};
  const struct {
    RopeScaling scaling;
    bool depends;
  } schemes[] = {{DefaultRope{}, false},
                 {LinearRope{2.0}, false},
                 {DynamicNtkRope{2.0, 64}, true},
                 {yarn(2.0, 64), false},
                 {longrope, true},
                 {Llama3Rope{8.0, 1.0, 4.0, 64}, false},
                 {ProportionalRope{0.5}, false},
                 {VerbatimRope{ones, 1.0}, false}};
  for (const auto& [scaling, depends] : schemes) {
    const RopeConfig rope = config(16, 10000.0, scaling);
    for (const RopePrecision precision : {RopePrecision::exact, RopePrecision::reference}) {
      const RopeFrequencies none = frequencies(rope, 0, precision);
      const RopeFrequencies at_original = frequencies(rope, 64, precision);
      const RopeFrequencies beyond = frequencies(rope, 65, precision);
      EXPECT_EQ(none.inv_freq, at_original.inv_freq) << scaling.index();
      EXPECT_EQ(at_original.inv_freq != beyond.inv_freq, depends) << scaling.index();
    }
    // The class of a length is the shortest one with its frequencies.
    for (const int64_t length : {0, 1, 63, 64, 65, 66, 500}) {
      const int64_t shortest = rope_length_class(rope, length);
      EXPECT_LE(shortest, length);
      const RopeFrequencies want = frequencies(rope, length, RopePrecision::exact);
      const RopeFrequencies got = frequencies(rope, shortest, RopePrecision::exact);
      EXPECT_EQ(got.inv_freq, want.inv_freq) << scaling.index() << " " << length;
      EXPECT_EQ(got.attention_factor, want.attention_factor);
      if (shortest > 0) {
        EXPECT_NE(frequencies(rope, shortest - 1, RopePrecision::exact).inv_freq, want.inv_freq);
      }
    }
  }
  EXPECT_EQ(frequencies(config(16, 10000.0, longrope), 64, RopePrecision::exact).attention_factor, 1.5);
  EXPECT_EQ(frequencies(config(16, 10000.0, longrope), 65, RopePrecision::exact).attention_factor, 2.5);
}

TEST(RopeScaling, FrequencyFactorsDivideUnderAnyScheme) {
  const std::vector<float> factors = {1.0f, 2.0f, 4.0f, 8.0f};
  for (const RopeScaling& scaling :
       {RopeScaling(DefaultRope{}), RopeScaling(yarn(4.0, 4096)), RopeScaling(ProportionalRope{0.5})}) {
    RopeConfig scaled = config(8, 10000.0, scaling);
    const RopeConfig plain = scaled;
    scaled.freq_factors = factors;
    for (const RopePrecision precision : {RopePrecision::exact, RopePrecision::reference}) {
      const RopeFrequencies want = frequencies(plain, 0, precision);
      const RopeFrequencies got = frequencies(scaled, 0, precision);
      for (size_t i = 0; i < 4; ++i) EXPECT_EQ(got.inv_freq[i] * static_cast<double>(factors[i]), want.inv_freq[i]);
    }
  }
}

TEST(RopeScaling, NamesWhatIsWrong) {
  const double infinite = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const auto expect = [](const RopeConfig& config, const std::string& message, int64_t length = 0) {
    for (const RopePrecision precision : {RopePrecision::exact, RopePrecision::reference}) {
      const Status status = rope_frequencies(config, length, precision).status();
      EXPECT_EQ(status.code(), StatusCode::invalid_argument) << message;
      EXPECT_EQ(status.message(), "rope: " + message);
    }
  };
  const auto scheme = [](RopeScaling scaling) { return config(8, 10000.0, std::move(scaling)); };

  expect(config(7, 10000.0), "rotary_dim is 7: it must be even and between 2 and 65536");
  expect(config(0, 10000.0), "rotary_dim is 0: it must be even and between 2 and 65536");
  expect(config(65538, 10000.0), "rotary_dim is 65538: it must be even and between 2 and 65536");
  expect(config(8, -1.0), "theta is -1: it must be a positive number");
  expect(config(8, nan), "theta is nan: it must be a positive number");
  expect(config(8, 1e39), "theta is 1e+39: it must be a positive number");
  expect(config(8, 10000.0), "sequence_length is -1: it must not be negative", -1);

  RopeConfig factors = config(8, 10000.0);
  factors.freq_factors = {1.0f, 2.0f};
  expect(factors, "there are 2 frequency factors: there must be rotary_dim / 2 = 4");
  factors.freq_factors = {1.0f, 2.0f, 0.0f, 1.0f};
  expect(factors, "number 2 of the frequency factors is 0: it must be a positive number");
  factors.freq_factors = {1e-44f, 1.0f, 1.0f, 1.0f};
  EXPECT_EQ(rope_frequencies(factors, 0, RopePrecision::reference).status().message(),
            "rope: frequency 0 is inf: it must be a finite number");

  expect(scheme(LinearRope{0.5}), "the linear factor is 0.5: it must be a number not below 1");
  expect(scheme(LinearRope{infinite}), "the linear factor is inf: it must be a number not below 1");

  expect(scheme(DynamicNtkRope{0.0, 4096}), "the dynamic factor is 0: it must be a number not below 1");
  expect(scheme(DynamicNtkRope{2.0, 0}), "original_max_position is 0: it must be at least 2");
  expect(config(2, 10000.0, DynamicNtkRope{2.0, 4096}), "rotary_dim is 2: dynamic scaling needs at least 4");
  expect(scheme(DynamicNtkRope{1e30, 4096}), "the theta of dynamic scaling is 1.52588e+39: it must be a positive number", 4097);

  expect(scheme(yarn(0.9, 4096)), "the YaRN factor is 0.9: it must be a number not below 1");
  expect(scheme(yarn(2.0, 1)), "original_max_position is 1: it must be at least 2");
  YarnRope wrong = yarn(2.0, 4096);
  wrong.beta_slow = 0.0;
  expect(scheme(wrong), "beta_slow is 0: it must be a positive number");
  wrong.beta_slow = 1.0;
  wrong.beta_fast = -32.0;
  expect(scheme(wrong), "beta_fast is -32: it must be a positive number");
  wrong.beta_fast = 0.5;
  expect(scheme(wrong), "beta_fast is 0.5: it must not be below beta_slow, 1");
  wrong = yarn(2.0, 4096);
  wrong.mscale = -1.0;
  expect(scheme(wrong), "mscale is -1: it must be a positive number, or 0 for none");
  wrong.mscale = 1.0;
  wrong.mscale_all_dim = nan;
  expect(scheme(wrong), "mscale_all_dim is nan: it must be a positive number, or 0 for none");
  wrong.mscale_all_dim = 1.0;
  wrong.attention_factor = 0.0;
  expect(scheme(wrong), "attention_factor is 0: it must be a positive number");
  expect(config(8, 1.0, yarn(2.0, 4096)), "theta is 1: YaRN needs more than 1");
  expect(config(8, 2.0, yarn(2.0, 2)),
         "YaRN would blend from pair 0 to pair -6: an original context of 2 and theta 2 do not fit together");
  expect(config(8, 1.5, yarn(2.0, 4096)),
         "YaRN would blend from pair 29 to pair 7: an original context of 4096 and theta 1.5 do not fit together");

  const std::vector<double> ones(4, 1.0);
  expect(scheme(LongRope{{1.0}, ones, 4096}), "there are 1 short LongRoPE factors: there must be rotary_dim / 2 = 4");
  expect(scheme(LongRope{ones, {}, 4096}), "there are 0 long LongRoPE factors: there must be rotary_dim / 2 = 4");
  expect(scheme(LongRope{{1.0, 1.0, -2.0, 1.0}, ones, 4096}),
         "number 2 of the short LongRoPE factors is -2: it must be a positive number");
  expect(scheme(LongRope{ones, {1.0, 1.0, 1.0, infinite}, 4096}),
         "number 3 of the long LongRoPE factors is inf: it must be a positive number");
  expect(scheme(LongRope{ones, ones, 1}), "original_max_position is 1: it must be at least 2");
  expect(scheme(LongRope{ones, ones, 4096, 0.5}), "the LongRoPE factor is 0.5: it must be a number not below 1");
  expect(scheme(LongRope{ones, ones, 4096, 2.0, -1.0}), "attention_factor is -1: it must be a positive number");
  expect(scheme(LongRope{ones, ones, 4096, 2.0, 1.0, nan}), "attention_factor is nan: it must be a positive number");

  expect(scheme(Llama3Rope{0.0, 1.0, 4.0, 8192}), "the Llama 3 factor is 0: it must be a number not below 1");
  expect(scheme(Llama3Rope{8.0, 1.0, 4.0, 0}), "original_max_position is 0: it must be at least 2");
  expect(scheme(Llama3Rope{8.0, 0.0, 4.0, 8192}), "low_freq_factor is 0: it must be a positive number");
  expect(scheme(Llama3Rope{8.0, 1.0, nan, 8192}), "high_freq_factor is nan: it must be a positive number");
  expect(scheme(Llama3Rope{8.0, 4.0, 4.0, 8192}), "high_freq_factor is 4: it must be above low_freq_factor, 4");

  expect(scheme(ProportionalRope{1.5}), "partial_rotary_factor is 1.5: it must be between 0 and 1");
  expect(scheme(ProportionalRope{nan}), "partial_rotary_factor is nan: it must be between 0 and 1");
  expect(scheme(ProportionalRope{0.5, 0.0}), "the proportional factor is 0: it must be a number not below 1");

  expect(scheme(VerbatimRope{{1.0}}), "there are 1 given frequencies: there must be rotary_dim / 2 = 4");
  expect(scheme(VerbatimRope{{1.0, nan, 1.0, 1.0}}), "frequency 1 is nan: it must be a finite number");
  expect(scheme(VerbatimRope{ones, -1.0}), "attention_factor is -1: it must be a positive number");
}

}  // namespace
}  // namespace prologue
