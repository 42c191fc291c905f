// The demo model against llama.cpp's greedy tokens in float32 (tests/golden/generation/smollm2_greedy.json says how they were
// made). Runs where scripts/fetch_model has put the model.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include <prologue/engine/engine.h>
#include <prologue/kernels/base/gpu.h>

#include "tests/support/source_path.h"

namespace prologue {
namespace {

const std::string kModel = test::source_path("models/SmolLM2-135M-Instruct.Q4_1.gguf");
constexpr double kTinyMargin = 1e-3;  // below it, the order of float32 sums may decide

struct Row {
  std::string prompt;
  std::vector<int32_t> prompt_tokens;
  std::vector<int32_t> tokens;
  std::vector<double> margin;
  std::string stop;
};

std::vector<Row> golden_rows() {
  std::ifstream file(test::source_path("tests/golden/generation/smollm2_greedy.json"));
  std::vector<Row> rows;
  const nlohmann::json golden = nlohmann::json::parse(file);
  for (const auto& json : golden["rows"]) {
    rows.push_back({json["prompt"], json["prompt_tokens"], json["tokens"], json["margin"], json["stop"]});
  }
  return rows;
}

struct Case {
  const char* name;
  Device device;
  int64_t page_size;
  bool fused;
  bool one_batch;
  int threads;
};

void PrintTo(const Case& which, std::ostream* out) { *out << which.name; }

class DemoModel : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Cases, DemoModel,
                         testing::Values(Case{"cpu_alone", Device::cpu, 16, true, false, 2}, Case{"cpu_batch", Device::cpu, 16, true, true, 2},
                                         Case{"cpu_batch_page_1_one_thread", Device::cpu, 1, true, true, 1},
                                         Case{"cpu_batch_page_64_unfused", Device::cpu, 64, false, true, 3},
                                         Case{"cuda_alone", Device::cuda, 16, true, false, 2},
                                         Case{"cuda_batch", Device::cuda, 16, true, true, 2},
                                         Case{"cuda_batch_page_1", Device::cuda, 1, true, true, 2},
                                         Case{"cuda_batch_page_64_unfused", Device::cuda, 64, false, true, 2},
                                         Case{"cuda_alone_unfused", Device::cuda, 16, false, false, 2}),
                         [](const auto& each) { return each.param.name; });

TEST_P(DemoModel, SpeaksTheReferenceTokens) {
  const Case& which = GetParam();
  if (!std::filesystem::exists(kModel)) GTEST_SKIP() << "scripts/fetch_model has not been run";
  if (which.device == Device::cuda && !check_gpu().ok()) GTEST_SKIP() << check_gpu().message();
  EngineOptions options;
  options.model_path = kModel;
  options.device = which.device;
  options.dtype = DType::f32;
  options.page_size = which.page_size;
  options.fused = which.fused;
  options.num_threads = which.threads;
  auto engine = Engine::load(options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();

  const std::vector<Row> rows = golden_rows();
  ASSERT_FALSE(rows.empty());
  std::vector<Request> requests(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    requests[i].prompt = (*engine)->tokenizer().encode(rows[i].prompt, true, (*engine)->tokenizer().add_bos()).value();
    requests[i].max_tokens = 48;
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
      EXPECT_LE(rows[i].margin[at], kTinyMargin) << rows[i].prompt << ": token " << at << " differs";
    } else {
      ADD_FAILURE() << rows[i].prompt << ": " << got.size() << " tokens, want " << want.size();
    }
  }
}

}  // namespace
}  // namespace prologue
