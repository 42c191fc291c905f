// This file has what the files of a model say about its tokenizer. GGUF and tokenizer.json are both translated to this description, and
// Tokenizer::create takes nothing else.
//
// A text is encoded in this order:
//   1. Tokens that are looked for in the text (TokenType::control, unknown, user_defined) are cut out. What is left are segments.
//   2. The normalizer changes the text of each segment, step by step.
//   3. The pre-tokenizer cuts a segment into pieces, step by step.
//   4. The model converts each piece into tokens.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace prologue {

// ---- The vocabulary ----

// The numbers are those of GGUF.
enum class TokenType : int32_t {
  normal = 1,
  unknown = 2,       // treated as control
  control = 3,       // a marker such as <|im_end|>: found in text only with parse_special, prints nothing
  user_defined = 4,  // found in every text before it is split, prints its text
  unused = 5,        // never found, prints nothing; its text may be empty
  byte = 6,          // '<0x0A>': stands for one byte that the model has no other token for
};

// Says how a token is found in a text, if this is not the plain search for its text.
struct AddedToken {
  int32_t id = -1;          // a token that is looked for: control, unknown or user-defined
  bool normalized = false;  // looked for after the normalizer has run, in its normalized form
  bool strip_left = false;  // takes the white space on its left, or right, with it
  bool strip_right = false;
  bool single_word = false;  // found only if no letter, digit or underscore is beside it
};

// ---- The steps before the model ----

// The normalizer, the pre-tokenizer and the decoder may have so many steps each. Files of models have at most a dozen.
inline constexpr size_t kMaxTokenizerSteps = 64;

// Describes a pattern to look for: the text itself, or a regular expression (regex.h).
struct TextPattern {
  std::string text;
  bool is_regex = false;
};

enum class UnicodeForm : int32_t { nfc, nfd, nfkc, nfkd };
struct PrependText {  // before a segment that is not empty
  std::string text;
};
struct ReplaceText {  // every match
  TextPattern pattern;
  std::string replacement;
};
struct StripWhiteSpace {
  bool left = false;
  bool right = false;
};
using NormalizerStep = std::variant<UnicodeForm, PrependText, ReplaceText, StripWhiteSpace>;

// Says what happens to the matches of a split.
enum class SplitBehavior : int32_t { isolated, removed, merged_with_previous, merged_with_next, contiguous };
struct SplitText {
  TextPattern pattern;
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;  // what is between the matches counts as the matches
};
struct PrefixSpace {};  // a space before a piece that has none there
enum class PrependScheme : int32_t { never, first, always };
struct Metaspace {  // spaces become `replacement`
  std::string replacement;
  PrependScheme prepend =
      PrependScheme::always;  // `replacement` before a piece that has none there; first: only at the text's beginning
  bool split = true;          // each `replacement` begins a piece
};
using PreTokenizerStep = std::variant<SplitText, PrefixSpace, Metaspace>;

// Says where a text that is encoded begins. Steps that put something before a text look at it.
enum class TextStart : int32_t {
  text,     // nothing comes before it
  segment,  // a token that was cut out, or a marker, comes before it
  inside,   // other text comes before it, and has been encoded
};

// ---- The model ----

enum class TokenizerModel : int32_t {
  unset = 0,
  bpe,      // merges neighbours in the order of a list
  spm_bpe,  // SentencePiece's BPE: merges the neighbours whose joined text is the token with the highest score
  unigram,  // the tokens whose scores have the largest sum
};

struct TokenMerge {
  std::string left;
  std::string right;
};

// Holds one of several chat templates of a model, besides the default one.
struct NamedChatTemplate {
  std::string name;
  std::string source;
};

struct TokenizerData {
  std::vector<std::string> tokens;   // by id
  std::vector<int32_t> token_types;  // values of TokenType; empty: all normal
  std::vector<double> scores;        // spm_bpe and unigram: as many as tokens
  std::vector<TokenMerge> merges;    // bpe: the first has the highest priority
  std::vector<AddedToken> added_tokens;

  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;

  TokenizerModel model = TokenizerModel::unset;
  bool byte_level = false;  // bpe: the tokens are spelled in GPT-2's alphabet of bytes, and a piece is merged from its bytes
  bool whole_pieces_first = false;  // bpe: a piece whose whole text is a token becomes that token, whatever the merges would give
  bool byte_fallback = false;       // a character without a token becomes the byte tokens of its bytes, if all of these exist
  bool fuse_unknown = false;        // neighbouring characters without a token become one unknown token
  int32_t unknown_id = -1;          // of a character without a token; -1: it is left out

  std::vector<ReplaceText> decoder;  // in this order, on the text of each token; patterns that are no regular expressions
  bool strip_first_space = false;    // a text's first space is not printed: it is the one that encoding put there

  int32_t bos_id = -1;  // here and below -1 = none
  int32_t eos_id = -1;
  int32_t eot_id = -1;
  std::vector<int32_t> end_ids;    // more tokens that end a generation
  bool add_bos = false;            // the model requires BOS at the beginning of a text,
  std::vector<int32_t> begin_ids;  // or these tokens instead, if there are any ([gMASK]<sop>)
  bool add_eos = false;            // and EOS at its end
  std::string chat_template;
  std::vector<NamedChatTemplate> named_chat_templates;
  std::vector<std::pair<std::string, std::string>> named_tokens;  // "pad_token" and its text; those of BOS and EOS follow from their ids
};

}  // namespace prologue
