// This file has properties of characters, and Unicode's normal forms.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <prologue/engine/tokenizer/tokenizer_data.h>

namespace prologue {

struct Character {
  char32_t code_point;
  size_t size;  // in bytes
};
// `text` is valid UTF-8 and not empty.
Character first_character(std::string_view text);
Character last_character(std::string_view text);

bool is_white_space(char32_t character);     // the property White_Space
bool is_word_character(char32_t character);  // a letter, mark, decimal digit or connector such as '_'

// Returns `text`, which is valid UTF-8, without the white space at its ends.
std::string_view stripped(std::string_view text, const StripWhiteSpace& ends);

// `text` is valid UTF-8. The time is O(n log n).
std::string normalized(std::string_view text, UnicodeForm form);

}  // namespace prologue
