// This file has what `generate` prints in addition to the text.
#pragma once

#include <string>
#include <vector>

#include <prologue/engine/engine.h>

namespace generate {

// Returns one line of JSON.
std::string json_line(const prologue::Engine& engine, const std::string& prompt, const prologue::Request& request,
                      const prologue::Completion& completion);
std::string json_line(const prologue::Score& score);
std::string json_error(const std::string& prompt, const std::string& error);

// Returns the tokens that a decoding step made: all but the first, the end token included.
int64_t decoded_tokens(const prologue::Completion& completion);

// model, device, dtype, tokens, rates, why the generation ended, what the engine did. `seconds`: of all completions together.
std::string summary_table(const prologue::Engine& engine, const std::vector<prologue::Completion>& completions, double seconds);
std::string profile_table(const prologue::ModelRunner::Profile& profile);

// Returns the prompts of a --prompts file: one on each line that is not empty.
prologue::Result<std::vector<std::string>> read_prompts(const std::string& path);

// A --score file has these rows: a JSON list of {"prompt_tokens": [...], "tokens": [...]}.
struct ScoreRow {
  std::vector<int32_t> prompt_tokens;
  std::vector<int32_t> tokens;
};
prologue::Result<std::vector<ScoreRow>> read_score_file(const std::string& path);

}  // namespace generate
