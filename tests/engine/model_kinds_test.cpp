// Tests the engine with models whose layers have windows, whose ropes depend on the length of the sequence, and whose tokens have several
// positions. What it generates must be what one sequence alone gives, computed in one step without an engine, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <prologue/engine/engine.h>
#include <prologue/kernels/base/gpu.h>

#include "tests/support/tiny_model.h"

namespace prologue {
namespace {

using test::TinyModelOptions;

class ModelKinds : public ::testing::TestWithParam<Device> {
 protected:
  void SetUp() override {
    if (GetParam() != Device::cuda) return;
    if (const Status gpu = check_gpu(); !gpu.ok()) GTEST_SKIP() << gpu.message();
    stream_ = Stream::create().value();
    execution_ = {Device::cuda, 1, stream_.get()};
  }

  EngineOptions options() const {
    EngineOptions options;
    options.device = GetParam();
    options.num_threads = 1;
    options.batch_invariant = true;
    options.page_size = 4;
    options.max_seqs = 8;
    return options;
  }

  std::unique_ptr<Engine> make(const TinyModelOptions& model, const EngineOptions& options) {
    Model made = test::tiny_model(model, execution_);
    EXPECT_TRUE(synchronize(execution_).ok());
    auto engine = Engine::create(options, std::move(made), test::tiny_tokenizer());
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return std::move(engine).value();
  }

  // Returns the memory in which every group has at most so many pages.
  int64_t memory_of(const TinyModelOptions& model, const EngineOptions& options, int64_t num_pages) {
    RunnerConfig runner;
    runner.page_size = options.page_size;
    const Model made = test::tiny_model(model, execution_);
    const KvStorageConfig storage = storage_config(made, layer_groups(made).value(), runner);
    int64_t bytes = 0;
    for (int64_t g = 0; g < storage.num_groups(); ++g) bytes += storage.bytes_per_page(g) * num_pages;
    return bytes;
  }

  // Returns the positions of prompt and generated tokens.
  static std::vector<int32_t> all_positions(const Request& request, int64_t num_axes, size_t length) {
    if (request.positions.empty()) return {};
    const size_t num_prompt = request.prompt.size();
    int32_t next = *std::max_element(request.positions.begin(), request.positions.end()) + 1;
    std::vector<int32_t> all;
    for (int64_t axis = 0; axis < num_axes; ++axis) {
      const auto from = request.positions.begin() + axis * static_cast<int64_t>(num_prompt);
      all.insert(all.end(), from, from + static_cast<int64_t>(num_prompt));
      for (size_t i = num_prompt; i < length; ++i) all.push_back(next + static_cast<int32_t>(i - num_prompt));
    }
    return all;
  }

  void expect_right(const TinyModelOptions& model, const Request& request, int64_t context, const Completion& completion) {
    ASSERT_TRUE(completion.status.ok()) << completion.status.message();
    const auto num_prompt = static_cast<int64_t>(request.prompt.size());
    const int64_t total = std::min(num_prompt + request.max_tokens, context);
    EXPECT_EQ(static_cast<int64_t>(completion.tokens.size()), total - num_prompt);
    std::vector<int32_t> tokens = request.prompt;
    tokens.insert(tokens.end(), completion.tokens.begin(), completion.tokens.end());
    const auto num_axes = std::max<int64_t>(1, static_cast<int64_t>(model.sections.size()));
    const int64_t rope_length = request.rope_length > 0 ? request.rope_length : total;
    const std::vector<float> logits =
        test::logits_alone(model, rope_length, tokens, all_positions(request, num_axes, tokens.size()), execution_);
    const auto vocab = static_cast<int64_t>(logits.size() / tokens.size());
    for (int64_t i = num_prompt; i < static_cast<int64_t>(tokens.size()); ++i) {
      const auto row = logits.begin() + (i - 1) * vocab;
      ASSERT_EQ(std::max_element(row, row + vocab) - row, tokens[static_cast<size_t>(i)])
          << "token " << i << " of " << tokens.size() << ", prompt of " << num_prompt << ", positions "
          << request.positions.size() << ", rope length " << rope_length;
    }
  }

  void expect_right(const TinyModelOptions& model, const std::vector<Request>& requests, Engine& engine) {
    const auto completions = engine.generate(requests);
    ASSERT_TRUE(completions.ok()) << completions.status().message();
    size_t next = 0;
    for (const Request& request : requests) {
      for (int64_t s = 0; s < request.num_samples; ++s) {
        expect_right(model, request, engine.context_length(), (*completions)[next++]);
        if (HasFatalFailure()) return;
      }
    }
    expect_at_rest(engine);
  }

  static void expect_at_rest(Engine& engine) {
    const Status status = engine.check_integrity();
    EXPECT_TRUE(status.ok()) << status.message();
    const EngineStats stats = engine.stats();
    EXPECT_EQ(stats.waiting + stats.running, 0);
    for (const KvGroupStats& group : stats.kv.groups) EXPECT_EQ(group.used, 0);
  }

  // Compares the logits of scored tokens, bit for bit.
  void expect_score(const TinyModelOptions& model, Engine& engine, const Request& request, int64_t num_scored) {
    const auto num_prompt = static_cast<int64_t>(request.prompt.size());
    std::vector<int32_t> tokens = request.prompt;
    for (int64_t i = 0; i < num_scored; ++i) tokens.push_back(static_cast<int32_t>(i * 7 % 50));
    const auto score = engine.score(request.prompt, {tokens.data() + num_prompt, static_cast<size_t>(num_scored)},
                                    {request.positions, request.rope_length});
    ASSERT_TRUE(score.ok()) << score.status().message();
    const auto num_axes = std::max<int64_t>(1, static_cast<int64_t>(model.sections.size()));
    const std::vector<float> logits =
        test::logits_alone(model, request.rope_length > 0 ? request.rope_length : num_prompt + num_scored, tokens,
                           all_positions(request, num_axes, tokens.size()), execution_);
    for (int64_t i = 0; i < num_scored; ++i) {
      const size_t row = static_cast<size_t>(num_prompt + i - 1) * 50;
      ASSERT_EQ(score->logit_of_token[static_cast<size_t>(i)],
                logits[row + static_cast<size_t>(tokens[static_cast<size_t>(num_prompt + i)])]);
    }
  }

  Stream stream_;
  Execution execution_;
};
INSTANTIATE_TEST_SUITE_P(Devices, ModelKinds, ::testing::Values(Device::cpu, Device::cuda),
                         [](const auto& row) { return std::string(device_name(row.param)); });

Request request(std::vector<int32_t> prompt, int64_t max_tokens) {
  Request result;
  result.prompt = std::move(prompt);
  result.max_tokens = max_tokens;
  result.ignore_eos = true;
  return result;
}

std::vector<int32_t> prompt_of(int64_t length, int64_t seed = 0) {
  std::vector<int32_t> prompt;
  for (int64_t i = 0; i < length; ++i) prompt.push_back(static_cast<int32_t>((seed * 13 + i * 7 + i * i * 3) % 50));
  return prompt;
}

// Prompts of 1 to 40 tokens, half of which begin alike, and up to 20 tokens to generate; with positions on so many axes, if not 0.
std::vector<Request> mixed_requests(size_t count, uint64_t seed, int64_t num_axes = 0) {
  std::mt19937_64 random(seed);
  const auto draw = [&](int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random); };
  std::vector<Request> requests;
  for (size_t i = 0; i < count; ++i) {
    std::vector<int32_t> prompt;
    if (draw(0, 1) == 0) prompt = prompt_of(10);
    for (int64_t n = draw(1, 30); n > 0; --n) prompt.push_back(static_cast<int32_t>(draw(0, 49)));
    requests.push_back(request(prompt, draw(1, 20)));
    if (draw(0, 3) == 0) requests.back().num_samples = 3;
    if (num_axes == 0 || draw(0, 3) == 0) continue;
    for (size_t p = 0; p < prompt.size() * static_cast<size_t>(num_axes); ++p) {
      requests.back().positions.push_back(static_cast<int32_t>(draw(0, 50)));
    }
  }
  return requests;
}

// ---- Layers with windows

TEST_P(ModelKinds, LayersWithWindows) {
  const std::vector<std::vector<int64_t>> kinds = {
      {0, 6}, {6, 0, 6}, {6, 6}, {1, 9}, {0, 300}, {5, 6, 7, 8, 9}, {4, 0, 8, 12, 16, 20}};
  for (const std::vector<int64_t>& windows : kinds) {
    TinyModelOptions model;
    model.windows = windows;
    const std::vector<Request> requests = mixed_requests(16, windows.size());
    for (const int64_t max_step_tokens : {8, 13, 512}) {
      for (const bool prefix_cache : {true, false}) {
        EngineOptions options = this->options();
        options.max_step_tokens = max_step_tokens;
        options.prefix_cache = prefix_cache;
        auto engine = make(model, options);
        expect_right(model, requests, *engine);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(ModelKinds, LayersWithWindowsAndFewPages) {
  const std::vector<std::vector<int64_t>> kinds = {{0, 6}, {0, 40}, {6, 0, 9}, {6, 6}, {9, 5}, {60, 60}};
  int64_t num_preemptions = 0;
  for (const std::vector<int64_t>& windows : kinds) {
    TinyModelOptions model;
    model.windows = windows;
    const std::vector<Request> requests = mixed_requests(16, 3);
    const bool all_windowed = std::count(windows.begin(), windows.end(), 0) == 0;
    const std::vector<int64_t> pages =
        all_windowed && windows[0] < 60 ? std::vector<int64_t>{4, 7, 18} : std::vector<int64_t>{18};
    for (const int64_t num_pages : pages) {
      for (const int64_t max_step_tokens : {8, 64}) {
        EngineOptions options = this->options();
        options.kv_memory = memory_of(model, options, num_pages);
        options.max_step_tokens = max_step_tokens;
        auto engine = make(model, options);
        EXPECT_LE(engine->options().kv_memory, options.kv_memory);
        EXPECT_GE(engine->context_length(), 60);
        expect_right(model, requests, *engine);
        if (HasFatalFailure()) return;
        num_preemptions += engine->stats().preemptions;
      }
    }
  }
  EXPECT_GT(num_preemptions, 20);
}

// A long sequence holds the pages of its window only.
TEST_P(ModelKinds, AWindowNeedsFewPages) {
  TinyModelOptions model;
  model.windows = {0, 10, 10};
  EngineOptions options = this->options();
  options.max_step_tokens = 16;
  auto engine = make(model, options);
  const Request one = request(prompt_of(100), 100);
  bool done = false;
  ASSERT_TRUE(engine->submit(one, [&](const Output& output) { done = done || output.completion != nullptr; }).ok());
  int64_t all = 0, windowed = 0;
  while (!done) {
    ASSERT_TRUE(engine->step().ok());
    const std::vector<KvGroupStats> groups = engine->stats().kv.groups;
    ASSERT_EQ(groups.size(), 2u);
    all = std::max(all, groups[0].used);
    windowed = std::max(windowed, groups[1].used);
  }
  EXPECT_EQ(all, 50);
  // In whole pages these are 9 tokens before a chunk, the chunk, and kTokensAhead tokens after the last one.
  EXPECT_LE(windowed, (9 + std::max<int64_t>(16, 1 + kTokensAhead) + 2 * 3) / 4);
  EXPECT_GE(windowed, 7);
  // The memory is divided accordingly.
  const std::vector<KvGroupStats> groups = engine->stats().kv.groups;
  EXPECT_LT(groups[1].num_pages, groups[0].num_pages / 2);
  expect_right(model, {one}, *engine);
}

TEST_P(ModelKinds, WithoutALayerThatSeesAllTheContextIsNotBoundByThePages) {
  TinyModelOptions model;
  model.windows = {10, 6};
  EngineOptions options = this->options();
  options.kv_memory = memory_of(model, options, 6);
  auto engine = make(model, options);
  EXPECT_LE(engine->stats().kv.groups[0].num_pages, 6);
  EXPECT_EQ(engine->context_length(), 256);
  expect_right(model, {request(prompt_of(150), 120), request(prompt_of(5), 100), request(prompt_of(90, 1), 30)}, *engine);
  expect_score(model, *engine, request(prompt_of(130), 1), 60);
  options.kv_memory = memory_of(model, options, 3);  // not even a window
  EXPECT_EQ(make(model, options)->context_length(), 12);
}

TEST_P(ModelKinds, TheSameMemoryGivesTheSamePages) {
  TinyModelOptions model;
  model.windows = {0, 9, 30};
  EngineOptions options = this->options();
  options.kv_memory = 1000000;
  const auto first = make(model, options);
  EXPECT_LE(first->options().kv_memory, 1000000);
  options.kv_memory = first->options().kv_memory;
  const auto second = make(model, options);
  EXPECT_EQ(second->options().kv_memory, first->options().kv_memory);
  for (size_t g = 0; g < 3; ++g) {
    EXPECT_EQ(second->stats().kv.groups[g].num_pages, first->stats().kv.groups[g].num_pages);
  }
}

TEST_P(ModelKinds, APrefixIsFoundInEveryGroup) {
  TinyModelOptions model;
  model.windows = {0, 7};
  auto engine = make(model, options());
  const Request one = request(prompt_of(60), 10);
  expect_right(model, {one}, *engine);
  const auto again = engine->generate({&one, 1}).value();
  EXPECT_EQ(again.front().cached_tokens, 56);
  expect_right(model, one, engine->context_length(), again.front());
  Request next = one;  // goes on after the answer
  next.prompt.insert(next.prompt.end(), again.front().tokens.begin(), again.front().tokens.end());
  const auto turn = engine->generate({&next, 1}).value();
  EXPECT_EQ(turn.front().cached_tokens, 68);
  expect_right(model, next, engine->context_length(), turn.front());
  // Another prompt begins alike, also where the window of the first one has moved on.
  Request other = request(prompt_of(41), 3);
  other.prompt.resize(50, 11);
  const auto branch = engine->generate({&other, 1}).value();
  EXPECT_EQ(branch.front().cached_tokens, 40);
  expect_right(model, other, engine->context_length(), branch.front());
}

TEST_P(ModelKinds, WindowsThatAreNotOneForEachLayer) {
  Model model = test::tiny_model({}, execution_);
  model.window_of_layer = {4};
  EXPECT_EQ(layer_groups(model).status().message(), "the model has windows for 1 layers: it has 2 layers");
  model.window_of_layer = {4, -1};
  EXPECT_EQ(layer_groups(model).status().message(), "the window of a layer is -1: it must be between 0 (all) and 2147483647");
}

TEST(LayerGroups, AreTheDistinctWindows) {
  Model model;
  const auto groups = [&](std::vector<int64_t> windows) {
    model.config.num_layers = static_cast<int64_t>(windows.size());
    model.window_of_layer = std::move(windows);
    return layer_groups(model).value();
  };
  EXPECT_EQ(groups({8, 0, 8, 4}).windows, (std::vector<int64_t>{0, 4, 8}));
  EXPECT_EQ(groups({8, 0, 8, 4}).of_layer, (std::vector<int32_t>{2, 0, 2, 1}));
  EXPECT_EQ(groups({8, 8}).windows, (std::vector<int64_t>{8}));
  EXPECT_EQ(groups({9, 8, 7, 6}).windows, (std::vector<int64_t>{6, 7, 8, 9}));
  EXPECT_EQ(groups({9, 8, 7, 6, 5}).windows, (std::vector<int64_t>{0, 5, 6, 7}));
  EXPECT_EQ(groups({9, 8, 7, 6, 5}).of_layer, (std::vector<int32_t>{0, 0, 3, 2, 1}));
  EXPECT_EQ(groups({9, 8, 7, 6, 0}).windows, (std::vector<int64_t>{0, 6, 7, 8}));
  model.window_of_layer.clear();
  EXPECT_EQ(layer_groups(model).value().windows, (std::vector<int64_t>{0}));
}

// ---- Ropes that depend on the length

TinyModelOptions with_dynamic_ntk() {
  TinyModelOptions model;
  model.scaling = DynamicNtkRope{4.0, 24};
  model.context_length = 24;
  model.max_context_length = 256;
  return model;
}

TinyModelOptions with_longrope() {
  TinyModelOptions model;
  LongRope rope;
  rope.short_factors = {1.0, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6};
  rope.long_factors = {1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 7.0, 8.0};
  rope.original_max_position = 24;
  rope.factor = 8.0;
  model.scaling = rope;
  model.context_length = 192;
  return model;
}

TEST_P(ModelKinds, RopesThatDependOnTheLength) {
  for (TinyModelOptions model : {with_dynamic_ntk(), with_longrope()}) {
    for (const std::vector<int64_t>& windows : {std::vector<int64_t>{0, 0}, std::vector<int64_t>{0, 7}}) {
      model.windows = windows;
      std::vector<Request> requests = mixed_requests(24, 5);
      for (size_t i = 0; i < requests.size(); i += 4) {
        requests[i].rope_length = std::array<int64_t, 3>{5, 24, 25 + static_cast<int64_t>(i)}[i / 4 % 3];
      }
      for (const int64_t num_pages : {0, 18}) {
        EngineOptions options = this->options();
        options.context_length = 100;
        if (num_pages > 0) options.kv_memory = memory_of(model, options, num_pages);
        auto engine = make(model, options);
        EXPECT_EQ(engine->context_length(), num_pages > 0 ? 72 : 100);
        expect_right(model, requests, *engine);
        if (HasFatalFailure()) return;
        if (num_pages > 0) {
          EXPECT_GT(engine->stats().preemptions, 0);
        }
        expect_score(model, *engine, request(prompt_of(12), 1), 10);
        expect_score(model, *engine, request(prompt_of(40), 1), 20);
        Request pinned = request(prompt_of(40), 1);
        pinned.rope_length = 40;
        expect_score(model, *engine, pinned, 20);
      }
    }
  }
}

// More lengths than there are rows for: some requests wait, and none is lost.
TEST_P(ModelKinds, EveryLengthHasItsOwnFrequenciesAndFewRowsAreEnough) {
  const TinyModelOptions model = with_dynamic_ntk();
  EngineOptions options = this->options();
  options.context_length = 48;
  options.max_seqs = 16;  // there are rows for 8
  auto engine = make(model, options);
  std::vector<Request> requests;
  for (int64_t i = 0; i < 40; ++i) requests.push_back(request(prompt_of(26 + i % 11, i), 6 + i % 7));
  int64_t most = 0;
  std::vector<Completion> completions(requests.size());
  size_t left = requests.size();
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto on_output = [&, i](const Output& output) {
      if (output.completion == nullptr) return;
      completions[i] = *output.completion;
      --left;
    };
    ASSERT_TRUE(engine->submit(requests[i], on_output).ok());
  }
  while (left > 0) {
    ASSERT_TRUE(engine->step().ok());
    most = std::max(most, engine->stats().running);
  }
  EXPECT_GE(most, 8);
  for (size_t i = 0; i < requests.size(); ++i) expect_right(model, requests[i], 48, completions[i]);
  expect_at_rest(*engine);
}

TEST(RopeSets, AreSharedKeptAndGivenToOthers) {
  Model model = test::tiny_model(with_dynamic_ntk(), {});
  RopeSets sets(model, 100, 2);
  EXPECT_EQ(sets.num_rows(), 300);
  EXPECT_EQ(rope_length_class(model, 24), 0);
  EXPECT_EQ(rope_length_class(model, 25), 25);
  RopeSet* const brief = sets.acquire(0, 20);
  EXPECT_EQ(brief->first_row, 0);
  EXPECT_EQ(brief->num_rows, 100);
  RopeSet* const a = sets.acquire(60, 60);
  EXPECT_EQ(sets.acquire(60, 50), a);
  RopeSet* const b = sets.acquire(90, 90);
  EXPECT_EQ(a->first_row, 100);
  EXPECT_EQ(b->first_row, 160);
  EXPECT_EQ(sets.acquire(80, 80), nullptr);
  RopeSet* const c = sets.acquire(50, 50);
  EXPECT_EQ(c->first_row, 250);
  sets.release(*a);
  EXPECT_EQ(sets.acquire(51, 51), nullptr);
  sets.release(*a);
  RopeSet* const d = sets.acquire(51, 51);  // where a was
  EXPECT_EQ(d->first_row, 100);
  EXPECT_FALSE(d->filled);
  sets.release(*c);
  EXPECT_EQ(sets.acquire(50, 50), c);  // it was still there
  sets.release(*c);
  sets.release(*d);
  sets.release(*b);
  RopeSet* const e = sets.acquire(100, 100);  // b is older than c, but where d and a were is not enough alone
  ASSERT_NE(e, nullptr);
  sets.release(*e);
  EXPECT_NE(sets.acquire(99, 100), nullptr);
  EXPECT_NE(sets.acquire(98, 100), nullptr);

  model = test::tiny_model(with_longrope(), {});
  EXPECT_EQ(RopeSets(model, 24, 8).num_rows(), 24);
  RopeSets two(model, 100, 8);
  EXPECT_EQ(two.num_rows(), 200);
  EXPECT_EQ(rope_length_class(model, 90), 25);
  EXPECT_EQ(two.acquire(25, 90)->first_row, 100);
  EXPECT_FALSE(RopeSets(test::tiny_model({}, {}), 100, 8).has_several());
}

TEST_P(ModelKinds, PrefixesAreSharedByTheSameFrequenciesOnly) {
  const TinyModelOptions model = with_dynamic_ntk();
  EngineOptions options = this->options();
  options.context_length = 100;
  auto engine = make(model, options);
  const auto cached = [&](int64_t max_tokens, int64_t rope_length) {
    Request one = request(prompt_of(40), max_tokens);
    one.rope_length = rope_length;
    const Completion completion = engine->generate({&one, 1}).value().front();
    expect_right(model, one, 100, completion);
    return completion.cached_tokens;
  };
  EXPECT_EQ(cached(10, 0), 0);
  EXPECT_EQ(cached(10, 0), 36);
  EXPECT_EQ(cached(11, 0), 0);
  EXPECT_EQ(cached(12, 50), 36);
  EXPECT_EQ(cached(12, 7), 0);
  EXPECT_EQ(cached(13, 24), 36);
}

TEST_P(ModelKinds, TheContextGoesAsFarAsTheModelAllows) {
  TinyModelOptions model = with_dynamic_ntk();
  EXPECT_EQ(make(model, options())->context_length(), 24);
  EngineOptions longer = options();
  longer.context_length = 1000;
  auto engine = make(model, longer);
  EXPECT_EQ(engine->context_length(), 256);
  Request one = request(prompt_of(40), 4);
  one.rope_length = 257;
  EXPECT_EQ(engine->submit(one).status().message(),
            "the rope length is 257: it must be between 0 (prompt and generated tokens) and 256, the context");
  one.rope_length = -1;
  EXPECT_EQ(engine->submit(one).status().code(), StatusCode::invalid_argument);
  model.max_context_length = 0;
  EXPECT_EQ(make(model, longer)->context_length(), 24);
}

// A scale of Q by position would see the rows of the table.
TEST_P(ModelKinds, ScalesByPositionAndRopesThatDependOnTheLengthAreRefused) {
  TinyModelOptions model = with_longrope();
  model.q_scale.by_position = PositionScale::llama4;
  model.q_scale.a = 0.1f;
  model.q_scale.b = 8.0f;
  Model made = test::tiny_model(model, execution_);
  EngineOptions options = this->options();
  const Status status = Engine::create(options, std::move(made), test::tiny_tokenizer()).status();
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_EQ(status.message(),
            "layers.0.attention.q_scale: it computes with positions, which the frequencies of a rope that depend on the length "
            "move: only "
            "one of the two is supported");
  options.context_length = 24;  // the short frequencies are enough
  EXPECT_EQ(make(model, options)->context_length(), 24);
}

// ---- Several position axes

TinyModelOptions with_axes() {
  TinyModelOptions model;
  model.sections = {2, 3, 3};
  return model;
}

TEST_P(ModelKinds, SeveralPositionAxes) {
  for (const int kind : {0, 1, 2}) {
    TinyModelOptions model = with_axes();
    if (kind == 1) model.windows = {0, 7};
    if (kind == 2) model.scaling = DynamicNtkRope{4.0, 24};
    const std::vector<Request> requests = mixed_requests(20, 8, 3);
    for (const int64_t max_step_tokens : {8, 13, 512}) {
      EngineOptions options = this->options();
      options.max_step_tokens = max_step_tokens;
      options.context_length = 128;
      SCOPED_TRACE(str_cat("kind ", kind, ", steps of ", max_step_tokens));
      if (max_step_tokens == 13) options.kv_memory = memory_of(model, options, 18);
      auto engine = make(model, options);
      expect_right(model, requests, *engine);
      if (HasFatalFailure()) return;
      for (const Request& each : requests) expect_score(model, *engine, each, 5);
    }
  }
}

TEST_P(ModelKinds, PrefixesAreSharedByTheSamePositionsOnly) {
  const TinyModelOptions model = with_axes();
  auto engine = make(model, options());
  Request one = request(prompt_of(30), 10);
  const auto cached = [&] {
    const Completion completion = engine->generate({&one, 1}).value().front();
    expect_right(model, one, engine->context_length(), completion);
    return completion.cached_tokens;
  };
  EXPECT_EQ(cached(), 0);
  EXPECT_EQ(cached(), 28);
  one.positions.assign(90, 3);
  EXPECT_EQ(cached(), 0);
  EXPECT_EQ(cached(), 28);
  one.positions[89] = 4;
  EXPECT_EQ(cached(), 0);
}

TEST_P(ModelKinds, PositionsThatAreRefused) {
  EngineOptions options = this->options();
  options.context_length = 40;
  auto engine = make(with_axes(), options);
  Request one = request({1, 2}, 5);
  one.positions = {0, 1, 0, 1};
  EXPECT_EQ(engine->submit(one).status().message(),
            "there are 4 positions: there must be one on each of 3 axes for each of 2 tokens of the prompt, or none");
  one.positions = {0, 1, 0, 1, 0, -1};
  EXPECT_EQ(engine->submit(one).status().message(), "a position is -1: it must be between 0 and 39, the last one of the context");
  one.positions = {0, 1, 0, 40, 0, 1};
  EXPECT_EQ(engine->submit(one).status().message(), "a position is 40: it must be between 0 and 39, the last one of the context");
  EXPECT_EQ(engine->score(std::vector<int32_t>{1, 2}, std::vector<int32_t>{3, 4, 5}, {{0, 1, 0, 38, 0, 1}, 0}).status().message(),
            "the tokens would have positions up to 40: the last one of the context is 39");
  EXPECT_TRUE(engine->score(std::vector<int32_t>{1, 2}, std::vector<int32_t>{3, 4}, {{0, 1, 0, 38, 0, 1}, 0}).ok());
  // The generation ends with the positions.
  one.positions = {0, 1, 0, 37, 0, 1};
  const Completion completion = engine->generate({&one, 1}).value().front();
  EXPECT_EQ(completion.tokens.size(), 3u);
  EXPECT_EQ(completion.finish_reason, FinishReason::context);
  one.positions = {0, 39, 0, 1, 0, 1};
  EXPECT_EQ(engine->generate({&one, 1}).value().front().tokens.size(), 1u);
}

}  // namespace
}  // namespace prologue
