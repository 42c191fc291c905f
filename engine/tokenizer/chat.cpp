#include <algorithm>
#include <utility>

#include <prologue/engine/base/printable.h>
#include <prologue/engine/base/utf8.h>
#include <prologue/engine/tokenizer/chat.h>
#include <prologue/engine/tokenizer/unicode.h>
#include <prologue/kernels/base/host/out_of_memory.h>

namespace prologue {
namespace {

constexpr std::string_view kChatMlEnd = "<|im_end|>";
constexpr std::string_view kOpen = "[INST]", kClose = "[/INST]";
constexpr std::string_view kOpenSystem = "[SYSTEM_PROMPT]", kCloseSystem = "[/SYSTEM_PROMPT]";

// The default system message of a ChatML template: the first string literal that contains '<|im_start|>system\nTEXT<|im_end|>'.
std::string spelled_out_system_message(std::string_view chat_template) {
  constexpr std::string_view kHeader = "<|im_start|>system";
  for (size_t at = 0; (at = chat_template.find(kHeader, at)) != std::string_view::npos;) {
    const bool begins_literal = at > 0 && (chat_template[at - 1] == '\'' || chat_template[at - 1] == '"');
    const char quote = begins_literal ? chat_template[at - 1] : '\0';
    at += kHeader.size();
    if (!begins_literal) continue;
    std::string literal;  // the text after the header, with escapes resolved; the search continues after it
    for (; at < chat_template.size() && chat_template[at] != quote; ++at) {
      if (chat_template[at] == '\\' && at + 1 < chat_template.size()) {
        const char escaped = chat_template[++at];
        literal += escaped == 'n' ? '\n' : escaped == 't' ? '\t' : escaped;
      } else {
        literal += chat_template[at];
      }
    }
    const size_t end = literal.find(kChatMlEnd);
    if (end != std::string::npos && end > 1 && literal[0] == '\n') return literal.substr(1, end - 1);
  }
  return {};
}

// The template with one kind of quotation marks, newlines in place of \n, and without the spaces in "a + b". What it writes is the same.
std::string simplified(std::string_view chat_template) {
  std::string text;
  for (const char byte : chat_template) {
    const char last = text.empty() ? '\0' : text.back();
    if (byte == ' ' && last == '+') continue;
    if (byte == '+' && last == ' ') text.pop_back();
    if (byte == 'n' && last == '\\') {
      text.back() = '\n';
    } else {
      text += byte == '"' ? '\'' : byte;
    }
  }
  return text;
}

std::string strip(const std::string& text) {
  return std::string(stripped(replace_invalid_bytes(text), {.left = true, .right = true}));
}

}  // namespace

// ---- The formats ----

struct ChatFormat::StyleRow {
  Style style;
  const char* name;
  std::array<std::string_view, 5> markers = {};  // control tokens that the vocabulary must have
  int end = -1;                                  // which of them ends an answer; -1: EOS
  bool strips = false;                           // content is stripped of white space
  bool has_any_role = false;                     // roles are plain text
  bool joins_system = false;                     // the system message is a part of the first user message
};

namespace {

constexpr std::string_view kSupported =
    "supported formats are ChatML (<|im_start|>), Llama 3 (<|start_header_id|>), Llama 2 and Mistral ([INST]), "
    "Gemma (<start_of_turn>), Phi-3 (<|user|>, <|end|>), Phi-4 (<|im_sep|>), Zephyr (<|user|>, EOS) "
    "and Harmony (<|start|>, <|message|>)";

}  // namespace

// What is written: markers and text, in their order.
class ChatFormat::Parts {
 public:
  void marker(int32_t id) { parts_.push_back({id, {}}); }
  void text(std::string_view text) {
    if (text.empty()) return;
    if (parts_.empty() || parts_.back().marker >= 0) parts_.emplace_back();
    parts_.back().text += text;
  }
  // A control token if the vocabulary has it as one, else plain text.
  void marker_or_text(const Tokenizer& tokenizer, std::string_view name) {
    const std::optional<int32_t> id = tokenizer.find(name);
    if (id && tokenizer.type(*id) == TokenType::control) {
      marker(*id);
    } else {
      text(name);
    }
  }
  std::span<const TextPart> get() const { return parts_; }

 private:
  std::vector<TextPart> parts_;
};

const char* ChatFormat::name() const { return row_->name; }

Result<ChatFormat> ChatFormat::detect(const Tokenizer& tokenizer) {
  return catch_out_of_memory([&] { return detect_from(tokenizer); });
}

Result<ChatFormat> ChatFormat::detect_from(const Tokenizer& tokenizer) {
  static constexpr StyleRow kChatMl = {
      .style = Style::chatml, .name = "ChatML", .markers = {"<|im_start|>", kChatMlEnd}, .end = 1, .has_any_role = true};
  static constexpr StyleRow kPhi4 = {.style = Style::phi4,
                                     .name = "Phi-4",
                                     .markers = {"<|im_start|>", "<|im_sep|>", kChatMlEnd},
                                     .end = 2,
                                     .has_any_role = true};
  static constexpr StyleRow kLlama3 = {.style = Style::llama3,
                                       .name = "Llama 3",
                                       .markers = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
                                       .end = 2,
                                       .strips = true,
                                       .has_any_role = true};
  static constexpr StyleRow kGemma = {.style = Style::gemma,
                                      .name = "Gemma",
                                      .markers = {"<start_of_turn>", "<end_of_turn>"},
                                      .end = 1,
                                      .strips = true,
                                      .joins_system = true};
  static constexpr StyleRow kHarmony = {.style = Style::harmony,
                                        .name = "Harmony",
                                        .markers = {"<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>"},
                                        .end = 4,
                                        .has_any_role = true};
  static constexpr StyleRow kLlama2 = {.style = Style::llama2, .name = "Llama 2", .strips = true, .joins_system = true};
  static constexpr StyleRow kMistral = {.style = Style::mistral, .name = "Mistral", .joins_system = true};
  static constexpr StyleRow kPhi3 = {
      .style = Style::phi3, .name = "Phi-3", .markers = {"<|system|>", "<|user|>", "<|assistant|>", "<|end|>"}, .end = 3};
  static constexpr StyleRow kZephyr = {.style = Style::zephyr, .name = "Zephyr"};

  const std::string& chat_template = tokenizer.chat_template();
  if (chat_template.empty()) return not_found("the model has no chat template: ", kSupported);
  const std::string simple = simplified(chat_template);
  const auto has = [&](std::string_view text) { return simple.find(text) != std::string::npos; };
  const StyleRow* const row = has("<|im_start|>")                                ? has("<|im_sep|>") ? &kPhi4 : &kChatMl
                              : has("<|start_header_id|>")                       ? &kLlama3
                              : has("<start_of_turn>")                           ? &kGemma
                              : has("<|start|>") && has("<|message|>")           ? &kHarmony
                              : has(kOpen)                                       ? has("<<SYS>>") ? &kLlama2 : &kMistral
                              : has("<|assistant|>") && has("<|end|>")           ? &kPhi3
                              : has("'<|user|>\n'+message['content']+eos_token") ? &kZephyr
                                                                                 : nullptr;
  if (row == nullptr) {
    return unsupported("the model's chat template is of no format known here: ", kSupported, "; its first line is ",
                       in_quotes(std::string_view(chat_template).substr(0, chat_template.find('\n'))));
  }
  ChatFormat format(tokenizer, *row);
  PROLOGUE_RETURN_IF_ERROR(format.find_markers());
  if (row == &kChatMl) format.default_system_message_ = spelled_out_system_message(chat_template);
  format.read_template(simple);
  return format;
}

Status ChatFormat::find_markers() {
  for (size_t i = 0; i < row_->markers.size() && !row_->markers[i].empty(); ++i) {
    const std::optional<int32_t> found = tokenizer_->find(row_->markers[i]);
    if (!found || tokenizer_->type(*found) != TokenType::control) {
      return data_loss("the model's chat template is ", name(), ", but its vocabulary has no control token ",
                       in_quotes(row_->markers[i]));
    }
    markers_[i] = *found;
  }
  end_of_turn_ = row_->end >= 0 ? markers_[static_cast<size_t>(row_->end)] : tokenizer_->eos_id();
  if (end_of_turn_ >= 0) return ok_status();
  return data_loss("the model's chat template is ", name(), ", but its tokenizer has no EOS token to end a message");
}

void ChatFormat::read_template(std::string_view simple) {
  const auto has = [&](std::string_view text) { return simple.find(text) != std::string_view::npos; };
  starts_with_bos_ = tokenizer_->bos_id() >= 0 && has("bos_token");
  if (row_->style == Style::phi3 && (has("<|assistant|>\n") || has("<|assistant|>'+'\n"))) after_role_.assign(1, '\n');
  if (row_->style == Style::llama2 || row_->style == Style::mistral) {
    bos_before_user_ = starts_with_bos_ && has("bos_token+'[INST]");
    if (bos_before_user_) starts_with_bos_ = false;
  }
  if (row_->style == Style::llama2) {
    strips_answer_ = true;
    for (std::string* space : {&after_open_, &before_close_, &before_answer_, &after_answer_}) space->assign(1, ' ');
  } else if (row_->style == Style::mistral) {
    read_mistral_template(simple);
  }
}

void ChatFormat::read_mistral_template(std::string_view simple) {
  const auto has = [&](std::string_view text) { return simple.find(text) != std::string_view::npos; };
  has_system_prompt_ = has(kOpenSystem);
  strips_answer_ = has("content']|trim") || has("content'] | trim");
  if (has("' [INST]")) before_open_.assign(1, ' ');
  if (has("[INST] ")) after_open_.assign(1, ' ');
  if (has(" [/INST]")) before_close_.assign(1, ' ');
  if (has("' '+message['content']")) before_answer_.assign(1, ' ');
  if (has("eos_token+' '")) after_end_.assign(1, ' ');
}

// ---- Encoding ----

std::string ChatFormat::written_content(const ChatMessage& message) const {
  return row_->strips || (strips_answer_ && message.role == "assistant") ? strip(message.content) : message.content;
}

// The messages as they are written. Llama 2, Mistral and Gemma write a system message into the first user message.
Result<std::vector<ChatMessage>> ChatFormat::written_messages(std::span<const ChatMessage> messages) const {
  std::vector<ChatMessage> written;
  const bool has_system = messages.front().role == "system";
  if (!has_system && !default_system_message_.empty()) written.push_back({"system", default_system_message_});
  size_t next = 0;
  if (has_system && row_->joins_system && !has_system_prompt_) {
    if (messages.size() < 2 || messages[1].role != "user") {
      return invalid_argument("the system message is not followed by a user message: in the ", name(),
                              " chat format it is a part of that");
    }
    const std::string& system = messages[0].content;
    const ChatMessage& user = messages[1];
    written.push_back(user);
    written.back().content = row_->style == Style::llama2
                                 ? written_content({"user", str_cat("<<SYS>>\n", system, "\n<</SYS>>\n\n", user.content)})
                                 : str_cat(system, "\n\n", written_content(user));
    next = 2;
  }
  for (; next < messages.size(); ++next) {
    PROLOGUE_RETURN_IF_ERROR(check_role(messages[next].role));
    written.push_back({messages[next].role, written_content(messages[next])});
  }
  return written;
}

Status ChatFormat::check_role(const std::string& role) const {
  if (role.empty()) return invalid_argument("a chat message has no role: it must be system, user or assistant");
  if (row_->has_any_role || role == "user" || role == "assistant") return ok_status();
  if (role != "system") {
    return invalid_argument("a chat message has the role ", in_quotes(role), ": the ", name(),
                            " chat format has system, user and assistant");
  }
  if (!row_->joins_system || has_system_prompt_) return ok_status();
  return invalid_argument("a system message is not the first message: the ", name(), " chat format has it only there");
}

// What is written before the content of a message.
void ChatFormat::append_header(std::string_view role, Parts& parts) const {
  const bool is_answer = role == "assistant";
  switch (row_->style) {
    case Style::chatml:
      parts.marker(markers_[0]);
      parts.text(role);
      return parts.text("\n");
    case Style::llama3:
      parts.marker(markers_[0]);
      parts.text(role);
      parts.marker(markers_[1]);
      return parts.text("\n\n");
    case Style::phi4:
      parts.marker(markers_[0]);
      parts.text(role);
      return parts.marker(markers_[1]);
    case Style::gemma: parts.marker(markers_[0]); return parts.text(is_answer ? "model\n" : "user\n");
    case Style::harmony:
      parts.marker(markers_[0]);
      parts.text(role);
      if (is_answer) {
        parts.marker(markers_[1]);
        parts.text("final");
      }
      return parts.marker(markers_[2]);
    case Style::phi3: parts.marker(markers_[is_answer ? 2 : role == "user" ? 1 : 0]); return parts.text(after_role_);
    case Style::zephyr: parts.marker_or_text(*tokenizer_, str_cat("<|", role, "|>")); return parts.text("\n");
    case Style::llama2:
    case Style::mistral:
      if (is_answer) return parts.text(before_answer_);
      if (role == "user") {
        if (bos_before_user_) parts.marker(tokenizer_->bos_id());
        parts.text(before_open_);
      }
      parts.marker_or_text(*tokenizer_, role == "user" ? kOpen : kOpenSystem);
      return parts.text(after_open_);
  }
}

// What is written after the content of a message.
void ChatFormat::append_end(std::string_view role, Parts& parts) const {
  const bool is_answer = role == "assistant";
  switch (row_->style) {
    case Style::chatml:
    case Style::gemma: parts.marker(markers_[1]); return parts.text("\n");
    case Style::llama3:
    case Style::phi4: return parts.marker(markers_[2]);
    case Style::harmony: return parts.marker(markers_[3]);
    case Style::phi3: parts.marker(markers_[3]); return parts.text(after_role_);
    case Style::zephyr: parts.marker(end_of_turn_); return parts.text("\n");
    case Style::llama2:
    case Style::mistral:
      if (is_answer) {
        parts.text(after_answer_);
        parts.marker(end_of_turn_);
        return parts.text(after_end_);
      }
      if (role == "user") parts.text(before_close_);
      return parts.marker_or_text(*tokenizer_, role == "user" ? kClose : kCloseSystem);
  }
}

void ChatFormat::append_message(const ChatMessage& written, Parts& parts) const {
  append_header(written.role, parts);
  parts.text(written.content);
  append_end(written.role, parts);
}

// [/INST] is all that Llama 2 and Mistral write before an answer: the space after it is the model's.
void ChatFormat::append_generation_prompt(Parts& parts) const {
  if (row_->style != Style::llama2 && row_->style != Style::mistral) append_header("assistant", parts);
}

Result<std::vector<int32_t>> ChatFormat::encode_chat(std::span<const ChatMessage> messages, bool add_generation_prompt) const {
  return catch_out_of_memory([&] { return encode_messages(messages, add_generation_prompt); });
}

Result<std::vector<int32_t>> ChatFormat::encode_messages(std::span<const ChatMessage> messages,
                                                         bool add_generation_prompt) const {
  if (messages.empty()) return invalid_argument("the conversation has no messages: at least one is needed");
  PROLOGUE_ASSIGN_OR_RETURN(const std::vector<ChatMessage> written, written_messages(messages));
  Parts parts;
  if (starts_with_bos_) parts.marker(tokenizer_->bos_id());
  for (const ChatMessage& message : written) append_message(message, parts);
  if (add_generation_prompt) append_generation_prompt(parts);
  return tokenizer_->encode_parts(parts.get(), TextStart::text);
}

Result<std::vector<int32_t>> ChatFormat::encode_next_turn(const ChatMessage& message) const {
  return catch_out_of_memory([&]() -> Result<std::vector<int32_t>> {
    Parts parts;
    append_end("assistant", parts);
    PROLOGUE_RETURN_IF_ERROR(check_role(message.role));
    append_message({message.role, written_content(message)}, parts);
    append_generation_prompt(parts);
    return tokenizer_->encode_parts(parts.get(), TextStart::inside);
  });
}

}  // namespace prologue
