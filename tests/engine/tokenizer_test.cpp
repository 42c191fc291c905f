// The tokenizer against Hugging Face `tokenizers` and llama.cpp (tests/golden/tokenizer/README.md), and its refusals.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <prologue/engine/base/utf8.h>
#include <prologue/engine/gguf/tokenizer_data.h>
#include <prologue/engine/tokenizer/chat.h>
#include <prologue/engine/tokenizer/pre_tokenizer.h>
#include <prologue/engine/tokenizer/tokenizer.h>

#include "tests/support/random.h"
#include "tests/support/source_path.h"

namespace prologue {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

constexpr std::array<const char*, 4> kPreTokenizers = {"smollm", "gpt-2", "llama-bpe", "qwen2"};

json read_golden(const std::string& name) {
  std::ifstream file(test::source_path("tests/golden/tokenizer/" + std::string(name) + ".json"));
  return json::parse(file);
}

const json& shared_strings() {
  static const json golden = read_golden("strings");
  return golden;
}

// Makes byte-level BPE with the pre-tokenizer that has this name in GGUF.
TokenizerData byte_level(const std::string& pre) {
  TokenizerData data;
  EXPECT_TRUE(set_gguf_pre_tokenizer(pre, data).ok());
  data.add_bos = false;
  return data;
}

// Each line, "left right", is one merge.
std::vector<TokenMerge> merges(const std::vector<std::string>& lines) {
  std::vector<TokenMerge> made;
  for (const std::string& line : lines) made.push_back({line.substr(0, line.find(' ')), line.substr(line.find(' ') + 1)});
  return made;
}

TokenizerData data_of(const json& golden) {
  const json& d = golden.at("data");
  TokenizerData data = byte_level(d.at("pre"));
  data.tokens = d.at("tokens").get<std::vector<std::string>>();
  data.token_types = d.at("token_types").get<std::vector<int32_t>>();
  data.merges = merges(d.at("merges").get<std::vector<std::string>>());
  data.bos_id = d.at("bos_id");
  data.eos_id = d.at("eos_id");
  data.chat_template = d.at("chat_template");
  return data;
}

Tokenizer make(TokenizerData data) {
  auto tokenizer = Tokenizer::create(std::move(data));
  if (!tokenizer.ok()) throw std::runtime_error(tokenizer.status().message());
  return std::move(tokenizer).value();
}

Ids encode(const Tokenizer& tokenizer, std::string_view text, bool parse_special = false, bool add_bos = false) {
  auto ids = tokenizer.encode(text, parse_special, add_bos);
  EXPECT_TRUE(ids.ok()) << ids.status().message();
  return ids.ok() ? *ids : Ids{};
}

std::string to_utf8(uint32_t character) {
  const auto byte = [](uint32_t value) { return static_cast<char>(value); };
  if (character < 0x80) return {byte(character)};
  if (character < 0x800) return {byte(0xc0 | character >> 6), byte(0x80 | (character & 0x3f))};
  if (character < 0x10000) {
    return {byte(0xe0 | character >> 12), byte(0x80 | (character >> 6 & 0x3f)), byte(0x80 | (character & 0x3f))};
  }
  return {byte(0xf0 | character >> 18), byte(0x80 | (character >> 12 & 0x3f)), byte(0x80 | (character >> 6 & 0x3f)),
          byte(0x80 | (character & 0x3f))};
}

// Returns the GGUF spelling of all 256 bytes, by byte.
std::vector<std::string> byte_alphabet() {
  std::vector<std::string> alphabet;
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
    alphabet.push_back(to_utf8(printable ? byte : next++));
  }
  return alphabet;
}

uint64_t fnv1a(std::string_view bytes) {
  uint64_t value = 0xcbf29ce484222325u;
  for (const char byte : bytes) value = (value ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
  return value;
}

std::string hex(uint64_t value) {
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(value));
  return text.data();
}

// The judge of UTF-8 is independent: the json library refuses to write anything else.
bool is_utf8(const std::string& text) {
  try {
    return !json(text).dump().empty();
  } catch (const json::type_error&) {
    return false;
  }
}

std::string stream(const Tokenizer& tokenizer, const Ids& ids) {
  StreamDecoder decoder(tokenizer);
  std::string all;
  for (const int32_t id : ids) {
    const std::string text = decoder.push(id);
    EXPECT_TRUE(is_utf8(text));
    all += text;
  }
  const std::string rest = decoder.finish();
  EXPECT_TRUE(is_utf8(rest));
  return all + rest;
}

// Checks everything that a golden file expects of a tokenizer.
void expect_goldens(const Tokenizer& tokenizer, const json& golden) {
  const json& strings = shared_strings().at("strings");
  ASSERT_EQ(golden.at("plain").size(), strings.size());
  int checked = 0;
  for (size_t i = 0; i < strings.size(); ++i) {
    const std::string text = strings[i];
    if (golden.at("plain")[i].is_null()) continue;  // the vocabulary lacks a byte of it
    ++checked;
    const Ids plain = encode(tokenizer, text);
    EXPECT_EQ(plain, golden.at("plain")[i].get<Ids>()) << "string " << i << ": " << text;
    EXPECT_EQ(tokenizer.decode(plain), text) << "string " << i;
    EXPECT_EQ(stream(tokenizer, plain), text) << "string " << i;
    const auto parsed = golden.at("parsed").find(std::to_string(i));
    EXPECT_EQ(encode(tokenizer, text, true), parsed == golden.at("parsed").end() ? plain : parsed->get<Ids>())
        << "string " << i << " with control tokens: " << text;
  }
  EXPECT_GT(checked, 400);
}

std::vector<ChatMessage> messages_of(const json& chat) {
  std::vector<ChatMessage> messages;
  for (const json& message : chat.at("messages")) messages.push_back({message[0], message[1]});
  return messages;
}

void expect_chat_goldens(const Tokenizer& tokenizer, const json& golden) {
  auto format = ChatFormat::create(tokenizer);
  ASSERT_TRUE(format.ok()) << format.status().message();
  ASSERT_FALSE(golden.at("chats").empty());
  for (const json& chat : golden.at("chats")) {
    auto ids = format->encode_chat(messages_of(chat), {.add_generation_prompt = chat.at("generation_prompt")});
    ASSERT_TRUE(ids.ok()) << ids.status().message();
    EXPECT_EQ(*ids, chat.at("ids").get<Ids>()) << chat.at("messages");
  }
}

// ---- Goldens ----

class SmallVocabulary : public testing::TestWithParam<const char*> {
 protected:
  const json golden_ = read_golden(GetParam());
  const Tokenizer tokenizer_ = make(data_of(golden_));
};

TEST_P(SmallVocabulary, EncodesLikeHuggingFace) { expect_goldens(tokenizer_, golden_); }

TEST_P(SmallVocabulary, SplitsLikeHuggingFace) {
  const auto pre_tokenizer = PreTokenizer::create(byte_level(GetParam()).pre_tokenizer);
  ASSERT_TRUE(pre_tokenizer.ok());
  const json& strings = shared_strings().at("strings");
  for (size_t i = 0; i < strings.size(); ++i) {
    const std::string text = strings[i];
    TextPieces split;
    ASSERT_TRUE(pre_tokenizer->split(text, TextStart::text, split).ok());
    std::vector<size_t> lengths;
    for (const std::string_view piece : split.pieces) lengths.push_back(piece.size());
    EXPECT_EQ(lengths, golden_.at("splits")[i].get<std::vector<size_t>>()) << "string " << i << ": " << text;
  }
}

// For every kind of pre-tokenizer that GGUF files name, the pieces are those of `tokenizers` (scripts/make_tokenizer_goldens.py).
TEST(PreTokenizers, OfEveryNameSplitLikeHuggingFace) {
  const json goldens = read_golden("pre_tokenizers");
  const std::map<std::string, std::vector<std::string>> same_as = {
      {"gpt-2",
       {"phi-2", "olmo", "mpt", "jais", "trillion", "granite-docling", "gigachat", "a.x-4.0", "mellum", "modern-bert",
        "exaone4"}},
      {"smollm", {"starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"}},
      {"llama-bpe", {"llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"}},
      {"smaug-bpe", {"dbrx", "glm4", "chatglm-bpe"}},
      {"qwen2", {"deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2"}},
      {"bailingmoe", {"bailingmoe2", "llada-moe"}},
      {"gpt-4o", {"llama4", "kanana2", "talkie", "minimax-m2"}},
      {"tiny_aya", {"cohere2moe"}},
      {"bloom", {"poro-chat", "gpt3-finnish"}},
      {"deepseek-v3", {"hunyuan-dense", "joyai-llm", "hy_v4"}}};
  for (const auto& [kind, golden] : goldens.items()) {
    std::vector<std::string> names = {kind};
    if (const auto same = same_as.find(kind); same != same_as.end())
      names.insert(names.end(), same->second.begin(), same->second.end());
    for (const std::string& name : names) {
      const auto pre_tokenizer = PreTokenizer::create(byte_level(name).pre_tokenizer);
      ASSERT_TRUE(pre_tokenizer.ok()) << name << ": " << pre_tokenizer.status().message();
      size_t count = 0;
      std::string lengths;
      for (const json& text : shared_strings().at("strings")) {
        TextPieces split;
        ASSERT_TRUE(pre_tokenizer->split(text.get<std::string>(), TextStart::text, split).ok()) << name;
        count += split.pieces.size();
        split.pieces.emplace_back();
        for (const std::string_view piece : split.pieces) {
          for (int shift = 0; shift < 32; shift += 8) lengths += static_cast<char>(piece.size() >> shift & 0xff);
        }
      }
      EXPECT_EQ(count, golden.at("pieces").get<size_t>()) << name;
      EXPECT_EQ(hex(fnv1a(lengths)), golden.at("digest").get<std::string>()) << name;
    }
  }
}

// One text has every character of Unicode 3.2 after a letter, before a digit and between spaces.
TEST_P(SmallVocabulary, SplitsEveryCharacterLikeHuggingFace) {
  std::string text;
  for (const json& range : shared_strings().at("ranges")) {
    for (uint32_t c = range[0]; c <= range[1].get<uint32_t>(); ++c) {
      const std::string character = to_utf8(c);
      text += "x" + character + "1 " + character + "  " + character + "y";
    }
  }
  const auto pre_tokenizer = PreTokenizer::create(byte_level(GetParam()).pre_tokenizer);
  ASSERT_TRUE(pre_tokenizer.ok());
  TextPieces split;
  ASSERT_TRUE(pre_tokenizer->split(text, TextStart::text, split).ok());
  const std::vector<std::string_view>& pieces = split.pieces;
  EXPECT_EQ(pieces.size(), golden_.at("sweep").at("pieces").get<size_t>());
  std::string lengths;
  for (const std::string_view piece : pieces) {
    for (int shift = 0; shift < 32; shift += 8) lengths += static_cast<char>(piece.size() >> shift & 0xff);
  }
  EXPECT_EQ(hex(fnv1a(lengths)), golden_.at("sweep").at("digest").get<std::string>());
}

TEST_P(SmallVocabulary, EncodesConversationsLikeTheTemplate) {
  if (golden_.at("chats").empty()) {
    EXPECT_EQ(ChatFormat::create(tokenizer_).status().code(), StatusCode::not_found);
    return;
  }
  expect_chat_goldens(tokenizer_, golden_);
}

// Quadratic work on a megabyte takes longer than any test may. Unoptimised builds (sanitizers) look for other faults.
TEST_P(SmallVocabulary, TakesLongRunsOfAnything) {
#ifdef __OPTIMIZE__
  constexpr size_t kBytes = 1 << 20;
#else
  constexpr size_t kBytes = 1 << 15;
#endif
  for (const std::string unit : {" ", "\n", "a", "1", "'", "é", " \n", "<tool", "<|im_start|", "\xff"}) {
    std::string text;
    while (text.size() < kBytes) text += unit;
    text += "x";
    const Ids ids = encode(tokenizer_, text, true);
    EXPECT_EQ(tokenizer_.decode(ids), replace_invalid_bytes(text)) << "a run of " << unit;
  }
}

TEST_P(SmallVocabulary, ReplacesEachBadByte) {
  for (const json& row : shared_strings().at("bytes")) {
    const std::string digits = row[0];
    std::string bytes;
    for (size_t i = 0; i < digits.size(); i += 2) bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
    EXPECT_EQ(replace_invalid_bytes(bytes), row[1].get<std::string>()) << digits;
    EXPECT_EQ(encode(tokenizer_, bytes), encode(tokenizer_, row[1].get<std::string>())) << digits;
    EXPECT_EQ(is_valid_utf8(bytes), is_utf8(bytes)) << digits;
  }
}

// As tokens of one byte each, every sequence that cannot become a character prints as one U+FFFD.
TEST_P(SmallVocabulary, StreamsOnlyWholeCharacters) {
  const std::vector<std::string> alphabet = byte_alphabet();
  for (const json& row : shared_strings().at("bytes")) {
    const std::string digits = row[0];
    Ids ids;
    for (size_t i = 0; i < digits.size(); i += 2) {
      ids.push_back(*tokenizer_.find(alphabet[static_cast<size_t>(std::stoi(digits.substr(i, 2), nullptr, 16))]));
    }
    EXPECT_EQ(stream(tokenizer_, ids), row[2].get<std::string>()) << digits;
    EXPECT_EQ(tokenizer_.decode(ids), row[2].get<std::string>()) << digits;
  }
  test::Random random(11);
  for (int round = 0; round < 200; ++round) {
    Ids ids;
    for (int i = 0; i < 40; ++i) ids.push_back(static_cast<int32_t>(random.integer(-2, tokenizer_.vocab_size() + 1)));
    EXPECT_EQ(stream(tokenizer_, ids), tokenizer_.decode(ids));
  }
}

TEST_P(SmallVocabulary, ServesSeveralThreads) {
  const std::string text = shared_strings().at("strings")[8].get<std::string>() + "  12'34\n\n🙂<tool_call>";
  const Ids expected = encode(tokenizer_, text, true);
  std::vector<int> equal(4, 0);
  std::vector<std::thread> threads;
  for (int& count : equal) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) count += *tokenizer_.encode(text, true, false) == expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(equal, std::vector<int>(4, 200));
}

INSTANTIATE_TEST_SUITE_P(Tokenizer, SmallVocabulary, testing::ValuesIn(kPreTokenizers), [](const auto& row) {
  std::string name = row.param;
  std::erase(name, '-');
  return name;
});

// This is the file that scripts/demo and scripts/test fetch.
TEST(Tokenizer, EncodesLikeTheDemoModel) {
  const std::string path = test::source_path("models/SmolLM2-135M-Instruct.Q4_1.gguf");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "the demo model is not there: " << path;
  auto data = read_tokenizer_data(path);
  ASSERT_TRUE(data.ok()) << data.status().message();
  const json golden = read_golden("smollm2");
  std::string joined;
  for (const std::string& token : data->tokens) joined += (joined.empty() ? "" : "\n") + token;
  ASSERT_EQ(hex(fnv1a(joined)), golden.at("tokens_digest").get<std::string>()) << "another vocabulary than the goldens'";

  const Tokenizer tokenizer = make(std::move(data).value());
  EXPECT_EQ(tokenizer.vocab_size(), 49152);
  EXPECT_TRUE(tokenizer.is_end_of_generation(2));
  EXPECT_TRUE(tokenizer.is_end_of_generation(0));  // <|endoftext|>
  EXPECT_FALSE(tokenizer.is_end_of_generation(1));
  EXPECT_FALSE(tokenizer.add_bos());
  for (const json& prompt : golden.at("prompts")) {  // by llama.cpp
    EXPECT_EQ(encode(tokenizer, prompt.at("text").get<std::string>(), true), prompt.at("ids").get<Ids>()) << prompt.at("text");
  }
  expect_goldens(tokenizer, golden);
  expect_chat_goldens(tokenizer, golden);
  EXPECT_EQ(encode(tokenizer, "-\x04-"), (Ids{29, 29}));  // U+0004 is one of the bytes that it lacks
}

// Compares Gemma 3 270M, which has SentencePiece's BPE with 262144 tokens, with llama.cpp and with SentencePiece itself.
TEST(Tokenizer, EncodesLikeGemma) {
  const std::string path = test::source_path("models/gemma-3-270m.Q4_K_M.gguf");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "the model is not there: " << path;
  auto data = read_tokenizer_data(path);
  ASSERT_TRUE(data.ok()) << data.status().message();
  const Tokenizer tokenizer = make(std::move(data).value());
  const json golden = read_golden("gemma3");
  for (const json& prompt : golden.at("prompts")) {  // by llama.cpp
    EXPECT_EQ(encode(tokenizer, prompt.at("text").get<std::string>(), true, true), prompt.at("ids").get<Ids>())
        << prompt.at("text");
  }
  const json& strings = shared_strings().at("strings");
  ASSERT_EQ(golden.at("plain").size(), strings.size());
  for (size_t i = 0; i < strings.size(); ++i) {  // by SentencePiece
    const std::string text = strings[i];
    const Ids ids = encode(tokenizer, text);
    EXPECT_EQ(ids, golden.at("plain")[i].get<Ids>()) << "string " << i << ": " << text;
    EXPECT_EQ(tokenizer.decode(ids), text) << "string " << i;
  }
}

// The vocabulary is small, and was trained and encoded by SentencePiece.
class SentencePiece : public testing::TestWithParam<bool> {
 protected:
  SentencePiece() {
    data_.model = TokenizerModel::spm_bpe;
    data_.tokens = golden_.at("data").at("tokens").get<std::vector<std::string>>();
    data_.token_types = golden_.at("data").at("types").get<std::vector<int32_t>>();
    data_.scores = golden_.at("data").at("scores").get<std::vector<double>>();
    data_.byte_fallback = true;
    data_.strip_first_space = GetParam();
    if (GetParam()) data_.normalizer.emplace_back(PrependText{" "});
    ReplaceText spaces;
    spaces.pattern.text.assign(1, ' ');
    spaces.replacement = "\u2581";
    data_.normalizer.emplace_back(std::move(spaces));
    data_.decoder.resize(1);
    data_.decoder[0].pattern.text = "\u2581";
    data_.decoder[0].replacement.assign(1, ' ');
  }
  bool has_user_defined(const std::string& text) const {
    for (size_t id = 0; id < data_.tokens.size(); ++id) {
      if (data_.token_types[id] == 4 && text.find(data_.tokens[id]) != std::string::npos) return true;
    }
    return false;
  }

  const json golden_ = read_golden("spm");
  TokenizerData data_;
};

TEST_P(SentencePiece, EncodesLikeTheOriginal) {
  const Tokenizer tokenizer = make(data_);
  const json strings = read_golden("hf/strings");
  const json& rows = golden_.at(GetParam() ? "with_prefix" : "plain");
  ASSERT_EQ(rows.size(), strings.size());
  for (size_t i = 0; i < strings.size(); ++i) {
    const std::string text = strings[i];
    // SentencePiece writes its space before a text and then looks for user-defined tokens; llama.cpp and Hugging Face look for them
    // first, and write a space after each.
    if (GetParam() && has_user_defined(" " + text)) continue;
    EXPECT_EQ(encode(tokenizer, text), rows[i].get<Ids>()) << "string " << i << ": " << text;
    EXPECT_EQ(tokenizer.decode(rows[i].get<Ids>()), text) << "string " << i;
  }
}

TEST_P(SentencePiece, TextNeverBecomesAMarkerOrAByte) {
  const Tokenizer tokenizer = make(data_);
  for (const char* text : {"<s>", "</s>", "<unk>", "<0x0A>"}) {
    for (const int32_t id : encode(tokenizer, text)) {
      EXPECT_TRUE(tokenizer.type(id) == TokenType::normal) << text << " has " << tokenizer.token_text(id);
    }
    EXPECT_EQ(tokenizer.decode(encode(tokenizer, text)), text);
  }
}

TEST_P(SentencePiece, TakesLongRunsOfAnything) {
  const Tokenizer tokenizer = make(data_);
  for (const std::string unit : {" ", "a", "the ", "é", "漢", "\n", "🙂", "\xff"}) {
    std::string text;
    while (text.size() < (1 << 18)) text += unit;
    EXPECT_EQ(tokenizer.decode(encode(tokenizer, text)), replace_invalid_bytes(text)) << "a run of " << unit;
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizer, SentencePiece, testing::Bool(),
                         [](const auto& row) { return row.param ? "WithPrefix" : "Plain"; });

// ---- Rules, on a vocabulary of a few tokens ----

// Has the 256 bytes (ids are the bytes), then what a test adds.
TokenizerData tiny() {
  TokenizerData data = byte_level("gpt-2");
  data.tokens = byte_alphabet();
  data.token_types.assign(256, 1);
  return data;
}

int32_t add(TokenizerData& data, const std::string& text, TokenType type = TokenType::normal) {
  data.tokens.push_back(text);
  data.token_types.push_back(static_cast<int32_t>(type));
  return static_cast<int32_t>(data.tokens.size()) - 1;
}

TEST(TokenizerRules, MergesInTheOrderOfTheListAndFromTheLeft) {
  TokenizerData data = tiny();
  const int32_t bc = add(data, "bc"), ab = add(data, "ab"), aa = add(data, "aa"), abc = add(data, "abc");
  data.merges = merges({"b c", "a b", "a a", "ab c"});
  const Tokenizer tokenizer = make(data);
  EXPECT_EQ(encode(tokenizer, "abc"), (Ids{'a', bc}));  // not ab + c, which would go on to abc
  EXPECT_EQ(encode(tokenizer, "ab"), (Ids{ab}));
  EXPECT_EQ(encode(tokenizer, "aaaaa"), (Ids{aa, aa, 'a'}));
  EXPECT_EQ(encode(tokenizer, "aab"), (Ids{'a', ab}));
  EXPECT_EQ(tokenizer.printed_bytes(abc), "abc");
}

TEST(TokenizerRules, TakesWholePiecesFirst) {
  TokenizerData data = tiny();
  const int32_t ab = add(data, "ab"), abc = add(data, "abc"), marker = add(data, "xyz", TokenType::control);
  data.merges = merges({"a b"});
  EXPECT_EQ(encode(make(data), "abc"), (Ids{ab, 'c'}));
  data.whole_pieces_first = true;
  const Tokenizer tokenizer = make(data);
  EXPECT_EQ(encode(tokenizer, "abc"), (Ids{abc}));
  EXPECT_EQ(encode(tokenizer, "abcd"), (Ids{ab, 'c', 'd'}));
  EXPECT_EQ(encode(tokenizer, "xyz"), (Ids{'x', 'y', 'z'}));  // a control token is never a piece of plain text
  EXPECT_EQ(encode(tokenizer, "xyz", true), (Ids{marker}));
}

TEST(TokenizerRules, FindsSpecialTokensByType) {
  TokenizerData data = tiny();
  const int32_t control = add(data, "<end>", TokenType::control), unknown = add(data, "<unk>", TokenType::unknown),
                user = add(data, "<u>", TokenType::user_defined), longer = add(data, "<u>é!", TokenType::user_defined),
                longest = add(data, "<u>é!?", TokenType::control);
  add(data, "<unused>", TokenType::unused);
  const Tokenizer tokenizer = make(data);
  EXPECT_EQ(encode(tokenizer, "<end>"), (Ids{'<', 'e', 'n', 'd', '>'}));
  EXPECT_EQ(encode(tokenizer, "<end>", true), (Ids{control}));
  EXPECT_EQ(encode(tokenizer, "a<unk><end", true), (Ids{'a', unknown, '<', 'e', 'n', 'd'}));
  EXPECT_EQ(encode(tokenizer, "<u>a<u>"), (Ids{user, 'a', user}));
  EXPECT_EQ(encode(tokenizer, "<u>é!?"), (Ids{longer, '?'}));  // the longest of those that are looked for
  EXPECT_EQ(encode(tokenizer, "<u>é!?", true), (Ids{longest}));
  EXPECT_EQ(encode(tokenizer, "<u>\xc3"), (Ids{user, 0xef, 0xbf, 0xbd}));
  EXPECT_EQ(encode(tokenizer, "<unused>", true).size(), 8u);
}

// Compares with the definition: from the left, at each position, the longest token that begins there.
TEST(TokenizerRules, FindsOverlappingSpecialTokensLeftmostLongest) {
  test::Random random(5);
  for (int round = 0; round < 300; ++round) {
    TokenizerData data = tiny();
    std::vector<std::pair<std::string, int32_t>> specials, always;
    for (int64_t i = random.integer(1, 12); i > 0; --i) {
      std::string text;
      for (int64_t length = random.integer(2, 7); length > 0; --length) text += static_cast<char>('a' + random.integer(0, 1));
      if (std::find(data.tokens.begin(), data.tokens.end(), text) != data.tokens.end()) continue;
      const bool is_user = random.integer(0, 1) == 0;
      const int32_t id = add(data, text, is_user ? TokenType::user_defined : TokenType::control);
      specials.emplace_back(text, id);
      if (is_user) always.emplace_back(text, id);
    }
    const Tokenizer tokenizer = make(data);
    for (int sample = 0; sample < 20; ++sample) {
      std::string text;
      for (int64_t length = random.integer(0, 40); length > 0; --length) text += static_cast<char>('a' + random.integer(0, 1));
      for (const bool parse_special : {false, true}) {
        Ids want;
        for (size_t i = 0; i < text.size();) {
          std::pair<std::string, int32_t> best = {text.substr(i, 1), text[i]};
          for (const auto& special : parse_special ? specials : always) {
            if (special.first.size() > best.first.size() && text.compare(i, special.first.size(), special.first) == 0)
              best = special;
          }
          want.push_back(best.second);
          i += best.first.size();
        }
        EXPECT_EQ(encode(tokenizer, text, parse_special), want) << text << " " << parse_special;
      }
    }
  }
}

// Comparing tokens of a megabyte at each of some million places takes hours.
TEST(TokenizerRules, TakesTextsThatAlmostHoldVeryLongSpecialTokens) {
#ifdef __OPTIMIZE__
  constexpr size_t kText = size_t{4} << 20, kToken = size_t{1} << 20;
#else
  constexpr size_t kText = size_t{1} << 20, kToken = size_t{1} << 18;
#endif
  TokenizerData data = tiny();
  const int32_t first = add(data, std::string(kToken, 'a') + "b", TokenType::user_defined);
  add(data, std::string(kToken / 2, 'a') + "cc", TokenType::user_defined);
  add(data, "aaac", TokenType::user_defined);
  const Tokenizer tokenizer = make(data);
  EXPECT_EQ(encode(tokenizer, std::string(kText, 'a')), Ids(kText, 'a'));
  EXPECT_EQ(encode(tokenizer, std::string(kToken, 'a') + "b" + std::string(kToken, 'a')).front(), first);
  add(data, std::string(size_t{4} << 20, 'x'), TokenType::control);
  EXPECT_EQ(Tokenizer::create(data).status().code(), StatusCode::unsupported);
}

TEST(TokenizerRules, TextsHaveALargestSize) {
  const Tokenizer tokenizer = make(tiny());
  constexpr size_t kLimit = 67108864;
  const std::string bad(kLimit / 3 + 1, '\xff');
  const auto ids = tokenizer.encode(bad, true, false);
  EXPECT_EQ(ids.status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(
      ids.status().message(),
      "the text has 22369622 bytes, 67108866 with U+FFFD for each one that is not UTF-8: at most 67108864 can be encoded at "
      "once");
  EXPECT_EQ(tokenizer.encode(std::string(kLimit + 1, 'a'), true, false).status().message(),
            "the text has 67108865 bytes: at most 67108864 can be encoded at once");
}

TEST(TokenizerRules, PrintsByType) {
  TokenizerData data = tiny();
  const int32_t control = add(data, "<end>", TokenType::control), unknown = add(data, "<unk>", TokenType::unknown),
                user = add(data, "Ġé<u>", TokenType::user_defined), unused = add(data, "[PAD]", TokenType::unused),
                word = add(data, "Ġé"), foreign = add(data, "漢字");
  const Tokenizer tokenizer = make(data);
  EXPECT_EQ(tokenizer.decode(Ids{'a', control, unknown, unused, 'b', -1, 1 << 30}), "ab");
  EXPECT_EQ(tokenizer.decode(Ids{user}), "Ġé<u>");  // as it is written
  EXPECT_EQ(tokenizer.printed_bytes(word), " \xe9");
  EXPECT_EQ(tokenizer.decode(Ids{word}), " \xef\xbf\xbd");
  EXPECT_EQ(tokenizer.decode(Ids{foreign}), "漢字");
  EXPECT_EQ(tokenizer.token_text(control), "<end>");
  EXPECT_EQ(tokenizer.type(unused), TokenType::unused);
  EXPECT_EQ(tokenizer.type(-1), TokenType::unused);
  EXPECT_EQ(tokenizer.token_text(-1), "");
  EXPECT_EQ(tokenizer.find("<end>"), control);
  EXPECT_EQ(tokenizer.find("<no>"), std::nullopt);
}

// Only the first space of a text is one that nobody wrote.
TEST(TokenizerRules, StripsTheFirstSpaceOfAText) {
  TokenizerData data = tiny();
  data.strip_first_space = true;
  const int32_t control = add(data, "<s>", TokenType::control);
  const Tokenizer tokenizer = make(data);
  EXPECT_EQ(tokenizer.decode(Ids{control, ' ', ' ', 'a', ' '}), " a ");
  EXPECT_EQ(tokenizer.decode(Ids{'a', ' '}), "a ");
  StreamDecoder continued(tokenizer, /*continues_text=*/true);
  EXPECT_EQ(continued.push(' '), " ");
  EXPECT_EQ(continued.finish(), "");
  EXPECT_EQ(continued.push(' '), " ");
  StreamDecoder decoder(tokenizer);
  EXPECT_EQ(decoder.push(' '), "");
  EXPECT_EQ(decoder.push(' '), " ");
  EXPECT_EQ(decoder.finish(), "");
  EXPECT_EQ(decoder.push(' '), "");  // another text
}

TEST(TokenizerRules, HoldsUnfinishedCharactersBack) {
  TokenizerData data = tiny();
  const int32_t control = add(data, "<end>", TokenType::control);
  const Tokenizer tokenizer = make(data);
  StreamDecoder decoder(tokenizer);
  EXPECT_EQ(decoder.push(0xe2), "");
  EXPECT_EQ(decoder.push(0x82), "");
  EXPECT_EQ(decoder.push(control), "");  // prints nothing and tears nothing apart
  EXPECT_EQ(decoder.push(0xac), "€");
  EXPECT_EQ(decoder.push(0xf0), "");
  EXPECT_EQ(decoder.push('a'),
            "\xef\xbf\xbd"
            "a");
  EXPECT_EQ(decoder.push(0xf0), "");
  EXPECT_EQ(decoder.push(0x9f), "");
  EXPECT_EQ(decoder.finish(), "\xef\xbf\xbd");
  EXPECT_EQ(decoder.finish(), "");
  EXPECT_EQ(decoder.push('b'), "b");
}

TEST(TokenizerRules, LeavesOutBytesThatTheVocabularyLacks) {
  TokenizerData data = tiny();
  data.tokens[4] = "gap";
  data.tokens['z'] = "zz-gap";
  const int32_t aa = add(data, "aa");
  data.merges = merges({"a a"});
  const Tokenizer tokenizer = make(data);
  EXPECT_EQ(encode(tokenizer, "a\x04"), (Ids{'a'}));
  EXPECT_EQ(encode(tokenizer, "z"), Ids{});
  EXPECT_EQ(encode(tokenizer, "azaa"), (Ids{'a', aa}));  // nothing merges across it
}

TEST(TokenizerRules, AddsTheBosTokenOnRequest) {
  TokenizerData data = tiny();
  data.bos_id = add(data, "<s>", TokenType::control);
  data.eos_id = add(data, "</s>", TokenType::control);
  data.eot_id = add(data, "<eot>", TokenType::control);
  data.add_bos = true;
  const Tokenizer tokenizer = make(data);
  EXPECT_TRUE(tokenizer.add_bos());
  EXPECT_EQ(encode(tokenizer, "a", false, true), (Ids{data.bos_id, 'a'}));
  EXPECT_EQ(encode(tokenizer, "", false, true), (Ids{data.bos_id}));
  EXPECT_EQ(encode(tokenizer, "a"), (Ids{'a'}));
  EXPECT_TRUE(tokenizer.is_end_of_generation(data.eos_id));
  EXPECT_TRUE(tokenizer.is_end_of_generation(data.eot_id));
  EXPECT_FALSE(tokenizer.is_end_of_generation(data.bos_id));
  EXPECT_FALSE(make(tiny()).is_end_of_generation(-1));

  const auto refused = make(tiny()).encode("a", false, true);
  EXPECT_EQ(refused.status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(refused.status().message(), "a BOS token is to be added, but the model's vocabulary has none");
}

// This is what the post-processor of GLM's tokenizer.json does, [gMASK]<sop>.
TEST(TokenizerRules, BeginsATextWithSeveralTokens) {
  TokenizerData data = tiny();
  const int32_t mask = add(data, "[gMASK]", TokenType::control), sop = add(data, "<sop>", TokenType::control);
  data.begin_ids = {mask, sop};
  data.add_bos = true;
  const Tokenizer tokenizer = make(data);
  EXPECT_TRUE(tokenizer.add_bos());
  EXPECT_EQ(tokenizer.bos_id(), -1);
  EXPECT_EQ(encode(tokenizer, "a", false, true), (Ids{mask, sop, 'a'}));
  EXPECT_EQ(encode(tokenizer, "a"), (Ids{'a'}));
  data.begin_ids = {mask, 1000};
  EXPECT_EQ(Tokenizer::create(data).status().message(), "the tokenizer's first token is 1000, but the vocabulary has 258 tokens");
}

TEST(TokenizerRules, NothingMergesIntoOrFromAMarker) {
  TokenizerData data = tiny();
  const int32_t ab = add(data, "ab", TokenType::control), abc = add(data, "abc"), bc = add(data, "bc");
  data.merges = merges({"a b", "ab c", "b c"});
  const Tokenizer tokenizer = make(data);
  EXPECT_EQ(encode(tokenizer, "ab"), (Ids{'a', 'b'}));
  EXPECT_EQ(encode(tokenizer, "abc"), (Ids{'a', bc}));
  EXPECT_EQ(encode(tokenizer, "abc", true), (Ids{ab, 'c'}));
  EXPECT_EQ(tokenizer.token_text(abc), "abc");
}

// Steps that double a text: forty of them would make a terabyte of one byte, and made 5.4 GB in a minute of four.
TEST(TokenizerRules, TheNormalizersWorkIsProportionalToTheText) {
  TokenizerData data = tiny();
  for (int i = 0; i < 40; ++i) data.normalizer.emplace_back(ReplaceText{{"a"}, "aa"});
  const Tokenizer doubling = make(data);
  for (const size_t size : {size_t{1}, size_t{4}, size_t{1} << 16}) {
    const auto ids = doubling.encode(std::string(size, 'a'), false, false);
    EXPECT_EQ(ids.status().code(), StatusCode::resource_exhausted) << size;
    EXPECT_EQ(ids.status().message(),
              "the normalizer's 40 steps write too much: its work must be proportional to the length of the text");
  }
  EXPECT_EQ(encode(doubling, "b"), (Ids{'b'}));
  // The bound of the work is for all parts of a text together.
  add(data, "<s>", TokenType::control);
  data.normalizer.resize(9);
  std::string parts;
  for (int i = 0; i < 4096; ++i) parts += "a<s>";
  EXPECT_EQ(make(data).encode(parts, true, false).status().code(), StatusCode::resource_exhausted);
}

TEST(TokenizerRules, StepsHaveALargestNumber) {
  TokenizerData data = tiny();
  data.normalizer.clear();
  data.pre_tokenizer.clear();
  for (int i = 0; i < 64; ++i) data.normalizer.emplace_back(ReplaceText{{"a"}, "b"});
  for (int i = 0; i < 64; ++i) data.pre_tokenizer.emplace_back(SplitText{.pattern = {"a"}});
  data.decoder.assign(64, {{"b"}, "c"});
  EXPECT_EQ(make(data).decode(encode(make(data), "ab")), "cc");
  const auto refusal = [&](auto spoil) {
    TokenizerData spoiled = data;
    spoil(spoiled);
    return Tokenizer::create(std::move(spoiled)).status().message();
  };
  EXPECT_EQ(refusal([](auto& d) { d.normalizer.push_back(d.normalizer.front()); }),
            "the normalizer has 65 steps: at most 64 are supported");
  EXPECT_EQ(refusal([](auto& d) { d.pre_tokenizer.push_back(d.pre_tokenizer.front()); }),
            "the pre-tokenizer has 65 steps: at most 64 are supported");
  EXPECT_EQ(refusal([](auto& d) { d.decoder.push_back(d.decoder.front()); }),
            "the decoder has 65 steps: at most 64 are supported");
}

TEST(TokenizerRules, SurvivesMoves) {
  TokenizerData data = tiny();
  const int32_t ab = add(data, "ab"), control = add(data, "<e>", TokenType::control);
  data.whole_pieces_first = true;
  Tokenizer first = make(data);
  Tokenizer second = std::move(first);
  first = make(tiny());
  EXPECT_EQ(encode(second, "ab<e>", true), (Ids{ab, control}));
  EXPECT_EQ(second.find("ab"), ab);
}

TEST(TokenizerRules, RefusesWhatItCannotUse) {
  struct Case {
    std::function<void(TokenizerData&)> spoil;
    StatusCode code;
    std::string message;
  };
  const std::vector<Case> cases = {
      {[](auto& d) { d.model = TokenizerModel::unset; }, StatusCode::invalid_argument,
       "the tokenizer's model is 0: it must be bpe, spm_bpe or unigram"},
      {[](auto& d) { d.tokens.clear(); }, StatusCode::data_loss, "the vocabulary is empty"},
      {[](auto& d) { d.token_types.pop_back(); }, StatusCode::data_loss,
       "the vocabulary has 257 tokens, but 256 types of tokens"},
      {[](auto& d) { d.bos_id = 257; }, StatusCode::data_loss,
       "the tokenizer's BOS token is 257, but the vocabulary has 257 tokens"},
      {[](auto& d) { d.eos_id = -2; }, StatusCode::data_loss,
       "the tokenizer's EOS token is -2, but the vocabulary has 257 tokens"},
      {[](auto& d) { d.eot_id = 1000; }, StatusCode::data_loss,
       "the tokenizer's EOT token is 1000, but the vocabulary has 257 tokens"},
      {[](auto& d) { d.add_bos = true; }, StatusCode::data_loss, "the tokenizer is to add a BOS token, but has none"},
      {[](auto& d) { d.add_eos = true; }, StatusCode::data_loss, "the tokenizer is to add an EOS token, but has none"},
      {[](auto& d) { d.unknown_id = 257; }, StatusCode::data_loss,
       "the tokenizer's unknown token is 257, but the vocabulary has 257 tokens"},
      {[](auto& d) {
         d.end_ids = {3, -5};
       },
       StatusCode::data_loss, "the tokenizer's end-of-generation token is -5, but the vocabulary has 257 tokens"},
      {[](auto& d) { d.tokens[7].clear(); }, StatusCode::data_loss, "token 7 is empty"},
      {[](auto& d) { d.tokens[7] = "a\xff\n"; }, StatusCode::data_loss, "token 7, 'a\\xff\\x0a', is not UTF-8"},
      {[](auto& d) { d.tokens[256] = d.tokens[97]; }, StatusCode::data_loss, "tokens 97 and 256 are both 'a'"},
      {[](auto& d) { d.token_types[97] = 7; }, StatusCode::data_loss,
       "token 97, 'a', has the type 7: there are 1 (normal) to 6 (byte)"},
      {[](auto& d) { d.token_types[97] = 0; }, StatusCode::data_loss,
       "token 97, 'a', has the type 0: there are 1 (normal) to 6 (byte)"},
      {[](auto& d) { d.token_types[97] = 6; }, StatusCode::data_loss,
       "token 97, 'a', is a byte token: its text must be <0x00> to <0xFF>"},
      {[](auto& d) { d.added_tokens.push_back({.id = 97}); }, StatusCode::data_loss,
       "the added token 97, 'a', is neither a marker nor user-defined"},
      {[](auto& d) {
         d.pre_tokenizer[0] = SplitText{.pattern = {"(", true}};
       },
       StatusCode::unsupported, "the regular expression '(' is not supported: PCRE2 says: missing closing parenthesis"},
      {[](auto& d) { d.pre_tokenizer[0] = SplitText{}; }, StatusCode::data_loss,
       "a pattern of the tokenizer is empty: it must have at least one character"},
      {[](auto& d) { d.pre_tokenizer[0] = Metaspace{}; }, StatusCode::data_loss,
       "the pre-tokenizer's replacement of spaces is '': it must be one character"},
      {[](auto& d) { d.pre_tokenizer[0] = Metaspace{.replacement = "__"}; }, StatusCode::data_loss,
       "the pre-tokenizer's replacement of spaces is '__': it must be one character"},
      {[](auto& d) { d.decoder.assign(40, {.pattern = {"a"}, .replacement = "aa"}); }, StatusCode::unsupported,
       "the decoder makes the token 97 longer than 65536 bytes"},
      {[](auto& d) { d.normalizer.emplace_back(PrependText{"\xff"}); }, StatusCode::data_loss,
       "the normalizer's text '\\xff' is not UTF-8"},
      {[](auto& d) { d.decoder.resize(1); }, StatusCode::data_loss,
       "a step of the decoder replaces '' by '': it must replace a text by UTF-8"},
      {[](auto& d) { d.model = TokenizerModel::spm_bpe; }, StatusCode::data_loss, "the vocabulary has 257 tokens, but 0 scores"},
      {[](auto& d) {
         d.model = TokenizerModel::unigram;
         d.scores.assign(257, 0);
         d.scores[7] = std::nan("");
       },
       StatusCode::data_loss, "the score of token 7 is nan, not a finite number"},
      {[](auto& d) { d.merges = merges({"xy b"}); }, StatusCode::data_loss,
       "merge 0, 'xy b', needs the token 'xy', which the vocabulary lacks"},
      {[](auto& d) { d.merges = merges({"a xy"}); }, StatusCode::data_loss,
       "merge 0, 'a xy', needs the token 'xy', which the vocabulary lacks"},
      {[](auto& d) { d.merges = merges({"a c"}); }, StatusCode::data_loss,
       "merge 0, 'a c', needs the token 'ac', which the vocabulary lacks"},
      {[](auto& d) {
         d.merges = merges({"a b", "a b"});
       },
       StatusCode::data_loss, "merge 1, 'a b', is there twice"},
  };
  for (const Case& c : cases) {
    TokenizerData data = tiny();
    add(data, "ab");
    ASSERT_TRUE(Tokenizer::create(data).ok());
    c.spoil(data);
    const auto tokenizer = Tokenizer::create(data);
    EXPECT_EQ(tokenizer.status().code(), c.code) << c.message;
    EXPECT_EQ(tokenizer.ok() ? "" : tokenizer.status().message(), c.message);
  }
}

}  // namespace
}  // namespace prologue
