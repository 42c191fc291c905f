#include <prologue/engine/tokenizer/text_pattern.h>

namespace prologue {

Result<PatternFinder> PatternFinder::create(TextPattern pattern) {
  if (pattern.text.empty()) return data_loss("a pattern of the tokenizer is empty: it must have at least one character");
  PatternFinder finder;
  if (pattern.is_regex) {
    PROLOGUE_ASSIGN_OR_RETURN(finder.regex_, Regex::create(pattern.text));
  } else {
    finder.text_ = std::move(pattern.text);
  }
  return finder;
}

Status PatternFinder::find_each(std::string_view text, RegexScratch& scratch,
                                const std::function<bool(const Regex::Match&)>& use) const {
  if (regex_) return regex_->find_each(text, scratch, use);
  for (size_t at = 0; (at = text.find(text_, at)) != std::string_view::npos; at += text_.size()) {
    if (!use({at, at + text_.size()})) break;
  }
  return ok_status();
}

}  // namespace prologue
