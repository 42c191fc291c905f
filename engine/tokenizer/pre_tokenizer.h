// The pre-tokenizer: cuts a text into the pieces within which byte-level BPE may merge. Each model was trained with one such
// pattern, so a piece boundary in another place gives other tokens.
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

  // Appends the pieces of `text`, in order; together they are the text. `text` must be valid UTF-8. Takes time proportional to
  // the text, whatever is in it. May be called from several threads. resource_exhausted: the memory for matching ran out.
  Status split(std::string_view text, std::vector<std::string_view>& pieces) const;

  // Whether a piece that is a token as a whole is that token, even where the merges would end elsewhere (llama-bpe).
  bool whole_pieces_first() const { return whole_pieces_first_; }

 private:
  struct Pattern;  // the compiled regular expression
  PreTokenizer(std::shared_ptr<const Pattern> pattern, bool whole_pieces_first)
      : pattern_(std::move(pattern)), whole_pieces_first_(whole_pieces_first) {}

  std::shared_ptr<const Pattern> pattern_;
  bool whole_pieces_first_;
};

}  // namespace prologue
