// Drafts change nothing of what comes out, whatever a proposer says: not with any family, cache, batch or way to sample. The engines run in
// batch-invariant mode, so that logits have the same bits with one row and with several.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <prologue/engine/engine.h>
#include <prologue/engine/speculation/prompt_lookup.h>
#include <prologue/engine/speculation/speculator.h>
#include <prologue/kernels/base/gpu.h>
#include <prologue/kernels/base/kv_types.h>

#include "tests/support/gguf_writer.h"
#include "tests/support/reference_model.h"
#include "tests/support/tiny_model.h"

namespace prologue {
namespace {

using Tokens = std::vector<int32_t>;

// ---- Proposers for tests ----

// Knows what will be generated, and says a wrong token with the probability 1 - `right`.
class Oracle : public Proposer {
 public:
  Oracle(double right, int32_t vocab_size) : right_(right), vocab_size_(vocab_size) {}

  void learn(const Tokens& prompt, const Tokens& generated) {
    Tokens text = prompt;
    text.insert(text.end(), generated.begin(), generated.end());
    texts_.push_back(std::move(text));
  }
  Status propose(std::span<DraftSequence> sequences) override {
    for (DraftSequence& sequence : sequences) {
      EXPECT_TRUE(sequence.drafts.empty());
      EXPECT_EQ(sequence.sampling.position, static_cast<int64_t>(sequence.tokens.size()));
      const auto begins = [&](const Tokens& text) {
        return text.size() > sequence.tokens.size() && std::equal(sequence.tokens.begin(), sequence.tokens.end(), text.begin());
      };
      const auto text = std::find_if(texts_.begin(), texts_.end(), begins);
      if (text == texts_.end()) continue;
      for (size_t i = sequence.tokens.size();
           i < text->size() && static_cast<int64_t>(sequence.drafts.size()) < sequence.max_drafts; ++i) {
        const bool right = std::uniform_real_distribution<double>()(random_) < right_;
        sequence.drafts.push_back(right ? (*text)[i] : ((*text)[i] + 1) % vocab_size_);
      }
      num_drafts += static_cast<int64_t>(sequence.drafts.size());
    }
    return {};
  }
  void forget(int64_t) override { ++num_forgotten; }
  bool is_cheap() const override { return true; }

  int64_t num_drafts = 0;
  int64_t num_forgotten = 0;

 private:
  double right_;
  int32_t vocab_size_;
  std::vector<Tokens> texts_;
  std::mt19937_64 random_{11};
};

struct Place {
  Device device = Device::cpu;
  DType dtype = DType::f32;
};
void PrintTo(const Place& place, std::ostream* out) { *out << device_name(place.device) << " " << dtype_name(place.dtype); }
const Place kPlaces[] = {{Device::cpu, DType::f32}, {Device::cuda, DType::f32}, {Device::cuda, DType::bf16}};
std::string name_of(const Place& place) { return std::string(device_name(place.device)) + "_" + dtype_name(place.dtype); }

EngineOptions options_for(const Place& place) {
  EngineOptions options;
  options.device = place.device;
  options.dtype = place.dtype;
  options.num_threads = 1;
  options.batch_invariant = true;
  options.page_size = 4;
  options.max_seqs = 8;
  return options;
}

EngineOptions with(EngineOptions options, std::shared_ptr<Proposer> proposer) {
  options.speculation = Speculation::custom;
  options.proposer = std::move(proposer);
  options.all_drafts = true;
  return options;
}

// Expects the same tokens, texts, reasons and log probabilities. Returns how many drafts were accepted.
int64_t expect_same(const std::vector<Completion>& wanted, const std::vector<Completion>& got) {
  EXPECT_EQ(wanted.size(), got.size());
  int64_t accepted = 0;
  for (size_t i = 0; i < std::min(wanted.size(), got.size()); ++i) {
    SCOPED_TRACE(testing::Message() << "completion " << i);
    EXPECT_TRUE(wanted[i].status.ok()) << wanted[i].status.message();
    EXPECT_TRUE(got[i].status.ok()) << got[i].status.message();
    EXPECT_EQ(got[i].tokens, wanted[i].tokens);
    EXPECT_EQ(got[i].text, wanted[i].text);
    EXPECT_EQ(got[i].finish_reason, wanted[i].finish_reason);
    EXPECT_EQ(got[i].logprobs.size(), wanted[i].logprobs.size());
    for (size_t t = 0; t < std::min(got[i].logprobs.size(), wanted[i].logprobs.size()); ++t) {
      EXPECT_EQ(got[i].logprobs[t].logprob, wanted[i].logprobs[t].logprob) << "token " << t;
      EXPECT_EQ(got[i].logprobs[t].top, wanted[i].logprobs[t].top) << "token " << t;
    }
    accepted += got[i].accepted_tokens;
    EXPECT_LE(got[i].accepted_tokens, got[i].draft_tokens);
  }
  return accepted;
}

Request request(Tokens prompt, int64_t max_tokens = 20) {
  Request result;
  result.prompt = std::move(prompt);
  result.max_tokens = max_tokens;
  result.ignore_eos = true;
  return result;
}

// ---- All families ----

struct FamilyCase {
  std::string model;
  Place place;
};
void PrintTo(const FamilyCase& each, std::ostream* out) { *out << each.model << ", " << name_of(each.place); }

std::vector<FamilyCase> family_cases() {
  std::vector<FamilyCase> cases;
  for (const std::string& name : test::reference_model_names()) {
    for (const Place& place : kPlaces) cases.push_back({name, place});
  }
  return cases;
}

class SpeculationFamilies : public ::testing::TestWithParam<FamilyCase> {
 protected:
  void SetUp() override {
    if (GetParam().place.device != Device::cuda) return;
    if (const Status gpu = check_gpu(); !gpu.ok()) GTEST_SKIP() << gpu.message();
    stream_ = Stream::create().value();
    execution_ = {Device::cuda, 1, stream_.get()};
  }
  std::unique_ptr<Engine> make(const test::ReferenceModel& reference, EngineOptions options) {
    auto model = load_model(*Checkpoint::open(reference.folder).value(), GetParam().place.dtype, execution_, {}, {});
    EXPECT_TRUE(model.ok()) << model.status().message();
    EXPECT_TRUE(synchronize(execution_).ok());
    options.context_length = 128;
    auto engine = Engine::create(options, std::move(model).value(), test::tiny_tokenizer());
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return std::move(engine).value();
  }
  Stream stream_;
  Execution execution_{Device::cpu, 1, nullptr};
};
INSTANTIATE_TEST_SUITE_P(Models, SpeculationFamilies, ::testing::ValuesIn(family_cases()),
                         [](const auto& row) { return row.param.model + "_" + name_of(row.param.place); });

// Greedy and sampled, with half of the drafts wrong, and by looking up.
TEST_P(SpeculationFamilies, GiveTheSameTokens) {
  const test::ReferenceModel reference = test::read_reference_model(GetParam().model);
  std::vector<Request> requests;
  for (const test::ReferencePrompt& prompt : reference.prompts) {
    Request each = request(prompt.ids);
    each.positions = prompt.positions;
    each.rope_length = prompt.rope_length;
    if (each.prompt.size() + 20 > 128 || requests.size() == 4) continue;
    each.num_logprobs = requests.empty() ? 2 : -1;
    if (requests.size() % 2 == 1) each.sampling = {.temperature = 0.8f, .top_k = 20, .top_p = 0.95f, .seed = 5};
    requests.push_back(std::move(each));
  }
  ASSERT_FALSE(requests.empty());
  const EngineOptions plain = options_for(GetParam().place);
  const std::vector<Completion> wanted = make(reference, plain)->generate(requests).value();
  const auto oracle = std::make_shared<Oracle>(0.7, static_cast<int32_t>(reference.vocab_size));
  for (size_t i = 0; i < requests.size(); ++i) oracle->learn(requests[i].prompt, wanted[i].tokens);
  EXPECT_GT(expect_same(wanted, make(reference, with(plain, oracle))->generate(requests).value()), 0);
  EngineOptions lookup = plain;
  lookup.speculation = Speculation::prompt_lookup;
  lookup.all_drafts = true;
  expect_same(wanted, make(reference, lookup)->generate(requests).value());
}

// ---- The engine ----

class SpeculationEngine : public ::testing::TestWithParam<Place> {
 protected:
  void SetUp() override {
    if (GetParam().device != Device::cuda) return;
    if (const Status gpu = check_gpu(); !gpu.ok()) GTEST_SKIP() << gpu.message();
  }
  // `repeats`: it says each token again, mostly.
  std::string model(bool repeats = false, test::TinyLlamaOptions options = {}) {
    options.tied_output = repeats;
    std::string test = testing::UnitTest::GetInstance()->current_test_info()->name();
    std::replace(test.begin(), test.end(), '/', '_');
    const std::string path = testing::TempDir() + "prologue_speculation_test_" + test + ".gguf";
    EXPECT_TRUE(test::write_tiny_llama(path, options));
    return path;
  }
  EngineOptions options(const std::string& path) {
    EngineOptions options = options_for(GetParam());
    options.model_path = path;
    return options;
  }
  static std::unique_ptr<Engine> load(const EngineOptions& options) {
    auto engine = Engine::load(options);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return std::move(engine).value();
  }
  // Runs the requests without drafts, and then with some, and expects the same.
  void expect_unchanged(const EngineOptions& plain, const EngineOptions& drafting, const std::vector<Request>& requests,
                        double right, bool has_room = true) {
    const std::vector<Completion> wanted = load(plain)->generate(requests).value();
    const auto engine_of = [&](std::shared_ptr<Oracle> oracle) {
      size_t next = 0;
      for (const Request& each : requests) {
        for (int64_t s = 0; s < each.num_samples; ++s) oracle->learn(each.prompt, wanted[next++].tokens);
      }
      return load(with(drafting, oracle));
    };
    const auto oracle = std::make_shared<Oracle>(right, 256);
    const auto engine = engine_of(oracle);
    expect_same(wanted, engine->generate(requests).value());
    EXPECT_TRUE(engine->check_integrity().ok()) << engine->check_integrity().message();
    EXPECT_GE(oracle->num_forgotten, static_cast<int64_t>(wanted.size()));
    expect_same(wanted, engine->generate(requests).value());  // prompts, and what followed them, are in the cache
    const EngineStats stats = engine->stats();
    EXPECT_TRUE(!has_room || stats.accepted_tokens > 0);
    EXPECT_LE(stats.accepted_tokens, stats.draft_tokens);
    EXPECT_EQ(stats.kv.num_sequences, 0);
  }
};
INSTANTIATE_TEST_SUITE_P(Places, SpeculationEngine, ::testing::ValuesIn(kPlaces),
                         [](const auto& row) { return name_of(row.param); });

// Requests of every kind that a step treats differently.
std::vector<Request> mixed_requests(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto draw = [&](int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random); };
  std::vector<Request> requests;
  for (size_t i = 0; i < count; ++i) {
    Tokens prompt;
    if (draw(0, 1) == 0) prompt = {9, 8, 7, 6, 5, 4, 9, 8, 7, 6};
    for (int64_t n = draw(1, 30); n > 0; --n) prompt.push_back(static_cast<int32_t>(draw(3, 250)));
    requests.push_back(request(prompt, draw(1, 24)));
    Request& each = requests.back();
    if (draw(0, 1) == 0) each.num_logprobs = 2;
    if (draw(0, 4) == 0) each.num_samples = 3;
    if (draw(0, 2) == 0) {
      each.sampling.temperature = 1.2f;
      each.sampling.top_k = 40;
      each.sampling.min_p = 0.01f;
      each.sampling.seed = i;
    }
    if (draw(0, 3) == 0) each.sampling.logit_bias = {{7, 3.0f}, {8, -INFINITY}};
    if (draw(0, 2) == 0) each.sampling.repetition_penalty = 1.3f;
    if (draw(0, 2) == 0) each.sampling.frequency_penalty = 0.4f;
  }
  return requests;
}

TEST_P(SpeculationEngine, MixedRequestsAreUnchanged) {
  const EngineOptions plain = options(model());
  for (const double right : {0.2, 0.6, 1.0}) expect_unchanged(plain, plain, mixed_requests(12, 1), right);
}

TEST_P(SpeculationEngine, ASmallCacheAndFewTokensOfAStepChangeNothing) {
  for (const bool repeats : {false, true}) {
    const EngineOptions plain = options(model(repeats));
    EngineOptions few = plain;
    few.max_step_tokens = 16;  // samples of a prompt start one after another
    EngineOptions small = few;
    small.kv_memory = load(plain)->options().kv_memory / load(plain)->stats().kv.groups.front().num_pages * 40;
    for (const uint64_t seed : {2, 5}) {
      expect_unchanged(plain, few, mixed_requests(10, seed), 0.9);
      expect_unchanged(plain, small, mixed_requests(16, seed), 0.7, false);  // drafts take no pages that others need
    }
  }
}

TEST_P(SpeculationEngine, QuantisedCachesAreUnchanged) {
  for (const char* type : {"fp8_e4m3", "int8", "uint4", "mxfp8"}) {
    SCOPED_TRACE(type);
    test::TinyLlamaOptions wide;
    wide.head_dim = 32;
    EngineOptions plain = options(model(false, wide));
    plain.kv_format = kv_format_of(type);
    ASSERT_NE(plain.kv_format.type, DType::unset);
    expect_unchanged(plain, plain, mixed_requests(6, 3), 0.7);
  }
}

// A text that repeats itself: lookup guesses, and needs fewer steps.
TEST_P(SpeculationEngine, LookupTakesFewerSteps) {
  EngineOptions plain = options(model(true));
  Tokens prompt;
  for (int i = 0; i < 24; ++i) prompt.push_back(10 + i % 6);
  Request each = request(prompt, 64);
  each.sampling.logit_bias = {};
  for (int i = 0; i < 6; ++i) each.sampling.logit_bias.emplace_back(10 + i, 30.0f);  // a text of few tokens
  const auto without = load(plain);
  const std::vector<Completion> wanted = without->generate({&each, 1}).value();
  EngineOptions lookup = plain;
  lookup.speculation = Speculation::prompt_lookup;
  lookup.all_drafts = true;
  const auto engine = load(lookup);
  const int64_t before = engine->stats().steps;
  EXPECT_GT(expect_same(wanted, engine->generate({&each, 1}).value()), 16);
  EXPECT_LT(engine->stats().steps - before, 48);
  lookup.all_drafts = false;  // what pays is up to the machine
  expect_same(wanted, load(lookup)->generate({&each, 1}).value());
}

// The end of a text is where it was: at a stop text or a stop token in the middle of accepted drafts, and at max_tokens.
TEST_P(SpeculationEngine, EndsWhereItEndedWithout) {
  const EngineOptions plain = options(model());
  const Request whole = request({5, 6, 7, 8, 9, 10, 11}, 40);
  const auto without = load(plain);
  const Completion text = without->generate({&whole, 1}).value().front();
  std::vector<Request> requests;
  for (int64_t n = 1; n <= 20; ++n) {
    requests.push_back(whole);
    requests.back().max_tokens = n;
  }
  for (const size_t at : {3u, 7u, 12u, 20u}) {
    requests.push_back(whole);
    requests.back().stop_tokens = {text.tokens[at]};
    requests.back().ignore_eos = false;
    requests.push_back(whole);
    const std::string token = without->tokenizer().decode({text.tokens.begin() + static_cast<std::ptrdiff_t>(at), 2});
    if (token.size() > 1) requests.back().stop = {token.substr(0, 2)};
  }
  const std::vector<Completion> wanted = without->generate(requests).value();
  const auto oracle = std::make_shared<Oracle>(1.0, 256);
  oracle->learn(whole.prompt, text.tokens);
  EXPECT_GT(expect_same(wanted, load(with(plain, oracle))->generate(requests).value()), 0);
}

// Requests that are cancelled while their drafts are verified leave nothing behind.
TEST_P(SpeculationEngine, CancelledRequestsLeaveNothing) {
  const EngineOptions plain = options(model());
  const std::vector<Request> requests = mixed_requests(8, 4);
  const std::vector<Completion> wanted = load(plain)->generate(requests).value();
  const auto oracle = std::make_shared<Oracle>(0.8, 256);
  size_t next = 0;
  for (const Request& each : requests) {
    for (int64_t s = 0; s < each.num_samples; ++s) oracle->learn(each.prompt, wanted[next++].tokens);
  }
  const auto engine = load(with(plain, oracle));
  for (int64_t steps = 0; steps < 12; ++steps) {
    std::vector<RequestId> ids;
    for (const Request& each : requests) ids.push_back(engine->submit(each).value());
    for (int64_t i = 0; i < steps; ++i) ASSERT_TRUE(engine->step().ok());
    for (size_t i = 0; i < ids.size(); i += 2) engine->cancel(ids[i]);
    while (engine->step().value()) {
    }
    EXPECT_EQ(engine->stats().kv.num_sequences, 0);
    EXPECT_TRUE(engine->check_integrity().ok()) << engine->check_integrity().message();
  }
  expect_same(wanted, engine->generate(requests).value());
}

// The model itself as draft model agrees with itself, however tokens are sampled; another one mostly does not. Neither changes the text.
TEST_P(SpeculationEngine, ADraftModelChangesNothing) {
  const std::string path = model();
  const EngineOptions plain = options(path);
  const std::string other = path + ".other.gguf";
  test::TinyLlamaOptions different;
  different.seed = 2;
  different.num_layers = 1;
  different.tied_output = false;
  ASSERT_TRUE(test::write_tiny_llama(other, different));
  for (const std::string& draft : {path, other}) {
    SCOPED_TRACE(draft);
    EngineOptions drafting = plain;
    drafting.speculation = Speculation::draft_model;
    drafting.draft_model_path = draft;
    drafting.all_drafts = true;
    drafting.max_drafts = 5;
    const std::vector<Request> requests = mixed_requests(10, 5);
    const std::vector<Completion> wanted = load(plain)->generate(requests).value();
    const auto engine = load(drafting);
    for (int round = 0; round < 2; ++round) expect_same(wanted, engine->generate(requests).value());
    EXPECT_TRUE(engine->check_integrity().ok()) << engine->check_integrity().message();
    const EngineStats stats = engine->stats();
    EXPECT_GT(stats.draft_tokens, 200);
    if (draft == path && GetParam().dtype == DType::f32) {
      EXPECT_GT(stats.accepted_tokens, stats.draft_tokens * 2 / 3);  // it knows no penalties
    } else if (draft != path) {
      EXPECT_LT(stats.accepted_tokens, stats.draft_tokens / 4);
    }
    drafting.all_drafts = false;  // what pays is up to the machine
    expect_same(wanted, load(drafting)->generate(requests).value());
    drafting.max_step_tokens = drafting.max_seqs;  // prompts are read in parts, and drafts have no room beside them
    drafting.all_drafts = true;
    expect_same(wanted, load(drafting)->generate(requests).value());
  }
}

TEST_P(SpeculationEngine, WindowsAndRopesOfTheLengthAreUnchanged) {
  if (GetParam().dtype != DType::f32) return;
  Stream stream;
  Execution execution{GetParam().device, 1, nullptr};
  if (GetParam().device == Device::cuda) {
    stream = Stream::create().value();
    execution.stream = stream.get();
  }
  test::TinyModelOptions windows, several_axes;
  windows.windows = {6, 0, 11};
  several_axes.sections = {4, 2, 2};
  for (const test::TinyModelOptions& each : {windows, several_axes}) {
    const auto make = [&](const EngineOptions& options) {
      Model model = test::tiny_model(each, execution);
      EXPECT_TRUE(synchronize(execution).ok());
      return Engine::create(options, std::move(model), test::tiny_tokenizer()).value();
    };
    std::vector<Request> requests;
    for (int32_t i = 0; i < 5; ++i) {
      Tokens prompt;
      for (int32_t t = 0; t < 3 + 6 * i; ++t) prompt.push_back((7 * t + i) % 50);
      requests.push_back(request(prompt, 40));
    }
    const EngineOptions plain = options_for(GetParam());
    const std::vector<Completion> wanted = make(plain)->generate(requests).value();
    const auto oracle = std::make_shared<Oracle>(0.7, 50);
    for (size_t i = 0; i < requests.size(); ++i) oracle->learn(requests[i].prompt, wanted[i].tokens);
    const auto engine = make(with(plain, oracle));
    EXPECT_GT(expect_same(wanted, engine->generate(requests).value()), 0);
    EXPECT_TRUE(engine->check_integrity().ok());
  }
}

// ---- Proposers that are wrong ----

class Broken : public Proposer {
 public:
  explicit Broken(std::function<Status(DraftSequence&)> change) : change_(std::move(change)) {}
  Status propose(std::span<DraftSequence> sequences) override {
    for (DraftSequence& sequence : sequences) PROLOGUE_RETURN_IF_ERROR(change_(sequence));
    return {};
  }
  void forget(int64_t) override {}
  bool is_cheap() const override { return true; }

 private:
  std::function<Status(DraftSequence&)> change_;
};

TEST(Speculation, SaysWhatIsWrongWithAProposer) {
  const std::string path = testing::TempDir() + "prologue_speculation_test_broken.gguf";
  ASSERT_TRUE(test::write_tiny_llama(path, {}));
  EngineOptions options = options_for({});
  options.model_path = path;
  const auto message_of = [&](std::function<Status(DraftSequence&)> change) {
    auto engine = Engine::load(with(options, std::make_shared<Broken>(std::move(change))));
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    const Request each = request({1, 2, 3}, 8);
    const Completion completion = (*engine)->generate({&each, 1}).value().front();
    EXPECT_EQ((*engine)->stats().kv.num_sequences, 0);
    return completion.status.message();
  };
  EXPECT_EQ(message_of([](DraftSequence& s) {
              s.drafts = {1, 100000};
              return Status();
            }).find("a proposer has the draft 100000: the vocabulary has ids 0 to "),
            0u);
  EXPECT_EQ(message_of([](DraftSequence& s) {
              s.evidence = 4;
              return Status();
            }),
            "a proposer says evidence 4: it must be between 0 and 3");
  EXPECT_EQ(message_of([](DraftSequence&) { return device_error("it fell over"); }), "it fell over");
  EXPECT_EQ(message_of([](DraftSequence&) -> Status { throw std::runtime_error("it fell over"); }),
            "the proposer failed: it fell over");
  EXPECT_EQ(message_of([](DraftSequence& s) {  // more than asked for: the rest is ignored
              s.drafts.assign(100, 1);
              return Status();
            }),
            "");
  options.proposer = std::make_shared<PromptLookup>();
  EXPECT_EQ(Engine::load(options).status().message(),
            "speculation is not custom, but there is a proposer: custom needs one, and no other kind has one");
  options.proposer = nullptr;
  options.speculation = Speculation::custom;
  EXPECT_EQ(Engine::load(options).status().message(),
            "speculation is custom without a proposer: custom needs one, and no other kind has one");
  options.speculation = Speculation::prompt_lookup;
  options.max_drafts = 16;
  EXPECT_EQ(Engine::load(options).status().message(), "the number of drafts of a sequence is 16: it must be between 1 and 15");
}

TEST(Speculation, SaysWhyAModelCannotDraft) {
  const std::string path = testing::TempDir() + "prologue_speculation_test_draft.gguf", other = path + ".other.gguf";
  ASSERT_TRUE(test::write_tiny_llama(path, {}));
  EngineOptions options = options_for({});
  options.model_path = path;
  options.speculation = Speculation::draft_model;
  EXPECT_EQ(Engine::load(options).status().message(),
            "speculation is draft_model without a draft_model_path: draft_model needs one, and no other kind has one");
  options.draft_model_path = path;
  options.tensor_parallel = 2;
  EXPECT_EQ(Engine::load(options).status().message(),
            "there is a draft model, and tensor_parallel is 2: a draft model runs on one rank only");
  options.tensor_parallel = 1;
  options.draft_model_path = other + ".nowhere";
  EXPECT_NE(Engine::load(options).status().message().find("nowhere"), std::string::npos);
  std::ifstream in(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const size_t token = bytes.find("<|im_start|>");
  ASSERT_NE(token, std::string::npos);
  std::ofstream(other, std::ios::binary) << bytes.replace(token, 12, "<|im_other|>");
  options.draft_model_path = other;
  EXPECT_EQ(Engine::load(options).status().message().find(
                other + ": the draft model's token 1 is '<|im_other|>', the model's is '<|im_start|>'"),
            0u)
      << Engine::load(options).status().message();
}

// ---- Prompt lookup ----

Tokens drafts_of(PromptLookup& lookup, int64_t id, const Tokens& tokens, int64_t max_drafts = 4, int32_t* evidence = nullptr) {
  DraftSequence sequence;
  sequence.id = id;
  sequence.tokens = tokens;
  sequence.max_drafts = max_drafts;
  EXPECT_TRUE(lookup.propose({&sequence, 1}).ok());
  if (evidence != nullptr) *evidence = sequence.evidence;
  return sequence.drafts;
}

TEST(PromptLookup, TakesWhatFollowedTheLongestMatch) {
  PromptLookup lookup;
  EXPECT_EQ(drafts_of(lookup, 1, {1}), Tokens());
  EXPECT_EQ(drafts_of(lookup, 1, {1, 2}), Tokens());
  EXPECT_EQ(drafts_of(lookup, 1, {1, 2, 3, 4}), Tokens());
  EXPECT_EQ(drafts_of(lookup, 1, {1, 2, 3, 4, 1, 2}, 3), (Tokens{3, 4, 1}));
  // "2 3" was there twice: after "9 2 3", which is longer, came 8.
  int32_t evidence = -1;
  EXPECT_EQ(drafts_of(lookup, 2, {9, 2, 3, 8, 8, 7, 2, 3, 5, 5, 9, 2, 3}, 2, &evidence), (Tokens{8, 8}));
  EXPECT_EQ(evidence, 1);
  // Of equally long ones it is the latest.
  EXPECT_EQ(drafts_of(lookup, 3, {2, 3, 8, 1, 2, 3, 5, 6, 2, 3}, 1, &evidence), (Tokens{5}));
  EXPECT_EQ(evidence, 0);
  // A text that repeats itself goes on.
  EXPECT_EQ(drafts_of(lookup, 4, {1, 5, 6, 7, 5, 6, 7}, 7), (Tokens{5, 6, 7, 5, 6, 7, 5}));
  EXPECT_EQ(drafts_of(lookup, 5, {4, 4, 4, 4}, 3), (Tokens{4, 4, 4}));
}

// A prediction is looked up, too, and begins where the prompt ends.
TEST(PromptLookup, LooksInThePrediction) {
  const Tokens prediction = {30, 31, 32, 33, 34, 35}, prompt = {1, 2, 3};
  PromptLookup lookup;
  const auto drafts_after = [&](const Tokens& generated) {
    Tokens tokens = prompt;
    tokens.insert(tokens.end(), generated.begin(), generated.end());
    DraftSequence sequence;
    sequence.id = 1;
    sequence.tokens = tokens;
    sequence.num_prompt = static_cast<int64_t>(prompt.size());
    sequence.prediction = prediction;
    sequence.max_drafts = 3;
    EXPECT_TRUE(lookup.propose({&sequence, 1}).ok());
    return sequence.drafts;
  };
  EXPECT_EQ(drafts_after({}), (Tokens{30, 31, 32}));
  EXPECT_EQ(drafts_after({30}), (Tokens{31, 32, 33}));
  EXPECT_EQ(drafts_after({30, 40}), Tokens());
  EXPECT_EQ(drafts_after({30, 40, 32, 33}), (Tokens{34, 35, 1}));
}

// A search through the whole text finds the same, token by token and from the middle on.
TEST(PromptLookup, FindsWhatASearchFinds) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 20; ++round) {
    const int alphabet = round % 2 == 0 ? 12 : 60;
    PromptLookup lookup;
    Tokens text;
    while (text.size() < 700) {
      if (text.size() > 40 && random() % 8 == 0) {
        const size_t from = random() % (text.size() - 20), count = 1 + random() % 19;
        for (size_t i = 0; i < count; ++i) text.push_back(text[from + i]);
      } else {
        text.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(alphabet)));
      }
      if (round >= 10 && text.size() < 300) continue;
      size_t best = 0, best_end = 0, places = 0;
      for (size_t end = text.size() - 1; end >= 2 && places < 64; --end) {
        size_t length = 0;
        while (length < end && length < 16 && text[end - 1 - length] == text[text.size() - 1 - length]) ++length;
        if (length < 2) continue;
        ++places;
        if (length > best) best = length, best_end = end;
      }
      if (places == 64) continue;  // it may stop earlier, at places that only have the same hash
      Tokens wanted;
      for (size_t i = best_end; best >= 2 && wanted.size() < 5; ++i) {
        wanted.push_back(i < text.size() ? text[i] : wanted[i - text.size()]);
      }
      const Tokens got = drafts_of(lookup, 1, text, 5);
      ASSERT_EQ(got, wanted) << "text of " << text.size() << ", round " << round;
    }
    lookup.forget(1);
    lookup.forget(1);
  }
}

// ---- How many drafts are verified ----

TEST(StepCosts, LieBetweenWhatWasMeasured) {
  StepCosts costs(0.1);
  EXPECT_EQ(costs.seconds(1, false), 0.0);
  EXPECT_FALSE(costs.knows(1, false));
  for (int i = 0; i < 2; ++i) costs.add(1, false, 100.0);  // the first two load and capture
  EXPECT_FALSE(costs.knows(1, false));
  for (int i = 0; i < 4; ++i) costs.add(1, false, 2.0);
  EXPECT_TRUE(costs.knows(1, false));
  EXPECT_FALSE(costs.knows(1, true));
  EXPECT_DOUBLE_EQ(costs.seconds(1, false), 2.0);
  EXPECT_DOUBLE_EQ(costs.seconds(6, true), 3.0);  // nothing is known of steps that verify: a tenth for each row
  for (int i = 0; i < 4; ++i) costs.add(4, true, 4.0);
  for (int i = 0; i < 4; ++i) costs.add(8, true, 6.0);
  EXPECT_DOUBLE_EQ(costs.seconds(6, true), 5.0);
  EXPECT_DOUBLE_EQ(costs.seconds(2, true), 4.0);
  EXPECT_DOUBLE_EQ(costs.seconds(10, true), 7.2);
  costs.add(1, false, 1000.0);  // disturbed
  EXPECT_LT(costs.seconds(1, false), 2.5);
  for (int i = 0; i < 600; ++i) costs.add(8, true, 6.0);  // the others are forgotten
  EXPECT_FALSE(costs.knows(1, false));
  EXPECT_DOUBLE_EQ(costs.seconds(4, true), 6.0);
}

TEST(DraftCounts, FollowWhatWasAccepted) {
  DraftCounts counts(0.9);
  EXPECT_DOUBLE_EQ(counts.acceptance(3, 0.7, 4.0), 0.7);
  for (int i = 0; i < 50; ++i) counts.add(3, 4, 0);
  EXPECT_LT(counts.acceptance(3, 0.7, 1.0), 0.1);
  EXPECT_DOUBLE_EQ(counts.acceptance(2, 0.7, 1.0), 0.7);
  for (int i = 0; i < 50; ++i) counts.add(3, 4, 4);
  EXPECT_GT(counts.acceptance(3, 0.7, 1.0), 0.9);
  EXPECT_LE(counts.acceptance(3, 0.7, 1.0), 1.0);
}

TEST(DraftHistory, TriesAgainLaterAndLater) {
  DraftHistory history;
  for (const int patience : {16, 32, 64}) {
    for (int i = 0; i < patience; ++i) {
      EXPECT_FALSE(history.is_trial(3));
      history.skip(3);
    }
    EXPECT_TRUE(history.is_trial(3));
    EXPECT_FALSE(history.is_trial(2));
    history.add(3, 4, 0);
  }
  for (int i = 0; i < 128; ++i) history.skip(3);
  history.add(3, 4, 4);
  for (int i = 0; i < 16; ++i) history.skip(3);
  EXPECT_TRUE(history.is_trial(3));
}

class Always : public Proposer {
 public:
  Status propose(std::span<DraftSequence> sequences) override {
    for (DraftSequence& sequence : sequences)
      sequence.drafts.assign(static_cast<size_t>(sequence.max_drafts), 7), sequence.evidence = 1;
    return {};
  }
  void forget(int64_t) override {}
  bool is_cheap() const override { return true; }
};

// Drafts are verified as far as they make more tokens a second.
TEST(Speculator, VerifiesWhatPays) {
  const auto drafts_with = [](double cost_of_row, double acceptance, int64_t max_drafts = 100) {
    Speculator speculator(std::make_shared<Always>(), max_drafts, false, 0.01);
    for (int64_t rows = 1; rows <= 40; ++rows) {
      for (int i = 0; i < 4; ++i) {
        for (const bool verifies : {false, true})
          speculator.costs().add(rows, verifies, 1.0 + cost_of_row * static_cast<double>(rows - 1));
      }
    }
    DraftHistory likely, unlikely;
    for (int i = 0; i < 100; ++i) {
      const int64_t accepted = std::llround(acceptance * 10.0);
      likely.add(1, 10, accepted), unlikely.add(1, 10, accepted / 4);
    }
    std::vector<DraftSequence> sequences(2);
    for (DraftSequence& each : sequences) each.max_drafts = 8;
    const std::vector<DraftHistory*> histories = {&likely, &unlikely};
    EXPECT_TRUE(speculator.propose(sequences, histories, 2, true).ok());
    return std::pair(sequences[0].drafts.size(), sequences[1].drafts.size());
  };
  using Counts = std::pair<size_t, size_t>;
  EXPECT_EQ(drafts_with(0.0, 0.9), Counts(8, 8));
  EXPECT_EQ(drafts_with(1.0, 0.5), Counts(0, 0));
  EXPECT_EQ(drafts_with(0.0, 0.9, 3), Counts(3, 0));
  const Counts some = drafts_with(0.1, 0.6);
  EXPECT_GT(some.first, some.second);
  EXPECT_LT(some.first, 8u);
}

}  // namespace
}  // namespace prologue
