#include "tests/support/reference_model.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "tests/support/safetensors_reader.h"
#include "tests/support/source_path.h"

namespace prologue::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

json read_json(const fs::path& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(path.string() + ": cannot be read");
  return json::parse(file);
}

std::vector<float> read_floats(const fs::path& path) {
  std::vector<float> values(fs::file_size(path) / sizeof(float));
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(float)));
  if (!file) throw std::runtime_error(path.string() + ": cannot be read");
  return values;
}

void edit_config(json& config, const json& edit) {
  const json& path = edit.at("config");
  json* at = &config;
  for (size_t i = 0; i + 1 < path.size(); ++i) at = &at->at(path[i].get<std::string>());
  if (edit.contains("value")) {
    (*at)[path.back().get<std::string>()] = edit.at("value");
  } else if (at->erase(path.back().get<std::string>()) == 0) {
    throw std::runtime_error("config.json has no " + path.dump());
  }
}

void edit_tensors(const std::string& folder, const json& edit) {
  const std::string suffix = edit.at("tensor_suffix");
  bool found = false;
  for (const auto& [name, tensor] : stored_tensors(folder)) {
    if (!name.ends_with(suffix)) continue;
    fill_values(tensor, edit.at("fill").get<float>());
    found = true;
  }
  if (!found) throw std::runtime_error(folder + ": no tensor *" + suffix);
}

// Returns the kept logits of a prompt, computed in calls as `split` says.
std::vector<float> run_prompt(const ReferencePrompt& prompt, PromptSplit split, const RunPrompt& run) {
  constexpr int64_t kChunks[] = {7, 1, 30};
  const auto length = static_cast<int64_t>(prompt.ids.size());
  std::vector<float> logits;
  size_t row = 0;
  for (int64_t begin = 0, i = 0; begin < length; ++i) {
    const int64_t step = split == PromptSplit::whole ? length : split == PromptSplit::tokens ? 1 : kChunks[i % 3];
    const int64_t end = std::min(begin + step, length);
    const size_t first = row;
    while (row < prompt.rows.size() && prompt.rows[row] < end) ++row;
    const std::vector<float> part = run(prompt, begin, end, std::span(prompt.rows).subspan(first, row - first));
    logits.insert(logits.end(), part.begin(), part.end());
    begin = end;
  }
  return logits;
}

// NaN counts as infinity.
float difference(float got, float want) { return std::isnan(got) ? INFINITY : std::abs(got - want); }

float largest_difference(std::span<const float> got, std::span<const float> want) {
  float largest = got.size() == want.size() ? 0.0f : INFINITY;
  for (size_t i = 0; i < got.size() && i < want.size(); ++i) largest = std::max(largest, difference(got[i], want[i]));
  return largest;
}

}  // namespace

const ReferenceChange& ReferenceModel::change(const std::string& change_name) const {
  for (const ReferenceChange& change : changes) {
    if (change.name == change_name) return change;
  }
  throw std::runtime_error(name + " has no change \"" + change_name + "\"");
}

std::vector<std::string> reference_model_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(source_path("tests/golden/models")))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

ReferenceModel read_reference_model(const std::string& name) {
  ReferenceModel model;
  model.name = name;
  model.folder = source_path("tests/golden/models/" + name);
  const json golden = read_json(fs::path(model.folder) / "case.json");
  const std::vector<float> logits = read_floats(fs::path(model.folder) / "logits.bin");
  model.exercises = golden.at("exercises");
  model.made_with = golden.at("made_with");
  model.vocab_size = golden.at("vocab_size");
  size_t at = 0;
  const auto next_rows = [&](size_t count) {
    const size_t begin = at;
    at += count * static_cast<size_t>(model.vocab_size);
    if (at > logits.size()) throw std::runtime_error(name + ": logits.bin is too short");
    return std::vector<float>(logits.begin() + static_cast<std::ptrdiff_t>(begin),
                              logits.begin() + static_cast<std::ptrdiff_t>(at));
  };
  for (const json& each : golden.at("prompts")) {
    ReferencePrompt& prompt = model.prompts.emplace_back();
    prompt.ids = each.at("ids").get<std::vector<int32_t>>();
    prompt.rows = each.at("rows").get<std::vector<int64_t>>();
    prompt.logits = next_rows(prompt.rows.size());
    prompt.rope_length = each.value("rope_length", int64_t{0});
    prompt.position_delta = each.value("position_delta", int64_t{0});
    for (const json& axis : each.value("positions", json::array())) {
      const auto positions = axis.get<std::vector<int32_t>>();
      prompt.positions.insert(prompt.positions.end(), positions.begin(), positions.end());
    }
  }
  const auto [smallest, largest] = std::minmax_element(logits.begin(), logits.begin() + static_cast<std::ptrdiff_t>(at));
  model.tolerance = 1e-4f * (*largest - *smallest);
  for (const json& each : golden.at("changes")) {
    ReferenceChange& change = model.changes.emplace_back();
    change.name = each.at("name");
    change.same = each.value("same", false);
    change.edits = each.at("edits");
    change.last_logits = next_rows(1);
  }
  if (at != logits.size()) throw std::runtime_error(name + ": logits.bin is too long");
  return model;
}

ChangedModel::ChangedModel(const ReferenceModel& model, const ReferenceChange& change) : prompts_(model.prompts) {
  folder_ = testing::TempDir() + "prologue_" + model.name + "_XXXXXX";
  if (mkdtemp(folder_.data()) == nullptr) throw std::runtime_error(folder_ + ": cannot be made");
  for (const auto& entry : fs::directory_iterator(model.folder)) {
    const std::string extension = entry.path().extension().string();
    if (entry.path().filename() == "case.json" || extension == ".bin") continue;
    fs::copy_file(entry.path(), fs::path(folder_) / entry.path().filename());
  }
  json config = read_json(fs::path(folder_) / "config.json");
  for (const json& edit : change.edits) {
    if (edit.contains("config")) {
      edit_config(config, edit);
    } else if (edit.contains("tensor_suffix")) {
      edit_tensors(folder_, edit);
    } else if (edit.value("positions", "") == "text") {
      for (ReferencePrompt& prompt : prompts_) {
        prompt.positions.clear();
        prompt.position_delta = 0;
      }
    } else {
      throw std::runtime_error("unknown edit " + edit.dump());
    }
  }
  std::ofstream(fs::path(folder_) / "config.json") << config.dump(2) << "\n";
  for (ReferencePrompt& prompt : prompts_) prompt.logits.clear();
}

ChangedModel::~ChangedModel() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

double expect_reference_logits(const ReferenceModel& model, PromptSplit split, const RunPrompt& run) {
  double largest = 0.0;
  for (const ReferencePrompt& prompt : model.prompts) {
    const std::vector<float> got = run_prompt(prompt, split, run);
    EXPECT_EQ(got.size(), prompt.logits.size()) << model.name << ", prompt of " << prompt.ids.size() << " tokens";
    if (got.size() != prompt.logits.size()) continue;
    size_t worst = 0, wrong = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const float off = difference(got[i], prompt.logits[i]);
      if (off > difference(got[worst], prompt.logits[worst])) worst = i;
      wrong += off <= model.tolerance ? 0 : 1;
    }
    const auto vocab = static_cast<size_t>(model.vocab_size);
    EXPECT_EQ(wrong, 0u) << model.name << ", prompt of " << prompt.ids.size() << " tokens: of " << got.size()
                         << " logits; the worst is that of id " << worst % vocab << " after token " << prompt.rows[worst / vocab]
                         << ": " << got[worst] << ", want " << prompt.logits[worst] << " within " << model.tolerance;
    largest = std::max(largest, static_cast<double>(difference(got[worst], prompt.logits[worst])));
  }
  return largest / (1e4 * static_cast<double>(model.tolerance));
}

double expect_reference_choices(const ReferenceModel& model, PromptSplit split, const RunPrompt& run) {
  const float range = 1e4f * model.tolerance;
  const auto vocab = static_cast<std::ptrdiff_t>(model.vocab_size);
  double largest = 0.0;
  for (const ReferencePrompt& prompt : model.prompts) {
    const std::vector<float> got = run_prompt(prompt, split, run);
    EXPECT_EQ(got.size(), prompt.logits.size()) << model.name << ", prompt of " << prompt.ids.size() << " tokens";
    if (got.size() != prompt.logits.size()) continue;
    largest = std::max(largest, static_cast<double>(largest_difference(got, prompt.logits)));
    for (size_t row = 0; row < prompt.rows.size(); ++row) {
      const auto want = prompt.logits.begin() + static_cast<std::ptrdiff_t>(row) * vocab;
      const auto first = std::max_element(want, want + vocab);
      float second = -std::numeric_limits<float>::infinity();
      for (auto each = want; each != want + vocab; ++each) second = each == first ? second : std::max(second, *each);
      if (*first - second <= 0.05f * range) continue;
      const auto mine = got.begin() + static_cast<std::ptrdiff_t>(row) * vocab;
      EXPECT_EQ(std::max_element(mine, mine + vocab) - mine, first - want)
          << model.name << ", prompt of " << prompt.ids.size() << " tokens, after token " << prompt.rows[row];
    }
  }
  return largest / static_cast<double>(range);
}

void expect_changed_logits(const ReferenceModel& model, const ReferenceChange& change, const ChangedModel& changed,
                           const RunPrompt& run) {
  const std::string what = model.name + " with the change \"" + change.name + "\"";
  float moved = 0.0f;
  std::vector<float> last;
  for (size_t i = 0; i < model.prompts.size(); ++i) {
    last = run_prompt(changed.prompts()[i], PromptSplit::whole, run);
    moved = std::max(moved, largest_difference(last, model.prompts[i].logits));
  }
  const auto vocab = static_cast<size_t>(model.vocab_size);
  ASSERT_GE(last.size(), vocab) << what;
  last.erase(last.begin(), last.end() - static_cast<std::ptrdiff_t>(vocab));
  // The change may widen the range of the logits, and with it what rounding does.
  const auto [low, high] = std::minmax_element(change.last_logits.begin(), change.last_logits.end());
  EXPECT_LE(largest_difference(last, change.last_logits), std::max(model.tolerance, 1e-4f * (*high - *low)))
      << what << ": the last row is not the reference's";
  if (change.same) {
    EXPECT_LE(moved, model.tolerance) << what << " the logits must stay the same";
  } else {
    EXPECT_GE(moved, 99.0f * model.tolerance) << what << " the logits must change";
  }
}

}  // namespace prologue::test
