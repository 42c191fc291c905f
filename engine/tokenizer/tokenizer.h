// Converts text to token ids and back, as the files of a model say.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <prologue/engine/tokenizer/bpe.h>
#include <prologue/engine/tokenizer/normalizer.h>
#include <prologue/engine/tokenizer/pre_tokenizer.h>
#include <prologue/engine/tokenizer/special_tokens.h>
#include <prologue/engine/tokenizer/tokenizer_data.h>
#include <prologue/engine/tokenizer/unigram.h>
#include <prologue/engine/tokenizer/vocabulary.h>
#include <prologue/kernels/base/status.h>

namespace prologue {

// Describes a marker, or plain text between markers.
struct TextPart {
  int32_t marker = -1;  // the id of a token; -1: plain text
  std::string text;
};

// A tokenizer is immutable: any number of threads may use it. It can be moved, not copied.
class Tokenizer {
 public:
  // Checks all the data once. data_loss: it is inconsistent (duplicate tokens, a merge of or into a token that does not exist, ids
  // outside the vocabulary, ...). unsupported: a regular expression, the length of a token, or special tokens of more than 4 MiB in
  // total; see Regex, Bpe, Unigram and SpecialTokens.
  static Result<Tokenizer> create(TokenizerData data);

  Tokenizer(Tokenizer&&) = default;
  Tokenizer& operator=(Tokenizer&&) = default;

  // Returns the token ids of `text`. With parse_special, the text of a control token becomes that token; without it, the text is encoded as
  // plain characters. add_bos puts the BOS token first, or the tokens that the model has instead (the member function add_bos() tells
  // whether the model requires it).
  //   Each byte that is not valid UTF-8 is replaced by U+FFFD. A byte or character for which the vocabulary has neither a token nor an
  // unknown token is left out, and no merge crosses it (the demo model lacks six control characters and the lead bytes of planes 4
  // to 11). EOS is never added.
  //   The time is O(n log n) for n bytes of text, for every vocabulary. invalid_argument: the text has more than 64 MiB, where each
  // byte that is not valid UTF-8 counts as three (the size of U+FFFD); or add_bos is set and there is no BOS token.
  // resource_exhausted: a step before the model takes too long, or makes the text too long (see Regex, Normalizer, PreTokenizer).
  Result<std::vector<int32_t>> encode(std::string_view text, bool parse_special, bool add_bos) const;

  // Returns the token ids of a text with markers in it, as encode() with parse_special gives them if the markers are written out, but the
  // text never becomes a marker. start: where the first part begins. Markers take the white space beside them that their AddedToken says.
  // Errors: of encode(); invalid_argument: a marker is no token.
  Result<std::vector<int32_t>> encode_parts(std::span<const TextPart> parts, TextStart start) const;

  // Appends a valid UTF-8 text to the parts: as plain text, or with parse_special with the texts of control tokens as markers.
  void append_parts(std::string_view text, bool parse_special, std::vector<TextPart>& parts) const;

  // Returns the text of the tokens, always valid UTF-8: the same as StreamDecoder over all of them, from the beginning of a text.
  std::string decode(std::span<const int32_t> ids) const;

  // Returns the bytes that a token prints; they may be a part of a character. There are none for control tokens, unused tokens and ids
  // outside the vocabulary.
  std::string_view printed_bytes(int32_t id) const {
    return contains(id) ? printed_[static_cast<size_t>(id)] : std::string_view();
  }

  // Return the token's text as stored in the file (byte-level tokens in GPT-2's alphabet: 'Ġthe'), and the id of such a text.
  std::string_view token_text(int32_t id) const { return vocabulary_->text(id); }
  std::optional<int32_t> find(std::string_view token_text) const { return vocabulary_->find(token_text); }

  TokenType type(int32_t id) const { return vocabulary_->type(id); }  // unused for an id outside the vocabulary
  // Returns true for the tokens that the files name as the end of a generation. A chat format also has its own end-of-message token.
  bool is_end_of_generation(int32_t id) const { return std::find(end_ids_.begin(), end_ids_.end(), id) != end_ids_.end(); }
  std::span<const int32_t> end_ids() const { return end_ids_; }  // those tokens; no token is there twice

  int32_t vocab_size() const { return vocabulary_->size(); }
  int32_t bos_id() const { return bos_id_; }  // -1: none
  int32_t eos_id() const { return eos_id_; }
  int32_t eot_id() const { return eot_id_; }
  bool add_bos() const { return add_bos_; }  // whether the model requires BOS at the beginning of a text, and EOS at its end
  bool add_eos() const { return add_eos_; }
  const std::string& chat_template() const { return chat_template_; }  // the default one
  std::span<const NamedChatTemplate> named_chat_templates() const { return named_chat_templates_; }
  // Returns the texts of special tokens under the names that templates know: bos_token, eos_token, ...
  std::span<const std::pair<std::string, std::string>> named_tokens() const { return named_tokens_; }

 private:
  struct Workspace;

  Tokenizer(std::unique_ptr<const Vocabulary> vocabulary, Normalizer normalizer, PreTokenizer pre_tokenizer,
            std::variant<Bpe, Unigram> model)
      : vocabulary_(std::move(vocabulary)),
        normalizer_(std::move(normalizer)),
        pre_tokenizer_(std::move(pre_tokenizer)),
        model_(std::move(model)) {}
  bool contains(int32_t id) const { return vocabulary_->contains(id); }
  static Result<Tokenizer> create_checked(TokenizerData data);
  Status index_special_tokens(const std::vector<AddedToken>& added_tokens);
  Status index_printed(const TokenizerData& data);
  Result<std::vector<int32_t>> encode_text(std::string_view text, bool parse_special, bool add_bos) const;
  Status append_text(std::string_view text, TextStart start, bool parse_special, Workspace& workspace,
                     std::vector<int32_t>& ids) const;
  Status append_segment(std::string_view text, TextStart start, bool parse_special, Workspace& workspace,
                        std::vector<int32_t>& ids) const;
  Status append_plain(std::string_view text, TextStart start, Workspace& workspace, std::vector<int32_t>& ids) const;

  friend class StreamDecoder;

  std::unique_ptr<const Vocabulary> vocabulary_;  // the model keeps its address
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  std::variant<Bpe, Unigram> model_;
  std::unordered_map<int32_t, AddedToken> added_tokens_;
  SpecialTokens special_tokens_;             // looked for in the text as it is
  SpecialTokens normalized_special_tokens_;  // looked for after the normalizer
  SpecialTokens all_special_tokens_;         // the texts of both, as a chat template writes them
  std::vector<std::string> printed_;         // by id
  bool strip_first_space_ = false;
  int32_t bos_id_ = -1;
  int32_t eos_id_ = -1;
  int32_t eot_id_ = -1;
  std::vector<int32_t> end_ids_;
  std::vector<int32_t> begin_ids_;
  bool add_bos_ = false;
  bool add_eos_ = false;
  std::string chat_template_;
  std::vector<NamedChatTemplate> named_chat_templates_;
  std::vector<std::pair<std::string, std::string>> named_tokens_;
};

// Converts the tokens of one sequence to text, token by token, and returns only whole characters. The pieces concatenated are valid
// UTF-8 and equal decode() of all the tokens. Bytes that are not part of a valid character become U+FFFD. Control tokens print nothing.
class StreamDecoder {
 public:
  // The tokenizer must outlive the decoder. continues_text: the tokens follow others, so their first space belongs to the text. At the
  // beginning of a text, models such as Llama 2 have a space that nobody wrote, which is not printed.
  explicit StreamDecoder(const Tokenizer& tokenizer, bool continues_text = false)
      : tokenizer_(&tokenizer),
        continues_text_(continues_text),
        at_first_space_(!continues_text && tokenizer.strip_first_space_) {}

  // Returns the text that can be printed now; it may be empty. The bytes of an incomplete character are kept until the next token.
  std::string push(int32_t id);
  // Ends the sequence: an incomplete last character becomes U+FFFD. The decoder can then be used for another sequence.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  bool continues_text_;
  bool at_first_space_;
  std::string unfinished_;  // at most three bytes between calls
};

}  // namespace prologue
