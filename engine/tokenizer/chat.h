// Conversations as the tokens that a chat model was trained on. Only the format's own markers become control tokens: what people
// write stays plain text, even where it spells a marker.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <prologue/engine/tokenizer/tokenizer.h>
#include <prologue/kernels/base/status.h>

namespace prologue {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant", or what else the model knows
  std::string content;
};

// The chat format of a model, recognised from the template in its file. The template itself is not executed:
//   ChatML   <|im_start|>ROLE \n CONTENT <|im_end|> \n
//   Llama 3  <|start_header_id|>ROLE<|end_header_id|> \n\n CONTENT <|eot_id|>, with CONTENT stripped of white space at both ends
// Two more things are taken from its text: the BOS token comes first where the template mentions bos_token, and
// a conversation that does not begin with a system message gets the ChatML system message that the template spells out, if it
// does. What else a template does (tools, thinking, dates) is left out.
class ChatFormat {
 public:
  // The tokenizer must outlive the format. not_found: the model has no chat template. unsupported: the template is neither
  // format. data_loss: the vocabulary lacks one of the format's markers as a control token.
  static Result<ChatFormat> detect(const Tokenizer& tokenizer);

  const char* name() const;  // "ChatML", "Llama 3"
  // The marker that ends every message: where an answer is over, besides Tokenizer::is_end_of_generation.
  int32_t end_of_turn() const { return end_of_turn_; }
  // Empty: the format adds none.
  const std::string& default_system_message() const { return default_system_message_; }

  // The whole conversation; with add_generation_prompt, up to where the assistant's answer begins. invalid_argument: there is no
  // message, or one has no role.
  Result<std::vector<int32_t>> encode_chat(std::span<const ChatMessage> messages, bool add_generation_prompt) const;

  // The next turn of a running conversation: what comes after the tokens of the assistant's answer (which are without their end
  // marker), up to where the next answer begins.
  Result<std::vector<int32_t>> encode_next_turn(const ChatMessage& message) const;

 private:
  enum class Style { chatml, llama3 };
  ChatFormat(const Tokenizer& tokenizer, Style style) : tokenizer_(&tokenizer), style_(style) {}
  static Result<ChatFormat> detect_from(const Tokenizer& tokenizer);
  Status find_markers();
  Result<std::vector<int32_t>> join_messages(std::span<const ChatMessage> messages, bool add_generation_prompt) const;
  Status append_plain(std::string_view text, std::vector<int32_t>& ids) const;
  Status append_header(std::string_view role, std::string_view content, std::vector<int32_t>& ids) const;
  Status append_end_of_turn(std::vector<int32_t>& ids) const;
  Status append_message(const ChatMessage& message, std::vector<int32_t>& ids) const;

  const Tokenizer* tokenizer_;
  Style style_;
  bool starts_with_bos_ = false;
  std::string default_system_message_;
  int32_t start_of_header_ = -1;
  int32_t end_of_header_ = -1;  // Llama 3 only
  int32_t end_of_turn_ = -1;
};

}  // namespace prologue
