// UTF-8 for the tokenizer. Input text may be any bytes; output text is always valid.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace prologue {

// U+FFFD, the replacement for bytes that are not valid UTF-8.
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

// The text as valid UTF-8: each byte that is not part of a valid character becomes U+FFFD.
std::string replace_invalid_bytes(std::string_view text);

// ---- Text from a file, a model or a command line, made safe for a message or a terminal ----
//
// Escaped, each byte as \xNN: control characters (C0, DEL, C1), line and paragraph separators, characters that change the
// direction of the text around them, and bytes that are not UTF-8. Everything else stays as it is.

// Characters of `keep` (control characters) stay as they are.
std::string escape_controls(std::string_view text, std::string_view keep = {});
// On one line, and at most `max_bytes` long. The rest of a longer text is replaced by "... (N bytes)", where N is the length of the
// whole text.
std::string printable(std::string_view text, size_t max_bytes = 96);
// The same in single quotes. (Not "quoted": with <iomanip>, a std::string would find std::quoted.)
std::string in_quotes(std::string_view text, size_t max_bytes = 96);
// A file's path for a message: printable, at most 1024 bytes.
std::string printable_path(std::string_view path);

}  // namespace prologue
