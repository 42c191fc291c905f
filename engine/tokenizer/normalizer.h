// The normalizer: changes a text before it is split.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <prologue/engine/tokenizer/text_pattern.h>
#include <prologue/engine/tokenizer/tokenizer_data.h>
#include <prologue/kernels/base/status.h>

namespace prologue {

class Normalizer {
 public:
  // Errors: of PatternFinder::create; data_loss: a text of a step is not UTF-8.
  static Result<Normalizer> create(const std::vector<NormalizerStep>& steps);

  bool is_empty() const { return steps_.empty(); }
  // `text` is valid UTF-8. TextStart::inside: nothing is put before it. resource_exhausted: it would grow beyond 256 MiB, or see Regex::find_all.
  Result<std::string> normalize(std::string_view text, TextStart start) const;

 private:
  struct Replace {
    PatternFinder pattern;
    std::string replacement;
  };
  using Step = std::variant<UnicodeForm, PrependText, StripWhiteSpace, Replace>;

  std::vector<Step> steps_;
};

}  // namespace prologue
