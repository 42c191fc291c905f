// Encodes conversations in the format that a chat model was trained on. Only the format's own markers become control tokens. The
// content of a message is always plain text, even if it contains the text of a marker.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <prologue/engine/tokenizer/tokenizer.h>
#include <prologue/kernels/base/status.h>

namespace prologue {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant", or another role of the model
  std::string content;
};

// The chat format of a model, recognised from the template in its files. The template itself is not executed. \n is a newline, and
// content in (brackets) is stripped of white space at both ends:
//   ChatML   <|im_start|>ROLE \n CONTENT <|im_end|> \n
//   Llama 3  <|start_header_id|>ROLE<|end_header_id|> \n\n (CONTENT) <|eot_id|>
//   Llama 2  BOS [INST] (CONTENT) [/INST] (CONTENT) EOS; the system message is in the first user message, between <<SYS>> and <</SYS>>
//   Mistral  BOS [INST] CONTENT [/INST] CONTENT EOS; which spaces are between them, and whether the brackets are control tokens, is taken
//            from the template and the vocabulary; the system message is before the first user message, or in [SYSTEM_PROMPT]
//   Gemma    <start_of_turn>ROLE \n (CONTENT) <end_of_turn> \n, with the role model for assistant; the system message is before the first
//            user message
//   Phi-3    <|ROLE|> \n CONTENT <|end|> \n; Phi-4-mini is the same without newlines
//   Phi-4    <|im_start|>ROLE<|im_sep|>CONTENT<|im_end|>
//   Zephyr   <|ROLE|> \n CONTENT EOS \n; the roles are plain text unless the vocabulary has them as control tokens
//   Harmony  <|start|>ROLE<|message|>CONTENT<|end|> (GPT-OSS); an answer is in <|channel|>final and ends at <|return|>
// Two more things are taken from the template. If it contains bos_token, the BOS token comes first. If it contains a default ChatML
// system message, a conversation without a system message at its beginning gets that one. Everything else that a template may do
// (tools, thinking, dates) is not supported.
class ChatFormat {
 public:
  // The tokenizer must outlive the format. not_found: the model has no chat template. unsupported: the template is no known
  // format. data_loss: the vocabulary lacks one of the format's markers as a control token.
  static Result<ChatFormat> detect(const Tokenizer& tokenizer);

  const char* name() const;  // "ChatML", "Llama 3"
  // The marker that ends an answer. It also ends where Tokenizer::is_end_of_generation is true.
  int32_t end_of_turn() const { return end_of_turn_; }
  // Empty: the format adds no system message.
  const std::string& default_system_message() const { return default_system_message_; }

  // The whole conversation; with add_generation_prompt, followed by the header of the assistant's answer. invalid_argument: there is
  // no message, one has no role, or the format has no place for its role: Llama 2, Mistral and Gemma have a system message only at the
  // beginning, with a user message after it, and they, Phi and Zephyr have no roles but system, user and assistant.
  Result<std::vector<int32_t>> encode_chat(std::span<const ChatMessage> messages, bool add_generation_prompt) const;

  // `message` as the next turn of a conversation. The result follows the tokens of the assistant's last answer (without its end
  // marker): the end marker, the message, and the header of the next answer.
  Result<std::vector<int32_t>> encode_next_turn(const ChatMessage& message) const;

 private:
  enum class Style { chatml, llama3, llama2, mistral, gemma, phi3, phi4, zephyr, harmony };
  struct StyleRow;
  class Parts;

  ChatFormat(const Tokenizer& tokenizer, const StyleRow& row) : tokenizer_(&tokenizer), row_(&row) {}
  static Result<ChatFormat> detect_from(const Tokenizer& tokenizer);
  Status find_markers();
  void read_template(std::string_view chat_template);
  void read_mistral_template(std::string_view chat_template);
  std::string written_content(const ChatMessage& message) const;
  Result<std::vector<ChatMessage>> written_messages(std::span<const ChatMessage> messages) const;
  Status check_role(const std::string& role) const;
  void append_header(std::string_view role, Parts& parts) const;
  void append_end(std::string_view role, Parts& parts) const;
  void append_message(const ChatMessage& written, Parts& parts) const;
  void append_generation_prompt(Parts& parts) const;
  Result<std::vector<int32_t>> encode_messages(std::span<const ChatMessage> messages, bool add_generation_prompt) const;

  const Tokenizer* tokenizer_;
  const StyleRow* row_;
  std::array<int32_t, 5> markers_{};  // those of the row
  int32_t end_of_turn_ = -1;
  bool starts_with_bos_ = false;
  std::string default_system_message_;

  // What the style leaves open, from the template.
  std::string after_role_;        // Phi-3
  bool bos_before_user_ = false;  // Llama 2 and Mistral, from here on
  bool strips_answer_ = false;
  bool has_system_prompt_ = false;
  std::string before_open_, after_open_;  // the white space round [INST]
  std::string before_close_;              // before [/INST]
  std::string before_answer_, after_answer_;
  std::string after_end_;  // after EOS
};

}  // namespace prologue
