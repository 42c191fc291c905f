#include "benchmarks/engine/workload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "benchmarks/engine/python_random.h"

namespace prologue::bench {
namespace {

// Goldens of CPython 3.11's `random`.
TEST(PythonRandom, GivesPythonsNumbers) {
  PythonRandom random(12345);
  EXPECT_EQ(random.uniform(), 0.41661987254534116);
  EXPECT_EQ(random.integer(0, 0xfffffffe), 43676229);  // getrandbits(32)
  EXPECT_NEAR(random.exponential(2.0), 0.8578847902018816, 1e-15);
  for (const int64_t want : {3, -1, 3, -1, -2, -1, 1, 0}) EXPECT_EQ(random.integer(-3, 3), want);
}

int64_t sum_of(const Workload& workload, int64_t (*value)(const Arrival&)) {
  return std::accumulate(workload.begin(), workload.end(), int64_t{0},
                         [&](int64_t sum, const Arrival& each) { return sum + value(each); });
}
int64_t prompt_length(const Arrival& each) { return static_cast<int64_t>(each.prompt.size()); }
int64_t output_length(const Arrival& each) { return each.max_tokens; }

WorkloadOptions options(int64_t num_requests) { return {num_requests, 10.0, 49152, 8192}; }

// The totals, and the first and last request, of the Python program: seed(0), then for each request randint(100, 1024) and as many
// randint(0, 10000), then randint(100, 1024) for each.
TEST(Workloads, MiniSglangsIsTheirs) {
  const auto workload = make_workload("mini-sglang", options(256));
  ASSERT_TRUE(workload.ok());
  ASSERT_EQ(workload->size(), 256u);
  EXPECT_EQ(sum_of(*workload, prompt_length), 142827);
  EXPECT_EQ(sum_of(*workload, output_length), 133966);
  const Arrival &first = workload->front(), &last = workload->back();
  EXPECT_EQ(first.prompt.size(), 964u);
  EXPECT_EQ(std::vector<int32_t>(first.prompt.begin(), first.prompt.begin() + 6),
            (std::vector<int32_t>{6311, 6890, 663, 4242, 8376, 7961}));
  EXPECT_EQ(first.max_tokens, 845);
  EXPECT_EQ(last.prompt.size(), 251u);
  EXPECT_EQ(last.prompt.back(), 1958);
  EXPECT_EQ(last.max_tokens, 312);
  for (const Arrival& each : *workload) EXPECT_EQ(each.seconds, 0.0);
}

TEST(Workloads, ArriveInOrderAtTheRateAsked) {
  for (const std::string_view name : workload_names()) {
    if (name == "mini-sglang") continue;
    const auto workload = make_workload(name, options(1024));
    ASSERT_TRUE(workload.ok()) << name;
    EXPECT_TRUE(std::is_sorted(workload->begin(), workload->end(), [](auto& a, auto& b) { return a.seconds < b.seconds; }))
        << name;
    EXPECT_NEAR(workload->back().seconds, 102.4, 4 * 3.2) << name;  // four standard deviations of 1024 exponential gaps of 0.1 s
  }
}

TEST(Workloads, BurstsAreOfSixteen) {
  const auto workload = make_workload("burst", options(40));
  ASSERT_TRUE(workload.ok());
  std::multiset<double> times;
  for (const Arrival& each : *workload) times.insert(each.seconds);
  EXPECT_EQ(times.count(0.0), 16u);
  EXPECT_EQ(times.count(1.6), 16u);
  EXPECT_EQ(times.count(3.2), 8u);
}

TEST(Workloads, FourSystemPromptsAreShared) {
  const auto workload = make_workload("shared-prefix", options(64));
  ASSERT_TRUE(workload.ok());
  std::set<std::vector<int32_t>> systems, prompts;
  for (const Arrival& each : *workload) {
    ASSERT_GE(each.prompt.size(), 512u + 16);
    systems.emplace(each.prompt.begin(), each.prompt.begin() + 512);
    prompts.insert(each.prompt);
  }
  EXPECT_EQ(systems.size(), 4u);
  EXPECT_EQ(prompts.size(), 64u);
}

TEST(Workloads, MixedHasShortAndLongPrompts) {
  const auto workload = make_workload("mixed", options(200));
  ASSERT_TRUE(workload.ok());
  const auto num_long =
      std::count_if(workload->begin(), workload->end(), [](const Arrival& each) { return each.prompt.size() >= 1024; });
  EXPECT_GT(num_long, 5);
  EXPECT_LT(num_long, 40);
}

TEST(Workloads, PromptsAreInTheVocabularyAndDiffer) {
  const auto prompts = random_prompts(3, 16, 100, 7), others = random_prompts(3, 16, 100, 8);
  std::set<std::vector<int32_t>> all(prompts.begin(), prompts.end());
  all.insert(others.begin(), others.end());
  EXPECT_EQ(all.size(), 6u);
  for (const auto& prompt : all) {
    EXPECT_EQ(prompt.size(), 16u);
    EXPECT_TRUE(std::all_of(prompt.begin(), prompt.end(), [](int32_t id) { return id >= 0 && id < 100; }));
  }
}

TEST(Workloads, WrongOptionsAreErrors) {
  const auto message = [](std::string_view name, const WorkloadOptions& wrong) {
    const auto workload = make_workload(name, wrong);
    EXPECT_EQ(workload.status().code(), StatusCode::invalid_argument);
    return workload.status().message();
  };
  EXPECT_EQ(message("steady", options(1)),
            "the workload is steady: it must be mini-sglang, poisson, burst, shared-prefix or mixed");
  EXPECT_EQ(message("poisson", options(0)), "the number of requests is 0: it must be at least 1");
  EXPECT_EQ(message("poisson", {1, 0.0, 100, 8192}), "the rate is 0 requests per second: it must be positive");
  EXPECT_EQ(message("poisson", {1, 1.0, 0, 8192}), "the vocabulary has 0 tokens: it must have at least 1");
  EXPECT_EQ(message("mini-sglang", {256, 1.0, 49152, 1024}),
            "a request of mini-sglang has 1809 tokens, prompt and generated together: the context is 1024");
}

}  // namespace
}  // namespace prologue::bench
