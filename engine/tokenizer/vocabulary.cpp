#include <prologue/engine/tokenizer/vocabulary.h>

#include <cmath>
#include <limits>

#include <prologue/engine/base/printable.h>
#include <prologue/engine/base/utf8.h>

namespace prologue {

std::optional<uint8_t> byte_of_token(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return std::nullopt;
  const size_t high = kDigits.find(text[3]), low = kDigits.find(text[4]);
  if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
  return static_cast<uint8_t>(high << 4 | low);
}

Result<Vocabulary> Vocabulary::create(std::vector<std::string> tokens, std::vector<int32_t> types) {
  if (tokens.empty()) return data_loss("the vocabulary is empty");
  if (tokens.size() > std::numeric_limits<int32_t>::max()) {
    return data_loss("the vocabulary has ", tokens.size(), " tokens: the number must fit 31 bits");
  }
  if (!types.empty() && types.size() != tokens.size()) {
    return data_loss("the vocabulary has ", tokens.size(), " tokens, but ", types.size(), " types of tokens");
  }
  Vocabulary vocabulary;
  vocabulary.tokens_ = std::move(tokens);
  vocabulary.types_ = std::move(types);
  vocabulary.byte_ids_.fill(-1);
  vocabulary.ids_.reserve(vocabulary.tokens_.size());
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    const std::string_view text = vocabulary.text(id);
    const TokenType type = vocabulary.type(id);
    if (type < TokenType::normal || type > TokenType::byte) {
      return data_loss("token ", id, ", ", in_quotes(text), ", has the type ", static_cast<int32_t>(type),
                       ": there are 1 (normal) to 6 (byte)");
    }
    if (text.empty()) {
      if (type == TokenType::unused) continue;
      return data_loss("token ", id, " is empty");
    }
    if (!is_valid_utf8(text)) return data_loss("token ", id, ", ", in_quotes(text), ", is not UTF-8");
    if (const auto [first, is_new] = vocabulary.ids_.emplace(text, id); !is_new) {
      return data_loss("tokens ", first->second, " and ", id, " are both ", in_quotes(text));
    }
    if (type != TokenType::byte) continue;
    const std::optional<uint8_t> byte = byte_of_token(text);
    if (!byte) return data_loss("token ", id, ", ", in_quotes(text), ", is a byte token: its text must be <0x00> to <0xFF>");
    vocabulary.byte_ids_[*byte] = id;
  }
  return vocabulary;
}

Status Vocabulary::check_scores(const std::vector<double>& scores) const {
  if (scores.size() != tokens_.size()) {
    return data_loss("the vocabulary has ", tokens_.size(), " tokens, but ", scores.size(), " scores");
  }
  for (size_t id = 0; id < scores.size(); ++id) {
    if (!std::isfinite(scores[id])) return data_loss("the score of token ", id, " is ", scores[id], ", not a finite number");
  }
  return ok_status();
}

TokenType Vocabulary::type(int32_t id) const {
  if (!contains(id)) return TokenType::unused;
  return types_.empty() ? TokenType::normal : static_cast<TokenType>(types_[static_cast<size_t>(id)]);
}

std::optional<int32_t> Vocabulary::find(std::string_view text) const {
  const auto found = ids_.find(text);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<int32_t> Vocabulary::find_text(std::string_view text) const {
  const std::optional<int32_t> id = find(text);
  return id && is_text(*id) ? id : std::nullopt;
}

}  // namespace prologue
