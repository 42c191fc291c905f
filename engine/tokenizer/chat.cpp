#include <algorithm>
#include <array>
#include <utility>

#include <prologue/engine/base/printable.h>
#include <prologue/engine/base/utf8.h>
#include <prologue/engine/template/characters.h>
#include <prologue/engine/tokenizer/chat.h>
#include <prologue/engine/tokenizer/unicode.h>
#include <prologue/kernels/base/out_of_memory.h>

namespace prologue {
namespace {

using jinja::Text;
using jinja::Value;

// Templates make markers of these: '<|' + message.role + '|>'. A role of another name is text of the caller.
constexpr std::array<std::string_view, 8> kRoles = {"system", "developer", "user",    "assistant",
                                                    "tool",   "function",  "ipython", "observation"};

// `transformers` does the same: what continues the final message ends before this text.
constexpr std::string_view kFinalTag = "CONTINUE_FINAL_MESSAGE_TAG ";

constexpr std::string_view kProbe = "a message that nobody has written";

Value own_text(std::string_view text) { return jinja::make_text(text); }
Value caller_text(std::string_view text) { return jinja::make_text(Text(replace_invalid_bytes(text), true)); }

Status in_template(const Status& status) { return Status(status.code(), str_cat("the chat template, ", status.message())); }

bool is_space_at(const std::string& text, size_t position) {
  return jinja::is_space(first_character(std::string_view(text).substr(position)).code_point);
}

// Reads the members of a JSON object.
Result<std::vector<jinja::Dict::Entry>> read_object(const std::string& json, const char* what) {
  if (json.empty()) return std::vector<jinja::Dict::Entry>();
  const auto value = jinja::parse_json_value(json);
  if (!value.ok()) return invalid_argument(what, ": ", value.status().message());
  if (value->dict() == nullptr) return invalid_argument(what, " must be a JSON object");
  return value->dict()->entries();
}

Status add_variables(const std::string& json, jinja::Variables& variables) {
  PROLOGUE_ASSIGN_OR_RETURN(const auto members, read_object(json, "the variables of the chat template"));
  for (const jinja::Dict::Entry& member : members) {
    const std::string& name = member.key.text()->bytes();
    if (name == "messages" || name == "add_generation_prompt" || name == "tools") {
      return invalid_argument("the variables of the chat template have ", name, ", which has a place of its own");
    }
    variables.emplace_back(name, member.value);
  }
  return ok_status();
}

// Templates read what a model thought under one of these names (`transformers` fills in the others, too).
void add_reasoning(jinja::Dict& message) {
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    const Value* thought = message.find(std::string_view(name));
    if (thought == nullptr) continue;
    const Value value = *thought;
    if (message.find(std::string_view("thinking")) == nullptr) message.set(own_text("thinking"), value);
    message.set(own_text("reasoning_content"), value);
    return;
  }
}

}  // namespace

Result<ChatFormat> ChatFormat::create(const Tokenizer& tokenizer, const ChatTemplateChoice& choice) {
  return catch_out_of_memory([&] { return create_from(tokenizer, choice); });
}

Result<ChatFormat> ChatFormat::create_from(const Tokenizer& tokenizer, const ChatTemplateChoice& choice) {
  std::string_view source = choice.source;
  if (source.empty()) source = tokenizer.chat_template();
  if (choice.source.empty() && !choice.name.empty() && choice.name != "default") {
    source = {};
    for (const NamedChatTemplate& named : tokenizer.named_chat_templates()) {
      if (named.name == choice.name) source = named.source;
    }
  }
  if (source.empty()) {
    std::string names;
    for (const NamedChatTemplate& named : tokenizer.named_chat_templates()) {
      names += str_cat(names.empty() ? "" : ", ", in_quotes(named.name, 40));
    }
    const std::string wanted = choice.name.empty() ? "" : str_cat(" with the name ", in_quotes(choice.name, 40));
    return not_found("the model has no chat template", wanted, names.empty() ? "" : ": it has ", names);
  }
  auto made = jinja::Template::parse(source);
  if (!made.ok()) return in_template(made.status());
  ChatFormat format(tokenizer, std::move(made).value());
  format.date_ = choice.date;
  for (const auto& [name, text] : tokenizer.named_tokens()) format.variables_.emplace_back(name, own_text(text));
  for (const char* name : {"tools", "documents"}) format.variables_.emplace_back(name, Value{});
  PROLOGUE_RETURN_IF_ERROR(add_variables(choice.variables, format.variables_));
  format.knows_developer_ = source.find("developer") != std::string_view::npos;
  PROLOGUE_RETURN_IF_ERROR(format.learn());
  return format;
}

// What the template does with a short conversation shows what it takes, and what ends an answer.
Status ChatFormat::learn() {
  const ChatMessage probe = {"user", std::string(kProbe)};
  const auto shows_probe = [&] {
    const auto text = render_checked({&probe, 1}, {});
    return text.ok() && text->bytes().find(kProbe) != std::string::npos;
  };
  if (!shows_probe()) {
    needs_parts_ = true;
    needs_parts_ = shows_probe();
  }
  find_stop_token();
  if (!stop_tokens_.empty() || !tokenizer_->end_ids().empty()) return ok_status();
  return data_loss("the tokenizer has no token that ends an answer, and the chat template writes none");
}

void ChatFormat::find_stop_token() {
  const std::array<ChatMessage, 2> messages = {ChatMessage{"user", "?"}, ChatMessage{"assistant", std::string(kProbe)}};
  const auto text = render_checked(messages, {.add_generation_prompt = false});
  if (!text.ok()) return;
  const auto found = jinja::find_last(text->bytes(), kProbe, text->size());
  if (!found) return;
  std::vector<TextPart> parts;
  const Text rest = text->part(*found + kProbe.size(), text->size());
  size_t begin = 0;
  for (const jinja::Run& run : rest.runs()) {
    tokenizer_->append_parts(std::string_view(rest.bytes()).substr(begin, run.end - begin), !run.from_caller, parts);
    begin = run.end;
  }
  for (const TextPart& part : parts) {
    if (part.marker >= 0) {
      if (!tokenizer_->is_end_of_generation(part.marker)) stop_tokens_ = {part.marker};
      return;
    }
    for (size_t at = 0; at < part.text.size(); at += first_character(std::string_view(part.text).substr(at)).size) {
      if (!is_space_at(part.text, at)) return;
    }
  }
}

Result<Value> ChatFormat::message_value(const ChatMessage& message, std::string_view end) const {
  if (message.role.empty()) return invalid_argument("a chat message has no role: it must be system, user or assistant");
  const std::string_view role = message.role == "developer" && !knows_developer_ ? "system" : std::string_view(message.role);
  const bool is_known = std::find(kRoles.begin(), kRoles.end(), role) != kRoles.end();
  const Value content = caller_text(str_cat(message.content, end));
  jinja::Dict dict;
  dict.set(own_text("role"), is_known ? own_text(role) : caller_text(role));
  if (needs_parts_) {
    jinja::Dict part;
    part.set(own_text("type"), own_text("text"));
    part.set(own_text("text"), content);
    std::vector<Value> parts;
    parts.push_back(jinja::make_dict(std::move(part)));
    dict.set(own_text("content"), jinja::make_sequence(jinja::Sequence::Type::list, std::move(parts)));
  } else {
    dict.set(own_text("content"), content);
  }
  PROLOGUE_ASSIGN_OR_RETURN(const auto members, read_object(message.more, "the further members of a chat message"));
  for (const jinja::Dict::Entry& member : members) {
    const std::string& name = member.key.text()->bytes();
    if (name == "role" || name == "content") return invalid_argument("a chat message has two members ", name);
    if (!member.value.is_none()) dict.set(member.key, member.value);
  }
  add_reasoning(dict);
  return jinja::make_dict(std::move(dict));
}

Result<Text> ChatFormat::render_values(std::vector<Value> messages, const ChatOptions& options) const {
  jinja::Variables variables = variables_;
  PROLOGUE_RETURN_IF_ERROR(add_variables(options.variables, variables));
  variables.emplace_back("messages", jinja::make_sequence(jinja::Sequence::Type::list, std::move(messages)));
  variables.emplace_back("add_generation_prompt", Value{options.add_generation_prompt});
  auto text = template_.render(variables, {.now = date_, .limits = {}});
  if (!text.ok()) return in_template(text.status());
  return text;
}

Result<Text> ChatFormat::render_checked(std::span<const ChatMessage> messages, const ChatOptions& options) const {
  if (messages.empty()) return invalid_argument("the conversation has no messages: at least one is needed");
  if (options.continue_final_message && options.add_generation_prompt) {
    return invalid_argument(
        "the final message is to be continued, and a generation prompt is to begin a new one: only one is possible");
  }
  std::vector<Value> values;
  for (size_t i = 0; i < messages.size(); ++i) {
    const bool is_continued = options.continue_final_message && i + 1 == messages.size();
    PROLOGUE_ASSIGN_OR_RETURN(Value value, message_value(messages[i], is_continued ? kFinalTag : std::string_view()));
    values.push_back(std::move(value));
  }
  auto text = render_values(std::move(values), options);
  if (!text.ok() || !options.continue_final_message) return text;
  const auto tag = jinja::find_last(text->bytes(), kFinalTag.substr(0, kFinalTag.size() - 1), text->size());
  if (!tag) return invalid_argument("the chat template leaves the final message out, so that it cannot be continued");
  const bool is_trimmed = std::string_view(text->bytes()).substr(*tag, kFinalTag.size()) != kFinalTag;
  const Text before = text->part(0, *tag);
  if (!is_trimmed) return before;
  const std::string_view kept = stripped(before.bytes(), {.left = false, .right = true});
  return before.part(0, kept.size());
}

Result<Text> ChatFormat::render(std::span<const ChatMessage> messages, const ChatOptions& options) const {
  return catch_out_of_memory([&] { return render_checked(messages, options); });
}

Result<std::vector<int32_t>> ChatFormat::encode_chat(std::span<const ChatMessage> messages, const ChatOptions& options) const {
  return catch_out_of_memory([&]() -> Result<std::vector<int32_t>> {
    PROLOGUE_ASSIGN_OR_RETURN(const Text text, render_checked(messages, options));
    std::vector<TextPart> parts;
    size_t begin = 0;
    for (const jinja::Run& run : text.runs()) {
      tokenizer_->append_parts(std::string_view(text.bytes()).substr(begin, run.end - begin), !run.from_caller, parts);
      begin = run.end;
    }
    return tokenizer_->encode_parts(parts, TextStart::text);
  });
}

}  // namespace prologue
