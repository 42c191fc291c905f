// The normalizer changes a text before it is split.
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
  // Returns the errors of PatternFinder::create; data_loss: a text of a step is not UTF-8. unsupported: there are too many steps.
  static Result<Normalizer> create(const std::vector<NormalizerStep>& steps);

  bool is_empty() const { return steps_.empty(); }
  // The steps may write so many bytes for a text: a fixed number, and more for each of its bytes. A step that replaces each letter by two
  // doubles a text, and forty of them would make a terabyte of four bytes.
  static constexpr size_t kWork = size_t{1} << 20, kWorkPerByte = 64;
  // `text` is valid UTF-8. TextStart::inside: nothing is put before it. What is written is taken from `work_left`, which all parts of a text
  // share. resource_exhausted: nothing is left of it, the text would grow beyond 256 MiB, or see Regex::find_each.
  Result<std::string> normalize(std::string_view text, TextStart start, size_t& work_left) const;

 private:
  struct Replace {
    PatternFinder pattern;
    std::string replacement;
  };
  using Step = std::variant<UnicodeForm, PrependText, StripWhiteSpace, Replace>;

  std::vector<Step> steps_;
};

}  // namespace prologue
