// A Vocabulary has the tokens of a model by id and by text.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <prologue/engine/tokenizer/tokenizer_data.h>
#include <prologue/kernels/base/status.h>

namespace prologue {

class Vocabulary {
 public:
  // data_loss: there are no tokens, more than 31 bits can number, tokens that are equal, empty or not UTF-8, types that do not exist,
  // or byte tokens that name no byte or the byte of another one.
  static Result<Vocabulary> create(std::vector<std::string> tokens, std::vector<int32_t> types);

  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
  bool contains(int32_t id) const { return id >= 0 && id < size(); }
  // Returns an empty text outside the vocabulary.
  std::string_view text(int32_t id) const { return contains(id) ? tokens_[static_cast<size_t>(id)] : std::string_view(); }
  TokenType type(int32_t id) const;  // unused outside the vocabulary
  std::optional<int32_t> find(std::string_view text) const;
  // Returns true for the tokens that the model can make from plain text. A marker is none of them, so text never becomes one.
  bool is_text(int32_t id) const { return type(id) == TokenType::normal || type(id) == TokenType::user_defined; }
  std::optional<int32_t> find_text(std::string_view text) const;
  // data_loss: there are not as many scores as tokens, or one is not a finite number.
  Status check_scores(const std::vector<double>& scores) const;
  // Returns the token of each byte, or -1 if there is none.
  const std::array<int32_t, 256>& byte_ids() const { return byte_ids_; }

 private:
  Vocabulary() = default;

  std::vector<std::string> tokens_;  // the views below point into these; moving a Vocabulary does not move them
  std::vector<int32_t> types_;       // empty: all normal
  std::unordered_map<std::string_view, int32_t> ids_;
  std::array<int32_t, 256> byte_ids_{};
};

// Returns the byte that a byte token's text ('<0x0A>') names.
std::optional<uint8_t> byte_of_token(std::string_view text);

}  // namespace prologue
