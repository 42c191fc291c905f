// The engine computes the logits that transformers computes, for tiny checkpoints of every family.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <sstream>

#include <prologue/engine/engine.h>
#include <prologue/engine/gguf/gguf_checkpoint.h>
#include <prologue/engine/model/load_model.h>
#include <prologue/engine/model_runner.h>
#include <prologue/kernels/base/gpu.h>

#include "tests/support/gguf_of_checkpoint.h"
#include "tests/support/reference_model.h"
#include "tests/support/reference_run.h"
#include "tests/support/safetensors_reader.h"
#include "tests/support/source_path.h"
#include "tests/support/tiny_model.h"

namespace prologue {
namespace {

using test::ChangedModel;
using test::PromptSplit;
using test::ReferenceChange;
using test::ReferenceModel;
using test::ReferencePrompt;

// ---- The data, and the comparison itself ----

class ReferenceData : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Models, ReferenceData, ::testing::ValuesIn(test::reference_model_names()),
                         [](const auto& row) { return row.param; });

TEST_P(ReferenceData, IsComplete) {
  const ReferenceModel model = test::read_reference_model(GetParam());
  std::set<size_t> lengths;
  for (const ReferencePrompt& prompt : model.prompts) {
    lengths.insert(prompt.ids.size());
    EXPECT_EQ(prompt.rows.back(), static_cast<int64_t>(prompt.ids.size()) - 1);
    for (const int32_t id : prompt.ids) EXPECT_TRUE(id >= 0 && id < model.vocab_size) << id;
    for (const float logit : prompt.logits) ASSERT_TRUE(std::isfinite(logit));
    EXPECT_TRUE(prompt.positions.empty() || prompt.positions.size() == 3 * prompt.ids.size());
  }
  for (const size_t length : {1u, 17u, 64u, 200u}) EXPECT_EQ(lengths.count(length), 1u) << length;
  EXPECT_GE(model.changes.size(), 2u);
  for (const auto& [name, tensor] : test::stored_tensors(model.folder)) {
    const bool inside = tensor.begin <= tensor.end && tensor.end <= std::filesystem::file_size(tensor.file);
    EXPECT_TRUE(inside) << name;
  }
}

TEST_P(ReferenceData, EveryChangeIsOne) {
  const ReferenceModel model = test::read_reference_model(GetParam());
  const auto contents = [](const std::string& folder) {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      std::ifstream file(entry.path(), std::ios::binary);
      std::string bytes{std::istreambuf_iterator<char>(file), {}};
      const bool is_config = entry.path().filename() == "config.json";
      files[entry.path().filename().string()] = is_config ? nlohmann::json::parse(bytes).dump() : bytes;
    }
    files.erase("case.json");
    files.erase("logits.bin");
    return files;
  };
  for (const ReferenceChange& change : model.changes) {
    const ChangedModel changed(model, change);
    bool positions_changed = false;
    for (size_t i = 0; i < model.prompts.size(); ++i) {
      positions_changed = positions_changed || changed.prompts()[i].positions != model.prompts[i].positions;
    }
    EXPECT_TRUE(positions_changed || contents(changed.folder()) != contents(model.folder)) << change.name;
  }
}

// Returns the logits of the prompt in the file, with one of them off by `error`.
std::vector<float> goldens(const ReferenceModel& model, const ReferencePrompt& prompt, std::span<const int64_t> rows,
                           float error) {
  std::vector<float> logits;
  const ReferencePrompt* golden = nullptr;  // a changed prompt has none of its own
  for (const ReferencePrompt& each : model.prompts) {
    if (each.ids == prompt.ids) golden = &each;
  }
  for (const int64_t row : rows) {
    const auto at = std::find(golden->rows.begin(), golden->rows.end(), row) - golden->rows.begin();
    const auto begin = golden->logits.begin() + at * model.vocab_size;
    logits.insert(logits.end(), begin, begin + model.vocab_size);
    if (row == 16) logits.back() += error;
  }
  return logits;
}

TEST(ReferenceComparison, AcceptsTheReferenceAndRoundingOnly) {
  static const ReferenceModel model = test::read_reference_model("llama2");
  static float error = 0.0f;
  static int64_t calls = 0, next = 0;
  static const test::RunPrompt run = [](const ReferencePrompt& prompt, int64_t begin, int64_t end,
                                        std::span<const int64_t> rows) {
    EXPECT_TRUE(begin == 0 || begin == next);
    next = end;
    ++calls;
    for (const int64_t row : rows) EXPECT_TRUE(begin <= row && row < end);
    return goldens(model, prompt, rows, error);
  };
  for (const PromptSplit split : {PromptSplit::whole, PromptSplit::chunks, PromptSplit::tokens}) {
    calls = 0;
    error = 0.9f * model.tolerance;
    test::expect_reference_logits(model, split, run);
    EXPECT_EQ(calls, split == PromptSplit::whole ? 4 : split == PromptSplit::tokens ? 1 + 17 + 64 + 200 : 1 + 3 + 6 + 18);
  }
  error = 1.1f * model.tolerance;
  EXPECT_NONFATAL_FAILURE(test::expect_reference_logits(model, PromptSplit::whole, run), "id 63 after token 16");
  error = NAN;
  EXPECT_NONFATAL_FAILURE(test::expect_reference_logits(model, PromptSplit::chunks, run), "id 63 after token 16: nan");
}

TEST(ReferenceComparison, ExpectsThatAChangeMovesTheLogits) {
  static const ReferenceModel model = test::read_reference_model("llama2");
  static const ReferenceChange& same = model.change("the layout of transformers 5");
  static const ReferenceChange& change = model.change("another theta");
  static const ChangedModel changed_same(model, same), changed(model, change);
  static const test::RunPrompt unmoved = [](const ReferencePrompt& prompt, int64_t, int64_t, std::span<const int64_t> rows) {
    return goldens(model, prompt, rows, 0.0f);
  };
  static const test::RunPrompt moved = [](const ReferencePrompt& prompt, int64_t, int64_t, std::span<const int64_t> rows) {
    std::vector<float> logits = goldens(model, prompt, rows, 0.0f);
    if (prompt.ids.size() == 200)
      std::copy(change.last_logits.begin(), change.last_logits.end(), logits.end() - model.vocab_size);
    return logits;
  };
  test::expect_changed_logits(model, same, changed_same, unmoved);
  test::expect_changed_logits(model, change, changed, moved);
  testing::TestPartResultArray failures;
  {
    testing::ScopedFakeTestPartResultReporter reporter(testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD,
                                                       &failures);
    test::expect_changed_logits(model, change, changed, unmoved);
    test::expect_changed_logits(model, same, changed_same, moved);
  }
  ASSERT_EQ(failures.size(), 4);  // each: the last row, and how far the logits moved
  EXPECT_NE(std::string(failures.GetTestPartResult(1).message()).find("must change"), std::string::npos);
  EXPECT_NE(std::string(failures.GetTestPartResult(3).message()).find("must stay the same"), std::string::npos);
}

// ---- The engine ----

constexpr int64_t kContext = test::kReferenceContext;

struct Place {
  const char* name;
  Device device;
  DType dtype;
};

const Place kCpu = {"cpu", Device::cpu, DType::f32};
const Place kPlaces[] = {kCpu, {"cuda", Device::cuda, DType::f32}, {"cuda_bfloat16", Device::cuda, DType::bf16}};

Result<Model> load_folder(const std::string& folder, const Place& place) {
  PROLOGUE_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::open(folder));
  return load_model(*checkpoint, place.dtype, {place.device}, {});
}

Result<Model> load_as_gguf(const std::string& folder) {
  PROLOGUE_ASSIGN_OR_RETURN(GgufFile file, GgufFile::from_bytes(test::gguf_of_checkpoint(folder)));
  return load_model(GgufCheckpoint(std::move(file)), DType::f32, {}, {});
}

// Runs prompts with a model, as the engine does.
test::RunPrompt runner_of(const Model& model, Device device = Device::cpu) {
  const auto stream = std::make_shared<Stream>();
  if (device == Device::cuda) *stream = Stream::create().value();
  Execution execution = {device};
  execution.stream = stream->get();
  const std::shared_ptr<ModelRunner> runner = ModelRunner::create(model, test::reference_runner_config(), execution).value();
  return [stream, run = test::reference_run(model, runner, runner->groups())](const ReferencePrompt& prompt, int64_t begin,
                                                                              int64_t end, std::span<const int64_t> rows) {
    return run(prompt, begin, end, rows);
  };
}

struct ModelCase {
  std::string model;
  Place place;
};
void PrintTo(const ModelCase& each, std::ostream* out) { *out << each.model << " on " << each.place.name; }

std::vector<ModelCase> model_cases() {
  std::vector<ModelCase> cases;
  for (const Place& place : kPlaces) {
    for (const std::string& name : test::reference_model_names()) cases.push_back({name, place});
  }
  return cases;
}

class ReferenceModels : public ::testing::TestWithParam<ModelCase> {
 protected:
  void SetUp() override {
    if (GetParam().place.device == Device::cuda && !check_gpu().ok()) GTEST_SKIP() << check_gpu().message();
  }
};
INSTANTIATE_TEST_SUITE_P(Models, ReferenceModels, ::testing::ValuesIn(model_cases()),
                         [](const auto& row) { return row.param.model + "_" + row.param.place.name; });

TEST_P(ReferenceModels, GiveTheLogitsOfTransformers) {
  const auto& [name, place] = GetParam();
  const ReferenceModel reference = test::read_reference_model(name);
  const auto model = load_folder(reference.folder, place);
  ASSERT_TRUE(model.ok()) << model.status().message();
  for (const PromptSplit split : {PromptSplit::whole, PromptSplit::chunks, PromptSplit::tokens}) {
    const test::RunPrompt run = runner_of(*model, place.device);
    const double off = place.dtype == DType::f32 ? test::expect_reference_logits(reference, split, run)
                                                 : test::expect_reference_choices(reference, split, run);
    if (split == PromptSplit::whole) RecordProperty("difference", std::to_string(off));
  }
}

TEST_P(ReferenceModels, ChangesMoveTheLogitsAsInTransformers) {
  const auto& [name, place] = GetParam();
  if (place.dtype != DType::f32) return;
  const ReferenceModel reference = test::read_reference_model(name);
  for (const ReferenceChange& change : reference.changes) {
    const ChangedModel changed(reference, change);
    const auto model = load_folder(changed.folder(), place);
    ASSERT_TRUE(model.ok()) << change.name << ": " << model.status().message();
    test::expect_changed_logits(reference, change, changed, runner_of(*model, place.device));
  }
}

// The engine finds the first part of a prompt in its cache. The log probabilities of the most likely next tokens are those of the
// reference.
TEST_P(ReferenceModels, APrefixFromTheCacheChangesNothing) {
  const auto& [name, place] = GetParam();
  if (place.dtype != DType::f32) return;
  const ReferenceModel reference = test::read_reference_model(name);
  auto model = load_folder(reference.folder, place);
  ASSERT_TRUE(model.ok()) << model.status().message();
  EngineOptions options;
  options.device = place.device;
  options.page_size = 4;
  options.context_length = kContext;
  options.max_seqs = 2;
  options.max_step_tokens = 48;
  const auto engine = Engine::create(options, std::move(model).value(), test::tiny_tokenizer());
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  for (const ReferencePrompt& prompt : reference.prompts) {
    const auto length = static_cast<int64_t>(prompt.ids.size());
    if (length < 17) continue;
    Request request;
    request.prompt = prompt.ids;
    request.positions = prompt.positions;
    request.rope_length = prompt.rope_length > 0 ? prompt.rope_length : length;
    request.max_tokens = 1;
    request.num_logprobs = kMaxTopLogprobs;
    request.ignore_eos = true;
    if (prompt.positions.empty()) {  // what is cached must have been computed by another prompt
      Request begins = request;
      begins.prompt.resize(static_cast<size_t>(length - 5));
      ASSERT_TRUE((*engine)->generate({&begins, 1}).value().front().status.ok());
    }
    const float* const golden = prompt.logits.data() + prompt.logits.size() - static_cast<size_t>(reference.vocab_size);
    double mass = 0.0;
    for (int64_t i = 0; i < reference.vocab_size; ++i) mass += std::exp(static_cast<double>(golden[i]));
    for (int64_t round = prompt.positions.empty() ? 1 : 0; round < 2; ++round) {
      const Completion completion = (*engine)->generate({&request, 1}).value().front();
      ASSERT_TRUE(completion.status.ok()) << completion.status.message();
      EXPECT_EQ(completion.cached_tokens > 0, round == 1) << name << ", " << length << " tokens";
      ASSERT_EQ(completion.logprobs.size(), 1u);
      for (const auto& [token, logprob] : completion.logprobs.front().top) {
        EXPECT_NEAR(logprob, golden[token] - std::log(mass), 2.0 * reference.tolerance) << name << ": token " << token;
      }
    }
  }
}

struct GgufCase {
  const char* model;
  // If a GGUF file cannot hold all of the model, that of the model with this change can. If it is null, the file can.
  const char* change = nullptr;
};
void PrintTo(const GgufCase& each, std::ostream* out) { *out << each.model; }

const GgufCase kGgufCases[] = {{"llama2"},
                               {"llama3"},
                               {"mistral", "no window"},
                               {"mixtral"},
                               {"qwen2", "no window"},
                               {"qwen3"},
                               {"qwen3_moe_sparse"},
                               {"gemma2", "query_pre_attn_scalar is the head dimension"},
                               {"gemma3", "query_pre_attn_scalar is the head dimension"},
                               {"gpt_neox"},
                               {"gpt_neox_sequential"},
                               {"gpt_oss", "another clamp"},
                               {"phi"},
                               {"phi3"},
                               {"phi4_mini"}};

class ReferenceGguf : public ::testing::TestWithParam<GgufCase> {};
INSTANTIATE_TEST_SUITE_P(Models, ReferenceGguf, ::testing::ValuesIn(kGgufCases),
                         [](const auto& row) { return std::string(row.param.model); });

TEST_P(ReferenceGguf, GivesTheLogitsOfTheReference) {
  const ReferenceModel reference = test::read_reference_model(GetParam().model);
  if (GetParam().change == nullptr) {
    const auto model = load_as_gguf(reference.folder);
    ASSERT_TRUE(model.ok()) << model.status().message();
    for (const PromptSplit split : {PromptSplit::whole, PromptSplit::chunks, PromptSplit::tokens}) {
      test::expect_reference_logits(reference, split, runner_of(*model));
    }
  } else {
    const ReferenceChange& change = reference.change(GetParam().change);
    const ChangedModel changed(reference, change);
    const auto model = load_as_gguf(changed.folder());
    ASSERT_TRUE(model.ok()) << model.status().message();
    test::expect_changed_logits(reference, change, changed, runner_of(*model));
  }
}

// Changes of which a GGUF file holds every key and tensor.
TEST(ReferenceGgufChanges, AreThoseOfTheReference) {
  for (const char* name : {"llama2", "llama3"}) {
    const ReferenceModel reference = test::read_reference_model(name);
    for (const ReferenceChange& change : reference.changes) {
      const ChangedModel changed(reference, change);
      const auto model = load_as_gguf(changed.folder());
      ASSERT_TRUE(model.ok()) << change.name << ": " << model.status().message();
      test::expect_changed_logits(reference, change, changed, runner_of(*model));
    }
  }
}

// ---- The page ----

const std::string kPage = test::source_path("docs/models.md");
const std::string kGpuResults = test::source_path("benchmarks/results/2026-11-23-h200-models.json");
constexpr const char* kBegin = "<!-- models: written by a test -->\n";
constexpr const char* kEnd = "<!-- end of models -->\n";

// Returns the largest difference of a whole prompt, as a part of the range of the logits.
double difference(const std::string& name, const Place& place) {
  const ReferenceModel reference = test::read_reference_model(name);
  const Model model = load_folder(reference.folder, place).value();
  const test::RunPrompt run = runner_of(model, place.device);
  return place.dtype == DType::f32 ? test::expect_reference_logits(reference, PromptSplit::whole, run)
                                   : test::expect_reference_choices(reference, PromptSplit::whole, run);
}

// Writes it with one digit, rounded up.
std::string rounded_up(double value) {
  char text[32];
  const double unit = std::pow(10.0, std::floor(std::log10(value)));
  std::snprintf(text, sizeof text, "%.0e", std::ceil(value / unit) * unit);
  return text;
}

// Returns how the families come in GGUF files too: what ReferenceGguf runs.
std::string formats_of(const std::string& name) {
  for (const GgufCase& each : kGgufCases) {
    if (name == each.model) return "HF, GGUF";
  }
  return "HF";
}

std::string model_table(const std::map<std::string, double>& on_cpu, const nlohmann::json& on_gpu) {
  std::string table =
      "| model | files | what it needs | CPU, float32 | H200, float32 | H200, bfloat16 |\n| --- | --- | --- | --- | --- | --- "
      "|\n";
  for (const auto& [name, off] : on_cpu) {
    const ReferenceModel reference = test::read_reference_model(name);
    const auto gpu = [&on_gpu, &model = name](const char* type) {
      return on_gpu.contains(model) ? rounded_up(on_gpu.at(model).at(type)) : std::string("not run");
    };
    table += "| " + name + " | " + formats_of(name) + " | " + reference.exercises + " | " + rounded_up(off) + " | " +
             gpu("float32") + " | " + gpu("bfloat16") + " |\n";
  }
  return table;
}

// Everything but the differences on the CPU, which vary with the machine.
std::string without_cpu(const std::string& table) {
  std::string text;
  size_t column = 0;
  for (const char c : table) {
    column = c == '\n' ? 0 : column + (c == '|' ? 1 : 0);
    if (column != 4) text += c;
  }
  return text;
}

TEST(ReferencePage, ShowsEveryModel) {
  std::map<std::string, double> on_cpu;
  for (const std::string& name : test::reference_model_names()) on_cpu[name] = difference(name, kCpu);
  nlohmann::json on_gpu = nlohmann::json::object();
  if (std::filesystem::exists(kGpuResults)) on_gpu = nlohmann::json::parse(std::ifstream(kGpuResults)).at("differences");
  const std::string table = model_table(on_cpu, on_gpu);
  std::stringstream stream;
  stream << std::ifstream(kPage).rdbuf();
  std::string page = stream.str();
  size_t begin = page.find(kBegin);
  const size_t end = page.find(kEnd);
  ASSERT_TRUE(begin < end && end != std::string::npos) << kPage << " has no place for the table";
  begin += std::strlen(kBegin);
  if (std::getenv("PROLOGUE_UPDATE_MODELS") != nullptr) {
    std::ofstream(kPage) << page.replace(begin, end - begin, table);
    return;
  }
  EXPECT_EQ(without_cpu(page.substr(begin, end - begin)), without_cpu(table))
      << "docs/models.md shows other models than the tests have. To update it:\n"
         "  PROLOGUE_UPDATE_MODELS=1 <build>/tests/engine_reference_models_test --gtest_filter='*Page*'";
}

// If there is a GPU, this test writes the file that the page's columns for it are made of.
TEST(ReferencePage, WritesTheDifferencesOnAGpu) {
  const char* const out = std::getenv("PROLOGUE_MODELS_JSON");
  if (out == nullptr) GTEST_SKIP() << "PROLOGUE_MODELS_JSON names no file";
  if (!check_gpu().ok()) GTEST_SKIP() << check_gpu().message();
  nlohmann::json differences;
  for (const std::string& name : test::reference_model_names()) {
    differences[name] = {{"float32", difference(name, kPlaces[1])}, {"bfloat16", difference(name, kPlaces[2])}};
  }
  std::ofstream(out) << nlohmann::json{{"differences", differences}}.dump(1) << "\n";
}

}  // namespace
}  // namespace prologue
