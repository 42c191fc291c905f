// JSON of strangers is read in linear time: what is looked at before it is parsed.
#include <gtest/gtest.h>
#include <chrono>
#include <string>

#include "examples/common/json_size.h"

namespace examples {
namespace {

TEST(JsonSize, CountsDepthAndValuesOutsideOfStrings) {
  const auto expect = [](const std::string& text, int64_t depth, int64_t values) {
    const JsonSize size = json_size(text);
    EXPECT_EQ(size.depth, depth) << text;
    EXPECT_EQ(size.values, values) << text;
  };
  expect("", 0, 1);
  expect("5", 0, 1);
  expect(R"("[[,{")", 0, 1);
  expect(R"("\"[[,{\\")", 0, 1);
  expect("[1, 2, 3]", 1, 4);
  expect(R"({"a": [1, 2], "b": {"c": [[]]}})", 4, 8);
  expect("]]]][", 0, 2);  // no JSON, whatever
  expect("[\"", 1, 2);
  expect("[\"\\", 1, 2);
  expect(std::string(100000, '['), 100000, 100001);
}

}  // namespace
}  // namespace examples
