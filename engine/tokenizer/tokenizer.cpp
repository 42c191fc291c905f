#include <prologue/engine/tokenizer/tokenizer.h>

#include <limits>
#include <queue>

#include <prologue/engine/tokenizer/utf8.h>
#include <prologue/kernels/base/host/out_of_memory.h>

namespace prologue {
namespace {

constexpr size_t kMaxTextBytes = size_t{64} << 20;
constexpr size_t kMaxTokens = std::numeric_limits<int32_t>::max();

// GPT-2's alphabet: byte-level vocabularies write each byte as one printable character. Printable Latin-1 bytes represent
// themselves; the others are numbered from U+0100 in order.
class ByteAlphabet {
 public:
  ByteAlphabet() {
    bytes_.fill(-1);
    int next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
      const int character = printable ? byte : next++;
      bytes_[static_cast<size_t>(character)] = static_cast<int16_t>(byte);
    }
  }

  // The bytes that `text` (valid UTF-8) represents; nothing if it has characters outside the alphabet.
  std::optional<std::string> decode(std::string_view text) const {
    std::string bytes;
    for (size_t i = 0; i < text.size(); ++i) {
      size_t character = static_cast<unsigned char>(text[i]);
      if (character >= 0x80) {
        if (character >= 0xe0) return std::nullopt;  // the alphabet ends at U+0143: one or two bytes each
        character = (character & 0x1f) << 6 | (static_cast<unsigned char>(text[++i]) & 0x3f);
      }
      if (character >= bytes_.size() || bytes_[character] < 0) return std::nullopt;
      bytes += static_cast<char>(bytes_[character]);
    }
    return bytes;
  }

 private:
  std::array<int16_t, 0x144> bytes_{};
};

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

bool is_control(TokenType type) { return type == TokenType::control || type == TokenType::unknown; }

Status check_id(const char* key, int32_t id, size_t vocab_size) {
  if (id >= -1 && id < static_cast<int64_t>(vocab_size)) return ok_status();
  return data_loss("tokenizer.ggml.", key, " is ", id, ", but the vocabulary has ", vocab_size, " tokens");
}

}  // namespace

Result<Tokenizer> Tokenizer::create(TokenizerData data) {
  return catch_out_of_memory([&] { return create_checked(std::move(data)); });
}

Result<Tokenizer> Tokenizer::create_checked(TokenizerData data) {
  if (data.model != "gpt2") {
    return unsupported("the tokenizer model ", in_quotes(data.model),
                       " (tokenizer.ggml.model) is not supported: supported is gpt2 (byte-level BPE)");
  }
  PROLOGUE_ASSIGN_OR_RETURN(PreTokenizer pre_tokenizer, PreTokenizer::create(data.pre));
  const size_t num_tokens = data.tokens.size();
  if (num_tokens == 0) return data_loss("the vocabulary (tokenizer.ggml.tokens) is empty");
  if (num_tokens > kMaxTokens || data.merges.size() > kMaxTokens) {
    return data_loss("the vocabulary has ", num_tokens, " tokens and ", data.merges.size(), " merges: both must fit 31 bits");
  }
  if (!data.token_types.empty() && data.token_types.size() != num_tokens) {
    return data_loss("tokenizer.ggml.token_type has ", data.token_types.size(), " entries, but the vocabulary has ", num_tokens,
                     " tokens");
  }
  PROLOGUE_RETURN_IF_ERROR(check_id("bos_token_id", data.bos_id, num_tokens));
  PROLOGUE_RETURN_IF_ERROR(check_id("eos_token_id", data.eos_id, num_tokens));
  PROLOGUE_RETURN_IF_ERROR(check_id("eot_token_id", data.eot_id, num_tokens));
  if (data.add_bos && data.bos_id < 0) return data_loss("tokenizer.ggml.add_bos_token is true, but there is no bos_token_id");

  Tokenizer tokenizer(std::move(data), std::move(pre_tokenizer));
  PROLOGUE_RETURN_IF_ERROR(tokenizer.index_tokens());
  PROLOGUE_RETURN_IF_ERROR(tokenizer.index_merges());
  return tokenizer;
}

Status Tokenizer::index_tokens() {
  const ByteAlphabet alphabet;
  byte_ids_.fill(-1);
  printed_.resize(data_.tokens.size());
  ids_by_text_.reserve(data_.tokens.size());
  std::vector<SpecialToken> special_tokens;
  for (int32_t id = 0; id < vocab_size(); ++id) {
    const std::string& text = data_.tokens[static_cast<size_t>(id)];
    if (text.empty()) return data_loss("token ", id, " is empty");
    if (!is_valid_utf8(text)) return data_loss("token ", id, ", ", in_quotes(text), ", is not UTF-8");
    if (const auto [first, is_new] = ids_by_text_.emplace(text, id); !is_new) {
      return data_loss("tokens ", first->second, " and ", id, " are both ", in_quotes(text));
    }
    const int32_t type_number = data_.token_types.empty() ? 1 : data_.token_types[static_cast<size_t>(id)];
    if (type_number < static_cast<int32_t>(TokenType::normal) || type_number > static_cast<int32_t>(TokenType::unused)) {
      return data_loss("token ", id, ", ", in_quotes(text), ", has the type ", type_number,
                       ": byte-level BPE knows 1 (normal) to 5 (unused)");
    }
    const TokenType token_type = type(id);
    std::string& printed = printed_[static_cast<size_t>(id)];
    if (token_type == TokenType::normal) {
      const std::optional<std::string> bytes = alphabet.decode(text);
      printed = bytes ? *bytes : text;
      if (bytes && bytes->size() == 1) byte_ids_[static_cast<unsigned char>(bytes->front())] = id;
      if (bytes && pre_tokenizer_.whole_pieces_first()) whole_pieces_.emplace(printed, id);
    } else if (token_type != TokenType::unused) {
      if (token_type == TokenType::user_defined) printed = text;
      special_tokens.push_back({text, id, token_type == TokenType::user_defined});
    }
  }
  PROLOGUE_ASSIGN_OR_RETURN(special_tokens_, SpecialTokens::create(special_tokens));
  return ok_status();
}

Status Tokenizer::index_merges() {
  merges_.reserve(data_.merges.size());
  for (size_t rank = 0; rank < data_.merges.size(); ++rank) {
    const std::string_view line = data_.merges[rank];
    const size_t space = line.find(' ');
    if (space == 0 || space >= line.size() - 1 || line.find(' ', space + 1) != std::string_view::npos) {
      return data_loss("merge ", rank, ", ", in_quotes(line), ", is not two tokens with one space between them");
    }
    std::string joined(line);
    joined.erase(space, 1);
    std::array<int32_t, 3> ids{};
    const std::array<std::string_view, 3> texts = {line.substr(0, space), line.substr(space + 1), joined};
    for (size_t i = 0; i < texts.size(); ++i) {
      const std::optional<int32_t> id = find(texts[i]);
      if (!id)
        return data_loss("merge ", rank, ", ", in_quotes(line), ", needs the token ", in_quotes(texts[i]),
                         ", which the vocabulary lacks");
      // Otherwise plain text could become a marker.
      if (is_control(type(*id)))
        return data_loss("merge ", rank, ", ", in_quotes(line), ", has to do with the control token ", in_quotes(texts[i]));
      ids[i] = *id;
    }
    if (!merges_.emplace(pair_key(ids[0], ids[1]), Merge{static_cast<int32_t>(rank), ids[2]}).second) {
      return data_loss("merge ", rank, ", ", in_quotes(line), ", is there twice");
    }
  }
  data_.merges = {};  // no longer needed, and as large as the vocabulary
  return ok_status();
}

std::optional<int32_t> Tokenizer::find(std::string_view token_text) const {
  const auto found = ids_by_text_.find(token_text);
  return found == ids_by_text_.end() ? std::nullopt : std::optional(found->second);
}

TokenType Tokenizer::type(int32_t id) const {
  if (!contains(id)) return TokenType::unused;
  return data_.token_types.empty() ? TokenType::normal : static_cast<TokenType>(data_.token_types[static_cast<size_t>(id)]);
}

// ---- Encoding ----

// Memory for encoding, reused for each piece. The symbols of a piece are a linked list over its byte positions.
struct Tokenizer::Workspace {
  struct Symbol {
    int32_t id;  // -1: a byte that the vocabulary lacks, or merged into the symbol on its left
    int32_t previous;
    int32_t next;  // the piece's size at the end
  };
  struct Candidate {
    uint64_t order;  // rank, then position: the merge that goes first is the smallest
    uint64_t pair;   // the ids that it joins; if the symbols have other ids now, the merge is out of date
    int32_t left;
    int32_t result;
    bool operator>(const Candidate& other) const { return order > other.order; }
  };
  std::vector<SpecialTokens::Match> special_tokens;
  std::vector<std::string_view> pieces;
  std::vector<Symbol> symbols;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
};

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text, bool parse_special, bool add_bos) const {
  return catch_out_of_memory([&] { return encode_text(text, parse_special, add_bos); });
}

Result<std::vector<int32_t>> Tokenizer::encode_text(std::string_view text, bool parse_special, bool add_bos) const {
  if (text.size() > kMaxTextBytes) {
    return invalid_argument("the text has ", text.size(), " bytes: at most ", kMaxTextBytes, " can be encoded at once");
  }
  std::vector<int32_t> ids;
  if (add_bos) {
    if (bos_id() < 0) return invalid_argument("a BOS token is to be added, but the model's vocabulary has none");
    ids.push_back(bos_id());
  }
  std::string valid_text;
  if (!is_valid_utf8(text)) {
    const size_t given_bytes = text.size();
    text = valid_text = replace_invalid_bytes(text);
    if (text.size() > kMaxTextBytes) {
      return invalid_argument("the text has ", given_bytes, " bytes, ", text.size(),
                              " with U+FFFD for each one that is not UTF-8: at most ", kMaxTextBytes, " can be encoded at once");
    }
  }

  Workspace workspace;
  special_tokens_.find(text, parse_special, workspace.special_tokens);
  size_t plain_begin = 0;
  for (const SpecialTokens::Match& special : workspace.special_tokens) {
    PROLOGUE_RETURN_IF_ERROR(encode_plain(text.substr(plain_begin, special.begin - plain_begin), workspace, ids));
    ids.push_back(special.id);
    plain_begin = special.begin + special.size;
  }
  PROLOGUE_RETURN_IF_ERROR(encode_plain(text.substr(plain_begin), workspace, ids));
  return ids;
}

Status Tokenizer::encode_plain(std::string_view text, Workspace& workspace, std::vector<int32_t>& ids) const {
  workspace.pieces.clear();
  PROLOGUE_RETURN_IF_ERROR(pre_tokenizer_.split(text, workspace.pieces));
  for (const std::string_view piece : workspace.pieces) encode_piece(piece, workspace, ids);
  return ok_status();
}

// Adds the merge of the symbol at `left` with the symbol to its right, if the vocabulary has this merge.
void Tokenizer::push_merge(int32_t left, Workspace& workspace) const {
  const Workspace::Symbol& symbol = workspace.symbols[static_cast<size_t>(left)];
  if (symbol.next >= static_cast<int32_t>(workspace.symbols.size())) return;
  const uint64_t pair = pair_key(symbol.id, workspace.symbols[static_cast<size_t>(symbol.next)].id);
  const auto merge = merges_.find(pair);  // never found with an id of -1
  if (merge == merges_.end()) return;
  const uint64_t order = static_cast<uint64_t>(merge->second.rank) << 32 | static_cast<uint32_t>(left);
  workspace.candidates.push({order, pair, left, merge->second.result});
}

// Byte-pair encoding: of all neighbours that can be merged, merges the pair that is first in the merge list (the leftmost of equal
// pairs), until no pair can be merged.
void Tokenizer::encode_piece(std::string_view piece, Workspace& workspace, std::vector<int32_t>& ids) const {
  if (const auto whole = whole_pieces_.find(piece); whole != whole_pieces_.end()) {
    ids.push_back(whole->second);
    return;
  }
  const auto size = static_cast<int32_t>(piece.size());
  auto& symbols = workspace.symbols;
  symbols.clear();
  for (int32_t i = 0; i < size; ++i) {
    symbols.push_back({byte_ids_[static_cast<unsigned char>(piece[static_cast<size_t>(i)])], i - 1, i + 1});
  }
  for (int32_t i = 0; i < size; ++i) push_merge(i, workspace);

  while (!workspace.candidates.empty()) {
    const Workspace::Candidate merge = workspace.candidates.top();
    workspace.candidates.pop();
    Workspace::Symbol& left = symbols[static_cast<size_t>(merge.left)];
    if (left.next >= size) continue;
    Workspace::Symbol& right = symbols[static_cast<size_t>(left.next)];
    if (pair_key(left.id, right.id) != merge.pair) continue;
    left.id = merge.result;
    right.id = -1;
    left.next = right.next;
    if (left.next < size) symbols[static_cast<size_t>(left.next)].previous = merge.left;
    if (left.previous >= 0) push_merge(left.previous, workspace);
    push_merge(merge.left, workspace);
  }
  for (int32_t i = 0; i < size; i = symbols[static_cast<size_t>(i)].next) {
    if (symbols[static_cast<size_t>(i)].id >= 0) ids.push_back(symbols[static_cast<size_t>(i)].id);
  }
}

// ---- Decoding ----

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  StreamDecoder decoder(*this);
  std::string text;
  for (const int32_t id : ids) text += decoder.push(id);
  return text + decoder.finish();
}

std::string StreamDecoder::push(int32_t id) {
  const std::string bytes = unfinished_ + std::string(tokenizer_->printed_bytes(id));
  std::string_view rest = bytes;
  std::string text;
  unfinished_.clear();
  while (!rest.empty()) {
    const Utf8Prefix prefix = utf8_prefix(rest);
    switch (prefix.kind) {
      case Utf8Prefix::Kind::character: text += rest.substr(0, prefix.length); break;
      case Utf8Prefix::Kind::invalid: text += kReplacementCharacter; break;
      case Utf8Prefix::Kind::unfinished: unfinished_ = rest; break;
    }
    rest.remove_prefix(prefix.length);
  }
  return text;
}

std::string StreamDecoder::finish() {
  const bool is_unfinished = !unfinished_.empty();
  unfinished_.clear();
  return is_unfinished ? std::string(kReplacementCharacter) : std::string();
}

}  // namespace prologue
