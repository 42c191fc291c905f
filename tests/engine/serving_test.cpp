// Tests the engine under many requests: they join and leave, run out of pages, are cancelled and fail, and none of it changes the text of
// another. Promises about unchanged texts hold bit for bit in batch-invariant mode, which is what these tests run in.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <prologue/engine/engine.h>
#include <prologue/engine/gguf/gguf.h>

#include "tests/support/gguf_writer.h"
#include "tests/support/sanitizers.h"

namespace prologue {
namespace {

using test::TinyLlamaOptions;

// Each test has a file of its own, because tests run in parallel.
std::string write_model(const std::string& name, const TinyLlamaOptions& options = {}) {
  std::string test = testing::UnitTest::GetInstance()->current_test_info()->name();
  std::replace(test.begin(), test.end(), '/', '_');
  const std::string path = testing::TempDir() + "prologue_serving_test_" + name + "_" + test + ".gguf";
  EXPECT_TRUE(test::write_tiny_llama(path, options));
  return path;
}

struct Kind {
  Device device = Device::cpu;
  DType dtype = DType::f32;
};

void PrintTo(const Kind& kind, std::ostream* out) { *out << device_name(kind.device) << " " << dtype_name(kind.dtype); }

EngineOptions invariant(const std::string& path, const Kind& kind = {}) {
  EngineOptions options;
  options.model_path = path;
  options.device = kind.device;
  options.dtype = kind.dtype;
  options.num_threads = 1;
  options.batch_invariant = true;
  options.page_size = 4;
  options.max_seqs = 8;
  return options;
}

std::unique_ptr<Engine> load(const EngineOptions& options) {
  auto engine = Engine::load(options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return std::move(engine).value();
}

// Returns the memory of so many pages.
int64_t memory_of(const EngineOptions& options, int64_t num_pages) {
  const auto engine = load(options);
  return engine->options().kv_memory / engine->stats().kv.groups.front().num_pages * num_pages;
}

Request request(std::vector<int32_t> prompt, int64_t max_tokens = 12) {
  Request result;
  result.prompt = std::move(prompt);
  result.max_tokens = max_tokens;
  result.ignore_eos = true;
  return result;
}

// Prompts of different lengths, some of which begin alike.
std::vector<Request> mixed_requests(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto draw = [&](int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random); };
  std::vector<Request> requests;
  for (size_t i = 0; i < count; ++i) {
    std::vector<int32_t> prompt;
    if (draw(0, 1) == 0) prompt = {9, 8, 7, 6, 5, 4, 9, 8, 7, 6};
    for (int64_t n = draw(1, 30); n > 0; --n) prompt.push_back(static_cast<int32_t>(draw(3, 250)));
    requests.push_back(request(prompt, draw(1, 24)));
    if (draw(0, 1) == 0) requests.back().num_logprobs = 2;
    SamplingOptions& sampling = requests.back().sampling;
    if (draw(0, 2) == 0) {
      sampling.temperature = 1.2f;
      sampling.top_k = 40;
      sampling.seed = static_cast<uint64_t>(i);
    }
    if (draw(0, 3) == 0) {
      sampling.repetition_penalty = 1.3f;
      sampling.frequency_penalty = 0.1f;
    }
  }
  return requests;
}

std::vector<std::vector<int32_t>> tokens_of(const std::vector<Completion>& completions) {
  std::vector<std::vector<int32_t>> all;
  for (const Completion& completion : completions) {
    EXPECT_TRUE(completion.status.ok()) << completion.status.message();
    all.push_back(completion.tokens);
  }
  return all;
}

// Runs one request at a time, with nothing that could change a bit: no shared pages, no captured steps, no overlap.
std::vector<Completion> completions_alone(const EngineOptions& options, const std::vector<Request>& requests) {
  std::vector<Completion> all;
  EngineOptions plain = options;
  plain.prefix_cache = plain.cuda_graphs = plain.overlap = false;
  plain.kv_memory = 0;
  auto engine = load(plain);
  for (const Request& each : requests) {
    std::vector<Completion> completions = engine->generate({&each, 1}).value();
    std::move(completions.begin(), completions.end(), std::back_inserter(all));
  }
  return all;
}

std::vector<std::vector<int32_t>> alone(const EngineOptions& options, const std::vector<Request>& requests) {
  return tokens_of(completions_alone(options, requests));
}

// Compares tokens, and log probabilities to the last bit.
void expect_same(const std::vector<Completion>& got, const std::vector<Completion>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(got[i].status.ok()) << got[i].status.message();
    ASSERT_EQ(got[i].tokens, want[i].tokens) << i;
    ASSERT_EQ(got[i].logprobs.size(), want[i].logprobs.size());
    for (size_t t = 0; t < got[i].logprobs.size(); ++t) {
      ASSERT_EQ(got[i].logprobs[t].logprob, want[i].logprobs[t].logprob) << i << " " << t;
      ASSERT_EQ(got[i].logprobs[t].top, want[i].logprobs[t].top) << i << " " << t;
    }
  }
}

// Nothing runs, nothing is held, and the books are right.
void expect_at_rest(Engine& engine) {
  const Status status = engine.check_integrity();
  EXPECT_TRUE(status.ok()) << status.message();
  const EngineStats stats = engine.stats();
  EXPECT_EQ(stats.waiting, 0);
  EXPECT_EQ(stats.running, 0);
  for (const KvGroupStats& group : stats.kv.groups) EXPECT_EQ(group.used, 0);
}

// Submits requests and keeps what comes back.
class Client {
 public:
  explicit Client(Engine& engine) : engine_(engine) {}
  Client(const Client&) = delete;

  Result<RequestId> submit(const Request& request) {
    const size_t index = completions.size();
    completions.emplace_back();
    texts.emplace_back();
    tokens.emplace_back();
    done.push_back(false);
    return engine_.submit(request, [this, index, left = request.num_samples](const Output& output) mutable {
      EXPECT_FALSE(done[index]);
      if (output.sample == 0) {
        texts[index] += output.text;
        tokens[index].insert(tokens[index].end(), output.tokens.begin(), output.tokens.end());
      }
      if (output.completion == nullptr) return;
      if (output.sample == 0) completions[index] = *output.completion;
      done[index] = --left == 0;
    });
  }
  void run() {
    for (;;) {
      const auto worked = engine_.step();
      ASSERT_TRUE(worked.ok()) << worked.status().message();
      if (!*worked) return;
    }
  }

  std::vector<Completion> completions;
  std::vector<std::string> texts;
  std::vector<std::vector<int32_t>> tokens;
  std::vector<bool> done;

 private:
  Engine& engine_;
};

class Serving : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (GetParam().device != Device::cuda) return;
    if (const Status gpu = check_gpu(); !gpu.ok()) GTEST_SKIP() << gpu.message();
  }
};
INSTANTIATE_TEST_SUITE_P(Kinds, Serving,
                         ::testing::Values(Kind{Device::cpu, DType::f32}, Kind{Device::cpu, DType::bf16}, Kind{Device::cuda, DType::f32},
                                           Kind{Device::cuda, DType::bf16}),
                         [](const auto& row) { return str_cat(device_name(row.param.device), "_", dtype_name(row.param.dtype)); });

TEST_P(Serving, RequestsJoinAndLeaveAndEachHasItsOwnText) {
  const EngineOptions options = invariant(write_model("join"), GetParam());
  const std::vector<Request> requests = mixed_requests(24, 1);
  const auto want = alone(options, requests);
  auto engine = load(options);
  Client client(*engine);
  std::mt19937_64 random(2);
  for (const Request& each : requests) {
    ASSERT_TRUE(client.submit(each).ok());
    for (uint64_t steps = random() % 4; steps > 0; --steps) ASSERT_TRUE(engine->step().ok());
  }
  client.run();
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_TRUE(client.done[i]);
    EXPECT_EQ(client.completions[i].tokens, want[i]) << i;
    EXPECT_EQ(client.tokens[i], want[i]);
    EXPECT_EQ(client.texts[i], client.completions[i].text);
    EXPECT_EQ(client.texts[i], engine->tokenizer().decode(want[i]));
  }
  expect_at_rest(*engine);
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.finished[static_cast<size_t>(FinishReason::length)], 24);
  EXPECT_GT(stats.cached_tokens, 0);
}

TEST_P(Serving, PreemptionChangesNoText) {
  EngineOptions options = invariant(write_model("preempt"), GetParam());
  const std::vector<Request> requests = mixed_requests(16, 3);
  const auto want = alone(options, requests);
  for (const bool prefix_cache : {true, false}) {
    options.prefix_cache = prefix_cache;
    options.kv_memory = memory_of(options, 18);  // the longest request needs 16
    auto engine = load(options);
    EXPECT_EQ(tokens_of(engine->generate(requests).value()), want);
    EXPECT_GT(engine->stats().preemptions, 0);
    expect_at_rest(*engine);
  }
}

TEST_P(Serving, ChunksOfAnySizeGiveTheSameText) {
  EngineOptions options = invariant(write_model("chunks"), GetParam());
  const std::vector<Request> requests = mixed_requests(8, 4);
  const auto want = alone(options, requests);
  for (const int64_t max_step_tokens : {8, 9, 21, 300}) {
    options.max_step_tokens = max_step_tokens;
    auto engine = load(options);
    EXPECT_EQ(tokens_of(engine->generate(requests).value()), want) << max_step_tokens;
  }
}

TEST_P(Serving, ACachedPrefixChangesNoText) {
  EngineOptions options = invariant(write_model("prefix"), GetParam());
  std::vector<int32_t> prompt(90);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(3 + i * 7 % 200);
  const Request one = request(prompt);
  const auto want = alone(options, {one});
  auto engine = load(options);
  const Completion cold = engine->generate({&one, 1}).value().front();
  EXPECT_EQ(cold.cached_tokens, 0);
  const Completion warm = engine->generate({&one, 1}).value().front();
  EXPECT_EQ(warm.cached_tokens, 88);  // full pages, and not the last token
  EXPECT_EQ(warm.tokens, cold.tokens);
  // The next turn finds the answer of the last one too.
  Request next = one;
  next.prompt.insert(next.prompt.end(), cold.tokens.begin(), cold.tokens.end());
  next.prompt.push_back(17);
  EXPECT_EQ(tokens_of(engine->generate({&next, 1}).value()), alone(options, {next}));
  EXPECT_EQ(engine->generate({&next, 1}).value().front().cached_tokens, 100);
  // The prompt of a request is also kept if the request ends with its first token.
  const Request brief = request(std::vector<int32_t>(40, 21), 1);
  for (const int64_t cached : {0, 36}) EXPECT_EQ(engine->generate({&brief, 1}).value().front().cached_tokens, cached);
  options.prefix_cache = false;
  engine = load(options);
  for (int round = 0; round < 2; ++round) {
    const Completion completion = engine->generate({&one, 1}).value().front();
    EXPECT_EQ(completion.cached_tokens, 0);
    EXPECT_EQ(completion.tokens, want.front());
  }
}

TEST_P(Serving, SamplesOfOneRequestAreThoseOfItsSeeds) {
  const EngineOptions options = invariant(write_model("samples"), GetParam());
  Request several = request({5, 6, 7, 8, 9, 10, 11}, 16);
  several.sampling.temperature = 1.5f;
  several.sampling.seed = 40;
  std::vector<Request> single;
  for (uint64_t i = 0; i < 20; ++i) {
    single.push_back(several);
    single.back().sampling.seed += i;
  }
  several.num_samples = 20;  // more than there are seats
  const auto want = alone(options, single);
  auto engine = load(options);
  const std::vector<Request> batch = {several, single[3]};
  auto got = tokens_of(engine->generate(batch).value());
  EXPECT_EQ(got.back(), want[3]);
  got.pop_back();
  EXPECT_EQ(got, want);
  EXPECT_GT(engine->stats().kv.groups.front().copies, 0);  // of the prompt's last page
  expect_at_rest(*engine);
}

// A request with many samples takes turns with the others: a request that comes later gets a seat at once, and of the samples that wait not
// all go before it.
TEST(Turns, ARequestWithManySamplesLeavesASeatToEachOther) {
  EngineOptions options = invariant(write_model("turns"));
  options.max_seqs = 4;
  Request many = request({5, 6, 7}, 60);
  many.num_samples = 32;
  many.sampling.temperature = 1.0f;
  std::vector<Request> batch = {many};
  for (int32_t i = 0; i < 3; ++i) batch.push_back(request({8, 9, 10 + i}, 8));
  const auto want = alone(options, batch);
  auto engine = load(options);
  int64_t num_ended = 0, many_ended = 0;
  std::vector<int64_t> ended_before;  // samples of the large request that had ended when a small one did
  const auto submit = [&](const Request& each, size_t first) {
    return engine
        ->submit(each,
                 [&, first](const Output& output) {
                   if (output.completion == nullptr) return;
                   ++num_ended;
                   EXPECT_EQ(output.completion->tokens, want[first + static_cast<size_t>(output.sample)]);
                   if (first == 0) ++many_ended;
                   if (first > 0) ended_before.push_back(many_ended);
                 })
        .ok();
  };
  ASSERT_TRUE(submit(batch[0], 0));
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(engine->step().value());
  EXPECT_EQ(engine->stats().running, 4);
  for (size_t i = 1; i < batch.size(); ++i) ASSERT_TRUE(submit(batch[i], 31 + i));
  for (int i = 0; i < 12; ++i) ASSERT_TRUE(engine->step().value());
  EXPECT_EQ(ended_before, (std::vector<int64_t>{0, 0, 0}));
  EXPECT_LE(engine->stats().preemptions, 3);  // one for each: who has the fewest gives none up
  while (engine->step().value()) {
  }
  EXPECT_EQ(num_ended, 35);
  expect_at_rest(*engine);
}

// Requests of one group are together as one: the prompts of a list do not go before somebody else's.
TEST(Turns, RequestsOfAGroupTakeTurnsAsOne) {
  EngineOptions options = invariant(write_model("groups"));
  options.max_seqs = 2;
  auto engine = load(options);
  std::vector<char> ended;
  const auto submit = [&](char name, const std::shared_ptr<RequestGroup>& group) {
    Request each = request({5, 6, static_cast<int32_t>(name)}, 10);
    each.group = group;
    ASSERT_TRUE(engine->submit(each, [&, name](const Output& output) {
                        if (output.completion != nullptr) ended.push_back(name);
                      }).ok());
  };
  const auto group = std::make_shared<RequestGroup>();
  for (int i = 0; i < 6; ++i) submit('g', group);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(engine->step().value());
  submit('a', nullptr);
  submit('b', nullptr);
  while (engine->step().value()) {
  }
  EXPECT_EQ(group->num_running, 0);
  ASSERT_EQ(ended.size(), 8u);
  // One seat is the group's all the time: each of the others ends within two of its requests.
  EXPECT_LE(std::find(ended.begin(), ended.end(), 'a') - ended.begin(), 2);
  EXPECT_LE(std::find(ended.begin(), ended.end(), 'b') - ended.begin(), 5);
  expect_at_rest(*engine);
}

TEST(Turns, AScoreTakesTurnsWithRequests) {
  EngineOptions options = invariant(write_model("score"));
  auto engine = load(options);
  std::thread serving([&] { EXPECT_TRUE(engine->run().ok()); });
  const std::vector<int32_t> text = request({5}).prompt;
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 200; ++i) tokens.push_back(3 + i % 200);
  const Score before = engine->score(text, tokens).value();
  std::atomic<int> ended = 0;
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(engine->submit(request({7, 8, 9 + i}, 100), [&](const Output& output) { ended += output.completion != nullptr; }).ok());
  }
  for (int i = 0; i < 4; ++i) EXPECT_EQ(engine->score(text, tokens).value().logprob_of_token, before.logprob_of_token);
  while (ended < 4) std::this_thread::yield();
  engine->shutdown();
  serving.join();
  expect_at_rest(*engine);
}

// What a stranger sees of the cache tells nothing about prompts with another salt.
TEST(Requests, WithDifferentSaltsShareNothing) {
  auto engine = load(invariant(write_model("salts")));
  const auto cached = [&](const std::string& salt) {
    Request one = request({9, 8, 7, 6, 5, 4, 9, 8, 7, 6}, 2);
    one.cache_salt = salt;
    return engine->generate({&one, 1}).value().front().cached_tokens;
  };
  EXPECT_EQ(cached("a"), 0);
  EXPECT_EQ(cached("b"), 0);
  EXPECT_EQ(cached(""), 0);
  EXPECT_EQ(cached(std::string("a\0", 2)), 0);
  EXPECT_EQ(cached("a"), 8);
  EXPECT_EQ(cached(""), 8);
  expect_at_rest(*engine);
}

TEST(Requests, ManyStopTokensAreLookedUp) {
  auto engine = load(invariant(write_model("stop_tokens")));
  Request one = request({5, 6, 7}, 24);
  const std::vector<int32_t> all = tokens_of(engine->generate({&one, 1}).value()).front();
  one.ignore_eos = false;
  one.stop_tokens.assign(100000, all[3]);
  one.stop_tokens.insert(one.stop_tokens.begin(), all[7]);
  one.stop_tokens.push_back(0);
  const Completion completion = engine->generate({&one, 1}).value().front();
  EXPECT_EQ(completion.finish_reason, FinishReason::end);
  const auto first = std::find_if(all.begin(), all.end(), [&](int32_t token) { return token == all[3] || token == all[7] || token == 0; });
  EXPECT_EQ(completion.tokens, std::vector<int32_t>(all.begin(), first));
}

// Sequences join, leave, cross page and bucket boundaries, are preempted and forked, and a step is enqueued before the last one is read.
TEST_P(Serving, CapturedAndOverlappingStepsGiveTheBitsOfEagerOnes) {
  EngineOptions options = invariant(write_model("captured"), GetParam());
  options.max_seqs = 20;
  std::vector<Request> requests = mixed_requests(48, 9);
  for (size_t i = 0; i < requests.size(); i += 5) requests[i].num_samples = 3;
  const std::vector<Completion> want = completions_alone(options, requests);
  for (const bool cuda_graphs : {true, false}) {
    for (const bool overlap : {true, false}) {
      for (const int64_t num_pages : {0, 40}) {
        options.cuda_graphs = cuda_graphs;
        options.overlap = overlap;
        options.kv_memory = num_pages > 0 ? memory_of(options, num_pages) : 0;
        auto engine = load(options);
        expect_same(engine->generate(requests).value(), want);
        const EngineStats stats = engine->stats();
        if (num_pages > 0) {
          EXPECT_GT(stats.preemptions, 0);
        }
        if (GetParam().device == Device::cuda && cuda_graphs) {
          EXPECT_GT(stats.captured_graphs, 2);
          EXPECT_GT(stats.replayed_steps, 15);
        } else {
          EXPECT_EQ(stats.replayed_steps, 0);
        }
        expect_at_rest(*engine);
      }
    }
  }
}

TEST(Requests, CanBeCancelledAtAnyPoint) {
  EngineOptions options = invariant(write_model("cancel"));
  options.kv_memory = memory_of(options, 24);
  const std::vector<Request> requests = mixed_requests(40, 5);
  const auto want = alone(options, requests);
  auto engine = load(options);
  std::mt19937_64 random(6);
  int64_t num_cancelled = 0;
  for (int round = 0; num_cancelled < 1000; ++round) {
    Client client(*engine);
    std::vector<RequestId> ids;
    std::vector<size_t> which;
    std::map<size_t, bool> cancelled;
    for (int i = 0; i < 30; ++i) {
      which.push_back(random() % requests.size());
      Request each = requests[which.back()];
      if (random() % 4 == 0) each.num_samples = 3;
      if (each.num_samples > 1) each.max_tokens += 1, which.back() = requests.size();  // not compared
      ids.push_back(client.submit(each).value());
    }
    for (bool more = true; more;) {
      const size_t i = random() % ids.size();
      if (random() % 2 == 0) {
        engine->cancel(ids[i]);
        cancelled[i] = true;
        ++num_cancelled;
      }
      more = engine->step().value();
      if (random() % 16 == 0) {
        const Status status = engine->check_integrity();
        ASSERT_TRUE(status.ok()) << status.message();
      }
    }
    for (size_t i = 0; i < ids.size(); ++i) {
      if (which[i] == requests.size()) continue;
      const Completion& completion = client.completions[i];
      ASSERT_TRUE(client.done[i]);
      ASSERT_TRUE(completion.status.ok()) << completion.status.message();
      const std::vector<int32_t>& full = want[which[i]];
      if (completion.finish_reason == FinishReason::cancelled) {
        EXPECT_TRUE(cancelled[i]);
        ASSERT_LE(completion.tokens.size(), full.size());
        EXPECT_TRUE(std::equal(completion.tokens.begin(), completion.tokens.end(), full.begin()));
      } else {
        EXPECT_EQ(completion.tokens, full);
      }
    }
    expect_at_rest(*engine);
  }
}

TEST(Requests, ACallbackThatThrowsEndsItsRequestAlone) {
  const EngineOptions options = invariant(write_model("throws"));
  const std::vector<Request> requests = mixed_requests(6, 7);
  const auto want = alone(options, requests);
  auto engine = load(options);
  Client client(*engine);
  for (const Request& each : requests) ASSERT_TRUE(client.submit(each).ok());
  for (const int calls : {0, 1, 3}) {
    int left = calls;
    Request several = request({4, 5, 6}, 20);
    several.num_samples = 3;
    ASSERT_TRUE(engine->submit(several, [left](const Output&) mutable {
      if (left-- == 0) throw std::runtime_error("enough");
      EXPECT_GE(left, -1) << "called again after it has thrown";
    }).ok());
  }
  client.run();
  EXPECT_EQ(tokens_of(client.completions), want);
  EXPECT_EQ(engine->stats().finished[static_cast<size_t>(FinishReason::error)], 9);
  expect_at_rest(*engine);
}

TEST(Requests, ACallbackMaySubmitAndCancel) {
  auto engine = load(invariant(write_model("callbacks")));
  int finished = 0;
  std::function<void(const Output&)> chain;
  RequestId victim = engine->submit(request({9, 9, 9}, 400)).value();
  chain = [&](const Output& output) {
    if (output.completion == nullptr) return;
    if (++finished < 5) {
      EXPECT_TRUE(engine->submit(request({5, finished + 5}, 3), chain).ok());
    }
    if (finished == 5) engine->cancel(victim);
    EXPECT_GE(engine->stats().steps, 0);
  };
  ASSERT_TRUE(engine->submit(request({5, 5}, 3), chain).ok());
  int steps = 0;
  while (engine->step().value()) ASSERT_LT(++steps, 100);
  EXPECT_EQ(finished, 5);
  expect_at_rest(*engine);
}

TEST(Requests, AreRefusedAtOnceWhenTheyCanNeverRun) {
  EngineOptions options = invariant(write_model("refused"));
  options.max_queue = 3;
  options.kv_memory = memory_of(options, 5);
  auto engine = load(options);
  EXPECT_EQ(engine->context_length(), 20);
  EXPECT_EQ(engine->submit(request(std::vector<int32_t>(20, 5))).status().message(),
            "the prompt has 20 tokens: the context was set to 20, and at least one token must be left to generate");
  Request bad = request({5});
  bad.num_samples = 0;
  EXPECT_EQ(engine->submit(bad).status().message(), "the number of samples is 0: it must be between 1 and 128");
  bad = request({5});
  bad.num_logprobs = 21;
  EXPECT_EQ(engine->submit(bad).status().message(),
            "the number of log probabilities is 21: it must be between 0 and 20, or -1 for none");
  bad = request({5});
  bad.sampling.repetition_penalty = 0.0f;
  EXPECT_EQ(engine->submit(bad).status().message(), "the repetition penalty is 0: it must be positive; 1 = off");
  bad = request({5});
  bad.sampling.logit_bias = {{100000, 1.0f}};
  EXPECT_EQ(engine->submit(bad).status().message(),
            str_cat("the logit bias has token id 100000: the vocabulary has ids 0 to ", engine->config().vocab_size - 1));
  bad = request({5});
  bad.sampling.logit_bias = {{5, NAN}};
  EXPECT_EQ(engine->submit(bad).status().message(), "the logit bias of token 5 is nan: it must be finite or -inf");
  bad = request({5});
  bad.sampling.presence_penalty = INFINITY;
  EXPECT_EQ(engine->submit(bad).status().message(), "a presence or frequency penalty is not a finite number");

  for (int i = 0; i < 3; ++i) EXPECT_TRUE(engine->submit(request({5, 6, 7}, 3)).ok());
  const Status full = engine->submit(request({5, 6, 7})).status();
  EXPECT_EQ(full.code(), StatusCode::resource_exhausted);
  EXPECT_EQ(full.message(), "the queue is full: 3 requests wait, and 3 may");
  while (engine->step().value()) {
  }
  EXPECT_TRUE(engine->submit(request({5, 6, 7}, 3)).ok());
  engine->shutdown();
  EXPECT_EQ(engine->submit(request({5})).status().message(), "the engine is shut down: it takes no more requests");
  EXPECT_EQ(engine->stats().refused, 9);
  EXPECT_TRUE(engine->run().ok());
  EXPECT_EQ(engine->stats().finished[static_cast<size_t>(FinishReason::cancelled)], 1);
  expect_at_rest(*engine);
}

TEST(Requests, TextIsEncodedAsThePromptOfTheModel) {
  auto engine = load(invariant(write_model("text")));
  Request text = request({});
  text.text = "hello";
  Request tokens = request(engine->tokenizer().encode("hello", true, engine->tokenizer().add_bos()).value());
  EXPECT_EQ(tokens_of(engine->generate({&text, 1}).value()), tokens_of(engine->generate({&tokens, 1}).value()));
}

TEST(Requests, PenaltiesAndBiasesChangeWhatIsChosen) {
  auto engine = load(invariant(write_model("penalties")));
  Request one = request({5, 6, 7}, 24);
  const auto generate = [&] { return tokens_of(engine->generate({&one, 1}).value()).front(); };
  const int32_t first = generate().front();
  one.sampling.logit_bias = {{42, 1000.0f}};
  EXPECT_EQ(generate(), std::vector<int32_t>(24, 42));
  one.sampling.logit_bias = {{42, 3000.0f}, {43, 2000.0f}};
  one.sampling.presence_penalty = 1500.0f;
  std::vector<int32_t> tokens = generate();
  EXPECT_EQ((std::vector<int32_t>{tokens[0], tokens[1], tokens[2]}), (std::vector<int32_t>{42, 43, 42}));
  one.sampling = {};
  one.sampling.frequency_penalty = 1e6f;
  tokens = generate();
  std::sort(tokens.begin(), tokens.end());
  EXPECT_EQ(std::unique(tokens.begin(), tokens.end()), tokens.end());  // no token twice
  one.sampling = {};
  one.sampling.logit_bias = {{first, -INFINITY}};
  for (const int32_t token : generate()) EXPECT_NE(token, first);
}

TEST(Requests, LogProbabilitiesAreThoseOfScoring) {
  auto engine = load(invariant(write_model("logprobs")));
  Request one = request({5, 6, 7}, 10);
  one.num_logprobs = 3;
  one.sampling.temperature = 2.0f;
  const Completion completion = engine->generate({&one, 1}).value().front();
  ScoreOptions with_logprobs;
  with_logprobs.num_logprobs = 3;
  const Score score = engine->score(one.prompt, completion.tokens, with_logprobs).value();
  ASSERT_EQ(score.logprobs.size(), completion.tokens.size());
  ASSERT_EQ(completion.logprobs.size(), completion.tokens.size());
  for (size_t i = 0; i < completion.tokens.size(); ++i) {
    const TokenLogprobs& row = completion.logprobs[i];
    EXPECT_NEAR(row.logprob, score.logprob_of_token[i], 1e-5);
    EXPECT_NEAR(row.logprob, score.logprobs[i].logprob, 1e-5);
    for (size_t t = 0; t < row.top.size(); ++t) {
      EXPECT_EQ(row.top[t].first, score.logprobs[i].top[t].first);
      EXPECT_NEAR(row.top[t].second, score.logprobs[i].top[t].second, 1e-5);
    }
    ASSERT_EQ(row.top.size(), 3u);
    EXPECT_EQ(row.top[0].first, score.argmax[i]);
    EXPECT_GE(row.top[0].second, row.top[1].second);
    EXPECT_GE(row.top[1].second, row.top[2].second);
  }
  one.num_logprobs = 0;
  EXPECT_TRUE(engine->generate({&one, 1}).value().front().logprobs[0].top.empty());
  one.num_logprobs = -1;
  EXPECT_TRUE(engine->generate({&one, 1}).value().front().logprobs.empty());
}

// One token's row of the embedding is not numbers: requests that have it fail, whatever runs beside them.
TEST(Requests, LogitsThatAreNotNumbersFailTheirRequestAlone) {
  TinyLlamaOptions model;
  model.tied_output = false;
  const EngineOptions options = invariant(write_model("nan", model));
  std::vector<Request> requests = mixed_requests(6, 11);
  for (Request& each : requests) std::erase(each.prompt, 77);
  const auto want = alone(options, requests);
  {
    const GgufFile file = GgufFile::open(options.model_path).value();
    const GgufTensor& embedding = *file.tensor("token_embd.weight").value();
    std::fstream out(options.model_path, std::ios::binary | std::ios::in | std::ios::out);
    const std::vector<float> row(64, NAN);
    out.seekp(static_cast<std::streamoff>(embedding.offset) + 77 * 64 * 4);
    out.write(reinterpret_cast<const char*>(row.data()), 64 * 4);
  }
  auto engine = load(options);
  std::vector<Request> batch = requests;
  Request bad = request({5, 77, 6}, 10);
  bad.num_samples = 2;
  batch.insert(batch.begin() + 2, bad);
  for (int round = 0; round < 2; ++round) {  // and nothing of it is found in the cache
    std::vector<Completion> got = engine->generate(batch).value();
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(got[2].finish_reason, FinishReason::error);
      EXPECT_EQ(got[2].status.message(), "the model's logits for this request are not numbers");
      got.erase(got.begin() + 2);
    }
    EXPECT_EQ(tokens_of(got), want);
    expect_at_rest(*engine);
  }
}

// Kilobytes of this process that are in memory.
[[maybe_unused]] int64_t resident_kilobytes() {
  std::ifstream status("/proc/self/status");
  for (std::string key; status >> key;) {
    int64_t value = 0;
    if (key == "VmRSS:" && status >> value) return value;
  }
  return 0;
}

TEST(Requests, TenThousandShortOnesTakeNoMoreMemoryThanThousand) {
  EngineOptions options = invariant(write_model("soak"));
  options.kv_memory = memory_of(options, 64);
  auto engine = load(options);
  const std::vector<Request> requests = mixed_requests(100, 12);
  const auto serve = [&](int rounds) {
    for (int round = 0; round < rounds; ++round) {
      Client client(*engine);
      for (Request each : requests) {
        each.prompt.push_back(3 + round % 200);
        each.max_tokens = 1 + round % 4;
        ASSERT_TRUE(client.submit(each).ok());
      }
      client.run();
    }
  };
  serve(10);
#ifndef PROLOGUE_ADDRESS_SANITIZER  // which keeps released memory, and finds what is not released
  const int64_t before = resident_kilobytes();
  serve(90);
  EXPECT_LT(resident_kilobytes(), before + 4096);
  EXPECT_EQ(engine->stats().finished[static_cast<size_t>(FinishReason::length)], 10000);
#endif
  expect_at_rest(*engine);
}

// Threads submit, cancel and read statistics while one serves.
TEST(Threads, SubmitFromAnyThreadWhileOneServes) {
  EngineOptions options = invariant(write_model("threads"));
  options.kv_memory = memory_of(options, 40);
  const std::vector<Request> requests = mixed_requests(12, 8);
  const auto want = alone(options, requests);
  auto engine = load(options);
  std::thread server([&] { EXPECT_TRUE(engine->run().ok()); });
  std::vector<std::thread> clients;
  for (int c = 0; c < 3; ++c) {
    clients.emplace_back([&, c] {
      std::mt19937_64 random(static_cast<uint64_t>(c));
      for (int round = 0; round < 30; ++round) {
        const size_t which = random() % requests.size();
        if (random() % 3 == 0) {  // generate() works beside run()
          EXPECT_EQ(tokens_of(engine->generate({&requests[which], 1}).value()).front(), want[which]);
          continue;
        }
        std::atomic<bool> done = false;
        std::vector<int32_t> tokens;
        FinishReason reason = FinishReason::error;
        const auto id = engine->submit(requests[which], [&](const Output& output) {
          if (output.completion == nullptr) return;
          tokens = output.completion->tokens;
          reason = output.completion->finish_reason;
          done = true;
        });
        const bool cancel = random() % 4 == 0;
        if (cancel) engine->cancel(id.value());
        while (!done) std::this_thread::yield();
        if (reason != FinishReason::cancelled) {
          EXPECT_EQ(tokens, want[which]);
        }
        EXPECT_GE(engine->stats().steps, 0);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  engine->shutdown();
  server.join();
  expect_at_rest(*engine);
}

}  // namespace
}  // namespace prologue
