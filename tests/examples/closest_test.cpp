// The name that somebody who mistyped one may have meant.
#include <gtest/gtest.h>
#include <array>
#include <string>
#include <string_view>

#include "examples/common/closest.h"

namespace examples {
namespace {

TEST(Closest, CountsEdits) {
  EXPECT_EQ(edit_distance("", "", 3), 0u);
  EXPECT_EQ(edit_distance("", "ab", 3), 2u);
  EXPECT_EQ(edit_distance("max_token", "max_tokens", 3), 1u);
  EXPECT_EQ(edit_distance("tempreature", "temperature", 3), 1u);  // neighbours swapped
  EXPECT_EQ(edit_distance("ca", "abc", 3), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting", 3), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting", 2), 3u);  // more than 2
  EXPECT_EQ(edit_distance("a", "abcdefgh", 3), 4u);
}

TEST(Closest, NamesTheClosestCandidateOrNone) {
  constexpr std::array<std::string_view, 4> kNames = {"max_tokens", "min_tokens", "seed", "top_k"};
  EXPECT_EQ(did_you_mean("max_token", kNames), " (did you mean 'max_tokens'?)");
  EXPECT_EQ(did_you_mean("min_token", kNames), " (did you mean 'min_tokens'?)");
  EXPECT_EQ(did_you_mean("sed", kNames), " (did you mean 'seed'?)");
  EXPECT_EQ(did_you_mean("topk", kNames), " (did you mean 'top_k'?)");
  EXPECT_EQ(did_you_mean("grammar", kNames), "");
  EXPECT_EQ(did_you_mean("", kNames), "");
  EXPECT_EQ(did_you_mean(std::string(1 << 20, 'x'), kNames), "");
}

}  // namespace
}  // namespace examples
