// Which position axis rotates which pair: against what transformers' Qwen2-VL and Qwen3-VL make of the same sections.
#include <gtest/gtest.h>

#include <fstream>

#include <prologue/layers/rope/position_axes.h>
#include "tests/support/source_path.h"

#if __has_include(<nlohmann/json.hpp>)
#include <nlohmann/json.hpp>
#define PROLOGUE_HAS_JSON 1
#else
#define PROLOGUE_HAS_JSON 0
#endif

namespace prologue {
namespace {

std::string digits(const Result<std::vector<uint8_t>>& axes) {
  if (!axes.ok()) return axes.status().message();
  std::string result;
  for (const uint8_t axis : *axes) result += static_cast<char>('0' + axis);
  return result;
}

TEST(PositionAxes, MropeAsInTransformers) {
#if PROLOGUE_HAS_JSON
  const auto golden = nlohmann::json::parse(std::ifstream(test::source_path("tests/golden/rope_scaling/rope_scaling.json")));
  EXPECT_EQ(golden["axes"].size(), 8u);
  for (const auto& entry : golden["axes"]) {
    EXPECT_EQ(digits(mrope_pair_axis(entry["sections"], entry["interleaved"])), entry["axes"].get<std::string>()) << entry;
  }
#else
  GTEST_SKIP() << "the goldens are JSON, and nlohmann-json is not installed";
#endif
}

TEST(PositionAxes, OddSections) {
  EXPECT_EQ(digits(mrope_pair_axis({3}, false)), "000");
  EXPECT_EQ(digits(mrope_pair_axis({1, 0, 2, 1}, false)), "0223");
  EXPECT_EQ(digits(mrope_pair_axis({6, 1, 0}, true)), "0100000");
}

TEST(PositionAxes, TwoAxes) {
  EXPECT_EQ(digits(two_axis_pair_axis(4)), "01");
  EXPECT_EQ(digits(two_axis_pair_axis(12)), "000111");
  RopeFrequencies one;
  one.inv_freq = {1.0, 0.5};
  one.attention_factor = 1.25;
  const RopeFrequencies both = two_axis_frequencies(one);
  EXPECT_EQ(both.inv_freq, (std::vector<double>{1.0, 0.5, 1.0, 0.5}));
  EXPECT_EQ(both.attention_factor, 1.25);
}

TEST(PositionAxes, NamesWhatIsWrong) {
  EXPECT_EQ(mrope_pair_axis({2, 2}, true).status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(digits(mrope_pair_axis({2, 2}, true)), "mrope: there are 2 sections: interleaved ones must be 3");
  EXPECT_EQ(digits(mrope_pair_axis({}, false)), "mrope: there are 0 sections: there must be between 1 and 4");
  EXPECT_EQ(digits(mrope_pair_axis({1, 1, 1, 1, 1}, false)), "mrope: there are 5 sections: there must be between 1 and 4");
  EXPECT_EQ(digits(mrope_pair_axis({1, -1, 1}, false)), "mrope: section 1 is -1: it must be between 0 and 32768");
  EXPECT_EQ(digits(mrope_pair_axis({0, 0, 0}, true)), "mrope: the sections add up to 0 pairs: there must be between 1 and 32768");
  EXPECT_EQ(digits(mrope_pair_axis({32768, 1}, false)),
            "mrope: the sections add up to 32769 pairs: there must be between 1 and 32768");
  EXPECT_EQ(two_axis_pair_axis(6).status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(digits(two_axis_pair_axis(6)), "two-axis rope: rotary_dim is 6: it must be a multiple of 4 and at most 65536");
  EXPECT_EQ(digits(two_axis_pair_axis(0)), "two-axis rope: rotary_dim is 0: it must be a multiple of 4 and at most 65536");
}

}  // namespace
}  // namespace prologue
