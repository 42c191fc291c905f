// Compares tokenizer.json with Hugging Face `tokenizers` (tests/golden/tokenizer/README.md), and tests the files around it, and what is
// refused.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <prologue/engine/huggingface/tokenizer_files.h>
#include <prologue/engine/tokenizer/tokenizer.h>

#include "tests/support/source_path.h"

namespace prologue {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string golden_path(const std::string& name) { return test::source_path("tests/golden/tokenizer/hf/" + name + ".json"); }

json tokenizer_json(const std::string& family) { return json::parse(read_text(golden_path(family + ".tokenizer"))); }

Tokenizer make(const json& file) {
  auto data = parse_tokenizer_json(file.dump());
  if (!data.ok()) throw std::runtime_error(data.status().message());
  auto tokenizer = Tokenizer::create(std::move(data).value());
  if (!tokenizer.ok()) throw std::runtime_error(tokenizer.status().message());
  return std::move(tokenizer).value();
}

Ids encode(const Tokenizer& tokenizer, std::string_view text, bool parse_special = false) {
  auto ids = tokenizer.encode(text, parse_special, false);
  EXPECT_TRUE(ids.ok()) << ids.status().message();
  return ids.ok() ? *ids : Ids{};
}

// ---- Goldens ----

class Family : public testing::TestWithParam<const char*> {
 protected:
  const json golden_ = json::parse(read_text(golden_path(std::string(GetParam()) + ".golden")));
  const Tokenizer tokenizer_ = make(tokenizer_json(GetParam()));
};

TEST_P(Family, EncodesAndDecodesLikeHuggingFace) {
  const json strings = json::parse(read_text(golden_path("strings")));
  for (const json& row : golden_.at("rows")) {
    const std::string text = row.at("text").is_string() ? row.at("text") : strings.at(row.at("text").get<size_t>());
    if (row.contains("plain")) {
      const Ids plain = row.at("plain").get<Ids>();
      EXPECT_EQ(encode(tokenizer_, text), plain) << text;
      EXPECT_EQ(tokenizer_.decode(plain), row.contains("decoded") ? row.at("decoded").get<std::string>() : text) << text;
    }
    EXPECT_EQ(encode(tokenizer_, text, true), row.at(row.contains("parsed") ? "parsed" : "plain").get<Ids>()) << text;
  }
}

TEST_P(Family, KnowsWhatComesBeforeAndAfterAText) {
  Ids ids = *tokenizer_.encode("a", false, tokenizer_.add_bos());
  if (tokenizer_.add_eos()) ids.push_back(tokenizer_.eos_id());
  EXPECT_EQ(ids, golden_.at("with_bos_and_eos_of_a").get<Ids>());
}

// Quadratic work on a megabyte takes longer than any test may.
TEST_P(Family, TakesLongRunsOfAnything) {
#ifdef __OPTIMIZE__
  constexpr size_t kBytes = 1 << 18;
#else
  constexpr size_t kBytes = 1 << 14;
#endif
  for (const std::string unit : {" ", "\n", "a", "A", "1", "'", "é", "e\u0301", "\u0301\u0323", "漢", " \n", "<tool", "<0x0A>",
                                 "<|end|", "\u2581", "\xff"}) {
    std::string text;
    while (text.size() < kBytes) text += unit;
    EXPECT_TRUE(tokenizer_.encode(text + "x", true, false).ok()) << "a run of " << unit;
  }
}

INSTANTIATE_TEST_SUITE_P(HuggingFace, Family,
                         testing::Values("gpt2", "llama3", "qwen2", "neox", "gpt_oss", "prefix_space", "cohere", "gemma",
                                         "llama2_legacy", "llama2", "phi3", "t5", "unigram_bytes", "characters", "words"),
                         [](const auto& row) { return row.param; });

// ---- What else is in a file ----

// Makes byte-level BPE with the tokens 'a', 'b', 'ab', and <s> and </s> as control tokens.
json tiny() {
  return json::parse(R"({
    "added_tokens": [{"id": 3, "content": "<s>", "special": true}, {"id": 4, "content": "</s>", "special": true}],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
    "post_processor": null,
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
  })");
}

TEST(TokenizerJson, IsReadWithItsDefaults) {
  const auto data = parse_tokenizer_json(tiny().dump());
  ASSERT_TRUE(data.ok()) << data.status().message();
  EXPECT_EQ(data->model, TokenizerModel::bpe);
  EXPECT_TRUE(data->byte_level);
  EXPECT_EQ(data->pre_tokenizer.size(), 1u);
  EXPECT_EQ(data->tokens, (std::vector<std::string>{"a", "b", "ab", "<s>", "</s>"}));
  EXPECT_EQ(data->token_types, (std::vector<int32_t>{1, 1, 1, 3, 3}));
  EXPECT_EQ(data->bos_id, -1);
  EXPECT_EQ(data->eos_id, -1);
  EXPECT_FALSE(data->add_bos);
  EXPECT_FALSE(data->add_eos);
  EXPECT_FALSE(data->whole_pieces_first);
  EXPECT_FALSE(data->byte_fallback);
}

// If no token has an id, the id becomes an unused token; merges into and from markers are left out.
TEST(TokenizerJson, TakesGapsAndMergesOfMarkers) {
  json file = tiny();
  file["added_tokens"][1]["id"] = 7;
  file["added_tokens"].push_back({{"id", 8}, {"content", "ba"}, {"special", true}});
  file["model"]["merges"].push_back("b a");
  const Tokenizer tokenizer = make(file);
  EXPECT_EQ(tokenizer.vocab_size(), 9);
  EXPECT_EQ(tokenizer.type(5), TokenType::unused);
  EXPECT_EQ(encode(tokenizer, "ba"), (Ids{1, 0}));
  EXPECT_EQ(encode(tokenizer, "ba", true), (Ids{8}));
  EXPECT_EQ(tokenizer.decode(Ids{5, 0}), "a");
}

TEST(TokenizerJson, RefusesWhatItDoesNotKnow) {
  struct Case {
    const char* path;
    const char* value;
    const char* message;
  };
  const Case cases[] = {
      {"/model/type", R"("WordPiece")",
       "unsupported: tokenizer.json: model has the type 'WordPiece', which is not supported: supported are BPE and Unigram"},
      {"/model", "3", "data loss: tokenizer.json: model is an integer: it must be an object"},
      {"/model/dropout", "0.5",
       "unsupported: tokenizer.json: model.dropout is 0.5: merges that are left out at random are not supported"},
      {"/model/end_of_word_suffix", R"("</w>")",
       "unsupported: tokenizer.json: model.end_of_word_suffix is '</w>': only an empty one is supported"},
      {"/model/unk_token", R"("<unk>")", "data loss: tokenizer.json: model.unk_token is '<unk>', which the vocabulary lacks"},
      {"/model/vocab", "[]", "data loss: tokenizer.json: model.vocab is a list: it must be an object"},
      {"/model/vocab/a", "0.5", "data loss: tokenizer.json: model.vocab of 'a' is a number: it must be an integer"},
      {"/model/vocab/a", "-1", "data loss: tokenizer.json: token 'a' has the id -1: the ids of 3 tokens must be from 0 to 65538"},
      {"/model/vocab/a", "70000",
       "data loss: tokenizer.json: token 'a' has the id 70000: the ids of 3 tokens must be from 0 to 65538"},
      {"/model/vocab/b", "0", "data loss: tokenizer.json: token 0 is both 'a' and 'b'"},
      {"/model/merges", "{}", "data loss: tokenizer.json: model.merges is an object: it must be a list"},
      {"/model/merges/0", R"("ab")",
       "data loss: tokenizer.json: model.merges[0] is 'ab': it must be two tokens with a space between them"},
      {"/model/merges/0", R"(["a"])",
       "data loss: tokenizer.json: model.merges[0] is a list: it must be a string or a list of two strings"},
      {"/model/merges/0", R"(["a", 3])",
       "data loss: tokenizer.json: model.merges[0] is a list: it must be a string or a list of two strings"},
      {"/added_tokens/0/id", "0", "data loss: tokenizer.json: token 0 is both 'a' and '<s>'"},
      {"/added_tokens/0/special", "1",
       "data loss: tokenizer.json: added_tokens[0].special is an integer: it must be true or false"},
      {"/normalizer",
       R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Precompiled", "precompiled_charsmap": "AA=="}]})",
       "unsupported: tokenizer.json: normalizer.normalizers[1] has the type 'Precompiled', which is not supported"},
      {"/normalizer", R"({"type": "Lowercase"})",
       "unsupported: tokenizer.json: normalizer has the type 'Lowercase', which is not supported"},
      {"/normalizer", R"({"type": "Replace", "pattern": {"Glob": "*"}, "content": ""})",
       "unsupported: tokenizer.json: normalizer.pattern is of no known kind: supported are String and Regex"},
      {"/normalizer", R"("NFC")", "data loss: tokenizer.json: normalizer.type is null: it must be a string"},
      {"/pre_tokenizer", R"({"type": "BertPreTokenizer"})",
       "unsupported: tokenizer.json: pre_tokenizer has the type 'BertPreTokenizer', which is not supported"},
      {"/pre_tokenizer", R"({"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}, {"type": "Digits"}]})",
       "unsupported: tokenizer.json: pre_tokenizer.pretokenizers[1], 'Digits', comes after ByteLevel, which is not supported"},
      {"/pre_tokenizer", R"({"type": "Split", "pattern": {"String": "a"}, "behavior": "Upside"})",
       "unsupported: tokenizer.json: pre_tokenizer.behavior is 'Upside', which is not supported"},
      {"/pre_tokenizer", R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "last"})",
       "unsupported: tokenizer.json: pre_tokenizer.prepend_scheme is 'last', which is not supported"},
      {"/decoder", "null", "unsupported: tokenizer.json: decoder is missing: tokens that are words are not supported"},
      {"/decoder", R"({"type": "WordPiece"})",
       "unsupported: tokenizer.json: decoder has the type 'WordPiece', which is not supported"},
      {"/decoder", R"({"type": "Fuse"})", "unsupported: tokenizer.json: decoder is not ByteLevel, but the pre-tokenizer is"},
      {"/decoder",
       R"({"type": "Sequence", "decoders": [{"type": "ByteLevel"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})",
       "unsupported: tokenizer.json: decoder.decoders[1] strips 1 and 0 of ' ' of each token: supported is one space at the "
       "beginning, after Fuse"},
      {"/post_processor", R"({"type": "BertProcessing"})",
       "unsupported: tokenizer.json: post_processor has the type 'BertProcessing', which is not supported"},
      {"/post_processor", R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<x>"}}]})",
       "data loss: tokenizer.json: post_processor.single[0] is the token '<x>', which the vocabulary lacks"},
      {"/post_processor",
       R"({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "<s>"}}, {"SpecialToken": {"id": "</s>"}}]})",
       "unsupported: tokenizer.json: post_processor.single adds more than one token after a text, which is not supported"},
  };
  for (const Case& c : cases) {
    json file = tiny();
    file[json::json_pointer(c.path)] = json::parse(c.value);
    const Status status = parse_tokenizer_json(file.dump()).status();
    EXPECT_EQ(str_cat(status_code_name(status.code()), ": ", status.message()), c.message) << c.path;
  }
}

// GLM-4's template begins a text with [gMASK]<sop>. `tokenizers` 0.23.3 gives 3, 4, 0 for "a" here.
TEST(TokenizerJson, BeginsATextWithAllTokensOfTheTemplate) {
  json file = tiny();
  file["post_processor"] = json::parse(
      R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"SpecialToken": {"id": "</s>"}}, {"Sequence": {"id": "A"}}]})");
  const Tokenizer tokenizer = make(file);
  EXPECT_TRUE(tokenizer.add_bos());
  EXPECT_FALSE(tokenizer.add_eos());
  EXPECT_EQ(tokenizer.encode("a", false, tokenizer.add_bos()).value(), (Ids{3, 4, 0}));
}

// `tokenizers` loads tokens without a text; an added one does not even get its id.
TEST(TokenizerJson, ATokenWithoutATextIsUnused) {
  json file = tiny();
  file["model"]["vocab"] = {{"a", 0}, {"b", 1}, {"ab", 2}, {"", 5}};
  file["added_tokens"].push_back({{"id", 6}, {"content", ""}, {"special", true}});
  const Tokenizer tokenizer = make(file);
  EXPECT_EQ(tokenizer.vocab_size(), 7);
  EXPECT_EQ(tokenizer.type(5), TokenType::unused);
  EXPECT_EQ(tokenizer.type(6), TokenType::unused);
  EXPECT_EQ(encode(tokenizer, "ab", true), (Ids{2}));
  EXPECT_EQ(tokenizer.decode(Ids{5, 0, 6}), "a");
}

// 200 MB of "0,0," used to take 5.6 GB.
TEST(TokenizerJson, HasALargestNumberOfValues) {
  std::string zeros = "[0";
  for (int i = 0; i < (1 << 22) + 2; ++i) zeros += ",0";
  const Status refused = parse_tokenizer_json(zeros).status();
  EXPECT_EQ(refused.code(), StatusCode::unsupported);
  EXPECT_EQ(refused.message(), "tokenizer.json: the JSON has more than 4194304 values");
}

TEST(TokenizerJson, IsTrustedInNothing) {
  EXPECT_EQ(parse_tokenizer_json("").status().code(), StatusCode::data_loss);
  EXPECT_EQ(parse_tokenizer_json("[]").status().message(), "tokenizer.json: is a list: it must be an object");
  EXPECT_EQ(parse_tokenizer_json(std::string(1 << 20, '[')).status().message(),
            "tokenizer.json: the JSON is nested more than 64 levels deep");
  const std::string text = tiny().dump();
  for (size_t size = 0; size < text.size(); ++size) EXPECT_FALSE(parse_tokenizer_json(text.substr(0, size)).ok());
}

// ---- The files around it ----

class Directory : public testing::Test {
 protected:
  Directory() { std::filesystem::create_directories(path_); }
  ~Directory() override { std::filesystem::remove_all(path_); }
  void write(const std::string& name, const std::string& text) const { std::ofstream(path_ + "/" + name) << text; }
  Result<TokenizerData> read() const { return read_huggingface_tokenizer(path_); }
  std::string refusal() const {
    const Status status = read().status();
    return str_cat(status_code_name(status.code()), ": ", status.message());
  }

  const std::string path_ = str_cat(testing::TempDir(), "prologue_huggingface_tokenizer_", getpid());
};

TEST_F(Directory, NeedsATokenizer) {
  EXPECT_EQ(read().status().code(), StatusCode::not_found);
  write("tokenizer.json", "{");
  EXPECT_EQ(read().status().code(), StatusCode::data_loss);
}

TEST_F(Directory, NamesBosEosAndTheChatTemplate) {
  write("tokenizer.json", tiny().dump());
  EXPECT_EQ(read()->bos_id, -1);
  EXPECT_EQ(read()->chat_template, "");

  write("special_tokens_map.json", R"({"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "ab"})");
  EXPECT_EQ(read()->bos_id, 3);
  EXPECT_EQ(read()->eos_id, 2);
  EXPECT_FALSE(read()->add_bos);

  write("tokenizer_config.json", R"({"eos_token": "</s>", "add_bos_token": true, "chat_template": "one"})");
  EXPECT_EQ(read()->bos_id, 3);
  EXPECT_EQ(read()->eos_id, 4);
  EXPECT_TRUE(read()->add_bos);
  EXPECT_FALSE(read()->add_eos);
  EXPECT_EQ(read()->chat_template, "one");

  write("tokenizer_config.json",
        R"({"bos_token": null, "chat_template": [{"name": "tools", "template": "x"}, {"name": "default", "template": "two"}]})");
  EXPECT_EQ(read()->chat_template, "two");
  ASSERT_EQ(read()->named_chat_templates.size(), 1u);
  EXPECT_EQ(read()->named_chat_templates[0].name, "tools");
  EXPECT_EQ(read()->named_chat_templates[0].source, "x");
  write("chat_template.jinja", "three\n");
  EXPECT_EQ(read()->chat_template, "three\n");
  std::filesystem::create_directory(path_ + "/additional_chat_templates");
  write("additional_chat_templates/tools.jinja", "y");
  write("additional_chat_templates/rag.jinja", "z");
  const auto named = read()->named_chat_templates;
  ASSERT_EQ(named.size(), 2u);
  EXPECT_EQ(named[0].name + named[0].source, "ragz");
  EXPECT_EQ(named[1].name + named[1].source, "toolsy");
}

// The template of tokenizer.json adds BOS unless the configuration says that it is not added.
TEST_F(Directory, ConfigurationDecidesWhetherBosIsAdded) {
  json file = tiny();
  file["post_processor"] = json::parse(
      R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "</s>"}}]})");
  write("tokenizer.json", file.dump());
  EXPECT_TRUE(read()->add_bos);
  EXPECT_TRUE(read()->add_eos);
  EXPECT_EQ(read()->bos_id, 3);
  EXPECT_EQ(read()->eos_id, 4);
  write("tokenizer_config.json", R"({"add_bos_token": false, "add_eos_token": false, "bos_token": "<s>", "eos_token": "b"})");
  EXPECT_FALSE(read()->add_bos);
  EXPECT_FALSE(read()->add_eos);
  EXPECT_EQ(read()->bos_id, 3);
  EXPECT_EQ(read()->eos_id, 1);
}

TEST_F(Directory, GenerationEndsAtAnyOfSeveralTokens) {
  write("tokenizer.json", tiny().dump());
  write("tokenizer_config.json", R"({"eos_token": "</s>"})");
  write("generation_config.json", R"({"eos_token_id": [2, 4, 5000]})");  // 5000: a row of padding in the embedding
  const auto tokenizer = Tokenizer::create(*read());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ(Ids(tokenizer->end_ids().begin(), tokenizer->end_ids().end()), (Ids{2, 4}));
  EXPECT_TRUE(tokenizer->is_end_of_generation(2));
  EXPECT_FALSE(tokenizer->is_end_of_generation(3));
  write("generation_config.json", R"({"eos_token_id": 3})");
  EXPECT_EQ(read()->end_ids, (Ids{3}));
}

// InfiniLM#386: the tokens are those with which transformers makes a missing generation_config.json from config.json.
TEST_F(Directory, GenerationEndsAtTheTokensOfTheConfigurationWhereNoOtherFileNamesThem) {
  write("tokenizer.json", tiny().dump());
  write("config.json", R"({"eos_token_id": [2, 4]})");
  EXPECT_EQ(read()->end_ids, (Ids{2, 4}));
  write("generation_config.json", R"({"temperature": 0.6})");
  EXPECT_EQ(read()->end_ids, (Ids{2, 4}));
  write("generation_config.json", R"({"eos_token_id": 3})");
  EXPECT_EQ(read()->end_ids, (Ids{3}));
  std::filesystem::remove(path_ + "/generation_config.json");
  write("config.json", R"({"text_config": {"eos_token_id": 4}, "eos_token_id": null})");
  EXPECT_EQ(read()->end_ids, (Ids{4}));
  write("config.json", R"({"eos_token_id": "</s>"})");
  EXPECT_EQ(refusal(), "data loss: " + path_ + "/config.json: eos_token_id is a string: it must be an integer");
}

TEST_F(Directory, RefusesWhatItDoesNotKnow) {
  write("tokenizer.json", tiny().dump());
  write("tokenizer_config.json", R"({"bos_token": "<x>"})");
  EXPECT_EQ(refusal(), "data loss: " + path_ + "/tokenizer_config.json: bos_token is '<x>', which the vocabulary lacks");
  write("tokenizer_config.json", R"({"add_bos_token": 1})");
  EXPECT_EQ(refusal(), "data loss: " + path_ + "/tokenizer_config.json: add_bos_token is an integer: it must be true or false");
  write("tokenizer_config.json", "{}");
  write("generation_config.json", R"({"eos_token_id": ["a"]})");
  EXPECT_EQ(refusal(), "data loss: " + path_ + "/generation_config.json: eos_token_id[0] is a string: it must be an integer");
}

}  // namespace
}  // namespace prologue
