// The tokenizer and the chat formats, with any vocabulary, text, template and conversation.
#include <prologue/engine/gguf/tokenizer_data.h>
#include <prologue/engine/tokenizer/chat.h>
#include <prologue/engine/tokenizer/tokenizer.h>
#include <prologue/engine/tokenizer/utf8.h>

#include <algorithm>
#include <set>
#include <unordered_set>

#include "tests/fuzz/choices.h"
#include "tests/fuzz/memory_map.h"

using namespace prologue;
using namespace prologue::fuzz;

namespace {

std::string utf8(uint32_t code_point) {  // below 0x800
  if (code_point < 0x80) return {static_cast<char>(code_point)};
  return {static_cast<char>(0xc0 | (code_point >> 6)), static_cast<char>(0x80 | (code_point & 0x3f))};
}

// GPT-2's letters for the 256 bytes.
const std::string& letter(uint32_t byte) {
  static const std::vector<std::string> letters = [] {
    std::vector<std::string> made;
    for (uint32_t b = 0, next = 256; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
      made.push_back(utf8(printable ? b : next++));
    }
    return made;
  }();
  return letters[byte];
}

constexpr const char* kFragments[] = {"<|im_start|>",
                                      "<|im_end|>",
                                      "<|start_header_id|>",
                                      "<|end_header_id|>",
                                      "<|eot_id|>",
                                      "bos_token",
                                      "system\n",
                                      "user",
                                      "assistant",
                                      "'",
                                      "\"",
                                      "\\n",
                                      "\\",
                                      "\n",
                                      " ",
                                      "  ",
                                      "\t",
                                      "\r\n",
                                      "the",
                                      "don't",
                                      "123",
                                      "1234567",
                                      "\xe2\x82\xac",
                                      "\xf0\x9f\x98\x80",
                                      "\xff",
                                      "\xe2\x82",
                                      "\xc0\x80",
                                      "\xed\xa0\x80",
                                      "{{",
                                      "}}"};

// Fragments and bytes of the input.
class Texts {
 public:
  Texts(Choices& choices, const uint8_t* data, size_t size) : choices_(choices), data_(data), size_(size) {}
  std::string next(int64_t most) {
    std::string text;
    for (int64_t n = choices_.integer(0, most); n > 0; --n) {
      if (choices_.chance(2)) {
        text += choices_.pick(kFragments);
      } else {
        const auto count = static_cast<size_t>(std::min<int64_t>(choices_.integer(0, 40), static_cast<int64_t>(size_)));
        text.append(reinterpret_cast<const char*>(data_), count);
        data_ += count;
        size_ -= count;
      }
    }
    return text;
  }

 private:
  Choices& choices_;
  const uint8_t* data_;
  size_t size_;
};

// A byte-level vocabulary, whole unless the case is hostile. `plain`: what is encoded must come back.
TokenizerData vocabulary(Choices& choices, Texts& texts, bool& plain) {
  constexpr const char* kPre[] = {"smollm", "gpt-2", "llama-bpe", "qwen2"};
  TokenizerData data;
  if (const Status status = set_gguf_pre_tokenizer(choices.pick(kPre), data); !status.ok()) fail(status.message());
  data.add_bos = false;
  std::unordered_set<std::string> known;
  const auto add = [&](std::string text, TokenType type) {
    if (!known.insert(text).second && !choices.hostile()) return;
    data.tokens.push_back(std::move(text));
    data.token_types.push_back(static_cast<int32_t>(type));
    if (!choices.hostile()) return;
    data.token_types.back() = static_cast<int32_t>(choices.integer(-1, 6));  // control tokens and unused ones print nothing
    plain = false;
  };
  for (const char* marker : {"<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<s>"})
    if (!choices.hostile()) add(marker, TokenType::control);
  for (uint32_t byte = 0; byte < 256; ++byte) add(letter(byte), TokenType::normal);
  if (choices.hostile()) {  // one byte less
    data.tokens.erase(data.tokens.begin() + 20);
    data.token_types.erase(data.token_types.begin() + 20);
    plain = false;
  }
  std::set<std::pair<std::string, std::string>> merged;
  for (int64_t n = choices.integer(0, 30); n > 0; --n) {
    const auto any = [&] {
      return data.tokens[static_cast<size_t>(choices.integer(6, static_cast<int64_t>(data.tokens.size()) - 1))];
    };
    const std::string left = choices.chance(2) ? letter(choices.byte()) : any(),
                      right = choices.chance(2) ? letter(choices.byte()) : any();
    add(left + right, TokenType::normal);
    if (choices.hostile()) {
      data.merges.push_back({texts.next(1), texts.next(1)});
    } else if (merged.emplace(left, right).second) {
      data.merges.push_back({left, right});
    }
  }
  for (int64_t n = choices.integer(0, 4); n > 0; --n) {
    if (std::string text = texts.next(2); !text.empty() || choices.hostile()) {
      plain = plain && is_valid_utf8(text);
      add(std::move(text), TokenType::user_defined);
    }
  }
  if (choices.hostile()) data.token_types.pop_back();
  const auto id = [&] {
    return choices.hostile() ? static_cast<int32_t>(choices.absurd()) : static_cast<int32_t>(choices.integer(-1, 5));
  };
  data.bos_id = id();
  data.eos_id = id();
  data.eot_id = id();
  data.chat_template = texts.next(8);
  return data;
}

std::string decode_in_parts(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  StreamDecoder decoder(tokenizer);
  std::string text;
  for (const int32_t id : ids) {
    const std::string piece = decoder.push(id);
    if (!is_valid_utf8(piece)) fail("a piece of text is not UTF-8");
    text += piece;
  }
  return text + decoder.finish();
}

void check_text(const Tokenizer& tokenizer, const std::string& text, bool plain) {
  for (const bool parse_special : {false, true}) {
    const Result<std::vector<int32_t>> ids = tokenizer.encode(text, parse_special, false);
    if (!ids.ok()) fail(str_cat("encode: ", ids.status().message()));
    int64_t num_controls = 0;
    for (const int32_t id : *ids) {
      if (id < 0 || id >= tokenizer.vocab_size()) fail(str_cat("token ", id, " of ", tokenizer.vocab_size()));
      num_controls += tokenizer.type(id) == TokenType::control ? 1 : 0;
    }
    const std::string decoded = tokenizer.decode(*ids);
    if (!is_valid_utf8(decoded)) fail("decoded text is not UTF-8");
    if (decoded != decode_in_parts(tokenizer, *ids)) fail("token by token the text is another");
    if (parse_special) continue;
    if (num_controls > 0) fail("plain text became a control token");
    if (plain && decoded != replace_invalid_bytes(text)) fail("the text did not come back");
  }
}

void check_chat(const Tokenizer& tokenizer, Choices& choices, Texts& texts) {
  const Result<ChatFormat> format = ChatFormat::detect(tokenizer);
  if (!format.ok()) {
    if (format.status().message().empty() || format.status().message().size() > 2000) fail("no sentence that fits a screen");
    return;
  }
  std::vector<ChatMessage> messages(static_cast<size_t>(choices.integer(0, 3)));
  for (ChatMessage& message : messages) message = {texts.next(1), texts.next(4)};
  const Result<std::vector<int32_t>> ids = format->encode_chat(messages, choices.chance(2));
  const bool valid =
      !messages.empty() && std::none_of(messages.begin(), messages.end(), [](const ChatMessage& m) { return m.role.empty(); });
  if (ids.ok() != valid)
    fail(valid ? str_cat("encode_chat: ", ids.status().message()) : "a conversation without a role was accepted");
  if (!valid) return;
  // What people write never ends a turn.
  const bool adds_system = messages.front().role != "system" && !format->default_system_message().empty();
  const auto ends = std::count(ids->begin(), ids->end(), format->end_of_turn());
  const bool bos_is_end = tokenizer.bos_id() == format->end_of_turn();
  const auto turns = static_cast<int64_t>(messages.size()) + (adds_system ? 1 : 0);
  if (!bos_is_end && ends != turns) fail(str_cat(ends, " ends of turn in ", turns, " messages"));
  if (!format->encode_next_turn(messages.front()).ok()) fail("encode_next_turn");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Tally tally("tokenizer");
  const size_t head = std::min<size_t>(size, 64);
  Choices choices(data, head);
  Texts texts(choices, data + head, size - head);
  bool plain = true;
  Result<Tokenizer> tokenizer = Tokenizer::create(vocabulary(choices, texts, plain));
  tally.count(tokenizer.ok());
  if (!tokenizer.ok()) {
    if (tokenizer.status().message().empty() || tokenizer.status().message().size() > 2000)
      fail("no sentence that fits a screen");
    return 0;
  }
  const std::string text = texts.next(12);
  if (replace_invalid_bytes(text).size() > 3 * text.size() || !is_valid_utf8(replace_invalid_bytes(text)))
    fail("replace_invalid_bytes");
  if (in_quotes(text).size() > 200 || !is_valid_utf8(in_quotes(text))) fail("in_quotes");
  check_text(*tokenizer, text, plain);
  check_chat(*tokenizer, choices, texts);
  return 0;
}
