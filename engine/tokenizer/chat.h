// Encodes conversations in the format that a chat model was trained on. Only the format's own markers become control tokens. The
// content of a message is always plain text, even if it contains the text of a marker.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <prologue/engine/tokenizer/tokenizer.h>
#include <prologue/kernels/base/status.h>

namespace prologue {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant", or another role of the model
  std::string content;
};

// The chat format of a model, recognised from the template in its file. The template itself is not executed:
//   ChatML   <|im_start|>ROLE \n CONTENT <|im_end|> \n
//   Llama 3  <|start_header_id|>ROLE<|end_header_id|> \n\n CONTENT <|eot_id|>, with CONTENT stripped of white space at both ends
// Two more things are taken from the template. If it contains bos_token, the BOS token comes first. If it contains a default ChatML
// system message, a conversation without a system message at its beginning gets that one. Everything else that a template may do
// (tools, thinking, dates) is not supported.
class ChatFormat {
 public:
  // The tokenizer must outlive the format. not_found: the model has no chat template. unsupported: the template is neither
  // format. data_loss: the vocabulary lacks one of the format's markers as a control token.
  static Result<ChatFormat> detect(const Tokenizer& tokenizer);

  const char* name() const;  // "ChatML", "Llama 3"
  // The marker that ends every message. An answer ends at this token, or where Tokenizer::is_end_of_generation is true.
  int32_t end_of_turn() const { return end_of_turn_; }
  // Empty: the format adds no system message.
  const std::string& default_system_message() const { return default_system_message_; }

  // The whole conversation; with add_generation_prompt, followed by the header of the assistant's answer. invalid_argument: there is
  // no message, or one has no role.
  Result<std::vector<int32_t>> encode_chat(std::span<const ChatMessage> messages, bool add_generation_prompt) const;

  // `message` as the next turn of a conversation. The result follows the tokens of the assistant's last answer (without its end
  // marker): the end marker, the message, and the header of the next answer.
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
