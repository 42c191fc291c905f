// The load generator over a tiny model with random weights.
#include "benchmarks/engine/load.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "benchmarks/engine/random_model.h"
#include "benchmarks/engine/replay.h"

namespace prologue::bench {
namespace {

class LoadTest : public testing::Test {
 protected:
  LoadTest() {
    options_.model_path =
        testing::TempDir() + "load_test_" + testing::UnitTest::GetInstance()->current_test_info()->name() + ".gguf";
    const Status written =
        write_random_model({"small", 2, 64, 96, 4, 2, 16, 300, 512, 10000.0f, true, "smollm"}, 1, options_.model_path, 1);
    EXPECT_TRUE(written.ok()) << written.message();
    options_.device = Device::cpu;
    options_.num_threads = 1;
  }
  ~LoadTest() override { std::remove(options_.model_path.c_str()); }

  std::unique_ptr<Engine> load() {
    auto engine = Engine::load(options_);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return std::move(engine).value();
  }

  EngineOptions options_;
};

Workload workload_of(std::vector<std::vector<int32_t>> prompts, int64_t max_tokens) {
  Workload workload;
  for (auto& prompt : prompts) workload.push_back({0.0, std::move(prompt), max_tokens});
  return workload;
}

TEST_F(LoadTest, RecordsEveryTokenOfEveryRequest) {
  const auto engine = load();
  Workload workload = workload_of(random_prompts(5, 40, 300, 1), 0);
  for (size_t i = 0; i < workload.size(); ++i) workload[i].max_tokens = static_cast<int64_t>(3 + i);
  const auto result = run_load(*engine, workload, {0.6f, true});
  ASSERT_TRUE(result.ok()) << result.status().message();
  double last = 0.0;
  for (size_t i = 0; i < 5; ++i) {
    const Served& served = result->requests[i];
    EXPECT_EQ(served.token_times.size(), 3 + i);
    EXPECT_TRUE(std::is_sorted(served.token_times.begin(), served.token_times.end()));
    EXPECT_GT(served.token_times.front(), 0.0);
    EXPECT_EQ(served.prompt_tokens, 40);
    EXPECT_EQ(served.cached_tokens, 0);
    ASSERT_FALSE(result->prefilled[i].empty());
    EXPECT_EQ(result->prefilled[i].back().first, 40);
    last = std::max(last, served.token_times.back());
  }
  EXPECT_EQ(result->seconds, last);
  EXPECT_FALSE(result->cache_use.empty());
  EXPECT_EQ(result->after.generated_tokens - result->before.generated_tokens, 25);
  int64_t tokens = 0;
  for (const StepTimes& step : result->steps) {
    tokens += step.num_tokens;
    EXPECT_LE(step.begin, step.end);
    EXPECT_GE(step.waited, 0.0);
    if (step.num_tokens == 0) continue;
    EXPECT_LE(step.begin, step.first_output);
    EXPECT_LE(step.first_output, step.end);
  }
  EXPECT_EQ(tokens, 25);
}

TEST_F(LoadTest, SubmitsRequestsWhenTheyArrive) {
  const auto engine = load();
  Workload workload = workload_of(random_prompts(2, 20, 300, 1), 2);
  workload[1].seconds = 0.3;
  const auto result = run_load(*engine, workload, {});
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_LT(result->requests[0].token_times.front(), 0.3);
  EXPECT_GE(result->requests[1].token_times.front(), 0.3);
  EXPECT_EQ(result->requests[1].arrival, 0.3);
}

TEST_F(LoadTest, SeesWhatIsInTheCache) {
  const auto engine = load();
  const Workload workload = workload_of(random_prompts(1, 64, 300, 1), 2);
  ASSERT_TRUE(run_load(*engine, workload, {}).ok());
  const auto again = run_load(*engine, workload, {});
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->requests[0].cached_tokens, 48);  // whole pages of 16, and at least one token is computed
}

TEST_F(LoadTest, ARefusedRequestIsAnError) {
  const auto engine = load();
  const auto result = run_load(*engine, workload_of(random_prompts(1, 600, 300, 1), 1), {});
  EXPECT_EQ(result.status().code(), StatusCode::invalid_argument) << result.status().message();
}

TEST_F(LoadTest, StepsAloneAreTimed) {
  const std::vector<int64_t> batches = {1, 3};
  const auto seconds = time_decode_steps(options_, batches, 64);
  ASSERT_TRUE(seconds.ok()) << seconds.status().message();
  ASSERT_EQ(seconds->size(), 2u);
  for (const double each : *seconds) EXPECT_GT(each, 0.0);
  options_.model_path += ".missing";
  EXPECT_EQ(time_decode_steps(options_, batches, 64).status().code(), StatusCode::not_found);
  options_.model_path.resize(options_.model_path.size() - 8);
}

}  // namespace
}  // namespace prologue::bench
