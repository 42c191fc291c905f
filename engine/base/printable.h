// This file makes text from a file, a model or a command line safe for a message or a terminal.
//
// Escaped, each byte as \xNN: control characters (C0, DEL, C1), line and paragraph separators, characters that change the
// direction of the text around them, and bytes that are not UTF-8. Everything else stays as it is.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace prologue {

// The characters of `keep` (control characters) stay as they are.
std::string escape_controls(std::string_view text, std::string_view keep = {});
// Returns the text on one line, at most `max_bytes` long. The rest of a longer text is replaced by "... (N bytes)", where N is the length
// of the whole text.
std::string printable(std::string_view text, size_t max_bytes = 96);
// Does the same, in single quotes. (Not "quoted": with <iomanip>, a std::string would find std::quoted.)
std::string in_quotes(std::string_view text, size_t max_bytes = 96);
// Returns a file's path for a message: printable, at most 1024 bytes.
std::string printable_path(std::string_view path);

}  // namespace prologue
