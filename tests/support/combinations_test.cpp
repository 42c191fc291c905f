// Which combinations of values tests run where several properties multiply.
#include "tests/support/combinations.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string>

namespace prologue::test {
namespace {

class Combinations : public testing::Test {
 protected:
  void SetUp() override {
    const char* const text = std::getenv("PROLOGUE_TEST_ALL");
    if (text != nullptr) before_ = text;
    ::unsetenv("PROLOGUE_TEST_ALL");
  }
  void TearDown() override {
    if (!before_.empty()) ::setenv("PROLOGUE_TEST_ALL", before_.c_str(), 1);
  }
  std::string before_;
};

const std::vector<std::vector<size_t>> kCounts = {{3, 3, 3},  {2, 2, 2, 2}, {10, 4, 3, 2, 2}, {2, 2, 3, 4, 10},
                                                  {17, 2, 2}, {1, 5, 1, 4}, {14, 3, 5, 2},    {2, 2, 2, 2, 2, 2, 2, 2, 2, 2}};

TEST_F(Combinations, HaveEveryPair) {
  for (const std::vector<size_t>& counts : kCounts) {
    const std::vector<Indices> all = every_pair(counts);
    for (size_t a = 0; a < counts.size(); ++a) {
      for (size_t b = 0; b < a; ++b) {
        std::set<std::pair<size_t, size_t>> pairs;
        for (const Indices& indices : all) {
          ASSERT_EQ(indices.size(), counts.size());
          ASSERT_TRUE(indices[a] < counts[a] && indices[b] < counts[b]);
          pairs.insert({indices[a], indices[b]});
        }
        EXPECT_EQ(pairs.size(), counts[a] * counts[b]) << testing::PrintToString(counts) << ": properties " << b << " and " << a;
      }
    }
  }
}

// There cannot be fewer than the two largest counts multiplied; not many more are needed.
TEST_F(Combinations, AreFewAndNoneTwice) {
  for (const std::vector<size_t>& counts : kCounts) {
    const std::vector<Indices> all = every_pair(counts);
    std::vector<size_t> sorted = counts;
    std::sort(sorted.rbegin(), sorted.rend());
    EXPECT_GE(all.size(), sorted[0] * sorted[1]) << testing::PrintToString(counts);
    EXPECT_LE(all.size(), sorted[0] * sorted[1] * 3 / 2 + 4) << testing::PrintToString(counts);
    EXPECT_EQ(std::set<Indices>(all.begin(), all.end()).size(), all.size());
    EXPECT_EQ(every_pair(counts), all);
  }
}

TEST_F(Combinations, OfOneOrTwoPropertiesAreAll) {
  EXPECT_EQ(every_pair({3}), (std::vector<Indices>{{0}, {1}, {2}}));
  EXPECT_EQ(every_pair({2, 2}), (std::vector<Indices>{{0, 0}, {0, 1}, {1, 0}, {1, 1}}));
  EXPECT_TRUE(every_pair({3, 0, 2}).empty());
  EXPECT_EQ(every_combination({2, 3, 4}).size(), 24u);
}

TEST_F(Combinations, AreAllOnesWhereThatIsAskedFor) {
  const auto count = [] {
    return combinations(std::vector{1, 2, 3}, std::vector<std::string>{"a", "b", "c"}, std::vector{1.0, 2.0, 3.0}).size();
  };
  EXPECT_LT(count(), 27u);
  ::setenv("PROLOGUE_TEST_ALL", "0", 1);
  EXPECT_LT(count(), 27u);
  ::setenv("PROLOGUE_TEST_ALL", "1", 1);
  EXPECT_EQ(count(), 27u);
  ::unsetenv("PROLOGUE_TEST_ALL");
}

TEST_F(Combinations, AreOfTheValues) {
  const std::vector<std::tuple<int, std::string>> want = {{7, "x"}, {7, "y"}};
  EXPECT_EQ(combinations(std::vector{7}, std::vector<std::string>{"x", "y"}), want);
}

}  // namespace
}  // namespace prologue::test
