// This file reads the tiny checkpoints in tests/golden/models, with logits from transformers (scripts/make_reference_models.py). Functions
// throw std::exception if a file is not as expected.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace prologue::test {

struct ReferencePrompt {
  std::vector<int32_t> ids;
  std::vector<int64_t> rows;  // those whose logits are kept, ascending
  std::vector<float> logits;  // [rows.size(), vocab_size]
  // Where the frequencies depend on the length of the whole sequence: the length that every position of it was rotated for. 0: they do not.
  int64_t rope_length = 0;
  // Gives the rope positions of MRoPE, [3, ids.size()]: time, height, width. If this is empty, token i is at position i.
  std::vector<int32_t> positions;
  // Holds the rope position of a token after the prompt, minus its index; the same on all axes.
  int64_t position_delta = 0;
};

// Describes an edit of the checkpoint. It moves the logits of some prompt by at least 100 tolerances, or not at all ("same").
struct ReferenceChange {
  std::string name;
  bool same = false;
  nlohmann::json edits;
  std::vector<float> last_logits;  // [vocab_size]: with the edit, of the last token of the last prompt
};

struct ReferenceModel {
  std::string name;
  std::string folder;
  std::string exercises;  // what of the library it needs
  std::string made_with;  // versions
  int64_t vocab_size = 0;
  std::vector<ReferencePrompt> prompts;
  std::vector<ReferenceChange> changes;
  float tolerance = 0.0f;  // of a logit: 1e-4 of their range

  const ReferenceChange& change(const std::string& change_name) const;
};

std::vector<std::string> reference_model_names();
ReferenceModel read_reference_model(const std::string& name);

// Holds the checkpoint with a change, in a folder that lasts as long as the object. Its prompts are the changed ones, without the logits.
class ChangedModel {
 public:
  ChangedModel(const ReferenceModel& model, const ReferenceChange& change);
  ChangedModel(const ChangedModel&) = delete;
  ChangedModel& operator=(const ChangedModel&) = delete;
  ~ChangedModel();

  const std::string& folder() const { return folder_; }
  const std::vector<ReferencePrompt>& prompts() const { return prompts_; }

 private:
  std::string folder_;
  std::vector<ReferencePrompt> prompts_;
};

// Runs tokens [begin, end) of a prompt, and returns the logits of `rows`, which are among them: [rows.size(), vocab_size]. With
// begin == 0 a new sequence begins; the calls for one sequence follow each other without a gap, up to the end of the prompt.
using RunPrompt =
    std::function<std::vector<float>(const ReferencePrompt& prompt, int64_t begin, int64_t end, std::span<const int64_t> rows)>;

// Says how a prompt is split into calls: all tokens at once, 7, 1, 30, 7, 1, 30, ... tokens, or one by one.
enum class PromptSplit { whole, chunks, tokens };

// Adds a failure for each prompt of which a kept row differs, with the largest difference. Returns the largest difference of all, as a
// part of the range of the logits.
double expect_reference_logits(const ReferenceModel& model, PromptSplit split, const RunPrompt& run);

// Used for 16-bit types: adds a failure for each kept row whose largest logit is that of another id, where the reference's two largest are
// more than 5 % of the range apart. Returns what the function above does.
double expect_reference_choices(const ReferenceModel& model, PromptSplit split, const RunPrompt& run);

// `run` is of the changed checkpoint. Adds a failure if the last row differs from the reference's, or if the kept rows are too near to
// those of the unchanged checkpoint (for "same": not those).
void expect_changed_logits(const ReferenceModel& model, const ReferenceChange& change, const ChangedModel& changed,
                           const RunPrompt& run);

}  // namespace prologue::test
