#include "benchmarks/engine/cache_quality.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <prologue/kernels/base/kv_types.h>

#include "tests/support/gguf_writer.h"
#include "tests/support/random.h"

namespace prologue::bench {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
using Row = std::vector<float>;

// By the definition, from normalised probabilities in long double.
long double kl_oracle(const Row& p, const Row& q) {
  const auto softmax = [](const Row& logits) {
    std::vector<long double> result;
    long double sum = 0.0L;
    for (const float x : logits) sum += result.emplace_back(std::exp(static_cast<long double>(x)));
    for (long double& x : result) x /= sum;
    return result;
  };
  const std::vector<long double> a = softmax(p), b = softmax(q);
  long double sum = 0.0L;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * std::log(a[i] / b[i]);
  return sum;
}

TEST(KlDivergence, IsThatOfTheDefinition) {
  EXPECT_NEAR(kl_divergence(Row{0.0f, 0.0f}, Row{std::log(3.0f), 0.0f}), 0.5 * std::log(0.5 / 0.75) + 0.5 * std::log(0.5 / 0.25),
              1e-7);
  test::Random random(7);
  for (const float spread : {0.1f, 4.0f, 20.0f}) {
    for (const float change : {1e-4f, 0.1f, 3.0f}) {
      Row p(1000), q(1000);
      for (size_t i = 0; i < p.size(); ++i) {
        p[i] = spread * static_cast<float>(random.normal());
        q[i] = p[i] + change * static_cast<float>(random.normal());
      }
      const double want = static_cast<double>(kl_oracle(p, q)), got = kl_divergence(p, q);
      EXPECT_NEAR(got, want, 1e-12 + 1e-9 * want) << spread << " " << change;
      EXPECT_GT(std::abs(got - kl_divergence(q, p)), 1e-3 * want * change) << "it is not symmetric";
      for (float& x : q) x += 100.0f;  // the same distribution, but for the rounding of the logits
      EXPECT_NEAR(kl_divergence(p, q), want, 1e-5 + 1e-4 * want);
    }
  }
}

TEST(KlDivergence, IsZeroOfTheSameRow) {
  const Row row = {1.0f, -30.0f, 88.0f, 1000.0f, -kInf, -2000.0f};
  EXPECT_EQ(kl_divergence(row, row), 0.0);
}

TEST(KlDivergence, AnExcludedTokenIsAProbabilityOfZero) {
  EXPECT_NEAR(kl_divergence(Row{0.0f, 0.0f, -kInf}, Row{0.0f, 0.0f, 0.0f}), std::log(1.5), 1e-12);
  EXPECT_NEAR(kl_divergence(Row{0.0f, 0.0f, -kInf}, Row{0.0f, 0.0f, -kInf}), 0.0, 1e-15);
  EXPECT_EQ(kl_divergence(Row{0.0f, 0.0f}, Row{0.0f, -kInf}), std::numeric_limits<double>::infinity());
}

TEST(KlDivergence, WhatIsNoDistributionGivesNan) {
  const Row good = {0.0f, 1.0f, 2.0f};
  for (const Row& bad :
       {Row{kNan, 1.0f, 2.0f}, Row{0.0f, kNan, 2.0f}, Row{0.0f, 1.0f, kNan}, Row{0.0f, kInf, 2.0f}, Row{-kInf, -kInf, -kInf}}) {
    EXPECT_TRUE(std::isnan(kl_divergence(good, bad)));
    EXPECT_TRUE(std::isnan(kl_divergence(bad, good)));
  }
}

TEST(Windows, CutTheText) {
  using Windows = std::vector<std::vector<int32_t>>;
  const std::vector<int32_t> text = {10, 11, 12, 13, 14, 15, 16};
  EXPECT_EQ(make_windows(text, 4, -1).value(), (Windows{{10, 11, 12, 13}, {14, 15, 16}}));
  EXPECT_EQ(make_windows(text, 3, -1).value(), (Windows{{10, 11, 12}, {13, 14, 15}})) << "nothing is predicted of one token";
  EXPECT_EQ(make_windows(text, 4, 1).value(), (Windows{{1, 10, 11, 12}, {1, 13, 14, 15}}));
  EXPECT_EQ(make_windows(text, 6, 0).value(), (Windows{{0, 10, 11, 12, 13, 14}, {0, 15, 16}}));
  EXPECT_EQ(make_windows(text, 100, -1).value(), (Windows{text}));
  EXPECT_EQ(make_windows(text, 1, -1).status().message(), "the length of a window is 1: it must be at least 2");
  EXPECT_EQ(make_windows(text, 2, 1).status().message(),
            "the length of a window is 2: it must be at least 3, BOS and two tokens");
  EXPECT_EQ(make_windows({}, 4, 1).status().message(), "the text has fewer than two tokens: there is nothing to predict");
}

TEST(QualitySummary, OfTokens) {
  TokenQuality reference, tokens;
  for (int i = 0; i < 2000; ++i) {
    tokens.kl.push_back(i % 2 == 0 ? 1.0 : 3.0);
    tokens.logprob.push_back(i % 2 == 0 ? -std::log(2.0) : -std::log(8.0));
    tokens.argmax.push_back(i);
    reference.argmax.push_back(i < 1500 ? i : -1);
    reference.logprob.push_back(-std::log(4.0));
  }
  tokens.kl[100] = 50.0;
  tokens.kl[101] = 40.0;
  tokens.kl[102] = 30.0;  // 1997 of 2000 are below, and the smallest value that 99.9 % do not exceed is the one of rank 1998
  const QualitySummary summary = summarise(tokens, reference);
  EXPECT_NEAR(summary.mean_kl, (4000.0 + 49.0 + 37.0 + 29.0) / 2000.0, 1e-12);
  const double squares = 998 * std::pow(1.0 - summary.mean_kl, 2) + 999 * std::pow(3.0 - summary.mean_kl, 2) +
                         std::pow(50.0 - summary.mean_kl, 2) + std::pow(40.0 - summary.mean_kl, 2) +
                         std::pow(30.0 - summary.mean_kl, 2);
  EXPECT_NEAR(summary.mean_kl_error, std::sqrt(squares / 1999.0) / std::sqrt(2000.0), 1e-12);
  EXPECT_EQ(summary.p999_kl, 30.0);
  EXPECT_EQ(summary.max_kl, 50.0);
  EXPECT_EQ(summary.same_argmax, 0.75);
  EXPECT_NEAR(summary.perplexity, 4.0, 1e-12);
  EXPECT_NEAR(summary.logprob_change, std::log(2.0), 1e-12);
}

TEST(RunName, SaysWhatIsNotUnset) {
  EXPECT_EQ(run_name({}), "auto");
  EXPECT_EQ(run_name({DType::unset, kv_format_of("int8"), {}, 0}), "auto, cache int8");
  EXPECT_EQ(run_name({DType::bf16, {}, {}, 0}), "bfloat16, cache bfloat16");
  EXPECT_EQ(run_name({DType::f32, kv_format_of("int8"), kv_format_of("nvfp4"), 64, 16}), "float32, cache int8 nvfp4, Hadamard 64, of V 16");
}

class CompareRuns : public testing::Test {
 protected:
  CompareRuns() {
    options_.model_path = testing::TempDir() + "prologue_cache_quality_test_" +
                          testing::UnitTest::GetInstance()->current_test_info()->name() + ".gguf";
    options_.device = Device::cpu;
    options_.num_threads = 1;
    options_.max_seqs = 1;
    options_.batch_invariant = true;
    test::Random random(3);
    for (const size_t length : {100, 100, 30}) {
      std::vector<int32_t>& window = windows_.emplace_back();
      while (window.size() < length) window.push_back(static_cast<int32_t>(random.integer(3, 258)));
    }
  }
  ~CompareRuns() override { std::remove(options_.model_path.c_str()); }

  EngineOptions options_;
  std::vector<std::vector<int32_t>> windows_;
};

TEST_F(CompareRuns, EachCacheLosesWhatItsBitsLose) {
  ASSERT_TRUE(test::write_tiny_llama(options_.model_path));
  const auto run_of = [](const char* k, const char* v, int64_t block, int64_t of_v) {
    return QualityRun{DType::f32, kv_format_of(k), kv_format_of(v), block, of_v};
  };
  const std::vector<QualityRun> runs = {run_of("", "", 0, 0),           run_of("float32", "float32", 0, 0),
                                        run_of("float16", "", 0, 0),    run_of("int8", "int8", 0, 0),
                                        run_of("uint4", "uint4", 0, 0), run_of("int8", "uint4", 16, 0),
                                        run_of("int8", "uint4", 0, 0),  run_of("nvfp4", "nvfp4", 0, 0),
                                        run_of("int8", "nvfp4", 0, 0),  run_of("int8", "nvfp4", 0, 16)};
  size_t num_calls = 0;
  const auto progress = [&](size_t window, const QualityRun&) { EXPECT_EQ(window, num_calls++ / runs.size()); };
  const auto results = compare_runs(options_, runs, windows_, progress);
  ASSERT_TRUE(results.ok()) << results.status().message();
  EXPECT_EQ(num_calls, windows_.size() * runs.size());
  ASSERT_EQ(results->size(), runs.size());
  std::vector<QualitySummary> summaries;
  for (const RunQuality& each : *results) {
    ASSERT_EQ(each.tokens.kl.size(), 99u + 99u + 29u);
    ASSERT_EQ(each.tokens.logprob.size(), each.tokens.kl.size());
    ASSERT_EQ(each.tokens.argmax.size(), each.tokens.kl.size());
    summaries.push_back(summarise(each.tokens, results->front().tokens));
    for (const double kl : each.tokens.kl) EXPECT_GE(kl, -1e-12);
  }
  EXPECT_EQ(summaries[0].max_kl, 0.0);
  EXPECT_EQ(summaries[1].max_kl, 0.0);
  EXPECT_EQ(summaries[1].same_argmax, 1.0);
  EXPECT_EQ(summaries[1].perplexity, summaries[0].perplexity);
  EXPECT_GT(summaries[2].mean_kl, 0.0);
  EXPECT_GT(summaries[3].mean_kl, 10.0 * summaries[2].mean_kl);
  EXPECT_GT(summaries[4].mean_kl, 10.0 * summaries[3].mean_kl);
  EXPECT_LT(summaries[5].mean_kl, summaries[4].mean_kl);
  EXPECT_NE(summaries[6].mean_kl, summaries[5].mean_kl);
  EXPECT_GT(summaries[7].mean_kl, 10.0 * summaries[3].mean_kl);
  EXPECT_LT(summaries[8].mean_kl, summaries[7].mean_kl);
  EXPECT_NE(summaries[9].mean_kl, summaries[8].mean_kl);
  EXPECT_EQ(summaries[0].logprob_change, 0.0);
  EXPECT_GT(summaries[7].logprob_change, summaries[3].logprob_change);
  EXPECT_EQ((*results)[0].run.k_format.type, DType::f32);
  EXPECT_EQ((*results)[2].run.v_format.type, DType::f16);
  // 2 layers, 2 heads of 16 channels; int8 has a scale for each head, uint4 a zero point, too.
  EXPECT_EQ((*results)[0].bytes_per_token, 2 * 2 * (64 + 64));
  EXPECT_EQ((*results)[5].bytes_per_token, 2 * 2 * (16 + 4 + 8 + 8));
  EXPECT_EQ((*results)[7].bytes_per_token, 2 * 2 * (8 + 1 + 8 + 1));
  EXPECT_EQ((*results)[0].of_bfloat16, 2.0);
  EXPECT_EQ((*results)[5].of_bfloat16, 36.0 / 64.0);

  // The engine alone, token by token, for a later window: neither windows nor runs are mixed up.
  EngineOptions options = options_;
  options.dtype = DType::f32;
  options.kv_format = computed_format(DType::int8);
  const auto engine = Engine::load(options).value();
  for (size_t i = 1; i < windows_[1].size(); ++i) {
    const std::span<const int32_t> window = windows_[1];
    const Score score = engine->score(window.first(i), window.subspan(i, 1)).value();
    EXPECT_EQ((*results)[3].tokens.logprob[99 + i - 1], score.logprob_of_token[0]);
  }
}

TEST_F(CompareRuns, LogitsThatAreNoNumbersAreAnError) {
  test::TinyLlamaOptions model;
  model.num_layers = 1;
  model.extra = [&](test::GgufWriter& writer) {  // a bias of Q that is NaN
    const auto add = [&](const char* name, int size, float value) {
      std::vector<std::byte> bytes;
      for (int i = 0; i < size; ++i) test::append_bytes(bytes, value);
      writer.add_tensor(name, {static_cast<uint64_t>(size)}, test::gguf::kF32, bytes);
    };
    add("blk.0.attn_q.bias", model.num_q_heads * model.head_dim, kNan);
    add("blk.0.attn_k.bias", model.num_kv_heads * model.head_dim, 0.0f);
    add("blk.0.attn_v.bias", model.num_kv_heads * model.head_dim, 0.0f);
  };
  ASSERT_TRUE(test::write_tiny_llama(options_.model_path, model));
  const QualityRun run;
  EXPECT_EQ(compare_runs(options_, {&run, 1}, windows_).status().message(),
            "auto, cache float32: the logits of predicted token 0 are not numbers");
}

TEST_F(CompareRuns, ErrorsOfTheEngineComeBack) {
  const QualityRun run;
  EXPECT_EQ(compare_runs(options_, {&run, 1}, windows_).status().code(), StatusCode::not_found);
}

}  // namespace
}  // namespace prologue::bench
