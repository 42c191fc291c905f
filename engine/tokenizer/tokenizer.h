// Converts text to token ids and back with GPT-2's byte-level BPE and the vocabulary of a model file.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <prologue/engine/tokenizer/pre_tokenizer.h>
#include <prologue/engine/tokenizer/special_tokens.h>
#include <prologue/kernels/base/status.h>

namespace prologue {

// What a model file says about its tokenizer; the comments name the GGUF keys.
struct TokenizerData {
  std::string model;                 // tokenizer.ggml.model
  std::string pre;                   // tokenizer.ggml.pre
  std::vector<std::string> tokens;   // tokenizer.ggml.tokens
  std::vector<int32_t> token_types;  // tokenizer.ggml.token_type, values of TokenType; empty: all normal
  std::vector<std::string> merges;   // tokenizer.ggml.merges, "left right", the first has the highest priority
  int32_t bos_id = -1;               // tokenizer.ggml.bos_token_id; here and below -1 = none
  int32_t eos_id = -1;               // tokenizer.ggml.eos_token_id
  int32_t eot_id = -1;               // tokenizer.ggml.eot_token_id
  bool add_bos = false;              // tokenizer.ggml.add_bos_token
  std::string chat_template;         // tokenizer.chat_template
};

// The numbers are those of the file format.
enum class TokenType : int32_t {
  normal = 1,
  unknown = 2,       // treated as control
  control = 3,       // a marker such as <|im_end|>: found in text only with parse_special, prints nothing
  user_defined = 4,  // found in every text before it is split, prints its text
  unused = 5,        // never found, prints nothing
};

// Immutable: any number of threads may use one tokenizer. Move-only.
class Tokenizer {
 public:
  // Checks all the data once. unsupported: the model is not 'gpt2', the pre-tokenizer is not one of smollm, gpt-2, llama-bpe and
  // qwen2, or the special tokens have more than 4 MiB in total. data_loss: the data is inconsistent (duplicate tokens, a merge of or
  // into a token that does not exist, ids outside the vocabulary, ...).
  static Result<Tokenizer> create(TokenizerData data);

  Tokenizer(Tokenizer&&) = default;
  Tokenizer& operator=(Tokenizer&&) = default;

  // The token ids of `text`. With parse_special, the text of a control token becomes that token; without it, the text is encoded as
  // plain characters. add_bos puts the BOS token first (the member function add_bos() tells whether the model requires it).
  //   Each byte that is not valid UTF-8 is replaced by U+FFFD. Valid UTF-8 is encoded byte by byte, without normalisation. A byte
  // without a token in the vocabulary is left out, and no merge crosses it (the demo model lacks six control characters and the lead
  // bytes of planes 4 to 11).
  //   The time is O(n log n) for n bytes of text, for every vocabulary. invalid_argument: the text has more than 64 MiB, where each
  // byte that is not valid UTF-8 counts as three (the size of U+FFFD); or add_bos is set and there is no BOS token.
  Result<std::vector<int32_t>> encode(std::string_view text, bool parse_special, bool add_bos) const;

  // The text of the tokens, always valid UTF-8: the same as StreamDecoder over all of them.
  std::string decode(std::span<const int32_t> ids) const;

  // The bytes that a token prints; they may be a part of a character. Empty for control tokens, unused tokens and ids outside the
  // vocabulary.
  std::string_view printed_bytes(int32_t id) const {
    return contains(id) ? printed_[static_cast<size_t>(id)] : std::string_view();
  }

  // The token's text as stored in the file (byte-level tokens in GPT-2's alphabet: 'Ġthe'), and the id of such a text.
  std::string_view token_text(int32_t id) const {
    return contains(id) ? data_.tokens[static_cast<size_t>(id)] : std::string_view();
  }
  std::optional<int32_t> find(std::string_view token_text) const;

  TokenType type(int32_t id) const;  // unused for an id outside the vocabulary
  // True for the EOS and the EOT token of the file. A chat format has its own end-of-turn token besides.
  bool is_end_of_generation(int32_t id) const { return id >= 0 && (id == data_.eos_id || id == data_.eot_id); }

  int32_t vocab_size() const { return static_cast<int32_t>(data_.tokens.size()); }
  int32_t bos_id() const { return data_.bos_id; }  // -1: none
  int32_t eos_id() const { return data_.eos_id; }
  int32_t eot_id() const { return data_.eot_id; }
  bool add_bos() const { return data_.add_bos; }
  const std::string& chat_template() const { return data_.chat_template; }

 private:
  struct Merge {
    int32_t rank;  // its line in the list; lower goes first
    int32_t result;
  };
  struct Workspace;

  Tokenizer(TokenizerData data, PreTokenizer pre_tokenizer) : data_(std::move(data)), pre_tokenizer_(std::move(pre_tokenizer)) {}
  bool contains(int32_t id) const { return id >= 0 && id < vocab_size(); }
  static Result<Tokenizer> create_checked(TokenizerData data);
  Status index_tokens();
  Status index_merges();
  Result<std::vector<int32_t>> encode_text(std::string_view text, bool parse_special, bool add_bos) const;
  Status encode_plain(std::string_view text, Workspace& workspace, std::vector<int32_t>& ids) const;
  void encode_piece(std::string_view piece, Workspace& workspace, std::vector<int32_t>& ids) const;
  void push_merge(int32_t left, Workspace& workspace) const;

  TokenizerData data_;  // the views below point into its strings; moving a Tokenizer does not move them
  PreTokenizer pre_tokenizer_;
  std::vector<std::string> printed_;                           // by id
  std::unordered_map<std::string_view, int32_t> ids_by_text_;  // all tokens
  std::unordered_map<std::string_view, int32_t>
      whole_pieces_;                            // normal tokens by their bytes; filled only if the pre-tokenizer needs it
  std::array<int32_t, 256> byte_ids_{};         // -1: the vocabulary lacks that byte
  std::unordered_map<uint64_t, Merge> merges_;  // by pair_key(left, right)
  SpecialTokens special_tokens_;
};

// Converts the tokens of one sequence to text, token by token, and returns only whole characters. The pieces concatenated are valid
// UTF-8 and equal decode() of all the tokens. Bytes that are not part of a valid character become U+FFFD. Control tokens print nothing.
class StreamDecoder {
 public:
  // The tokenizer must outlive the decoder.
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  // The text that can be printed now; it may be empty. The bytes of an incomplete character are kept until the next token.
  std::string push(int32_t id);
  // Ends the sequence: an incomplete last character becomes U+FFFD. The decoder can then be used for another sequence.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  std::string unfinished_;  // at most three bytes between calls
};

}  // namespace prologue
