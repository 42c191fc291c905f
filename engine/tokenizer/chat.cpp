#include <prologue/engine/tokenizer/chat.h>

#include <prologue/engine/tokenizer/utf8.h>
#include <prologue/kernels/base/host/out_of_memory.h>

namespace prologue {
namespace {

constexpr std::string_view kChatMlStart = "<|im_start|>";
constexpr std::string_view kChatMlEnd = "<|im_end|>";
constexpr std::string_view kLlama3Start = "<|start_header_id|>";
constexpr std::string_view kLlama3EndOfHeader = "<|end_header_id|>";
constexpr std::string_view kLlama3End = "<|eot_id|>";

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

std::string_view strip(std::string_view text) {
  constexpr std::string_view kWhiteSpace = " \t\n\v\f\r";
  const size_t begin = text.find_first_not_of(kWhiteSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kWhiteSpace) - begin + 1);
}

}  // namespace

const char* ChatFormat::name() const { return style_ == Style::chatml ? "ChatML" : "Llama 3"; }

Result<ChatFormat> ChatFormat::detect(const Tokenizer& tokenizer) {
  return catch_out_of_memory([&] { return detect_from(tokenizer); });
}

Result<ChatFormat> ChatFormat::detect_from(const Tokenizer& tokenizer) {
  constexpr std::string_view kSupported = "supported formats are ChatML (<|im_start|>) and Llama 3 (<|start_header_id|>)";
  const std::string_view chat_template = tokenizer.chat_template();
  if (chat_template.empty()) return not_found("the model has no chat template (tokenizer.chat_template): ", kSupported);
  const auto mentions = [&](std::string_view text) { return chat_template.find(text) != std::string_view::npos; };

  const bool is_chatml = mentions(kChatMlStart);
  if (!is_chatml && !mentions(kLlama3Start)) {
    return unsupported("the model's chat template is of no format known here: ", kSupported, "; its first line is ",
                       in_quotes(chat_template.substr(0, chat_template.find('\n'))));
  }
  ChatFormat format(tokenizer, is_chatml ? Style::chatml : Style::llama3);
  PROLOGUE_RETURN_IF_ERROR(format.find_markers());
  if (is_chatml) format.default_system_message_ = spelled_out_system_message(chat_template);
  format.starts_with_bos_ = tokenizer.bos_id() >= 0 && mentions("bos_token");
  return format;
}

Status ChatFormat::find_markers() {
  const auto find = [this](std::string_view marker, int32_t& id) {
    const std::optional<int32_t> found = tokenizer_->find(marker);
    if (!found || tokenizer_->type(*found) != TokenType::control) {
      return data_loss("the model's chat template is ", name(), ", but its vocabulary has no control token ", in_quotes(marker));
    }
    id = *found;
    return ok_status();
  };
  if (style_ == Style::chatml) {
    PROLOGUE_RETURN_IF_ERROR(find(kChatMlStart, start_of_header_));
    return find(kChatMlEnd, end_of_turn_);
  }
  PROLOGUE_RETURN_IF_ERROR(find(kLlama3Start, start_of_header_));
  PROLOGUE_RETURN_IF_ERROR(find(kLlama3EndOfHeader, end_of_header_));
  return find(kLlama3End, end_of_turn_);
}

Status ChatFormat::append_plain(std::string_view text, std::vector<int32_t>& ids) const {
  PROLOGUE_ASSIGN_OR_RETURN(const std::vector<int32_t> plain,
                            tokenizer_->encode(text, /*parse_special=*/false, /*add_bos=*/false));
  ids.insert(ids.end(), plain.begin(), plain.end());
  return ok_status();
}

// The text between two markers is encoded in one call, because a pre-tokenizer piece may contain text on both sides of a newline.
Status ChatFormat::append_header(std::string_view role, std::string_view content, std::vector<int32_t>& ids) const {
  ids.push_back(start_of_header_);
  if (style_ == Style::chatml) return append_plain(str_cat(role, "\n", content), ids);
  PROLOGUE_RETURN_IF_ERROR(append_plain(role, ids));
  ids.push_back(end_of_header_);
  return append_plain(str_cat("\n\n", strip(content)), ids);
}

Status ChatFormat::append_end_of_turn(std::vector<int32_t>& ids) const {
  ids.push_back(end_of_turn_);
  return style_ == Style::chatml ? append_plain("\n", ids) : ok_status();
}

Status ChatFormat::append_message(const ChatMessage& message, std::vector<int32_t>& ids) const {
  if (message.role.empty()) return invalid_argument("a chat message has no role: it must be system, user or assistant");
  PROLOGUE_RETURN_IF_ERROR(append_header(message.role, message.content, ids));
  return append_end_of_turn(ids);
}

Result<std::vector<int32_t>> ChatFormat::encode_chat(std::span<const ChatMessage> messages, bool add_generation_prompt) const {
  return catch_out_of_memory([&] { return join_messages(messages, add_generation_prompt); });
}

Result<std::vector<int32_t>> ChatFormat::join_messages(std::span<const ChatMessage> messages, bool add_generation_prompt) const {
  if (messages.empty()) return invalid_argument("the conversation has no messages: at least one is needed");
  std::vector<int32_t> ids;
  if (starts_with_bos_) ids.push_back(tokenizer_->bos_id());
  if (messages.front().role != "system" && !default_system_message_.empty()) {
    PROLOGUE_RETURN_IF_ERROR(append_message({"system", default_system_message_}, ids));
  }
  for (const ChatMessage& message : messages) PROLOGUE_RETURN_IF_ERROR(append_message(message, ids));
  if (add_generation_prompt) PROLOGUE_RETURN_IF_ERROR(append_header("assistant", "", ids));
  return ids;
}

Result<std::vector<int32_t>> ChatFormat::encode_next_turn(const ChatMessage& message) const {
  return catch_out_of_memory([&]() -> Result<std::vector<int32_t>> {
    std::vector<int32_t> ids;
    PROLOGUE_RETURN_IF_ERROR(append_end_of_turn(ids));
    PROLOGUE_RETURN_IF_ERROR(append_message(message, ids));
    PROLOGUE_RETURN_IF_ERROR(append_header("assistant", "", ids));
    return ids;
  });
}

}  // namespace prologue
