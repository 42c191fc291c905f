// UTF-8 as the tokenizer needs it: text from outside may be anything, text that goes out is always valid.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace prologue {

// U+FFFD, what stands where bytes were not UTF-8.
inline constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";

// What the first bytes of a text are. Overlong forms, surrogates and values above U+10FFFF are not UTF-8.
struct Utf8Prefix {
  enum class Kind { character, invalid, unfinished } kind;
  // character: its bytes. invalid: the bytes that one U+FFFD stands for, at least one (Unicode's "maximal subpart", what Python
  // and Rust replace). unfinished: all the bytes there are, a proper beginning of some character.
  size_t length;
};
Utf8Prefix utf8_prefix(std::string_view text);  // text is not empty

bool is_valid_utf8(std::string_view text);

// Valid UTF-8: each byte that is not part of a character becomes U+FFFD.
std::string replace_invalid_bytes(std::string_view text);

// Text from a file, made fit for a message: in single quotes, on one line, valid UTF-8, cut after some 60 bytes.
std::string quoted(std::string_view text);

}  // namespace prologue
