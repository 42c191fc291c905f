// Several ranks share a model: they compute what one rank does.
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <prologue/engine/engine.h>
#include <prologue/engine/parallel_runner.h>
#include <prologue/kernels/base/gpu.h>

#include "tests/support/gguf_writer.h"
#include "tests/support/reference_model.h"
#include "tests/support/reference_run.h"

namespace prologue {
namespace {

using test::PromptSplit;
using test::ReferenceModel;

Status no_place(Device device, int64_t num_ranks) {
  if (device == Device::cpu) return {};
  const auto count = num_gpus();
  if (!count.ok()) return count.status();
  return *count < num_ranks ? unsupported("there are ", *count, " GPUs") : Status();
}

// ---- The reference checkpoints of every family ----

// Loads a checkpoint as parts of a model, one for each rank.
struct ParallelModel {
  std::unique_ptr<Ranks> ranks;
  std::vector<Model> models;
  std::shared_ptr<ParallelRunner> runner;

  static Result<ParallelModel> load(const std::string& folder, Device device, DType dtype, int64_t num_ranks) {
    ParallelModel model;
    PROLOGUE_ASSIGN_OR_RETURN(model.ranks, Ranks::create(device, num_ranks, static_cast<int32_t>(num_ranks)));
    PROLOGUE_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::open(folder));
    PROLOGUE_ASSIGN_OR_RETURN(model.models, load_parts(*checkpoint, folder, dtype, *model.ranks, {}, {}));
    PROLOGUE_ASSIGN_OR_RETURN(model.runner, ParallelRunner::create(*model.ranks, model.models, test::reference_runner_config()));
    return model;
  }
};

struct Case {
  std::string model;
  Device device;
  DType dtype;
};
void PrintTo(const Case& each, std::ostream* out) {
  *out << each.model << ", " << device_name(each.device) << ", " << dtype_name(each.dtype);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::string& name : test::reference_model_names()) {
    all.push_back({name, Device::cpu, DType::f32});
    all.push_back({name, Device::cuda, DType::f32});
    all.push_back({name, Device::cuda, DType::bf16});
  }
  return all;
}

class ParallelReferences : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (const Status none = no_place(GetParam().device, 2); !none.ok()) GTEST_SKIP() << none.message();
  }
  // Calls check(model, run) with the checkpoint on 2, 3 and 4 ranks, as far as it can be split and there are GPUs.
  void on_ranks(const std::string& folder, const std::function<void(const test::RunPrompt&)>& check) const {
    for (const int64_t num_ranks : {2, 3, 4}) {
      if (!no_place(GetParam().device, num_ranks).ok()) continue;
      SCOPED_TRACE(testing::Message() << num_ranks << " ranks");
      const auto model = ParallelModel::load(folder, GetParam().device, GetParam().dtype, num_ranks);
      if (!model.ok() && model.status().message().find("cannot be split") != std::string::npos) continue;
      ASSERT_TRUE(model.ok()) << model.status().message();
      check(test::reference_run(model->models.front(), model->runner, model->runner->front().groups()));
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Models, ParallelReferences, ::testing::ValuesIn(cases()), [](const auto& row) {
  return row.param.model + "_" + device_name(row.param.device) + "_" + dtype_name(row.param.dtype);
});

TEST_P(ParallelReferences, GiveTheLogitsOfTransformers) {
  const ReferenceModel reference = test::read_reference_model(GetParam().model);
  on_ranks(reference.folder, [&](const test::RunPrompt& run) {
    for (const PromptSplit split : {PromptSplit::whole, PromptSplit::chunks, PromptSplit::tokens}) {
      if (GetParam().dtype == DType::f32) {
        test::expect_reference_logits(reference, split, run);
      } else {
        test::expect_reference_choices(reference, split, run);
      }
    }
  });
  if (GetParam().device != Device::cpu) return;
  for (const test::ReferenceChange& change : reference.changes) {
    SCOPED_TRACE(change.name);
    const test::ChangedModel changed(reference, change);
    on_ranks(changed.folder(), [&](const test::RunPrompt& run) { test::expect_changed_logits(reference, change, changed, run); });
  }
}

// Every family has a number of ranks that its checkpoint can be split among.
TEST(ParallelReferences, EveryFamilyCanBeSplit) {
  for (const std::string& name : test::reference_model_names()) {
    bool can = false;
    std::string messages;
    for (const int64_t num_ranks : {2, 3, 4}) {
      const auto model = ParallelModel::load(test::read_reference_model(name).folder, Device::cpu, DType::f32, num_ranks);
      can = can || model.ok();
      if (!model.ok()) messages += model.status().message() + "\n";
    }
    EXPECT_TRUE(can) << name << ": " << messages;
  }
}

// ---- The engine ----

std::string tiny_model(const test::TinyLlamaOptions& options = {}) {
  std::string test = testing::UnitTest::GetInstance()->current_test_info()->name();
  std::replace(test.begin(), test.end(), '/', '_');
  const std::string path = testing::TempDir() + "prologue_parallel_test_" + test + ".gguf";
  EXPECT_TRUE(test::write_tiny_llama(path, options));
  return path;
}

EngineOptions options_of(const std::string& path, int64_t num_ranks, Device device = Device::cpu) {
  EngineOptions options;
  options.model_path = path;
  options.device = device;
  options.dtype = DType::f32;
  options.tensor_parallel = num_ranks;
  options.num_threads = static_cast<int32_t>(num_ranks);
  options.page_size = 4;
  options.max_seqs = 8;
  return options;
}

std::unique_ptr<Engine> load(const EngineOptions& options) {
  auto engine = Engine::load(options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return engine.ok() ? std::move(engine).value() : nullptr;
}

// Requests of every kind that a step treats differently.
std::vector<Request> mixed_requests(int64_t vocab_size) {
  std::vector<Request> requests;
  for (int32_t i = 0; i < 6; ++i) {
    Request request;
    for (int32_t t = 0; t < 3 + 5 * i; ++t) request.prompt.push_back((7 * t + i) % static_cast<int32_t>(vocab_size));
    request.max_tokens = 12;
    request.ignore_eos = true;
    request.num_logprobs = i % 3 == 0 ? 4 : -1;
    request.num_samples = i == 4 ? 3 : 1;
    if (i % 2 == 1) {
      request.sampling.temperature = 0.8f;
      request.sampling.top_k = i == 1 ? 5 : 0;
      request.sampling.top_p = i == 3 ? 0.9f : 1.0f;
      request.sampling.seed = static_cast<uint64_t>(100 + i);
    }
    if (i >= 3) {
      request.sampling.repetition_penalty = 1.3f;
      request.sampling.frequency_penalty = 0.2f;
      request.sampling.logit_bias = {{1, 2.0f}, {2, -INFINITY}};
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

class ParallelEngine : public ::testing::TestWithParam<Device> {
 protected:
  void SetUp() override {
    if (const Status none = no_place(GetParam(), 2); !none.ok()) GTEST_SKIP() << none.message();
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, ParallelEngine, ::testing::Values(Device::cpu, Device::cuda),
                         [](const auto& row) { return std::string(device_name(row.param)); });

// Sampled tokens, penalties, biases, log probabilities, several samples: all as on one rank. A second round finds prompts in the cache.
TEST_P(ParallelEngine, GivesTheTokensOfOneRank) {
  const std::string path = tiny_model();
  const auto one = load(options_of(path, 1, GetParam())), two = load(options_of(path, 2, GetParam()));
  ASSERT_TRUE(one != nullptr && two != nullptr);
  EXPECT_EQ(two->num_ranks(), 2);
  const std::vector<Request> requests = mixed_requests(one->config().vocab_size);
  for (int round = 0; round < 2; ++round) {
    const auto expected = one->generate(requests), found = two->generate(requests);
    ASSERT_TRUE(expected.ok() && found.ok()) << found.status().message();
    ASSERT_EQ(found->size(), expected->size());
    for (size_t i = 0; i < found->size(); ++i) {
      EXPECT_TRUE((*found)[i].status.ok()) << (*found)[i].status.message();
      EXPECT_EQ((*found)[i].tokens, (*expected)[i].tokens) << i;
      ASSERT_EQ((*found)[i].logprobs.size(), (*expected)[i].logprobs.size());
      for (size_t t = 0; t < (*found)[i].logprobs.size(); ++t)
        EXPECT_NEAR((*found)[i].logprobs[t].logprob, (*expected)[i].logprobs[t].logprob, 1e-4) << i << ", token " << t;
    }
  }
  EXPECT_GT(two->stats().cached_tokens, 0);
  EXPECT_TRUE(two->check_integrity().ok());
  const auto score = two->score(std::vector<int32_t>{0, 1, 2}, std::vector<int32_t>{3, 4, 5});
  ASSERT_TRUE(score.ok()) << score.status().message();
  const auto of_one = one->score(std::vector<int32_t>{0, 1, 2}, std::vector<int32_t>{3, 4, 5});
  EXPECT_NEAR(score->perplexity / of_one->perplexity, 1.0, 1e-5);
}

TEST_P(ParallelEngine, GivesTheSameBitsInEveryRun) {
  const std::string path = tiny_model();
  EngineOptions options = options_of(path, 2, GetParam());
  options.batch_invariant = true;
  std::vector<std::vector<float>> logprobs;
  for (int run = 0; run < 2; ++run) {
    const auto engine = load(options);
    ASSERT_TRUE(engine != nullptr);
    std::vector<Request> requests = mixed_requests(engine->config().vocab_size);
    if (run == 1) requests.resize(4);  // another batch
    const auto completions = engine->generate(requests);
    ASSERT_TRUE(completions.ok());
    logprobs.emplace_back();
    for (const TokenLogprobs& each : completions->front().logprobs) logprobs.back().push_back(each.logprob);
  }
  EXPECT_EQ(logprobs[0], logprobs[1]);
}

// A small cache: pages are copied and sequences preempted on all ranks.
TEST_P(ParallelEngine, SurvivesASmallCache) {
  const std::string path = tiny_model();
  EngineOptions options = options_of(path, 2, GetParam());
  options.context_length = 48;
  const auto whole = load(options);
  options.kv_memory = whole->options().kv_memory / 6;
  const auto small = load(options);
  ASSERT_TRUE(small != nullptr);
  std::vector<Request> requests = mixed_requests(small->config().vocab_size);
  for (Request& request : requests) request.sampling = {};
  const auto expected = whole->generate(requests), found = small->generate(requests);
  ASSERT_TRUE(expected.ok() && found.ok());
  for (size_t i = 0; i < found->size(); ++i) EXPECT_EQ((*found)[i].tokens, (*expected)[i].tokens) << i;
  EXPECT_TRUE(small->check_integrity().ok());
}

// Of every kind of weights: packed ones, experts, a head of its own. A rank's columns are whole blocks.
TEST_P(ParallelEngine, GivesTheProbabilitiesOfOneRankWithPackedWeights) {
  for (const uint32_t type : {test::gguf::kQ4_0, test::gguf::kQ8_0}) {
    for (const int num_experts : {0, 3}) {
      test::TinyLlamaOptions model;
      model.type_of = [type](const std::string& name) {
        return name.find("ffn_gate_inp") != std::string::npos ? test::gguf::kF32 : type;
      };
      model.ffn_size = 128;
      model.num_experts = num_experts;
      model.tied_output = num_experts > 0;
      const std::string path = tiny_model(model);
      EngineOptions options = options_of(path, 1, GetParam());
      options.keep_quantized = true;
      const auto one = load(options);
      options.tensor_parallel = 2;
      const auto two = load(options);
      ASSERT_TRUE(one != nullptr && two != nullptr);
      EXPECT_EQ(two->weight_formats(), one->weight_formats());
      const std::vector<int32_t> prompt = {5, 6, 7, 8}, tokens = {9, 10, 11, 3, 1};
      const auto want = one->score(prompt, tokens), got = two->score(prompt, tokens);
      ASSERT_TRUE(want.ok() && got.ok()) << got.status().message();
      for (size_t i = 0; i < tokens.size(); ++i)
        EXPECT_NEAR(got->logprob_of_token[i], want->logprob_of_token[i], 1e-3)
            << type << ", " << num_experts << " experts, " << i;
    }
  }
}

TEST(ParallelEngineErrors, NameTheNumbersOfRanksThatWouldDo) {
  const std::string path = tiny_model();
  const auto nine = Engine::load(options_of(path, 9));
  ASSERT_FALSE(nine.ok());
  EXPECT_NE(nine.status().message().find("must be between 1 and 8"), std::string::npos) << nine.status().message();
  const auto seven = Engine::load(options_of(path, 7));
  ASSERT_FALSE(seven.ok());
  EXPECT_NE(seven.status().message().find("cannot be split among 7 ranks"), std::string::npos) << seven.status().message();
}

// ---- A rank that fails ----

AllReduceParams sum_of(std::vector<float>& values) {
  AllReduceParams params;
  params.num_tokens = 1;
  params.width = static_cast<int64_t>(values.size());
  params.dtype = DType::f32;
  params.x = params.y = values.data();
  return params;
}

TEST(FailingRanks, AnErrorEndsTheOthersThatWait) {
  const auto ranks = Ranks::create(Device::cpu, 3, 3).value();
  const Status failed = ranks->run_together([&](int64_t rank) -> Status {
    if (rank == 2) return resource_exhausted("no memory here");
    std::vector<float> values(4, 1.0f);
    return all_reduce(sum_of(values), *ranks->communicator(rank), ranks->execution(rank));
  });
  EXPECT_EQ(failed.code(), StatusCode::resource_exhausted);
  EXPECT_EQ(failed.message(), "rank 2: no memory here");
  EXPECT_EQ(ranks->run_together([](int64_t) { return Status(); }).message(), "rank 2: no memory here");  // and stays
}

TEST(FailingRanks, AnErrorOfWorkWithoutCollectivesEndsNothing) {
  const auto ranks = Ranks::create(Device::cpu, 2, 2).value();
  const Status failed = ranks->run([](int64_t rank) { return rank == 1 ? data_loss("a bad file") : Status(); });
  EXPECT_EQ(failed.message(), "rank 1: a bad file");
  EXPECT_TRUE(ranks->status().ok());
  EXPECT_TRUE(ranks
                  ->run_together([&](int64_t rank) {
                    std::vector<float> values(4, static_cast<float>(rank));
                    return all_reduce(sum_of(values), *ranks->communicator(rank), ranks->execution(rank));
                  })
                  .ok());
}

// A thread of a rank stops in the middle of a step, by a signal whose handler sleeps: all requests end with one sentence that names the rank.
// Rank 0 is the thread that runs the steps.
TEST_P(ParallelEngine, ARankThatHangsEndsAllRequests) {
  const std::string path = tiny_model();
  EngineOptions options = options_of(path, 2, GetParam());
  options.rank_seconds = 0.2;
  const auto engine = load(options);
  ASSERT_TRUE(engine != nullptr);
  struct sigaction action = {}, before = {};
  action.sa_handler = [](int) { usleep(600000); };
  ASSERT_EQ(sigaction(SIGUSR2, &action, &before), 0);

  Request request;
  request.prompt = {1, 2, 3};
  request.max_tokens = 500;
  request.ignore_eos = true;
  Status status;
  std::vector<std::string> messages(2);
  for (int attempt = 0; attempt < 20 && status.ok(); ++attempt) {  // a signal may come between two steps
    for (size_t i = 0; i < 2; ++i) {
      const auto id = engine->submit(request, [&, i](const Output& output) {
        if (output.completion != nullptr) messages[i] = output.completion->status.message();
      });
      ASSERT_TRUE(id.ok());
    }
    const pthread_t steps = pthread_self();
    std::thread signals([steps] {
      usleep(3000);
      pthread_kill(steps, SIGUSR2);
    });
    for (bool worked = true; worked && status.ok();) {
      const auto stepped = engine->step();
      status = stepped.status();
      worked = stepped.ok() && *stepped;
    }
    signals.join();
  }
  sigaction(SIGUSR2, &before, nullptr);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("rank 0"), std::string::npos) << status.message();
  for (const std::string& message : messages) EXPECT_EQ(message, status.message());
  // Nothing runs from then on.
  EXPECT_EQ(engine->generate({&request, 1}).status().message(), status.message());
  EXPECT_EQ(engine->run().message(), status.message());
}

// A child of the process has no threads of the ranks: it may only destroy the engine.
TEST(ParallelEngineErrors, AForkedChildCannotUseTheRanks) {
  const std::string path = tiny_model();
  auto engine = load(options_of(path, 2));
  ASSERT_TRUE(engine != nullptr);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const bool refused = engine->step().status().code() == StatusCode::unsupported;
    engine.reset();
    _exit(refused ? 0 : 1);
  }
  int result = -1;
  ASSERT_EQ(waitpid(child, &result, 0), child);
  EXPECT_TRUE(WIFEXITED(result) && WEXITSTATUS(result) == 0);
  Request request;
  request.prompt = {1};
  request.max_tokens = 2;
  EXPECT_TRUE(engine->generate({&request, 1}).value().front().status.ok());
}

// A rank fails while the others load: they stop, and the error names it.
TEST(ParallelEngineErrors, AFailedLoadIsThatOfTheRank) {
  const std::string folder = test::read_reference_model("llama2").folder;
  const auto ranks = Ranks::create(Device::cpu, 2, 2).value();
  const auto checkpoint = Checkpoint::open(folder).value();
  const auto missing = load_parts(*checkpoint, folder + "/nothing", DType::f32, *ranks, {}, {});  // what rank 1 opens
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().message().find("rank 1: "), 0u) << missing.status().message();
  std::atomic<bool> stop = true;
  ModelOptions stopped;
  stopped.stop = &stop;
  EXPECT_EQ(load_model(*checkpoint, DType::f32, {Device::cpu, 1}, {}, stopped).status().message(), WeightLoader::kStopped);
}

}  // namespace
}  // namespace prologue
