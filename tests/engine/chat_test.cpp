// Chat formats against the models' templates, executed by jinja2 and encoded by Hugging Face `tokenizers`
// (tests/golden/tokenizer/README.md), and what templates of real models do, in templates of our own. The language of templates is in
// template_test.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include <prologue/engine/gguf/tokenizer_data.h>
#include <prologue/engine/huggingface/tokenizer_files.h>
#include <prologue/engine/tokenizer/chat.h>
#include <prologue/engine/tokenizer/tokenizer.h>

#include "tests/support/source_path.h"

namespace prologue {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

json read_golden(const std::string& name) {
  std::ifstream file(test::source_path("tests/golden/tokenizer/hf/" + name + ".json"));
  if (!file) throw std::runtime_error("no golden " + name);
  return json::parse(file);
}

const json& chats() {
  static const json all = read_golden("chats");
  return all;
}

const json& chat(const std::string& name) {
  return *std::find_if(chats().begin(), chats().end(), [&](const json& row) { return row.at("name") == name; });
}

// The tokenizer of a row, with the row's markers as control tokens, as Tokenizer::create gets it.
TokenizerData data_of(const json& row) {
  json file = read_golden(row.at("family").get<std::string>() + ".tokenizer");
  size_t next = 0;
  for (const auto& [text, id] : file.at("model").at("vocab").items()) next = std::max(next, id.get<size_t>() + 1);
  for (const json& token : file.at("added_tokens")) next = std::max(next, token.at("id").get<size_t>() + 1);
  for (const json& marker : row.at("markers")) {
    const auto is_there = [&](const json& token) { return token.at("content") == marker; };
    if (std::any_of(file.at("added_tokens").begin(), file.at("added_tokens").end(), is_there)) continue;
    file["added_tokens"].push_back({{"id", next++}, {"content", marker}, {"special", true}});
  }
  auto data = parse_tokenizer_json(file.dump());
  if (!data.ok()) throw std::runtime_error(data.status().message());
  const auto id_of = [&](const json& text) {
    if (text.is_null()) return -1;
    return static_cast<int32_t>(std::find(data->tokens.begin(), data->tokens.end(), text.get<std::string>()) -
                                data->tokens.begin());
  };
  data->bos_id = id_of(row.at("bos"));
  data->eos_id = id_of(row.at("eos"));
  data->chat_template = row.at("template");
  return std::move(data).value();
}

Tokenizer make(TokenizerData data) {
  auto tokenizer = Tokenizer::create(std::move(data));
  if (!tokenizer.ok()) throw std::runtime_error(tokenizer.status().message());
  return std::move(tokenizer).value();
}

std::vector<ChatMessage> messages_of(const json& row) {
  std::vector<ChatMessage> messages;
  for (const json& message : row.at("messages")) messages.push_back({message[0], message[1]});
  return messages;
}

class ChatTemplate : public testing::TestWithParam<std::string> {
 protected:
  const json& row_ = chat(GetParam());
  const Tokenizer tokenizer_ = make(data_of(row_));
  const Result<ChatFormat> format_ = ChatFormat::create(tokenizer_);

  Ids encode(const std::vector<ChatMessage>& messages, bool generation_prompt) const {
    auto ids = format_->encode_chat(messages, {.add_generation_prompt = generation_prompt});
    if (!ids.ok()) throw std::runtime_error(ids.status().message());
    return *ids;
  }
};

TEST_P(ChatTemplate, EncodesConversationsAsTheTemplateDoes) {
  ASSERT_TRUE(format_.ok()) << format_.status().message();
  ASSERT_FALSE(row_.at("chats").empty());
  for (const json& conversation : row_.at("chats")) {
    EXPECT_EQ(encode(messages_of(conversation), conversation.at("generation_prompt")), conversation.at("ids").get<Ids>())
        << conversation.at("text");
  }
}

// However a message is written, the only markers are those of the template.
TEST_P(ChatTemplate, KeepsMarkersOutOfMessages) {
  ASSERT_TRUE(format_.ok()) << format_.status().message();
  std::string all;
  for (int32_t id = 0; id < tokenizer_.vocab_size(); ++id) {
    if (tokenizer_.type(id) == TokenType::control) all += std::string(tokenizer_.token_text(id)) + " x";
  }
  const auto num_markers = [&](const std::string& content) {
    const Ids ids = encode({{"user", content}, {"assistant", content}, {"user", content}}, true);
    return std::count_if(ids.begin(), ids.end(), [&](int32_t id) {
      // An unknown character's token is no marker.
      return tokenizer_.type(id) == TokenType::control && tokenizer_.token_text(id) != "<unk>";
    });
  };
  EXPECT_EQ(num_markers(all), num_markers("x"));
}

// A marker ends an answer: EOS, which ends every generation, or the one that the template writes after it.
TEST_P(ChatTemplate, KnowsWhatEndsAnAnswer) {
  ASSERT_TRUE(format_.ok()) << format_.status().message();
  const std::map<std::string, std::string> ends = {
      {"gemma3", "<end_of_turn>"}, {"phi3", "<|end|>"}, {"phi4_mini", "<|end|>"}, {"phi4", "<|im_end|>"}, {"harmony", "<|end|>"}};
  const auto end = ends.find(GetParam());
  if (end == ends.end()) {
    EXPECT_TRUE(format_->stop_tokens().empty());
  } else {
    EXPECT_EQ(format_->stop_tokens(), Ids{*tokenizer_.find(end->second)});
  }
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const json& row : chats()) all.push_back(row.at("name"));
  return all;
}

INSTANTIATE_TEST_SUITE_P(Chat, ChatTemplate, testing::ValuesIn(names()), [](const auto& row) { return row.param; });

// ---- What templates of real models do, in templates of our own ----

// A vocabulary of single bytes and some markers.
TokenizerData bytes_and_markers(const std::string& chat_template) {
  TokenizerData data;
  if (const Status status = set_gguf_pre_tokenizer("gpt-2", data); !status.ok()) throw std::runtime_error(status.message());
  const json letters = read_golden("../smollm").at("data").at("tokens");
  for (const json& token : letters) {
    const std::string text = token;
    if (text.size() > 2 || (text.size() == 2 && (text[0] & 0x80) == 0)) continue;
    data.tokens.push_back(text);
    data.token_types.push_back(static_cast<int32_t>(TokenType::normal));
  }
  for (const char* marker :
       {"<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|user|>", "<|assistant|>", "[INST]", "[/INST]", "<|return|>"}) {
    data.tokens.emplace_back(marker);
    data.token_types.push_back(static_cast<int32_t>(TokenType::control));
  }
  const auto id_of = [&](const std::string& text) {
    return static_cast<int32_t>(std::find(data.tokens.begin(), data.tokens.end(), text) - data.tokens.begin());
  };
  data.bos_id = id_of("<s>");
  data.eos_id = id_of("</s>");
  data.chat_template = chat_template;
  return data;
}

// The conversation with markers in { and }: what the engine gets.
std::string spelled_out(const Tokenizer& tokenizer, const Ids& ids) {
  std::string text;
  for (const int32_t id : ids) {
    const bool is_marker = tokenizer.type(id) == TokenType::control;
    text += is_marker ? str_cat("{", tokenizer.token_text(id), "}") : std::string(tokenizer.printed_bytes(id));
  }
  return text;
}

std::string written(const std::string& chat_template, const std::vector<ChatMessage>& messages, const ChatOptions& options = {},
                    const ChatTemplateChoice& choice = {}) {
  const Tokenizer tokenizer = make(bytes_and_markers(chat_template));
  const auto format = ChatFormat::create(tokenizer, choice);
  if (!format.ok()) return format.status().message();
  const auto ids = format->encode_chat(messages, options);
  return ids.ok() ? spelled_out(tokenizer, *ids) : ids.status().message();
}

constexpr const char* kThinking = R"({%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' and '</think>' in content %}
        {%- set content = content.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is not defined or enable_thinking %}{{- '<think>\n' }}{%- endif %}
{%- endif %}
)";

// node-llama-cpp#634: what a template writes after the header of an answer is a part of the prompt.
TEST(ChatFormats, BeginAnAnswerAsTheTemplateDoes) {
  EXPECT_EQ(written(kThinking, {{"user", "Hi"}}), "{<|im_start|>}user\nHi{<|im_end|>}\n{<|im_start|>}assistant\n<think>\n");
  EXPECT_EQ(written(kThinking, {{"user", "Hi"}}, {.variables = R"({"enable_thinking": false})"}),
            "{<|im_start|>}user\nHi{<|im_end|>}\n{<|im_start|>}assistant\n");
  EXPECT_EQ(written(kThinking, {{"user", "Hi"}}, {.variables = R"({"enable_thinking": true})"},
                    {.variables = R"({"enable_thinking": false})"}),
            "{<|im_start|>}user\nHi{<|im_end|>}\n{<|im_start|>}assistant\n<think>\n");
}

// mlc-llm#3482: a template that leaves old thoughts out is not given them again each turn.
TEST(ChatFormats, LeaveOldThoughtsOut) {
  EXPECT_EQ(written(kThinking, {{"user", "1"}, {"assistant", "<think>\nhm\n</think>\n\nA"}, {"user", "2"}},
                    {.add_generation_prompt = false}),
            "{<|im_start|>}user\n1{<|im_end|>}\n{<|im_start|>}assistant\nA{<|im_end|>}\n{<|im_start|>}user\n2{<|im_end|>}\n");
}

// vllm#33210: the template itself writes a system block, with the date.
TEST(ChatFormats, WriteTheSystemBlockOfTheTemplate) {
  const std::string chat_template =
      "{{ '<|im_start|>system\\nYou are a model.\\nToday: ' + strftime_now('%d %b %Y') + '<|im_end|>' }}"
      "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] | trim + '<|im_end|>' }}{% endfor %}";
  std::tm date = {};
  date.tm_year = 126;
  date.tm_mon = 0;
  date.tm_mday = 2;
  EXPECT_EQ(written(chat_template, {{"user", " Hi\n"}}, {}, {.date = date}),
            "{<|im_start|>}system\nYou are a model.\nToday: 02 Jan 2026{<|im_end|>}{<|im_start|>}user\nHi{<|im_end|>}");
}

// llama.cpp#8655: the system prompt is in the last user message, or in the first, as the template says.
TEST(ChatFormats, PutTheSystemPromptWhereTheTemplateDoes) {
  const std::string begin =
      "{%- if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set rest = messages[1:] %}"
      "{%- else %}{% set rest = messages %}{% endif %}{{ bos_token }}{% for m in rest %}{% if m['role'] == 'user' %}";
  const std::string end =
      "{{ '[INST]' + system + '\\n\\n' + m['content'] + '[/INST]' }}{% else %}{{ '[INST]' + m['content'] + '[/INST]' }}{% endif "
      "%}"
      "{% elif m['role'] == 'assistant' %}{{ m['content'] + eos_token }}{% else %}{{ raise_exception('no role ' + m['role']) "
      "}}{% endif %}"
      "{% endfor %}";
  const std::vector<ChatMessage> messages = {{"system", "S"}, {"user", "1"}, {"assistant", "2"}, {"user", "3"}};
  EXPECT_EQ(written(begin + "{% if loop.last and system is defined %}" + end, messages),
            "{<s>}{[INST]}1{[/INST]}2{</s>}{[INST]}S\n\n3{[/INST]}");
  EXPECT_EQ(written(begin + "{% if loop.first and system is defined %}" + end, messages),
            "{<s>}{[INST]}S\n\n1{[/INST]}2{</s>}{[INST]}3{[/INST]}");
  EXPECT_EQ(written(begin + "{% if loop.first and system is defined %}" + end, {{"tool", "4"}}),
            "the chat template, line 1: no role tool");
}

// Markers that a template puts together of the role are markers; those of a role that somebody made up are not.
TEST(ChatFormats, MakeMarkersOfRoles) {
  const std::string chat_template = "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] }}{% endfor %}";
  EXPECT_EQ(written(chat_template, {{"user", "<|user|>"}, {"assistant", "A"}}), "{<|user|>}<|user|>{<|assistant|>}A");
  EXPECT_EQ(written(chat_template, {{"im_end", "x"}}), "<|im_end|>x");
}

TEST(ChatFormats, ContinueTheFinalMessage) {
  const ChatOptions options = {.add_generation_prompt = false, .continue_final_message = true};
  const std::string plain =
      "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}";
  const std::string trimmed =
      "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] | trim + '<|im_end|>\n' }}{% endfor %}";
  const std::vector<ChatMessage> messages = {{"user", "Count"}, {"assistant", "One, "}};
  EXPECT_EQ(written(plain, messages, options), "{<|im_start|>}user\nCount{<|im_end|>}\n{<|im_start|>}assistant\nOne, ");
  EXPECT_EQ(written(trimmed, messages, options), "{<|im_start|>}user\nCount{<|im_end|>}\n{<|im_start|>}assistant\nOne,");
  EXPECT_EQ(written("{{ messages[0]['content'] }}", messages, options),
            "the chat template leaves the final message out, so that it cannot be continued");
  EXPECT_EQ(written(plain, messages, {.continue_final_message = true}),
            "the final message is to be continued, and a generation prompt is to begin a new one: only one is possible");
}

// A template that writes BOS gives one; a template that does not write it gives none, whatever a plain text begins with.
TEST(ChatFormats, WriteBosOnce) {
  TokenizerData data = bytes_and_markers("{{ bos_token }}{{ messages[0]['content'] }}");
  data.add_bos = true;
  const Tokenizer with = make(data);
  data.chat_template = "{{ messages[0]['content'] }}";
  const Tokenizer without = make(data);
  const ChatMessage message = {"user", "<s>Hi"};
  EXPECT_EQ(spelled_out(with, *ChatFormat::create(with)->encode_chat({&message, 1})), "{<s>}<s>Hi");
  EXPECT_EQ(spelled_out(without, *ChatFormat::create(without)->encode_chat({&message, 1})), "<s>Hi");
}

TEST(ChatFormats, TakeContentAsPartsWhereTheTemplateDoes) {
  const std::string chat_template =
      "{% for m in messages %}{{ m['role'] }}:{% for part in m['content'] %}{{ part['text'] }}{% endfor %}<|im_end|>{% endfor %}";
  EXPECT_EQ(written(chat_template, {{"user", "Hi"}}), "user:Hi{<|im_end|>}");
}

TEST(ChatFormats, GiveDevelopersToTemplatesThatKnowThem) {
  EXPECT_EQ(written("{{ messages[0]['role'] }}", {{"developer", "x"}}), "system");
  EXPECT_EQ(written("{{ messages[0]['role'] }}{# developer #}", {{"developer", "x"}}), "developer");
}

TEST(ChatFormats, ShowFurtherMembersToTheTemplate) {
  const std::string chat_template =
      "{% for m in messages %}{{ m.reasoning_content }}|{{ m.tool_calls | tojson if m.tool_calls }}|{{ m.name is defined }};{% "
      "endfor %}";
  EXPECT_EQ(written(chat_template,
                    {{"assistant", "", R"({"thinking": "hm", "tool_calls": [{"b": 1, "a": "<|im_end|>"}], "name": null})"}}),
            "hm|[{\"b\": 1, \"a\": \"<|im_end|>\"}]|False;");
  EXPECT_EQ(written(chat_template, {{"user", "", "[]"}}), "the further members of a chat message must be a JSON object");
  EXPECT_EQ(written(chat_template, {{"user", "", R"({"role": "system"})"}}), "a chat message has two members role");
}

TEST(ChatFormats, ChooseOneOfSeveralTemplates) {
  TokenizerData data = bytes_and_markers("default {{ messages[0]['content'] }}");
  data.named_chat_templates = {{"tool_use", "tools {{ messages[0]['content'] }}"}};
  const Tokenizer tokenizer = make(data);
  const ChatMessage message = {"user", "Hi"};
  const auto text = [&](const ChatTemplateChoice& choice) {
    const auto format = ChatFormat::create(tokenizer, choice);
    return format.ok() ? spelled_out(tokenizer, *format->encode_chat({&message, 1})) : format.status().message();
  };
  EXPECT_EQ(text({}), "default Hi");
  EXPECT_EQ(text({.name = "default"}), "default Hi");
  EXPECT_EQ(text({.name = "tool_use"}), "tools Hi");
  EXPECT_EQ(text({.source = "mine {{ messages[0]['content'] }}"}), "mine Hi");
  EXPECT_EQ(text({.name = "rag"}), "the model has no chat template with the name 'rag': it has 'tool_use'");
}

TEST(ChatFormats, SayWhatIsWrong) {
  const std::vector<ChatMessage> messages = {{"user", "Hi"}};
  EXPECT_EQ(written("", messages), "the model has no chat template");
  EXPECT_EQ(written("a\n{% if %}", messages), "the chat template, line 2: expected an expression, found '%}'");
  EXPECT_EQ(written("a\n{{ messages[0].x.y }}", messages), "the chat template, line 2: 'dict object' has no attribute 'x'");
  EXPECT_EQ(written("x", {}), "the conversation has no messages: at least one is needed");
  EXPECT_EQ(written("x", {{"", "Hi"}}), "a chat message has no role: it must be system, user or assistant");
  EXPECT_EQ(written("x", messages, {.variables = R"({"messages": []})"}),
            "the variables of the chat template have messages, which has a place of its own");
  EXPECT_EQ(written("x", messages, {.variables = "[1"}),
            "the variables of the chat template: this is no JSON: the error is at byte 3");
  TokenizerData data = bytes_and_markers("x");
  data.eos_id = -1;
  const Tokenizer tokenizer = make(std::move(data));
  EXPECT_EQ(ChatFormat::create(tokenizer).status().message(),
            "the tokenizer has no token that ends an answer, and the chat template writes none");
}

}  // namespace
}  // namespace prologue
