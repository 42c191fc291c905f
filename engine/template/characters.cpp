#include <prologue/engine/template/characters.h>

#include <utf8proc.h>

#include <prologue/engine/base/utf8.h>
#include <prologue/engine/tokenizer/unicode.h>

namespace prologue::jinja {
namespace {

utf8proc_category_t category(char32_t character) { return utf8proc_category(static_cast<utf8proc_int32_t>(character)); }

}  // namespace

std::string utf8(char32_t character) {
  if (character < 0x80) return std::string(1, static_cast<char>(character));
  if (character > 0x10ffff || (character >= 0xd800 && character < 0xe000)) return std::string(kReplacementCharacter);
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(character), bytes);
  return std::string(reinterpret_cast<const char*>(bytes), static_cast<size_t>(count));
}

bool is_space(char32_t character) { return is_white_space(character) || (character >= 0x1c && character <= 0x1f); }

bool is_alpha(char32_t character) {
  const utf8proc_category_t c = category(character);
  return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

bool is_decimal(char32_t character) { return category(character) == UTF8PROC_CATEGORY_ND; }

bool is_digit(char32_t character) {  // also superscripts and subscripts
  return is_decimal(character) || character == 0xb2 || character == 0xb3 || character == 0xb9 || character == 0x2070 ||
         (character >= 0x2074 && character <= 0x2079) || (character >= 0x2080 && character <= 0x2089);
}

bool is_numeric(char32_t character) {
  const utf8proc_category_t c = category(character);
  return c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO;
}

bool is_printable(char32_t character) {
  if (character == ' ') return true;
  const utf8proc_category_t c = category(character);
  return c != UTF8PROC_CATEGORY_CN && c < UTF8PROC_CATEGORY_ZS;
}

bool is_upper(char32_t character) { return utf8proc_isupper(static_cast<utf8proc_int32_t>(character)) != 0; }
bool is_lower(char32_t character) { return utf8proc_islower(static_cast<utf8proc_int32_t>(character)) != 0; }

bool is_line_end(char32_t character) {
  return (character >= 0x0a && character <= 0x0d) || (character >= 0x1c && character <= 0x1e) || character == 0x85 ||
         character == 0x2028 || character == 0x2029;
}

std::string upper(char32_t character) {
  if (character == 0xdf) return "SS";  // the one letter in common use that becomes two
  return utf8(static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(character))));
}

std::string lower(char32_t character) {
  if (character == 0x130) return "i\u0307";
  return utf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(character))));
}

std::string title(char32_t character) {
  if (character == 0xdf) return "Ss";
  return utf8(static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(character))));
}

}  // namespace prologue::jinja
