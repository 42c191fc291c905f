// Holds a pattern of a step before the model, ready to be looked for.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <prologue/engine/tokenizer/regex.h>
#include <prologue/engine/tokenizer/tokenizer_data.h>

namespace prologue {

class PatternFinder {
 public:
  // data_loss: the pattern is empty. Other errors: of Regex::create.
  static Result<PatternFinder> create(TextPattern pattern);

  // Does what Regex::find_each does; a plain text is found from left to right, without overlaps.
  Status find_each(std::string_view text, RegexScratch& scratch, const std::function<bool(const Regex::Match&)>& use) const;

 private:
  PatternFinder() = default;

  std::string text_;
  std::optional<Regex> regex_;  // else text_
};

}  // namespace prologue
