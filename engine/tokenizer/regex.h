// A Regex is a regular expression out of a file, matched in time that is proportional to the length of the text.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>

#include <prologue/kernels/base/status.h>

struct pcre2_real_match_context_8;  // PCRE2's
struct pcre2_real_match_data_8;

namespace prologue {

// Owns memory for matching, for one thread at a time.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class Regex;
  pcre2_real_match_context_8* context_;  // null: no memory
  pcre2_real_match_data_8* data_;
};

class Regex {
 public:
  // `pattern` is in the syntax of Oniguruma, which tokenizer.json has; PCRE2 matches it. \s is Unicode's White_Space, \w a letter, mark,
  // decimal digit or connector. unsupported: the pattern has more than 16 KiB, has an error, or uses something that means something
  // else to PCRE2 (sets within sets, possessive intervals, rare escapes and options).
  static Result<Regex> create(std::string_view pattern);

  struct Match {
    size_t begin;
    size_t end;
  };
  // Calls `use` for the matches in `text` (valid UTF-8) from left to right. They do not overlap; a match may be empty, but not directly after
  // another one or at the end of the text. `use` returns false to end the search.
  //   resource_exhausted: there is no memory for matching, or the pattern looks at much more of the text than it matches (patterns of
  // tokenizers do not): it would take quadratic time or longer.
  Status find_each(std::string_view text, RegexScratch& scratch, const std::function<bool(const Match&)>& use) const;

 private:
  struct Code;
  explicit Regex(std::shared_ptr<const Code> code) : code_(std::move(code)) {}

  std::shared_ptr<const Code> code_;
};

}  // namespace prologue
