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

// ---- Text from a file, a model or a command line, made safe for a message or a terminal ----
//
// Escaped, each byte as \xNN: control characters (C0, DEL, C1), line and paragraph separators, characters that change the
// direction of the text around them, and bytes that are not UTF-8. Everything else stays as it is.

// Characters of `keep` (control characters) stay as they are.
std::string escape_controls(std::string_view text, std::string_view keep = {});
// On one line, and at most `max_bytes` long: what is left out is replaced by "... (N bytes)", N the length of the whole text.
std::string printable(std::string_view text, size_t max_bytes = 96);
// The same in single quotes. (Not "quoted": with <iomanip>, a std::string would find std::quoted.)
std::string in_quotes(std::string_view text, size_t max_bytes = 96);
// A file's path for a message: printable, with room for the long ones that exist.
std::string printable_path(std::string_view path);

}  // namespace prologue
