// This file reads and repairs UTF-8. Input text may be any bytes; output text is always valid.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace prologue {

// U+FFFD replaces bytes that are not valid UTF-8.
inline constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";

// Classifies the first bytes of a text. Overlong forms, surrogates and values above U+10FFFF are not valid UTF-8.
struct Utf8Prefix {
  enum class Kind { character, invalid, unfinished } kind;
  // character: its bytes. invalid: the bytes that one U+FFFD replaces, at least one (Unicode's "maximal subpart", as in Python and
  // Rust). unfinished: the whole text, which is the beginning of a character but not all of it.
  size_t length;
};
Utf8Prefix utf8_prefix(std::string_view text);  // text is not empty

bool is_valid_utf8(std::string_view text);

// Returns the text as valid UTF-8: each byte that is not part of a valid character becomes U+FFFD.
std::string replace_invalid_bytes(std::string_view text);

}  // namespace prologue
