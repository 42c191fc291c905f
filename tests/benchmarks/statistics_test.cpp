#include "benchmarks/engine/statistics.h"

#include <gtest/gtest.h>

namespace prologue::bench {
namespace {

TEST(Statistics, PercentilesAreValuesThatOccurred) {
  std::vector<double> values;
  for (int i = 200; i >= 1; --i) values.push_back(i);
  const Summary summary = summarise(values);
  EXPECT_EQ(summary.mean, 100.5);
  EXPECT_EQ(summary.p50, 100.0);
  EXPECT_EQ(summary.p99, 198.0);
  EXPECT_EQ(median({3.0, 1.0, 2.0}), 2.0);
  EXPECT_EQ(summarise({7.0}).p99, 7.0);
  EXPECT_EQ(summarise({}).mean, 0.0);
}

TEST(Statistics, TimesCountFromTheArrival) {
  Served steady, single, none;
  steady.arrival = 2.0;
  steady.token_times = {2.5, 2.6, 2.8, 3.1};
  single.arrival = 1.0;
  single.token_times = {1.25};
  none.arrival = 1.0;
  const std::vector<Served> requests = {steady, single, none};
  const std::vector<double> first = first_token_ms(requests), per_token = per_token_ms(requests);
  ASSERT_EQ(first.size(), 2u);
  EXPECT_DOUBLE_EQ(first[0], 500.0);
  EXPECT_DOUBLE_EQ(first[1], 250.0);
  ASSERT_EQ(per_token.size(), 1u);
  EXPECT_DOUBLE_EQ(per_token[0], 200.0);
  EXPECT_EQ(num_output_tokens(requests), 5);
}

}  // namespace
}  // namespace prologue::bench
