// Compares real models with llama.cpp's greedy tokens in float32 (the files in tests/golden/generation say how they were made). Runs where
// scripts/fetch_model has put the models. All rows and tokens run as a batch and are scored once for a model and a device. Each row also runs
// in one of the other ways: alone, with another page size, another number of threads, unfused; with PROLOGUE_TEST_ALL in all of them.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include <prologue/engine/engine.h>
#include <prologue/kernels/base/gpu.h>

#include "tests/support/combinations.h"
#include "tests/support/source_path.h"

namespace prologue {
namespace {

struct RealModel {
  const char* file;
  const char* golden;
  // Below this margin another token may be chosen, and what follows it is not compared. SmolLM2: the order of float32 sums may decide.
  // Gemma: llama.cpp's GELU goes through a table of float16 numbers, ours does not.
  double tiny_margin;
};

const RealModel kSmolLm2 = {"models/SmolLM2-135M-Instruct.Q4_1.gguf", "tests/golden/generation/smollm2_greedy.json", 1e-3};
const RealModel kGemma3 = {"models/gemma-3-270m.Q4_K_M.gguf", "tests/golden/generation/gemma3_270m_greedy.json", 0.1};

constexpr int64_t kAllTokens = 48, kSomeTokens = 16;  // of each row
constexpr int kAllRows = -1, kOtherWays = 3;
constexpr size_t kLongPrompt = 1000;  // tokens: as long to score as all other rows

struct Row {
  std::string prompt;
  std::vector<int32_t> prompt_tokens;
  std::vector<int32_t> tokens;
  std::vector<double> margin;
  std::string stop;
};

std::vector<Row> golden_rows(const RealModel& model) {
  std::ifstream file(test::source_path(model.golden));
  std::vector<Row> rows;
  const nlohmann::json golden = nlohmann::json::parse(file);
  for (const auto& json : golden["rows"]) {
    rows.push_back({json["prompt"], json["prompt_tokens"], json["tokens"], json["margin"], json["stop"]});
  }
  return rows;
}

struct Case {
  const char* name;
  RealModel model;
  Device device;
  int64_t page_size;
  bool fused;
  bool one_batch;
  int threads;
  int way = kAllRows;  // all rows and tokens, which are also scored; else which of kOtherWays, which share the rows
  int64_t ranks = 1;
};

std::vector<Row> rows_of(const Case& which) {
  std::vector<Row> rows = golden_rows(which.model);
  if (which.way == kAllRows) return rows;
  std::vector<Row> some;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i % kOtherWays != static_cast<size_t>(which.way) && !test::tests_all_combinations()) continue;
    some.push_back(std::move(rows[i]));
    if (some.back().tokens.size() <= kSomeTokens) continue;
    some.back().tokens.resize(kSomeTokens);
    some.back().stop = "length";
  }
  return some;
}

void PrintTo(const Case& which, std::ostream* out) { *out << which.name; }

class RealModels : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Cases, RealModels,
                         testing::Values(Case{"cpu_alone", kSmolLm2, Device::cpu, 16, true, false, 2, 1},
                                         Case{"cpu_batch", kSmolLm2, Device::cpu, 16, true, true, 2},
                                         Case{"cpu_batch_page_1_one_thread", kSmolLm2, Device::cpu, 1, true, true, 1, 0},
                                         Case{"cpu_batch_page_64_unfused", kSmolLm2, Device::cpu, 64, false, true, 3, 2},
                                         Case{"cpu_three_ranks", kSmolLm2, Device::cpu, 16, true, true, 3, 1, 3},
                                         Case{"cuda_alone", kSmolLm2, Device::cuda, 16, true, false, 2},
                                         Case{"cuda_batch", kSmolLm2, Device::cuda, 16, true, true, 2},
                                         Case{"cuda_batch_page_1", kSmolLm2, Device::cuda, 1, true, true, 2},
                                         Case{"cuda_batch_page_64_unfused", kSmolLm2, Device::cuda, 64, false, true, 2},
                                         Case{"cuda_alone_unfused", kSmolLm2, Device::cuda, 16, false, false, 2},
                                         Case{"gemma3_cpu_batch", kGemma3, Device::cpu, 16, true, true, 2},
                                         Case{"gemma3_cpu_two_ranks", kGemma3, Device::cpu, 16, true, true, 2, 2, 2},
                                         Case{"gemma3_cuda_two_ranks", kGemma3, Device::cuda, 16, true, true, 2, kAllRows, 2},
                                         Case{"gemma3_cuda_alone", kGemma3, Device::cuda, 16, true, false, 2},
                                         Case{"gemma3_cuda_batch_unfused", kGemma3, Device::cuda, 16, false, true, 2}),
                         [](const auto& each) { return each.param.name; });

TEST_P(RealModels, SpeakTheReferenceTokens) {
  const Case& which = GetParam();
  const std::string path = test::source_path(which.model.file);
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "scripts/fetch_model has not been run";
  if (which.device == Device::cuda && !check_gpu().ok()) GTEST_SKIP() << check_gpu().message();
  EngineOptions options;
  options.model_path = path;
  options.device = which.device;
  options.dtype = DType::f32;
  options.page_size = which.page_size;
  options.fused = which.fused;
  options.num_threads = which.threads;
  options.tensor_parallel = which.ranks;
  if (which.device == Device::cuda && which.ranks > 1 && *num_gpus() < which.ranks) GTEST_SKIP() << "there are fewer GPUs";
  auto engine = Engine::load(options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();

  const std::vector<Row> rows = rows_of(which);
  ASSERT_FALSE(rows.empty());
  const bool whole = which.way == kAllRows;
  std::vector<Request> requests(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    requests[i].prompt = (*engine)->tokenizer().encode(rows[i].prompt, true, (*engine)->tokenizer().add_bos()).value();
    requests[i].max_tokens = whole ? kAllTokens : kSomeTokens;
    EXPECT_EQ(requests[i].prompt, rows[i].prompt_tokens) << rows[i].prompt;
  }
  std::vector<Completion> completions;
  if (which.one_batch) {
    completions = (*engine)->generate(requests).value();
  } else {
    for (const Request& request : requests) completions.push_back((*engine)->generate({&request, 1}).value().front());
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    ASSERT_TRUE(completions[i].status.ok()) << completions[i].status.message();
    const std::vector<int32_t>& got = completions[i].tokens;
    const std::vector<int32_t>& want = rows[i].tokens;
    const auto [g, w] = std::mismatch(got.begin(), got.end(), want.begin(), want.end());
    const size_t at = static_cast<size_t>(w - want.begin());
    if (g == got.end() && w == want.end()) {
      const std::string stop = rows[i].stop == "eos" ? "end" : rows[i].stop;
      EXPECT_EQ(finish_reason_name(completions[i].finish_reason), stop) << rows[i].prompt;
    } else if (at < rows[i].margin.size()) {
      EXPECT_LE(rows[i].margin[at], which.model.tiny_margin) << rows[i].prompt << ": token " << at << " differs";
    } else {
      ADD_FAILURE() << rows[i].prompt << ": " << got.size() << " tokens, want " << want.size();
    }
    if (!whole || (rows[i].prompt_tokens.size() > kLongPrompt && !test::tests_all_combinations())) continue;
    // After the reference's tokens, the choice is the reference's at every place.
    const Score score = (*engine)->score(rows[i].prompt_tokens, want).value();
    for (size_t t = 0; t < want.size(); ++t) {
      if (rows[i].margin[t] <= which.model.tiny_margin) continue;
      EXPECT_EQ(score.argmax[t], want[t]) << rows[i].prompt << ": token " << t;
    }
  }
}

}  // namespace
}  // namespace prologue
