// The pre-tokenizer splits a text into pieces, and the model makes tokens only within a piece. Each model was trained with one split; other
// piece boundaries give other tokens.
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

// Holds the pieces of a text: parts of it, or of a copy that the steps have changed.
struct TextPieces {
  std::vector<std::string_view> pieces;
  std::string changed;
};

class PreTokenizer {
 public:
  // Returns the errors of PatternFinder::create; data_loss: a text of a step is not UTF-8. unsupported: there are too many steps.
  static Result<PreTokenizer> create(const std::vector<PreTokenizerStep>& steps);

  // Returns the pieces of `text`, in order, none of them empty; without steps, the text is one piece. `text` must be valid UTF-8. Several
  // threads may call it. resource_exhausted: the pieces would have more than 256 MiB, or see Regex::find_each.
  Status split(std::string_view text, TextStart start, TextPieces& out) const;

 private:
  struct Split {
    PatternFinder pattern;
    SplitBehavior behavior;
    bool invert;
  };
  using Step = std::variant<Split, PrefixSpace, Metaspace>;
  static Status split_pieces(const Split& split, TextPieces& out);
  static Status replace_spaces(const Metaspace& metaspace, TextStart start, TextPieces& out);

  std::vector<Step> steps_;
};

}  // namespace prologue
