// Texts for the fuzz targets of tokenizers, and what is true of every tokenizer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <prologue/engine/base/utf8.h>
#include <prologue/engine/tokenizer/tokenizer.h>

#include "tests/fuzz/choices.h"
#include "tests/fuzz/memory_map.h"

namespace prologue::fuzz {

inline constexpr const char* kFragments[] = {"<|im_start|>",
                                             "<|im_end|>",
                                             "<|start_header_id|>",
                                             "<|end_header_id|>",
                                             "<|eot_id|>",
                                             "<start_of_turn>",
                                             "<end_of_turn>",
                                             "<|im_sep|>",
                                             "<|start|>",
                                             "<|message|>",
                                             "<|user|>",
                                             "<|assistant|>",
                                             "<|end|>",
                                             "'[INST] '",
                                             " [/INST]",
                                             "<<SYS>>",
                                             "[SYSTEM_PROMPT]",
                                             "<|user|>\n' + message['content'] + eos_token",
                                             "bos_token",
                                             "bos_token + '[INST]",
                                             "<0x0A>",
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
                                             "\xe2\x96\x81",
                                             "e\xcc\x81",
                                             "\xf0\x9f\x98\x80",
                                             "\xff",
                                             "\xe2\x82",
                                             "\xc0\x80",
                                             "\xed\xa0\x80",
                                             "{{",
                                             "}}"};

// Makes texts of fragments and of bytes of the input.
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

inline void check_message(const Status& status) {
  if (status.message().empty() || status.message().size() > 2000) fail("no sentence that fits a screen");
}

inline std::string decode_in_parts(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  StreamDecoder decoder(tokenizer);
  std::string text;
  for (const int32_t id : ids) {
    const std::string piece = decoder.push(id);
    if (!is_valid_utf8(piece)) fail("a piece of text is not UTF-8");
    text += piece;
  }
  return text + decoder.finish();
}

// Counts the tokens that only markers and unknown characters become.
inline int64_t num_controls(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, int32_t unknown_id) {
  return std::count_if(ids.begin(), ids.end(),
                       [&](int32_t id) { return id != unknown_id && tokenizer.type(id) == TokenType::control; });
}

// plain: what is encoded must come back.
inline void check_text(const Tokenizer& tokenizer, const std::string& text, int32_t unknown_id, bool plain) {
  for (const bool parse_special : {false, true}) {
    const Result<std::vector<int32_t>> ids = tokenizer.encode(text, parse_special, false);
    if (!ids.ok()) fail(str_cat("encode: ", ids.status().message()));
    for (const int32_t id : *ids) {
      if (id < 0 || id >= tokenizer.vocab_size()) fail(str_cat("token ", id, " of ", tokenizer.vocab_size()));
    }
    const std::string decoded = tokenizer.decode(*ids);
    if (!is_valid_utf8(decoded)) fail("decoded text is not UTF-8");
    if (decoded != decode_in_parts(tokenizer, *ids)) fail("token by token the text is another");
    if (parse_special) continue;
    if (num_controls(tokenizer, *ids, unknown_id) > 0) fail("plain text became a control token");
    if (plain && decoded != replace_invalid_bytes(text)) fail("the text did not come back");
  }
}

}  // namespace prologue::fuzz
