// The pre-tokenizer: it splits a text into pieces, and byte-level BPE merges only within a piece. Each model was trained with one
// split pattern; other piece boundaries give other tokens.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include <prologue/kernels/base/status.h>

namespace prologue {

class PreTokenizer {
 public:
  // By GGUF name (tokenizer.ggml.pre): smollm, gpt-2, llama-bpe or qwen2. unsupported: any other name.
  static Result<PreTokenizer> create(std::string_view name);

  // Appends the pieces of `text`, in order; concatenated they are the text. `text` must be valid UTF-8. The time is proportional to
  // the length of the text, for every text. Several threads may call it. resource_exhausted: there is no memory for matching.
  Status split(std::string_view text, std::vector<std::string_view>& pieces) const;

  // True if a piece whose whole text is a token becomes that token, even if the merges would give other tokens (llama-bpe).
  bool whole_pieces_first() const { return whole_pieces_first_; }

 private:
  struct Pattern;  // the compiled regular expression
  PreTokenizer(std::shared_ptr<const Pattern> pattern, bool whole_pieces_first)
      : pattern_(std::move(pattern)), whole_pieces_first_(whole_pieces_first) {}

  std::shared_ptr<const Pattern> pattern_;
  bool whole_pieces_first_;
};

}  // namespace prologue
