// This file has properties and cases of characters as Python's str has them.
#pragma once

#include <string>
#include <string_view>

namespace prologue::jinja {

std::string utf8(char32_t character);  // U+FFFD for a surrogate and for what is no code point

bool is_space(char32_t character);  // what str.strip() removes
bool is_alpha(char32_t character);
bool is_decimal(char32_t character);
bool is_digit(char32_t character);
bool is_numeric(char32_t character);
bool is_printable(char32_t character);
bool is_upper(char32_t character);
bool is_lower(char32_t character);
bool is_line_end(char32_t character);  // where str.splitlines() cuts

std::string upper(char32_t character);
std::string lower(char32_t character);
std::string title(char32_t character);

}  // namespace prologue::jinja
