// Chat formats against the models' templates, executed by jinja2 and encoded by Hugging Face `tokenizers`
// (tests/golden/tokenizer/README.md). The rules of ChatML and Llama 3 are in tokenizer_test.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

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
  const Result<ChatFormat> format_ = ChatFormat::detect(tokenizer_);

  Ids encode(const std::vector<ChatMessage>& messages, bool generation_prompt) const {
    auto ids = format_->encode_chat(messages, generation_prompt);
    if (!ids.ok()) throw std::runtime_error(ids.status().message());
    return *ids;
  }
};

TEST_P(ChatTemplate, IsRecognised) {
  ASSERT_TRUE(format_.ok()) << format_.status().message();
  EXPECT_EQ(format_->name(), row_.at("format").get<std::string>());
  EXPECT_EQ(tokenizer_.type(format_->end_of_turn()), TokenType::control);
}

TEST_P(ChatTemplate, EncodesConversationsAsTheTemplateDoes) {
  ASSERT_TRUE(format_.ok()) << format_.status().message();
  ASSERT_FALSE(row_.at("chats").empty());
  for (const json& conversation : row_.at("chats")) {
    EXPECT_EQ(encode(messages_of(conversation), conversation.at("generation_prompt")), conversation.at("ids").get<Ids>())
        << conversation.at("text");
  }
}

// What a loop sends turn by turn is the conversation as a whole.
TEST_P(ChatTemplate, ContinuesAConversation) {
  ASSERT_TRUE(format_.ok()) << format_.status().message();
  const std::vector<ChatMessage> messages = {
      {"user", "One"}, {"assistant", "Two, and <|im_end|> </s>"}, {"user", "Three"}, {"assistant", "Four."}, {"user", "Five"}};
  const Ids first = encode({messages[0]}, true), whole = encode(messages, true);
  ASSERT_TRUE(std::equal(first.begin(), first.end(), whole.begin()));
  size_t at = first.size();
  for (size_t i = 1; i < messages.size(); i += 2) {
    const auto next = format_->encode_next_turn(messages[i + 1]);
    ASSERT_TRUE(next.ok()) << next.status().message();
    const auto found = std::search(whole.begin() + static_cast<std::ptrdiff_t>(at), whole.end(), next->begin(), next->end());
    ASSERT_NE(found, whole.end()) << "turn " << i;
    const Ids answer(whole.begin() + static_cast<std::ptrdiff_t>(at), found);
    std::string text = tokenizer_.decode(answer);
    text.erase(0, text.find_first_not_of(' '));
    EXPECT_EQ(text, messages[i].content);
    at = static_cast<size_t>(found - whole.begin()) + next->size();
  }
  EXPECT_EQ(at, whole.size());
}

// However a message is written, the only markers are those of the format.
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

TEST_P(ChatTemplate, RefusesRolesThatHaveNoPlace) {
  ASSERT_TRUE(format_.ok()) << format_.status().message();
  const std::vector<std::string> any_role = {"ChatML", "Llama 3", "Phi-4", "Harmony"};
  const std::string name = format_->name();
  const bool has_any_role = std::find(any_role.begin(), any_role.end(), name) != any_role.end();
  const std::vector<ChatMessage> tool = {{"tool", "42"}};
  EXPECT_EQ(format_->encode_chat(tool, true).ok(), has_any_role);
  EXPECT_EQ(format_->encode_next_turn(tool[0]).ok(), has_any_role);
  if (!has_any_role) {
    EXPECT_EQ(format_->encode_next_turn(tool[0]).status().message(),
              "a chat message has the role 'tool': the " + name + " chat format has system, user and assistant");
  }
  const bool joins = name == "Gemma" || name == "Llama 2" || (name == "Mistral" && GetParam() != "mistral_v7");
  const std::vector<ChatMessage> late = {{"user", "a"}, {"system", "b"}}, alone = {{"system", "b"}};
  EXPECT_EQ(format_->encode_chat(late, true).ok(), !joins);
  EXPECT_EQ(format_->encode_chat(alone, true).ok(), !joins);
  if (joins) {
    EXPECT_EQ(format_->encode_chat(late, true).status().message(),
              "a system message is not the first message: the " + name + " chat format has it only there");
    EXPECT_EQ(format_->encode_chat(alone, true).status().message(),
              "the system message is not followed by a user message: in the " + name + " chat format it is a part of that");
  }
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const json& row : chats()) all.push_back(row.at("name"));
  return all;
}

INSTANTIATE_TEST_SUITE_P(Chat, ChatTemplate, testing::ValuesIn(names()), [](const auto& row) { return row.param; });

TEST(ChatFormats, NeedAnEndOfAMessage) {
  TokenizerData data = data_of(chat("llama2"));
  data.eos_id = -1;
  const Tokenizer tokenizer = make(std::move(data));
  const auto format = ChatFormat::detect(tokenizer);
  EXPECT_EQ(format.status().code(), StatusCode::data_loss);
  EXPECT_EQ(format.status().message(),
            "the model's chat template is Llama 2, but its tokenizer has no EOS token to end a message");
}

TEST(ChatFormats, RefuseOthers) {
  for (const char* unknown : {"{{ '[gMASK]<sop>' }}{{ '<|user|>\n' + message['content'] }}", "{{ '<|START_OF_TURN_TOKEN|>' }}",
                              "{{ '<｜User｜>' }}", "{{ '<|header_start|>' }}"}) {
    TokenizerData data = data_of(chat("chatml"));
    data.chat_template = unknown;
    const Tokenizer tokenizer = make(std::move(data));
    EXPECT_EQ(ChatFormat::detect(tokenizer).status().code(), StatusCode::unsupported) << unknown;
  }
}

}  // namespace
}  // namespace prologue
