#include <prologue/engine/tokenizer/tokenizer.h>

#include <unordered_map>
#include <unordered_set>

#include <prologue/engine/base/printable.h>
#include <prologue/engine/base/utf8.h>
#include <prologue/engine/tokenizer/byte_alphabet.h>
#include <prologue/engine/tokenizer/unicode.h>
#include <prologue/kernels/base/out_of_memory.h>

namespace prologue {
namespace {

constexpr size_t kMaxTextBytes = size_t{64} << 20;

bool is_special(TokenType type) {
  return type == TokenType::control || type == TokenType::unknown || type == TokenType::user_defined;
}

Status check_id(const char* name, int32_t id, const Vocabulary& vocabulary) {
  if (id == -1 || vocabulary.contains(id)) return ok_status();
  return data_loss("the tokenizer's ", name, " token is ", id, ", but the vocabulary has ", vocabulary.size(), " tokens");
}

Status check_ids(const TokenizerData& data, const Vocabulary& vocabulary) {
  PROLOGUE_RETURN_IF_ERROR(check_id("BOS", data.bos_id, vocabulary));
  PROLOGUE_RETURN_IF_ERROR(check_id("EOS", data.eos_id, vocabulary));
  PROLOGUE_RETURN_IF_ERROR(check_id("EOT", data.eot_id, vocabulary));
  PROLOGUE_RETURN_IF_ERROR(check_id("unknown", data.unknown_id, vocabulary));
  for (const int32_t id : data.end_ids) PROLOGUE_RETURN_IF_ERROR(check_id("end-of-generation", id, vocabulary));
  for (const int32_t id : data.begin_ids) {
    if (id < 0) return data_loss("the tokenizer begins a text with the token ", id, ": it must be an id");
    PROLOGUE_RETURN_IF_ERROR(check_id("first", id, vocabulary));
  }
  if (data.add_bos && data.begin_ids.empty() && data.bos_id < 0)
    return data_loss("the tokenizer is to add a BOS token, but has none");
  if (data.add_eos && data.eos_id < 0) return data_loss("the tokenizer is to add an EOS token, but has none");
  return ok_status();
}

Result<std::variant<Bpe, Unigram>> create_model(const TokenizerData& data, const Vocabulary& vocabulary) {
  if (data.model == TokenizerModel::unigram) {
    PROLOGUE_ASSIGN_OR_RETURN(Unigram unigram, Unigram::create(data, vocabulary));
    return std::variant<Bpe, Unigram>(std::move(unigram));
  }
  if (data.model != TokenizerModel::bpe && data.model != TokenizerModel::spm_bpe) {
    return invalid_argument("the tokenizer's model is ", static_cast<int32_t>(data.model),
                            ": it must be bpe, spm_bpe or unigram");
  }
  PROLOGUE_ASSIGN_OR_RETURN(Bpe bpe, Bpe::create(data, vocabulary));
  return std::variant<Bpe, Unigram>(std::move(bpe));
}

constexpr size_t kMostPrintedBytes = size_t{64} << 10;        // of a token that the decoder changes,
constexpr size_t kMostPrintedBytesInAll = size_t{256} << 20;  // and of all of them, in all steps

// Replaces every `from` in `text` by `to`, but the result ends where it gets longer than kMostPrintedBytes.
std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  for (size_t at = 0;;) {
    const size_t found = text.find(from, at);
    result += text.substr(at, found - at);
    if (found == std::string_view::npos || result.size() > kMostPrintedBytes) return result;
    result += to;
    at = found + from.size();
  }
}

}  // namespace

Result<Tokenizer> Tokenizer::create(TokenizerData data) {
  return catch_out_of_memory([&] { return create_checked(std::move(data)); });
}

Result<Tokenizer> Tokenizer::create_checked(TokenizerData data) {
  PROLOGUE_ASSIGN_OR_RETURN(Normalizer normalizer, Normalizer::create(data.normalizer));
  PROLOGUE_ASSIGN_OR_RETURN(PreTokenizer pre_tokenizer, PreTokenizer::create(data.pre_tokenizer));
  PROLOGUE_ASSIGN_OR_RETURN(Vocabulary indexed, Vocabulary::create(std::move(data.tokens), std::move(data.token_types)));
  auto vocabulary = std::make_unique<const Vocabulary>(std::move(indexed));
  PROLOGUE_RETURN_IF_ERROR(check_ids(data, *vocabulary));
  PROLOGUE_ASSIGN_OR_RETURN(auto model, create_model(data, *vocabulary));

  Tokenizer tokenizer(std::move(vocabulary), std::move(normalizer), std::move(pre_tokenizer), std::move(model));
  PROLOGUE_RETURN_IF_ERROR(tokenizer.index_special_tokens(data.added_tokens));
  PROLOGUE_RETURN_IF_ERROR(tokenizer.index_printed(data));
  tokenizer.strip_first_space_ = data.strip_first_space;
  tokenizer.bos_id_ = data.bos_id;
  tokenizer.eos_id_ = data.eos_id;
  tokenizer.eot_id_ = data.eot_id;
  tokenizer.add_bos_ = data.add_bos;
  tokenizer.add_eos_ = data.add_eos;
  tokenizer.begin_ids_ = std::move(data.begin_ids);
  if (tokenizer.begin_ids_.empty() && data.bos_id >= 0) tokenizer.begin_ids_ = {data.bos_id};
  tokenizer.chat_template_ = std::move(data.chat_template);
  tokenizer.named_chat_templates_ = std::move(data.named_chat_templates);
  for (const auto& [name, id] : {std::pair{"bos_token", data.bos_id}, {"eos_token", data.eos_id}}) {
    if (id >= 0) tokenizer.named_tokens_.emplace_back(name, tokenizer.token_text(id));
  }
  for (auto& named : data.named_tokens) tokenizer.named_tokens_.push_back(std::move(named));
  data.end_ids.push_back(data.eos_id);
  data.end_ids.push_back(data.eot_id);
  for (const int32_t id : data.end_ids) {
    if (id >= 0 && !tokenizer.is_end_of_generation(id)) tokenizer.end_ids_.push_back(id);
  }
  return tokenizer;
}

Status Tokenizer::index_special_tokens(const std::vector<AddedToken>& added_tokens) {
  for (const AddedToken& token : added_tokens) {
    if (!is_special(type(token.id))) {
      return data_loss("the added token ", token.id, ", ", in_quotes(token_text(token.id)),
                       ", is neither a marker nor user-defined");
    }
    added_tokens_[token.id] = token;
  }
  std::vector<SpecialToken> all, plain, normalized;
  std::vector<std::string> normalized_texts;  // the views of SpecialToken point into these
  normalized_texts.reserve(added_tokens_.size());
  std::unordered_set<std::string_view> normalized_seen;
  size_t normalized_bytes = 0, work_left = Normalizer::kWork;
  for (int32_t id = 0; id < vocab_size(); ++id) {
    if (!is_special(type(id))) continue;
    const auto found = added_tokens_.find(id);
    const AddedToken token = found == added_tokens_.end() ? AddedToken{} : found->second;
    SpecialToken special = {token_text(id),   id, type(id) == TokenType::user_defined, token.strip_left, token.strip_right,
                            token.single_word};
    all.push_back(special);
    if (!token.normalized) {
      plain.push_back(special);
      continue;
    }
    work_left += Normalizer::kWorkPerByte * special.text.size();
    PROLOGUE_ASSIGN_OR_RETURN(std::string text, normalizer_.normalize(special.text, TextStart::text, work_left));
    PROLOGUE_RETURN_IF_ERROR(check_special_bytes(normalized_bytes += text.size()));
    special.text = normalized_texts.emplace_back(std::move(text));
    // A token without a text cannot be found. Of tokens with the same normalized text, the first counts.
    if (!special.text.empty() && normalized_seen.insert(special.text).second) normalized.push_back(special);
  }
  PROLOGUE_ASSIGN_OR_RETURN(all_special_tokens_, SpecialTokens::create(all));
  PROLOGUE_ASSIGN_OR_RETURN(special_tokens_, SpecialTokens::create(plain));
  PROLOGUE_ASSIGN_OR_RETURN(normalized_special_tokens_, SpecialTokens::create(normalized));
  return ok_status();
}

Status Tokenizer::index_printed(const TokenizerData& data) {
  if (data.decoder.size() > kMaxTokenizerSteps) {
    return unsupported("the decoder has ", data.decoder.size(), " steps: at most ", kMaxTokenizerSteps, " are supported");
  }
  for (const ReplaceText& step : data.decoder) {
    if (step.pattern.is_regex || step.pattern.text.empty() || !is_valid_utf8(step.replacement)) {
      return data_loss("a step of the decoder replaces ", in_quotes(step.pattern.text), " by ", in_quotes(step.replacement),
                       ": it must replace a text by UTF-8");
    }
  }
  const ByteAlphabet alphabet;
  printed_.resize(static_cast<size_t>(vocab_size()));
  size_t written = 0;
  for (int32_t id = 0; id < vocab_size(); ++id) {
    const std::string_view text = token_text(id);
    std::string& printed = printed_[static_cast<size_t>(id)];
    if (type(id) == TokenType::byte) {
      printed = static_cast<char>(*byte_of_token(text));
    } else if (vocabulary_->is_text(id)) {
      std::optional<std::string> bytes;
      if (data.byte_level && type(id) == TokenType::normal) bytes = alphabet.decode(text);
      printed = bytes ? std::move(*bytes) : std::string(text);
      for (const ReplaceText& step : data.decoder) {
        printed = replaced(printed, step.pattern.text, step.replacement);
        if (printed.size() > kMostPrintedBytes) {
          return unsupported("the decoder makes the token ", id, " longer than ", kMostPrintedBytes, " bytes");
        }
        if ((written += printed.size()) > kMostPrintedBytesInAll) {
          return unsupported("the decoder's steps write more than ", kMostPrintedBytesInAll, " bytes for all tokens");
        }
      }
    }
  }
  return ok_status();
}

// ---- Encoding ----

// Owns memory for encoding, reused for each segment.
struct Tokenizer::Workspace {
  std::vector<SpecialTokens::Match> special_tokens;
  std::vector<SpecialTokens::Match> normalized_special_tokens;
  size_t normalizer_work = Normalizer::kWork;  // what is left of it
  TextPieces pieces;
  Bpe::Workspace bpe;
};

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text, bool parse_special, bool add_bos) const {
  return catch_out_of_memory([&] { return encode_text(text, parse_special, add_bos); });
}

Result<std::vector<int32_t>> Tokenizer::encode_text(std::string_view text, bool parse_special, bool add_bos) const {
  std::vector<int32_t> ids;
  if (add_bos) {
    if (begin_ids_.empty()) return invalid_argument("a BOS token is to be added, but the model's vocabulary has none");
    ids = begin_ids_;
  }
  Workspace workspace;
  PROLOGUE_RETURN_IF_ERROR(append_text(text, TextStart::text, parse_special, workspace, ids));
  return ids;
}

Result<std::vector<int32_t>> Tokenizer::encode_parts(std::span<const TextPart> parts, TextStart start) const {
  return catch_out_of_memory([&]() -> Result<std::vector<int32_t>> {
    const auto strips = [&](size_t part, bool AddedToken::*side) {
      const auto found = part < parts.size() ? added_tokens_.find(parts[part].marker) : added_tokens_.end();
      return found != added_tokens_.end() && found->second.*side;
    };
    std::vector<int32_t> ids;
    Workspace workspace;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].marker >= 0) {
        if (!contains(parts[i].marker)) return invalid_argument("the marker ", parts[i].marker, " is no token of the vocabulary");
        ids.push_back(parts[i].marker);
        continue;
      }
      const StripWhiteSpace strip = {i > 0 && strips(i - 1, &AddedToken::strip_right), strips(i + 1, &AddedToken::strip_left)};
      const TextStart begin = i == 0 ? start : parts[i - 1].marker >= 0 ? TextStart::segment : TextStart::inside;
      const std::string text = replace_invalid_bytes(parts[i].text);
      PROLOGUE_RETURN_IF_ERROR(append_text(stripped(text, strip), begin, /*parse_special=*/false, workspace, ids));
    }
    return ids;
  });
}

void Tokenizer::append_parts(std::string_view text, bool parse_special, std::vector<TextPart>& parts) const {
  std::vector<SpecialTokens::Match> special_tokens;
  if (parse_special) all_special_tokens_.find(text, true, special_tokens);
  const auto append_plain_text = [&](std::string_view plain) {
    if (plain.empty()) return;
    if (parts.empty() || parts.back().marker >= 0) parts.emplace_back();
    parts.back().text += plain;
  };
  size_t begin = 0;
  for (const SpecialTokens::Match& special : special_tokens) {
    if (type(special.id) == TokenType::user_defined) continue;  // found in every text, so in plain text, too
    append_plain_text(text.substr(begin, special.begin - begin));
    parts.push_back({special.id, {}});
    begin = special.begin + special.size;
  }
  append_plain_text(text.substr(begin));
}

Status Tokenizer::append_text(std::string_view text, TextStart start, bool parse_special, Workspace& workspace,
                              std::vector<int32_t>& ids) const {
  const size_t given_bytes = text.size();
  std::string valid_text;
  if (given_bytes <= kMaxTextBytes && !is_valid_utf8(text)) text = valid_text = replace_invalid_bytes(text);
  if (text.size() > kMaxTextBytes) {
    const std::string replaced =
        valid_text.empty() ? "" : str_cat(", ", text.size(), " with U+FFFD for each one that is not UTF-8");
    return invalid_argument("the text has ", given_bytes, " bytes", replaced, ": at most ", kMaxTextBytes,
                            " can be encoded at once");
  }
  workspace.normalizer_work += Normalizer::kWorkPerByte * text.size();
  auto& special_tokens = workspace.special_tokens;
  special_tokens.clear();
  special_tokens_.find(text, parse_special, special_tokens);
  size_t begin = 0;
  for (const SpecialTokens::Match& special : special_tokens) {
    PROLOGUE_RETURN_IF_ERROR(append_segment(text.substr(begin, special.begin - begin), start, parse_special, workspace, ids));
    ids.push_back(special.id);
    begin = special.begin + special.size;
    start = TextStart::segment;
  }
  return append_segment(text.substr(begin), start, parse_special, workspace, ids);
}

Status Tokenizer::append_segment(std::string_view text, TextStart start, bool parse_special, Workspace& workspace,
                                 std::vector<int32_t>& ids) const {
  std::string normalized_text;
  if (!normalizer_.is_empty()) {
    PROLOGUE_ASSIGN_OR_RETURN(normalized_text, normalizer_.normalize(text, start, workspace.normalizer_work));
    text = normalized_text;
  }
  auto& special_tokens = workspace.normalized_special_tokens;
  special_tokens.clear();
  normalized_special_tokens_.find(text, parse_special, special_tokens);
  size_t begin = 0;
  for (const SpecialTokens::Match& special : special_tokens) {
    PROLOGUE_RETURN_IF_ERROR(append_plain(text.substr(begin, special.begin - begin), start, workspace, ids));
    ids.push_back(special.id);
    begin = special.begin + special.size;
    start = TextStart::segment;
  }
  return append_plain(text.substr(begin), start, workspace, ids);
}

Status Tokenizer::append_plain(std::string_view text, TextStart start, Workspace& workspace, std::vector<int32_t>& ids) const {
  PROLOGUE_RETURN_IF_ERROR(pre_tokenizer_.split(text, start, workspace.pieces));
  for (const std::string_view piece : workspace.pieces.pieces) {
    if (const auto* bpe = std::get_if<Bpe>(&model_)) {
      bpe->encode(piece, workspace.bpe, ids);
    } else {
      std::get<Unigram>(model_).encode(piece, ids);
    }
  }
  return ok_status();
}

// ---- Decoding ----

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  StreamDecoder decoder(*this);
  std::string text;
  for (const int32_t id : ids) text += decoder.push(id);
  return text + decoder.finish();
}

std::string StreamDecoder::push(int32_t id) {
  std::string bytes = unfinished_ + std::string(tokenizer_->printed_bytes(id));
  if (at_first_space_ && !bytes.empty()) {
    if (bytes.front() == ' ') bytes.erase(0, 1);
    at_first_space_ = false;
  }
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
  at_first_space_ = !continues_text_ && tokenizer_->strip_first_space_;
  return is_unfinished ? std::string(kReplacementCharacter) : std::string();
}

}  // namespace prologue
