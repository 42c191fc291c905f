// The tokenizer and the chat formats, with any vocabulary, text, template and conversation.
#include <prologue/engine/base/printable.h>
#include <prologue/engine/base/utf8.h>
#include <prologue/engine/gguf/tokenizer_data.h>
#include <prologue/engine/tokenizer/chat.h>
#include <prologue/engine/tokenizer/tokenizer.h>

#include <algorithm>
#include <set>
#include <unordered_set>

#include "tests/fuzz/choices.h"
#include "tests/fuzz/memory_map.h"
#include "tests/fuzz/texts.h"

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

constexpr const char* kMarkers[] = {"<|im_start|>",
                                    "<|im_end|>",
                                    "<|start_header_id|>",
                                    "<|end_header_id|>",
                                    "<|eot_id|>",
                                    "<s>",
                                    "<start_of_turn>",
                                    "<end_of_turn>",
                                    "<|im_sep|>",
                                    "<|start|>",
                                    "<|channel|>",
                                    "<|message|>",
                                    "<|return|>",
                                    "<|system|>",
                                    "<|user|>",
                                    "<|assistant|>",
                                    "<|end|>",
                                    "[INST]",
                                    "[/INST]"};

// Makes a byte-level vocabulary, whole unless the case is hostile. If `plain`, what is encoded must come back.
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
  for (const char* marker : kMarkers)
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
  constexpr const char* kTemplates[] = {
      "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' }}{% endfor %}",
      "{{ bos_token }}{% for m in messages %}{{ '<|' ~ m['role'] ~ '|>' }}{{ m['content'] | trim }}{{ eos_token }}{% endfor %}",
      "{% for m in messages %}[INST]{{ m.content.split('x')[0] | replace('a', 'b') }}[/INST]{{ m | tojson }}{% endfor %}"};
  data.chat_template = choices.chance(4) ? texts.next(8) : choices.pick(kTemplates);
  return data;
}

// Turns the byte-level vocabulary into one of characters and bytes, for the other models.
void use_characters(Choices& choices, TokenizerData& data, bool& plain) {
  plain = false;  // letters stand for bytes in the tokens, so the text comes back only by chance
  data.byte_level = false;
  data.merges.clear();
  data.whole_pieces_first = false;
  data.pre_tokenizer.clear();
  data.model = choices.chance(2) ? TokenizerModel::spm_bpe : TokenizerModel::unigram;
  data.byte_fallback = choices.chance(2);
  data.fuse_unknown = choices.chance(2);
  data.unknown_id = static_cast<int32_t>(choices.integer(-1, 5));
  constexpr char kHex[] = "0123456789ABCDEF";
  for (int byte = 0; byte < 256; ++byte) {
    data.tokens.push_back({'<', '0', 'x', kHex[byte >> 4], kHex[byte & 15], '>'});
    data.token_types.push_back(static_cast<int32_t>(TokenType::byte));
  }
  data.tokens.emplace_back("\u2581");
  data.token_types.push_back(static_cast<int32_t>(TokenType::normal));
  for (size_t i = 0; i < data.tokens.size(); ++i) data.scores.push_back(-choices.real(1.0f));
  if (choices.chance(2)) data.normalizer.emplace_back(PrependText{" "});
  if (choices.chance(2)) data.normalizer.emplace_back(UnicodeForm::nfkc);
  if (choices.chance(2)) {
    data.normalizer.emplace_back(ReplaceText{{" "}, "\u2581"});
  } else {
    const PrependScheme schemes[] = {PrependScheme::never, PrependScheme::first, PrependScheme::always};
    data.pre_tokenizer.emplace_back(Metaspace{"\u2581", choices.pick(schemes), choices.chance(2)});
  }
  data.decoder.push_back({{"\u2581"}, " "});
  data.strip_first_space = choices.chance(2);
}

void check_chat(const Tokenizer& tokenizer, Choices& choices, Texts& texts, int32_t unknown_id) {
  const Result<ChatFormat> format = ChatFormat::create(tokenizer);
  if (!format.ok()) return check_message(format.status());
  std::vector<ChatMessage> messages(static_cast<size_t>(choices.integer(0, 4)));
  constexpr const char* kRoles[] = {"system", "user", "assistant"};
  for (ChatMessage& message : messages) message = {choices.chance(4) ? texts.next(1) : choices.pick(kRoles), texts.next(4)};
  const ChatOptions options = {.add_generation_prompt = choices.chance(2), .continue_final_message = choices.chance(4)};
  const Result<std::vector<int32_t>> ids = format->encode_chat(messages, options);
  const bool must_fail =
      messages.empty() || std::any_of(messages.begin(), messages.end(), [](const ChatMessage& m) { return m.role.empty(); });
  if (!ids.ok()) return check_message(ids.status());
  if (must_fail) fail("a conversation without a role was accepted");
  // What people write is never a marker.
  std::vector<ChatMessage> plain = messages;
  for (ChatMessage& message : plain) message.content = "x";
  const Result<std::vector<int32_t>> frame = format->encode_chat(plain, options);
  if (frame.ok() && num_controls(tokenizer, *ids, unknown_id) > num_controls(tokenizer, *frame, unknown_id)) {
    fail("content became a marker");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Tally tally("tokenizer");
  const size_t head = std::min<size_t>(size, 64);
  Choices choices(data, head);
  Texts texts(choices, data + head, size - head);
  bool plain = true;
  TokenizerData made = vocabulary(choices, texts, plain);
  if (choices.chance(3)) use_characters(choices, made, plain);
  const int32_t unknown_id = made.unknown_id;
  Result<Tokenizer> tokenizer = Tokenizer::create(std::move(made));
  tally.count(tokenizer.ok());
  if (!tokenizer.ok()) {
    check_message(tokenizer.status());
    return 0;
  }
  const std::string text = texts.next(12);
  if (replace_invalid_bytes(text).size() > 3 * text.size() || !is_valid_utf8(replace_invalid_bytes(text)))
    fail("replace_invalid_bytes");
  if (in_quotes(text).size() > 200 || !is_valid_utf8(in_quotes(text))) fail("in_quotes");
  check_text(*tokenizer, text, unknown_id, plain);
  check_chat(*tokenizer, choices, texts, unknown_id);
  return 0;
}
