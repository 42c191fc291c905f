// Steps without an engine: whose faults they are, and that a decode step goes on by itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <prologue/engine/gguf/gguf.h>
#include <prologue/engine/model/load_model.h>
#include <prologue/engine/model_runner.h>
#include <prologue/kernels/base/gpu.h>

#include "tests/support/arena.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/tiny_model.h"

namespace prologue {
namespace {

using test::Backend;

constexpr int64_t kPageSize = 4;

class Runner : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    PROLOGUE_REQUIRE_BACKEND(GetParam());
    std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
    std::replace(name.begin(), name.end(), '/', '_');
    path_ = testing::TempDir() + "prologue_model_runner_test_" + name + ".gguf";
    ASSERT_TRUE(test::write_tiny_llama(path_, {}));
    if (GetParam() == Backend::cuda) {
      stream_ = Stream::create().value();
      execution_ = {Device::cuda, 1, stream_.get()};
    }
    model_ = load(DType::f32);
  }
  Model load(DType dtype) const { return load_model(*Checkpoint::open(path_).value(), dtype, execution_, {}).value(); }
  static RunnerConfig config() {
    RunnerConfig config;
    config.page_size = kPageSize;
    config.num_pages = 32;
    config.max_tokens = 64;
    config.max_seqs = 8;
    config.max_logit_rows = 8;
    return config;
  }
  std::unique_ptr<ModelRunner> make(bool fused = true, bool capture = true) {
    RunnerConfig invariant = config();
    invariant.batch_invariant = true;
    invariant.fused = fused;
    invariant.capture = capture;
    return ModelRunner::create(model_, invariant, execution_).value();
  }

  std::string path_;
  Stream stream_;
  Execution execution_;
  Model model_;
};
INSTANTIATE_TEST_SUITE_P(Backends, Runner, ::testing::Values(Backend::cpu, Backend::cuda),
                         [](const auto& row) { return std::string(test::backend_name(row.param)); });

TEST_P(Runner, AFaultIsThatOfItsSequence) {
  for (const bool fused : {true, false}) {
    const auto runner = make(fused);
    const std::vector<int32_t> good = {5, 6, 7}, bad = {5, 1000000, 7};
    std::vector<float> alone, beside;
    StepBatch batch;
    batch.add_sequence(good.data(), 3, 0, std::vector<int32_t>{4}, kPageSize, 1);
    ASSERT_TRUE(runner->enqueue(batch).ok());
    ASSERT_TRUE(runner->read_logits(alone).ok());
    EXPECT_EQ(runner->read()->fault.code, FaultCode::none);

    batch.clear();
    batch.add_sequence(bad.data(), 3, 0, std::vector<int32_t>{1}, kPageSize, 1);
    batch.add_sequence(good.data(), 3, 0, std::vector<int32_t>{2}, kPageSize, 1);
    batch.add_sequence(good.data(), 1, 0, std::vector<int32_t>{31}, kPageSize, 1);
    batch.add_sequence(good.data(), 2, 0, std::vector<int32_t>{32}, kPageSize, 1);  // a page that is not there
    ASSERT_TRUE(runner->enqueue(batch).ok());
    ASSERT_TRUE(runner->read_logits(beside).ok());
    const StepResults results = runner->read().value();
    ASSERT_EQ(results.seq_faults.size(), 4u);
    EXPECT_EQ(static_cast<FaultCode>(results.seq_faults[0]), FaultCode::token_id_out_of_range);
    EXPECT_EQ(static_cast<FaultCode>(results.seq_faults[1]), FaultCode::none);
    EXPECT_EQ(static_cast<FaultCode>(results.seq_faults[2]), FaultCode::none);
    EXPECT_NE(static_cast<FaultCode>(results.seq_faults[3]), FaultCode::none);
    EXPECT_NE(results.fault.code, FaultCode::none);
    const size_t vocab = static_cast<size_t>(model_.config.vocab_size);
    EXPECT_EQ(std::vector<float>(beside.begin() + static_cast<std::ptrdiff_t>(vocab),
                                 beside.begin() + static_cast<std::ptrdiff_t>(2 * vocab)),
              alone);

    // The next step has none of it.
    batch.clear();
    batch.add_sequence(good.data(), 3, 0, std::vector<int32_t>{2}, kPageSize, 1);
    ASSERT_TRUE(runner->enqueue(batch).ok());
    const StepResults next = runner->read().value();
    EXPECT_EQ(next.fault.code, FaultCode::none);
    EXPECT_EQ(next.seq_faults[0], 0);
  }
}

// Steps that follow each other on the device give the tokens of steps that the host fills, captured or not.
TEST_P(Runner, ADecodeStepGoesOnByItself) {
  const auto decode = [&](bool by_itself, bool capture) {
    const auto runner = make(true, capture);
    const std::vector<std::vector<int32_t>> tables = {{3, 9, 1, 7}, {5, 2, 8, 6}, {10, 11, 12, 13}};
    const std::vector<int32_t> prompts[] = {{5, 6, 7}, {8}, {9, 10, 11, 12, 13}};
    StepBatch batch;
    for (size_t s = 0; s < 3; ++s) {
      batch.add_sequence(prompts[s].data(), static_cast<int64_t>(prompts[s].size()), 0, tables[s], kPageSize, 1);
    }
    EXPECT_TRUE(runner->enqueue(batch).ok());
    std::vector<std::vector<int32_t>> all;
    const auto read = [&] {
      const StepResults results = runner->read().value();
      EXPECT_EQ(results.fault.code, FaultCode::none);
      all.emplace_back(results.tokens.begin(), results.tokens.begin() + 3);
    };
    for (int64_t i = 0; i < 9; ++i) {
      if (by_itself && i > 0) {
        EXPECT_TRUE(runner->enqueue_next(5 + i + 1).ok());
        EXPECT_EQ(runner->num_enqueued(), 2);
        EXPECT_EQ(runner->enqueue_next(5 + i + 1).message(), "runner: 2 steps are enqueued: one must be read before the next");
        read();
        continue;
      }
      if (!by_itself) read();
      batch.clear();
      for (size_t s = 0; s < 3; ++s) {
        const int32_t unknown = 0;
        const auto length = static_cast<int64_t>(prompts[s].size()) + i;
        batch.add_sequence(by_itself ? &unknown : &all.back()[s], 1, length, tables[s], kPageSize, 1);
        if (by_itself) batch.set_token_from(static_cast<int64_t>(s), static_cast<int32_t>(s));
      }
      EXPECT_TRUE(runner->enqueue(batch).ok());
      if (by_itself) read();
    }
    while (runner->num_enqueued() > 0) read();
    return all;
  };
  const auto want = decode(false, false);
  for (const bool capture : {true, false}) {
    const auto got = decode(true, capture);
    ASSERT_GE(got.size(), 2u);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], want[i]) << i;
  }
}

// Steps of few tokens as kernels that project and do what surrounds it, others as separate ones.
TEST_P(Runner, FusedProjectionsGiveTheLogitsOfSeparateOnes) {
  const Model model = load(DType::bf16);
  const auto run = [&](bool fused_projections) {
    RunnerConfig of_run = config();
    of_run.fused_projections = fused_projections;
    const auto runner = ModelRunner::create(model, of_run, execution_).value();
    std::vector<float> all, logits;
    for (const int64_t length : {3, 16, 20}) {
      std::vector<int32_t> tokens;
      for (int32_t t = 0; t < length; ++t) tokens.push_back(5 + t % 9);
      StepBatch batch;
      batch.add_sequence(tokens.data(), length, 0, std::vector<int32_t>{3, 9, 1, 7, 2, 4}, kPageSize, 1);
      EXPECT_TRUE(runner->enqueue(batch).ok());
      for (int step = 0; step < 3; ++step) {
        EXPECT_TRUE(runner->read_logits(logits).ok());
        EXPECT_EQ(runner->read()->fault.code, FaultCode::none);
        all.insert(all.end(), logits.begin(), logits.end());
        const int32_t token = 6 + step;
        batch.clear();
        batch.add_sequence(&token, 1, length + step, std::vector<int32_t>{3, 9, 1, 7, 2, 4}, kPageSize, 1);
        EXPECT_TRUE(runner->enqueue(batch).ok());
      }
      EXPECT_TRUE(runner->read().ok());
    }
    return all;
  };
  const std::vector<float> want = run(false), got = run(true);
  ASSERT_EQ(got.size(), want.size());
  float largest = 0.0f;
  for (const float x : want) largest = std::max(largest, std::abs(x));
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 0.02f * largest) << i;
}

// A decode step goes on by itself with two layer groups, three position axes, and sequences in both sets of LongRoPE's frequencies.
TEST_P(Runner, ItGoesOnInEveryGroupOnEveryAxisAndInEverySet) {
  test::TinyModelOptions options;
  options.windows = {0, 6};
  options.sections = {2, 3, 3};
  LongRope rope;
  rope.short_factors.assign(8, 1.0);
  rope.long_factors.assign(8, 3.0);
  rope.original_max_position = 8;
  rope.factor = 8.0;
  options.scaling = rope;
  options.context_length = 64;
  const Model model = test::tiny_model(options, execution_);
  const auto decode = [&](bool by_itself, bool capture) {
    RunnerConfig invariant = config();
    invariant.batch_invariant = true;
    invariant.capture = capture;
    const auto runner = ModelRunner::create(model, invariant, execution_).value();
    EXPECT_EQ(runner->groups().windows, (std::vector<int64_t>{0, 6}));
    const std::vector<int32_t> tables[2][2] = {{{3, 9, 1, 7}, {5, 2, 8, 6}}, {{10, 11, 12, 13}, {20, 21, 4, 0}}};
    const std::vector<int32_t> prompts[] = {{5, 6, 7}, {9, 10, 11, 12, 13}};
    const RopeSet* const sets[] = {runner->rope_sets().acquire(0, 20), runner->rope_sets().acquire(9, 20)};
    EXPECT_GT(sets[1]->first_row, 0);
    StepBatch batch(3, 2);
    const auto add = [&](size_t s, const int32_t* tokens, int64_t first, int64_t count) {
      const std::vector<int32_t>* const groups[] = {&tables[s][0], &tables[s][1]};
      const int64_t begin = batch.num_tokens();
      batch.add_sequence_of_groups(tokens, count, first, groups, kPageSize, 1);
      for (int64_t i = 0; i < 3 * count; ++i) {
        const int64_t axis = i / count, position = first + i % count + 2 * axis;
        batch.set_position(begin + i % count, axis, static_cast<int32_t>(sets[s]->first_row + position));
      }
    };
    for (size_t s = 0; s < 2; ++s) add(s, prompts[s].data(), 0, static_cast<int64_t>(prompts[s].size()));
    EXPECT_TRUE(runner->enqueue(batch).ok());
    std::vector<std::vector<int32_t>> all;
    const auto read = [&] {
      const StepResults results = runner->read().value();
      EXPECT_EQ(results.fault.code, FaultCode::none);
      all.emplace_back(results.tokens.begin(), results.tokens.begin() + 2);
    };
    for (int64_t i = 0; i < 9; ++i) {
      read();
      if (by_itself && i > 0) {
        EXPECT_TRUE(runner->enqueue_next(5 + i + 1).ok());
        continue;
      }
      batch.clear();
      for (size_t s = 0; s < 2; ++s) add(s, &all.back()[s], static_cast<int64_t>(prompts[s].size()) + i, 1);
      EXPECT_TRUE(runner->enqueue(batch).ok());
    }
    read();
    if (capture && GetParam() == Backend::cuda) {
      EXPECT_GT(runner->num_replayed(), 5);
    }
    return all;
  };
  const auto want = decode(false, false);
  for (const bool capture : {true, false}) EXPECT_EQ(decode(true, capture), want);
}

}  // namespace
}  // namespace prologue
