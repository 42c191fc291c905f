// Tests the engine end to end on tiny random models: batches, pages, stops, sampling, errors.
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include <prologue/engine/engine.h>
#include <prologue/kernels/base/gpu.h>
#include <prologue/layers/graph/print.h>

#include "tests/support/gguf_writer.h"

namespace prologue {
namespace {

using test::GgufWriter;
using test::TinyLlamaOptions;

std::string write_model(const std::string& name, const TinyLlamaOptions& options = {}) {
  const std::string path = testing::TempDir() + "prologue_engine_test_" + name + ".gguf";
  EXPECT_TRUE(test::write_tiny_llama(path, options));
  return path;
}

EngineOptions cpu_options(const std::string& path) {
  EngineOptions options;
  options.model_path = path;
  options.device = Device::cpu;
  options.num_threads = 2;
  return options;
}

std::unique_ptr<Engine> load(const EngineOptions& options) {
  auto engine = Engine::load(options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return std::move(engine).value();
}

Request request(const Engine& engine, const std::string& prompt, int64_t max_tokens = 12) {
  Request result;
  result.prompt = engine.tokenizer().encode(prompt, true, engine.tokenizer().add_bos()).value();
  result.max_tokens = max_tokens;
  result.ignore_eos = true;
  return result;
}

std::vector<std::vector<int32_t>> tokens_of(const std::vector<Completion>& completions) {
  std::vector<std::vector<int32_t>> all;
  for (const Completion& completion : completions) {
    EXPECT_TRUE(completion.status.ok()) << completion.status.message();
    all.push_back(completion.tokens);
  }
  return all;
}

const char* const kPrompts[] = {"hello", "a much longer prompt, over several pages of the cache", "x", "1234567890 1234567890"};

TEST(Engine, TheSameTokensAloneInABatchForAnyPageSizeThreadCountAndGraph) {
  for (const bool qkv_bias : {false, true}) {
    TinyLlamaOptions model;
    model.qkv_bias = qkv_bias;
    model.rope_freqs = true;
    const std::string path = write_model(qkv_bias ? "bias" : "plain", model);
    std::vector<std::vector<int32_t>> alone;
    {
      auto engine = load(cpu_options(path));
      for (const char* prompt : kPrompts) {
        const Request one = request(*engine, prompt);
        alone.push_back(tokens_of(engine->generate({&one, 1}).value()).front());
        EXPECT_EQ(alone.back().size(), 12u);
      }
    }
    for (const int64_t page_size : {1, 16, 64}) {
      for (const bool fused : {true, false}) {
        for (const int threads : {1, 3}) {
          EngineOptions options = cpu_options(path);
          options.page_size = page_size;
          options.fused = fused;
          options.num_threads = threads;
          auto engine = load(options);
          std::vector<Request> batch;
          for (const char* prompt : kPrompts) batch.push_back(request(*engine, prompt));
          EXPECT_EQ(tokens_of(engine->generate(batch).value()), alone) << page_size << " " << fused << " " << threads;
        }
      }
    }
  }
}

TEST(Engine, LongPromptsAreReadInChunksWithTheSameResult) {
  TinyLlamaOptions model;
  model.context_length = 2048;
  auto engine = load(cpu_options(write_model("long", model)));
  std::string text;
  for (int i = 0; i < 160; ++i) text += "word " + std::to_string(i) + " ";
  Request one = request(*engine, text, 4);
  ASSERT_GT(one.prompt.size(), 1100u);
  const Completion completion = engine->generate({&one, 1}).value().front();
  ASSERT_TRUE(completion.status.ok()) << completion.status.message();
  // Scoring reads the same tokens in other chunks: its greedy choices must be the generated ones.
  const auto score = engine->score(one.prompt, completion.tokens);
  ASSERT_TRUE(score.ok());
  EXPECT_EQ(score->argmax, completion.tokens);
}

TEST(Engine, ScoresAreLogProbabilities) {
  auto engine = load(cpu_options(write_model("score")));
  const std::vector<int32_t> prompt = {5, 6, 7};
  double total = 0.0;
  for (int32_t token = 0; token < engine->config().vocab_size; ++token) {
    const std::vector<int32_t> one = {token};
    const auto score = engine->score(prompt, one);
    ASSERT_TRUE(score.ok());
    total += std::exp(score->logprob_of_token[0]);
    EXPECT_NEAR(score->perplexity, std::exp(-score->logprob_of_token[0]), 1e-9 * score->perplexity);
    EXPECT_GE(score->logit_of_argmax[0], score->logit_of_token[0]);
  }
  EXPECT_NEAR(total, 1.0, 1e-6);
}

TEST(Engine, ScoringTellsTheLogitsOfEveryToken) {
  auto engine = load(cpu_options(write_model("logits")));
  const std::vector<int32_t> prompt = {5, 6, 7};
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 150; ++i) tokens.push_back(3 + i);  // more than a step scores
  std::vector<std::vector<float>> rows;
  const Score score = engine
                          ->score(prompt, tokens,
                                  {.on_logits =
                                       [&](size_t index, std::span<const float> logits) {
                                         EXPECT_EQ(index, rows.size());
                                         rows.emplace_back(logits.begin(), logits.end());
                                         EXPECT_EQ(engine->score(prompt, prompt).status().code(), StatusCode::unsupported);
                                       }})
                          .value();
  ASSERT_EQ(rows.size(), tokens.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    ASSERT_EQ(static_cast<int64_t>(rows[i].size()), engine->config().vocab_size);
    EXPECT_EQ(rows[i][static_cast<size_t>(tokens[i])], score.logit_of_token[i]);
    EXPECT_EQ(*std::max_element(rows[i].begin(), rows[i].end()), score.logit_of_argmax[i]);
  }
}

TEST(Engine, ACallbackThatThrowsEndsTheCallAndLeavesNothing) {
  auto engine = load(cpu_options(write_model("throwing")));
  const std::vector<int32_t> prompt = {5, 6, 7}, tokens = {8, 9, 10};
  const KvCacheStats at_rest = engine->stats().kv;
  const auto score = engine->score(prompt, tokens, {.on_logits = [](size_t index, std::span<const float>) {
                                     if (index == 1) throw std::runtime_error("enough");
                                   }});
  EXPECT_EQ(score.status().message(), "on_logits failed: enough");
  EXPECT_EQ(engine->stats().kv.groups[0].used, at_rest.groups[0].used);
  EXPECT_TRUE(engine->score(prompt, tokens).ok());

  const std::vector<Request> requests = {request(*engine, "hello", 20), request(*engine, "there", 20)};
  for (const int after : {0, 3}) {
    int calls = 0;
    GenerationEvents events;
    events.should_stop = [&]() -> bool {
      if (calls++ == after) throw std::runtime_error("no more");
      return false;
    };
    EXPECT_EQ(engine->generate(requests, events).status().message(), "should_stop failed: no more");
    EXPECT_EQ(engine->stats().running + engine->stats().waiting, 0);
    EXPECT_EQ(engine->stats().kv.groups[0].used, at_rest.groups[0].used);
  }
  EXPECT_TRUE(engine->generate(requests).value().front().status.ok());
}

TEST(Engine, StopTextsEndTheGenerationAndAreNeverShown) {
  auto engine = load(cpu_options(write_model("stop")));
  const Request free_run = request(*engine, "hello", 40);
  const std::string text = engine->generate({&free_run, 1}).value().front().text;
  ASSERT_GT(text.size(), 6u);
  for (const size_t length : {1, 3}) {
    size_t at = text.size() / 2;
    while ((static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
    size_t end = at + length;
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) ++end;
    Request stopping = free_run;
    stopping.stop = {"never seen", text.substr(at, end - at)};
    std::string streamed;
    GenerationEvents events;
    events.on_text = [&](size_t, std::string_view piece) { streamed += piece; };
    const Completion completion = engine->generate({&stopping, 1}, events).value().front();
    EXPECT_EQ(completion.finish_reason, FinishReason::stop);
    EXPECT_EQ(completion.text, text.substr(0, text.find(stopping.stop[1])));
    EXPECT_EQ(streamed, completion.text);
  }
}

TEST(Engine, SamplingDependsOnTheSeedAloneNotOnTheBatch) {
  auto engine = load(cpu_options(write_model("sampling")));
  std::vector<Request> batch;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    batch.push_back(request(*engine, "hello"));
    batch.back().sampling = {.temperature = 1.5f, .top_k = 50, .top_p = 0.95f, .min_p = 0.01f, .seed = seed};
  }
  const auto together = tokens_of(engine->generate(batch).value());
  EXPECT_NE(together[0], together[1]);
  for (size_t i = 0; i < batch.size(); ++i) EXPECT_EQ(tokens_of(engine->generate({&batch[i], 1}).value()).front(), together[i]);
}

TEST(Engine, EachLimitHasItsFinishReason) {
  TinyLlamaOptions model;
  model.context_length = 16;
  const std::string path = write_model("context", model);
  auto engine = load(cpu_options(path));
  EXPECT_EQ(engine->context_length(), 16);
  Request one = request(*engine, "12345", 100);
  const Completion full = engine->generate({&one, 1}).value().front();
  ASSERT_TRUE(full.status.ok());
  EXPECT_EQ(full.finish_reason, FinishReason::context);
  EXPECT_EQ(full.tokens.size() + one.prompt.size(), 16u);

  const int64_t room = static_cast<int64_t>(full.tokens.size());
  for (const int64_t max_tokens : {room - 1, room, room + 1}) {
    one.max_tokens = max_tokens;
    const Completion completion = engine->generate({&one, 1}).value().front();
    EXPECT_EQ(completion.finish_reason, max_tokens <= room ? FinishReason::length : FinishReason::context) << max_tokens;
    EXPECT_EQ(static_cast<int64_t>(completion.tokens.size()), std::min(max_tokens, room));
  }
  one.ignore_eos = false;
  one.stop_tokens = {full.tokens[3]};
  EXPECT_EQ(engine->generate({&one, 1}).value().front().finish_reason, FinishReason::end);

  const std::pair<FinishReason, const char*> names[] = {
      {FinishReason::end, "end"},         {FinishReason::stop, "stop"},           {FinishReason::length, "length"},
      {FinishReason::context, "context"}, {FinishReason::cancelled, "cancelled"}, {FinishReason::error, "error"}};
  for (const auto& [reason, name] : names) EXPECT_STREQ(finish_reason_name(reason), name);
}

// cache_tokens is a number of tokens, whatever the pages hold, and no number is too large for it.
TEST(Engine, TheContextIsCountedInTokens) {
  const std::string path = write_model("context_tokens");
  auto unlimited = load(cpu_options(path));
  const Request one = request(*unlimited, "12", 40);
  ASSERT_EQ(one.prompt.size(), 2u);
  const std::vector<int32_t> want = unlimited->generate({&one, 1}).value().front().tokens;
  for (const int64_t page_size : {1, 16, 64}) {
    for (const int64_t context : {int64_t{5}, int64_t{17}, int64_t{INT64_MAX}}) {
      EngineOptions options = cpu_options(path);
      options.page_size = page_size;
      options.context_length = context;
      auto engine = load(options);
      EXPECT_EQ(engine->context_length(), std::min<int64_t>(context, 512));
      const Completion completion = engine->generate({&one, 1}).value().front();
      ASSERT_TRUE(completion.status.ok()) << completion.status.message();
      const size_t count = std::min<size_t>(want.size(), static_cast<size_t>(context) - one.prompt.size());
      EXPECT_EQ(completion.tokens, std::vector<int32_t>(want.begin(), want.begin() + static_cast<std::ptrdiff_t>(count)));
      EXPECT_EQ(completion.finish_reason, count < want.size() ? FinishReason::context : FinishReason::length) << context;
      const std::vector<int32_t> tokens(static_cast<size_t>(std::min<int64_t>(context, 512)) - one.prompt.size() + 1, 5);
      const Status score = engine->score(one.prompt, tokens).status();
      EXPECT_EQ(score.code(), StatusCode::invalid_argument) << context;
    }
  }
}

TEST(Engine, ShouldStopEndsAllRequestsAndKeepsWhatThereIs) {
  auto engine = load(cpu_options(write_model("cancel")));
  std::vector<Request> batch = {request(*engine, "hello", 30), request(*engine, "good bye", 2), request(*engine, "x", 30)};
  const std::vector<std::vector<int32_t>> want = tokens_of(engine->generate(batch).value());
  // It is called once before the step that reads the prompts and makes the first tokens, then once before each further token.
  for (const size_t steps : {size_t{0}, size_t{1}, size_t{7}}) {
    size_t asked = 0;
    std::vector<std::string> streamed(batch.size());
    GenerationEvents events;
    events.should_stop = [&] { return asked++ == steps; };
    events.on_text = [&](size_t i, std::string_view piece) { streamed[i] += piece; };
    const std::vector<Completion> completions = engine->generate(batch, events).value();
    for (size_t i = 0; i < batch.size(); ++i) {
      const Completion& completion = completions[i];
      ASSERT_TRUE(completion.status.ok()) << completion.status.message();
      const size_t count = std::min(steps, want[i].size());
      EXPECT_EQ(completion.tokens, std::vector<int32_t>(want[i].begin(), want[i].begin() + static_cast<std::ptrdiff_t>(count)));
      EXPECT_EQ(completion.finish_reason, count == want[i].size() ? FinishReason::length : FinishReason::cancelled)
          << steps << " " << i;
      EXPECT_EQ(completion.text, streamed[i]);
      EXPECT_EQ(completion.text, engine->tokenizer().decode(completion.tokens));
      EXPECT_EQ(completion.prompt_tokens, static_cast<int64_t>(batch[i].prompt.size()));
    }
  }
  EXPECT_EQ(tokens_of(engine->generate(batch).value()), want);
}

// The whole prompt has been announced before its first text comes: a progress bar is gone by then.
TEST(Engine, PrefillIsAnnouncedBeforeTheTextThatFollowsIt) {
  TinyLlamaOptions model;
  model.context_length = 2048;
  auto engine = load(cpu_options(write_model("order", model)));
  const Request one = request(*engine, std::string(1200, '7'), 5);
  std::vector<double> fractions;
  bool text_came = false;
  GenerationEvents events;
  events.on_prefill = [&](double fraction) {
    EXPECT_FALSE(text_came);
    fractions.push_back(fraction);
  };
  events.on_text = [&](size_t, std::string_view) { text_came = true; };
  ASSERT_TRUE(engine->generate({&one, 1}, events).value().front().status.ok());
  EXPECT_EQ(fractions.size(), 3u);
  EXPECT_TRUE(std::is_sorted(fractions.begin(), fractions.end()));
  EXPECT_EQ(fractions.back(), 1.0);
  EXPECT_TRUE(text_came);
}

TEST(Engine, ThePromptOfATextIsReadFromNothingToAll) {
  TinyLlamaOptions model;
  model.context_length = 2048;
  auto engine = load(cpu_options(write_model("text_order", model)));
  Request text;
  text.text = std::string(1200, '7');
  text.max_tokens = 3;
  std::vector<double> fractions;
  GenerationEvents events;
  events.on_prefill = [&](double fraction) { fractions.push_back(fraction); };
  ASSERT_TRUE(engine->generate({&text, 1}, events).value().front().status.ok());
  EXPECT_GT(fractions.size(), 1u);
  EXPECT_TRUE(std::is_sorted(fractions.begin(), fractions.end()));
  EXPECT_LE(fractions.front(), 0.5);
  EXPECT_EQ(fractions.back(), 1.0);
}

// A long prompt is read in chunks between which others decode: a short request ends long before the prompt has been read.
TEST(Engine, ALongPromptDoesNotHoldUpOthers) {
  TinyLlamaOptions model;
  model.context_length = 4096;
  EngineOptions options = cpu_options(write_model("mixed_steps", model));
  options.max_step_tokens = 64;
  auto engine = load(options);
  const std::vector<Request> batch = {request(*engine, "hello", 3), request(*engine, std::string(1500, '7'), 3)};
  double read = 0.0, read_at_the_end_of_the_short = 0.0;
  std::string text;
  GenerationEvents events;
  events.on_prefill = [&](double fraction) { read = fraction; };
  events.on_text = [&](size_t i, std::string_view piece) {
    if (i == 0) text += piece, read_at_the_end_of_the_short = read;
  };
  const std::vector<Completion> completions = engine->generate(batch, events).value();
  EXPECT_EQ(completions[0].text, text);
  EXPECT_LT(read_at_the_end_of_the_short, 0.25);
  EXPECT_LT(completions[0].prefill_seconds + completions[0].decode_seconds, completions[1].prefill_seconds);
}

TEST(Engine, ABadRequestFailsAloneAndSaysWhy) {
  EngineOptions options = cpu_options(write_model("bad_requests"));
  auto engine = load(options);
  std::vector<Request> batch(6, request(*engine, "hello"));
  batch[1].prompt.clear();
  batch[2].prompt.assign(600, 5);
  batch[3].max_tokens = 0;
  batch[4].prompt[0] = 100000;
  batch[5].sampling.top_p = 0.0f;
  const std::vector<Completion> completions = engine->generate(batch).value();
  EXPECT_TRUE(completions[0].status.ok());
  EXPECT_EQ(completions[0].tokens.size(), 12u);
  EXPECT_EQ(completions[1].status.message(), "the prompt is empty: it must have at least one token");
  EXPECT_EQ(completions[2].status.message(),
            "the prompt has 600 tokens: the model's context is 512, and at least one token must be left to generate");
  EXPECT_EQ(completions[3].status.message(), "max-tokens is 0: it must be at least 1");
  EXPECT_EQ(completions[4].status.message(),
            str_cat("the prompt has token id 100000: the vocabulary has ids 0 to ", engine->config().vocab_size - 1));
  EXPECT_EQ(completions[5].status.message(), "top-p is 0: it must be above 0 and at most 1 (off)");
}

TEST(Engine, RequestsThatDoNotFitTogetherWait) {
  EngineOptions options = cpu_options(write_model("pages"));
  options.page_size = 16;
  const std::vector<Request> batch(5, request(*load(options), "hello hello"));
  const auto want = tokens_of(load(options)->generate(batch).value());
  options.kv_memory = load(options)->options().kv_memory / load(options)->stats().kv.groups[0].num_pages * 2;  // of two pages
  auto engine = load(options);
  EXPECT_EQ(engine->stats().kv.groups[0].num_pages, 2);
  EXPECT_EQ(engine->context_length(), 32);
  EXPECT_EQ(tokens_of(engine->generate(batch).value()), want);
}

TEST(Engine, RefusesWhatItDoesNotKnowByName) {
  const auto message = [](const std::string& name, std::function<void(GgufWriter&)> extra) {
    TinyLlamaOptions model;
    model.extra = std::move(extra);
    return Engine::load(cpu_options(write_model(name, model))).status().message();
  };
  const auto contains = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos ? testing::AssertionSuccess() : testing::AssertionFailure() << text;
  };
  EXPECT_TRUE(contains(message("key", [](GgufWriter& w) { w.add("llama.attention.logit_softcapping", 30.0f); }),
                       "the key llama.attention.logit_softcapping changes the result, and the llama loader does not know it"));
  EXPECT_TRUE(contains(message("experts", [](GgufWriter& w) { w.add("llama.expert_count", uint32_t{8}); }),
                       "llama.expert_used_count is 0: it must be between 1 and expert_count 8"));
  EXPECT_TRUE(contains(message("many_experts",
                               [](GgufWriter& w) {
                                 w.add("llama.expert_count", uint32_t{1025});
                                 w.add("llama.expert_used_count", uint32_t{2});
                               }),
                       "the number of experts is 1025: at most 1024 are supported"));
  EXPECT_TRUE(contains(message("scaling", [](GgufWriter& w) { w.add("llama.rope.scaling.type", "longrope"); }),
                       "llama.rope.scaling.type is 'longrope': only \"none\", \"linear\" and \"yarn\" are supported"));
  EXPECT_TRUE(contains(message("tensor",
                               [](GgufWriter& w) {
                                 w.add_tensor("blk.0.attn_q_norm.weight", {16}, test::gguf::kF32, std::vector<std::byte>(64));
                               }),
                       "the llama loader does not know these tensors of the model: blk.0.attn_q_norm.weight"));
  GgufWriter other;
  other.add("general.architecture", "mamba");
  const std::string path = testing::TempDir() + "prologue_engine_test_mamba.gguf";
  ASSERT_TRUE(other.write(path));
  EXPECT_TRUE(contains(Engine::load(cpu_options(path)).status().message(), "the architecture is 'mamba': supported are llama"));
  EXPECT_EQ(Engine::load(cpu_options("/nowhere/model.gguf")).status().code(), StatusCode::not_found);
}

// Messages quote strings of the file, cut, and on one line.
TEST(Engine, StringsOfTheFileAreMadeSafeForMessages) {
  const std::string hostile = "\033[2J\nevil\x7f" + std::string(1000, 'x') + std::string(100000, '\xff');
  std::vector<std::string> paths;
  const auto with = [&](std::function<void(GgufWriter&)> extra) {
    TinyLlamaOptions model;
    model.extra = std::move(extra);
    paths.push_back(write_model("hostile_" + std::to_string(paths.size()), model));
  };
  with([&](GgufWriter& w) { w.add("llama." + hostile, 1.0f); });
  with([&](GgufWriter& w) { w.add("split." + hostile, hostile); });
  with([&](GgufWriter& w) { w.add("llama.rope.scaling.type", hostile); });
  with([&](GgufWriter& w) { w.add_tensor(hostile, {16}, test::gguf::kF32, std::vector<std::byte>(64)); });
  GgufWriter other;
  other.add("general.architecture", hostile);
  paths.push_back(testing::TempDir() + "prologue_engine_test_hostile_architecture.gguf");
  ASSERT_TRUE(other.write(paths.back()));
  paths.push_back("/nowhere/\033[2J\n.gguf");
  paths.push_back(testing::TempDir() + "prologue_engine_test_\033[2J\n.gguf");  // an empty model under a hostile name
  ASSERT_TRUE(GgufWriter().write(paths.back()));
  for (const std::string& path : paths) {
    const std::string message = Engine::load(cpu_options(path)).status().message();
    EXPECT_NE(message.find("\\x1b[2J\\x0a"), std::string::npos) << message;
    EXPECT_LT(message.size(), 500u);
    EXPECT_TRUE(std::all_of(message.begin(), message.end(), [](char c) { return c >= 0x20 && c < 0x7f; })) << message;
  }
}

TEST(Engine, OptionsAreChecked) {
  EngineOptions options = cpu_options(write_model("options"));
  options.page_size = 0;
  EXPECT_EQ(Engine::load(options).status().message(), "the page size is 0: it must be between 1 and 1024");
  options = cpu_options(options.model_path);
  options.num_threads = -1;
  EXPECT_EQ(Engine::load(options).status().message(), "the number of threads is -1: it must be 0, one for each CPU, or more");
}

TEST(Engine, SixteenBitWeightsGiveSimilarScores) {
  const std::string path = write_model("dtypes");
  const std::vector<int32_t> prompt = {5, 6, 7, 8}, tokens = {9, 10, 11};
  auto exact = load(cpu_options(path));
  const Score want = exact->score(prompt, tokens).value();
  for (const DType dtype : {DType::bf16, DType::f16}) {
    EngineOptions options = cpu_options(path);
    options.dtype = dtype;
    auto engine = load(options);
    const Score got = engine->score(prompt, tokens).value();
    for (size_t i = 0; i < tokens.size(); ++i)
      EXPECT_NEAR(got.logprob_of_token[i], want.logprob_of_token[i], 0.3) << dtype_name(dtype);
  }
}

TinyLlamaOptions quantized_model() {
  TinyLlamaOptions model;
  model.type_of = [](const std::string& name) {
    if (name == "blk.1.attn_output.weight") return test::gguf::kF16;  // not quantised: converted
    return name == "token_embd.weight" || name.find("attn_v") != name.npos ? test::gguf::kQ8_0 : test::gguf::kQ4_0;
  };
  return model;
}

// Without a dtype, the CPU multiplies quantised weights as the file has them; with one, it converts them.
TEST(Engine, QuantizedWeightsStayAsTheyAreUnlessADtypeIsGiven) {
  EngineOptions options = cpu_options(write_model("quantized", quantized_model()));
  const auto engine = load(options);
  EXPECT_EQ(engine->dtype(), DType::f32);
  EXPECT_EQ(engine->weight_formats(), (std::vector<WeightFormat>{WeightFormat::q8_0, WeightFormat::q4_0}));
  const std::string graph = graph_table(engine->graph(), false);
  for (const char* text :
       {"weight [128, 64] q4_0 + q8_0 ", "weight [64, 96] q4_0 ", "weight [64, 64] q4_0 ", "weight [64, 64]  "})
    EXPECT_NE(graph.find(text), std::string::npos) << text << " is not in\n" << graph;

  options.dtype = DType::f32;
  const auto converted = load(options);
  EXPECT_TRUE(converted->weight_formats().empty());
  // Q8_0 has 34 bytes for 32 weights, Q4_0 18; in a layer, V has 32 rows, and Q, K, gate, up and down have 64, 32 and 96 rows or columns.
  const int64_t vocab = engine->config().vocab_size, q4_weights = 2 * (96 + 3 * 96) * 64 + 64 * 64, norms = 5 * 64;
  EXPECT_EQ(engine->weight_types(), "q8_0, q4_0 and float32");
  EXPECT_EQ(engine->weight_bytes(), ((vocab + 15) / 16 * 16 + 2 * 32) * 2 * 34 + q4_weights / 32 * 18 + (64 * 64 + norms) * 4);
  EXPECT_EQ(converted->weight_types(), "float32");
  EXPECT_EQ(converted->weight_bytes(), (vocab * 64 + 2 * 32 * 64 + q4_weights + 64 * 64 + norms) * 4);
  const std::vector<int32_t> prompt = {5, 6, 7, 8}, tokens = {9, 10, 11};
  const Score got = engine->score(prompt, tokens).value(), want = converted->score(prompt, tokens).value();
  EXPECT_NE(got.logprob_of_token, want.logprob_of_token);  // x has 8 bits
  for (size_t i = 0; i < tokens.size(); ++i) EXPECT_NEAR(got.logprob_of_token[i], want.logprob_of_token[i], 0.3);

  // A token's bits do not depend on how many are computed together.
  const Request one = request(*engine, kPrompts[1], 20);
  const auto alone = tokens_of(engine->generate({&one, 1}).value());
  EngineOptions in_pieces = options;
  in_pieces.dtype.reset();
  in_pieces.max_seqs = in_pieces.max_step_tokens = 3;
  in_pieces.num_threads = 1;
  EXPECT_EQ(tokens_of(load(in_pieces)->generate({&one, 1}).value()), alone);
}

TinyLlamaOptions quantized_experts() {
  TinyLlamaOptions model;
  model.num_experts = 3;
  model.type_of = [](const std::string& name) {
    if (name.find("ffn_gate_inp") != name.npos || name == "token_embd.weight") return test::gguf::kF32;
    return name.find("ffn_up") != name.npos ? test::gguf::kQ8_0 : test::gguf::kQ4_0;
  };
  return model;
}

TEST(Engine, QuantizedExpertsStayAsTheyAre) {
  EngineOptions options = cpu_options(write_model("quantized_experts", quantized_experts()));
  const auto engine = load(options);
  const std::string graph = graph_table(engine->graph(), false);
  for (const char* text : {"weight [576, 64] q4_0 + q8_0", "weight [192, 96] q4_0"})
    EXPECT_NE(graph.find(text), std::string::npos) << text << " is not in\n" << graph;
  // Gate and down in Q4_0, up in Q8_0; Q, K, V and output in Q4_0; embedding and router are not quantised.
  const int64_t vocab = engine->config().vocab_size, experts = 2 * 3 * 96 * 64, attention = 2 * (64 + 32 + 32 + 64) * 64;
  EXPECT_EQ(engine->weight_types(), "q4_0, q8_0 and float32");
  EXPECT_EQ(engine->weight_bytes(), (2 * experts + attention) / 32 * 18 + experts / 32 * 34 + (vocab + 2 * 3 + 5) * 64 * 4);

  options.dtype = DType::f32;
  const auto converted = load(options);
  EXPECT_EQ(converted->weight_types(), "float32");
  const std::vector<int32_t> prompt = {5, 6, 7, 8}, tokens = {9, 10, 11};
  const Score got = engine->score(prompt, tokens).value(), want = converted->score(prompt, tokens).value();
  EXPECT_NE(got.logprob_of_token, want.logprob_of_token);  // x has 8 bits
  for (size_t i = 0; i < tokens.size(); ++i) EXPECT_NEAR(got.logprob_of_token[i], want.logprob_of_token[i], 0.3);
}

TEST(Engine, OnAGpuQuantizedExpertsStayAsTheyAreIfAsked) {
  if (const Status gpu = check_gpu(); !gpu.ok()) GTEST_SKIP() << gpu.message();
  EngineOptions options = cpu_options(write_model("quantized_experts_gpu", quantized_experts()));
  options.dtype = DType::f32;
  options.keep_quantized = false;
  const std::vector<int32_t> prompt = {5, 6, 7, 8}, tokens = {9, 10, 11};
  const Score want = load(options)->score(prompt, tokens).value();
  options.device = Device::cuda;
  options.keep_quantized = true;
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    options.dtype = dtype;
    const auto kept = load(options);
    EXPECT_EQ(kept->weight_types(), std::string("q4_0, q8_0 and ") + dtype_name(dtype));
    const Score got = kept->score(prompt, tokens).value();
    const double tolerance = dtype == DType::f32 ? 1e-3 : 0.3;
    for (size_t i = 0; i < tokens.size(); ++i)
      EXPECT_NEAR(got.logprob_of_token[i], want.logprob_of_token[i], tolerance) << dtype_name(dtype);
  }
}

// keep_quantized wins over what a dtype says without it.
TEST(Engine, KeepingQuantizedWeightsIsAnOption) {
  EngineOptions options = cpu_options(write_model("keep_quantized", quantized_model()));
  const auto engine = load(options);
  const Request one = request(*engine, kPrompts[1], 20);
  const auto tokens_of_file = tokens_of(engine->generate({&one, 1}).value());
  options.keep_quantized = true;
  options.dtype = DType::f32;
  const auto kept = load(options);
  EXPECT_EQ(kept->weight_types(), "q8_0, q4_0 and float32");
  EXPECT_EQ(kept->weight_bytes(), engine->weight_bytes());
  EXPECT_EQ(tokens_of(kept->generate({&one, 1}).value()), tokens_of_file);

  const std::vector<int32_t> prompt = {5, 6, 7, 8}, tokens = {9, 10, 11};
  const Score want = kept->score(prompt, tokens).value();
  for (const DType dtype : {DType::bf16, DType::f16}) {
    options.dtype = dtype;
    const auto in_16_bits = load(options);
    EXPECT_EQ(in_16_bits->dtype(), dtype);
    EXPECT_EQ(in_16_bits->weight_types(), std::string("q8_0, q4_0 and ") + dtype_name(dtype));
    const Score got = in_16_bits->score(prompt, tokens).value();
    for (size_t i = 0; i < tokens.size(); ++i)
      EXPECT_NEAR(got.logprob_of_token[i], want.logprob_of_token[i], 0.3) << dtype_name(dtype);
  }

  options.dtype.reset();
  options.keep_quantized = false;
  const auto converted = load(options);
  EXPECT_EQ(converted->dtype(), DType::f32);
  EXPECT_EQ(converted->weight_types(), "float32");

  options = cpu_options(write_model("not_quantized"));
  options.keep_quantized = true;
  EXPECT_EQ(load(options)->weight_types(), "float32");
}

// On CUDA, where activations are bfloat16, weights are converted unless they are to be kept.
TEST(Engine, OnAGpuQuantizedWeightsStayAsTheyAreIfAsked) {
  if (const Status gpu = check_gpu(); !gpu.ok()) GTEST_SKIP() << gpu.message();
  EngineOptions options = cpu_options(write_model("quantized_gpu", quantized_model()));
  const auto on_cpu = load(options);
  options.device = Device::cuda;
  const auto converted = load(options);
  EXPECT_EQ(converted->dtype(), DType::bf16);
  EXPECT_TRUE(converted->weight_formats().empty());
  EXPECT_EQ(converted->weight_types(), "bfloat16");
  options.keep_quantized = true;
  const auto engine = load(options);
  EXPECT_EQ(engine->dtype(), DType::bf16);
  EXPECT_EQ(engine->weight_formats(), (std::vector<WeightFormat>{WeightFormat::q8_0, WeightFormat::q4_0}));
  EXPECT_EQ(engine->weight_types(), "q8_0, q4_0 and bfloat16");
  EXPECT_EQ(engine->weight_bytes(), on_cpu->weight_bytes() - (64 * 64 + 5 * 64) * 2);
  const std::vector<int32_t> prompt = {5, 6, 7, 8}, tokens = {9, 10, 11};
  const Score want = converted->score(prompt, tokens).value();
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    options.dtype = dtype;
    const auto kept = load(options);
    EXPECT_EQ(kept->weight_types(), std::string("q8_0, q4_0 and ") + dtype_name(dtype));
    const Score got = kept->score(prompt, tokens).value();
    for (size_t i = 0; i < tokens.size(); ++i)
      EXPECT_NEAR(got.logprob_of_token[i], want.logprob_of_token[i], 0.3) << dtype_name(dtype);
  }
}

// ---- Threads, forks, files that change ----

// Calls of several threads are one after another; each gets what it would get alone. Every score is longer than the one before, so
// that the rope table grows while others generate; the profile is what all of them write.
TEST(Engine, ServesSeveralThreads) {
  EngineOptions options = cpu_options(write_model("threads"));
  options.num_threads = 1;
  options.profile = true;
  const auto engine = load(options);
  const Request one = request(*engine, "hello", 20);
  const std::vector<int32_t> alone = tokens_of(load(options)->generate({&one, 1}).value()).front();
  std::atomic<bool> stop = false;
  std::thread scorer([&] {
    std::vector<int32_t> prompt(8, 10);
    const std::vector<int32_t> token = {11};
    for (; !stop && prompt.size() < 500; prompt.resize(prompt.size() + 2, 10)) {
      EXPECT_TRUE(engine->score(prompt, token).ok());
      engine->take_profile();
    }
  });
  std::vector<int> equal(2, 0);
  std::vector<std::thread> generators;
  for (int& count : equal) {
    generators.emplace_back([&] {
      for (int round = 0; round < 100; ++round) count += tokens_of(engine->generate({&one, 1}).value()).front() == alone;
    });
  }
  for (std::thread& thread : generators) thread.join();
  stop = true;
  scorer.join();
  EXPECT_EQ(equal, std::vector<int>(2, 100));
}

TEST(Engine, ACallbackMustNotRunSteps) {
  auto engine = load(cpu_options(write_model("nested")));
  const Request outer = request(*engine, "outer", 6);
  int calls = 0;
  GenerationEvents events;
  events.on_text = [&](size_t, std::string_view) {
    ++calls;
    const char* const want = "a callback of the engine runs a step or a score: it may only submit and cancel requests";
    EXPECT_EQ(engine->generate({&outer, 1}).status().message(), want);
    EXPECT_EQ(engine->score(outer.prompt, outer.prompt).status().message(), want);
    EXPECT_EQ(engine->step().status().message(), want);
    EXPECT_EQ(engine->run().message(), want);
  };
  EXPECT_EQ(tokens_of(engine->generate({&outer, 1}, events).value()).front().size(), 6u);
  EXPECT_GT(calls, 0);
}

// The child of a process that has loaded an engine has none of its threads: a parallel loop must not wait for them.
TEST(Engine, WorksInAForkedProcess) {
  const EngineOptions options = cpu_options(write_model("fork"));
  auto engine = load(options);
  const Request one = request(*engine, "hello");
  const auto want = tokens_of(engine->generate({&one, 1}).value());  // starts the threads
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(60);  // a hang is a failure
    const bool all = tokens_of(engine->generate({&one, 1}).value()) == want && engine->score(one.prompt, one.prompt).ok() &&
                     tokens_of(load(options)->generate({&one, 1}).value()) == want;
    _exit(all ? 0 : 1);
  }
  int state = 0;
  ASSERT_EQ(waitpid(child, &state, 0), child);
  EXPECT_TRUE(WIFEXITED(state)) << "signal " << WTERMSIG(state);
  EXPECT_EQ(WEXITSTATUS(state), 0);
  EXPECT_EQ(tokens_of(engine->generate({&one, 1}).value()), want);  // the parent goes on
}

// The file is cut, or overwritten, at a point of loading where its metadata have been checked.
TEST(Engine, AModelFileThatChangesWhileItIsLoadedIsAnError) {
  const std::string path = write_model("changing");
  const auto size = static_cast<off_t>(std::filesystem::file_size(path));
  const std::function<void()> changes[] = {
      [&] { EXPECT_EQ(truncate(path.c_str(), 0), 0); },
      [&] { EXPECT_EQ(truncate(path.c_str(), size / 2), 0); },
      [&] { EXPECT_EQ(truncate(path.c_str(), size - 1), 0); },
      [&] {
        const std::string ones(static_cast<size_t>(size), '\xff');
        std::ofstream(path, std::ios::binary | std::ios::in).write(ones.data(), size);
      },
  };
  for (const auto& change : changes) {
    write_model("changing");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // a file's time goes by ticks of some milliseconds
    EngineOptions options = cpu_options(path);
    bool done = false;
    options.on_load = [&](double) {
      if (!std::exchange(done, true)) change();
    };
    const auto engine = Engine::load(options);
    EXPECT_EQ(engine.status().code(), StatusCode::data_loss);
    EXPECT_NE(engine.status().message().find("while it was read"), std::string::npos) << engine.status().message();
  }
}

// Block tables as wide as all requests' pages together, for each request, took 29 GB here.
TEST(Engine, ManyRequestsTakeTheMemoryOfTheirOwnPages) {
  EngineOptions options = cpu_options(write_model("many"));
  options.page_size = 1;
  auto engine = load(options);
  const std::vector<Request> requests(60000, request(*engine, "x", 1));
  const auto completions = engine->generate(requests);
  ASSERT_TRUE(completions.ok()) << completions.status().message();
  EXPECT_EQ(tokens_of(*completions).size(), requests.size());
}

TEST(Engine, TheLargestNumbersAreRefusedOrHarmless) {
  const std::string path = write_model("largest");
  EngineOptions options = cpu_options(path);
  options.context_length = INT64_MAX;
  auto engine = load(options);
  Request one = request(*engine, "hello", INT64_MAX);
  const auto completions = engine->generate({&one, 1});
  ASSERT_TRUE(completions.ok());
  EXPECT_TRUE(completions->front().status.ok()) << completions->front().status.message();  // the model's own context bounds it
  EXPECT_EQ(completions->front().finish_reason, FinishReason::context);

  TinyLlamaOptions deep;
  deep.num_layers = 1025;
  deep.hidden_size = deep.ffn_size = 8;
  deep.num_q_heads = deep.num_kv_heads = 1;
  deep.head_dim = 8;
  const auto refused = Engine::load(cpu_options(write_model("deep", deep)));
  EXPECT_EQ(refused.status().code(), StatusCode::unsupported);
  EXPECT_NE(refused.status().message().find("llama.block_count is 1025: at most 1024 are supported"), std::string::npos);

  TinyLlamaOptions wide;
  wide.num_layers = 1;
  wide.num_q_heads = 4098;
  wide.num_kv_heads = 1;
  wide.head_dim = 2;
  wide.hidden_size = wide.ffn_size = 8;
  const auto too_wide = Engine::load(cpu_options(write_model("wide", wide)));
  EXPECT_EQ(too_wide.status().code(), StatusCode::unsupported);
  EXPECT_NE(too_wide.status().message().find("the number of heads is 4098: at most 4096 are supported"), std::string::npos)
      << too_wide.status().message();
}

}  // namespace
}  // namespace prologue
