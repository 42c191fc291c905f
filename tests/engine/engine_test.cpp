// The engine end to end on tiny random models: batches, pages, stops, sampling, errors.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include <prologue/engine/engine.h>

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
        alone.push_back(tokens_of(engine->generate({&one, 1})).front());
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
          EXPECT_EQ(tokens_of(engine->generate(batch)), alone) << page_size << " " << fused << " " << threads;
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
  const Completion completion = engine->generate({&one, 1}).front();
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

TEST(Engine, StopTextsEndTheGenerationAndAreNeverShown) {
  auto engine = load(cpu_options(write_model("stop")));
  const Request free_run = request(*engine, "hello", 40);
  const std::string text = engine->generate({&free_run, 1}).front().text;
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
    const Completion completion = engine->generate({&stopping, 1}, events).front();
    EXPECT_EQ(completion.stop, StopReason::stop);
    EXPECT_EQ(completion.text, text.substr(0, text.find(stopping.stop[1])));
    EXPECT_EQ(streamed, completion.text);
  }
}

TEST(Engine, SamplingDependsOnTheSeedAloneNotOnTheBatch) {
  auto engine = load(cpu_options(write_model("sampling")));
  std::vector<Request> batch;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    batch.push_back(request(*engine, "hello"));
    batch.back().sampling = {1.5f, 50, 0.95f, 0.01f, seed};
  }
  const auto together = tokens_of(engine->generate(batch));
  EXPECT_NE(together[0], together[1]);
  for (size_t i = 0; i < batch.size(); ++i) EXPECT_EQ(tokens_of(engine->generate({&batch[i], 1})).front(), together[i]);
}

TEST(Engine, StopsAtTheContextAndSaysLength) {
  TinyLlamaOptions model;
  model.context_length = 16;
  auto engine = load(cpu_options(write_model("context", model)));
  Request one = request(*engine, "12345", 100);
  const Completion completion = engine->generate({&one, 1}).front();
  ASSERT_TRUE(completion.status.ok());
  EXPECT_EQ(completion.stop, StopReason::length);
  EXPECT_EQ(completion.tokens.size() + one.prompt.size(), 16u);
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
  const std::vector<Completion> completions = engine->generate(batch);
  EXPECT_TRUE(completions[0].status.ok());
  EXPECT_EQ(completions[0].tokens.size(), 12u);
  EXPECT_EQ(completions[1].status.message(), "the prompt is empty: there must be at least one token to go on from");
  EXPECT_EQ(completions[2].status.message(),
            "the prompt has 600 tokens: the model's context is 512, and at least one token must be left to generate");
  EXPECT_EQ(completions[3].status.message(), "max-tokens is 0: it must be at least 1");
  EXPECT_EQ(completions[4].status.message(),
            str_cat("the prompt has token id 100000: the vocabulary has ids 0 to ", engine->config().vocab_size - 1));
  EXPECT_EQ(completions[5].status.message(), "top-p is 0: it must be above 0 and at most 1 (off)");
}

TEST(Engine, OutOfPagesFailsTheRequestThatDoesNotFitAndSaysWhatItNeeds) {
  EngineOptions options = cpu_options(write_model("pages"));
  options.cache_tokens = 32;
  auto engine = load(options);
  std::vector<Request> batch(2, request(*engine, "hello hello"));
  const int64_t prompt = static_cast<int64_t>(batch[0].prompt.size());
  const std::vector<Completion> completions = engine->generate(batch);
  ASSERT_LE(prompt + 12, 32);
  ASSERT_GT(prompt + 12, 16);
  EXPECT_TRUE(completions[0].status.ok());
  EXPECT_EQ(completions[1].status.code(), StatusCode::resource_exhausted);
  EXPECT_EQ(completions[1].status.message(),
            str_cat("the KV cache has no pages for this request: it needs 2 pages of 16 tokens (prompt ", prompt,
                    " + max-tokens 12), 0 of 2 are free; all requests together need a context of 64 tokens"));
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
                       "llama.expert_count is 8: mixtures of experts are not supported"));
  EXPECT_TRUE(contains(message("scaling", [](GgufWriter& w) { w.add("llama.rope.scaling.type", "longrope"); }),
                       "llama.rope.scaling.type is 'longrope': only \"none\", \"linear\" and \"yarn\" are supported"));
  EXPECT_TRUE(contains(message("tensor",
                               [](GgufWriter& w) {
                                 w.add_tensor("blk.0.attn_q_norm.weight", {16}, test::gguf::kF32, std::vector<std::byte>(64));
                               }),
                       "the tensor blk.0.attn_q_norm.weight belongs to the model, and the llama loader does not know it"));
  GgufWriter other;
  other.add("general.architecture", "mamba");
  const std::string path = testing::TempDir() + "prologue_engine_test_mamba.gguf";
  ASSERT_TRUE(other.write(path));
  EXPECT_TRUE(contains(Engine::load(cpu_options(path)).status().message(), "the architecture is 'mamba': supported are llama"));
  EXPECT_EQ(Engine::load(cpu_options("/nowhere/model.gguf")).status().code(), StatusCode::not_found);
}

TEST(Engine, OptionsAreChecked) {
  EngineOptions options = cpu_options(write_model("options"));
  options.page_size = 0;
  EXPECT_EQ(Engine::load(options).status().message(), "the page size is 0: it must be between 1 and 1024");
  options = cpu_options(options.model_path);
  options.num_threads = -1;
  EXPECT_EQ(Engine::load(options).status().message(), "the number of threads is -1: it must be at least 1");
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
    for (size_t i = 0; i < tokens.size(); ++i) EXPECT_NEAR(got.logprob_of_token[i], want.logprob_of_token[i], 0.3) << dtype_name(dtype);
  }
}

}  // namespace
}  // namespace prologue
