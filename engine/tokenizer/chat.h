// Encodes conversations with the chat template of a model. The template is run (engine/template). Only its own text becomes control
// tokens: what comes from messages is always plain text, even if it contains the text of a marker.
#pragma once

#include <cstdint>
#include <ctime>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <prologue/engine/template/template.h>
#include <prologue/engine/tokenizer/tokenizer.h>
#include <prologue/kernels/base/status.h>

namespace prologue {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant", or another role of the model
  std::string content;
  std::string more = {};  // a JSON object of further members that the template may read: "tool_calls", "reasoning_content"
};

struct ChatOptions {
  bool add_generation_prompt = true;    // the header of the assistant's answer follows
  bool continue_final_message = false;  // the last message is not ended: the answer continues it. Excludes add_generation_prompt
  std::string variables =
      {};  // a JSON object of further variables of the template: "enable_thinking". They go before those of the choice
};

// Says which template a ChatFormat runs. By default the model's own; of several, "default".
struct ChatTemplateChoice {
  std::string name = {};             // of several that the model has
  std::string source = {};           // a template to use instead
  std::string variables = {};        // a JSON object of further variables, for all conversations
  std::optional<std::tm> date = {};  // what the template takes for today; none: the local time of each call
};

// A format is immutable: any number of threads may use it.
class ChatFormat {
 public:
  // The tokenizer must outlive the format. not_found: the model has no chat template, or none of this name. data_loss: it is no
  // template, or nothing ends an answer. unsupported: it uses what engine/template does not have. The messages have the line.
  static Result<ChatFormat> create(const Tokenizer& tokenizer, const ChatTemplateChoice& choice = {});

  // Returns the marker that the template writes after an answer, if it is not a token that ends every generation anyway
  // (Tokenizer::is_end_of_generation). There is at most one.
  const std::vector<int32_t>& stop_tokens() const { return stop_tokens_; }

  // Encodes the whole conversation. invalid_argument: there is no message, one has no role, the options exclude each other, or the template
  // refuses the conversation: the message has its line, and why. resource_exhausted: a limit of jinja::Limits.
  Result<std::vector<int32_t>> encode_chat(std::span<const ChatMessage> messages, const ChatOptions& options = {}) const;

  // Returns the text that encode_chat encodes, with what came from the messages marked.
  Result<jinja::Text> render(std::span<const ChatMessage> messages, const ChatOptions& options = {}) const;

 private:
  ChatFormat(const Tokenizer& tokenizer, jinja::Template made) : tokenizer_(&tokenizer), template_(std::move(made)) {}
  static Result<ChatFormat> create_from(const Tokenizer& tokenizer, const ChatTemplateChoice& choice);
  Result<jinja::Text> render_checked(std::span<const ChatMessage> messages, const ChatOptions& options) const;
  Result<jinja::Value> message_value(const ChatMessage& message, std::string_view end) const;
  Result<jinja::Text> render_values(std::vector<jinja::Value> messages, const ChatOptions& options) const;
  Status learn();
  void find_stop_token();

  const Tokenizer* tokenizer_;
  jinja::Template template_;
  jinja::Variables variables_;  // that all conversations have
  std::optional<std::tm> date_;
  std::vector<int32_t> stop_tokens_;
  bool knows_developer_ = false;  // the template writes messages of this role
  bool needs_parts_ = false;      // the template takes the content only as a list of parts
};

}  // namespace prologue
