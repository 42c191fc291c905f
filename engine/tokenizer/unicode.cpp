#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include <prologue/engine/tokenizer/unicode.h>

namespace prologue {

Character first_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xe0) return {(lead & 0x1f) << 6 | (byte(1) & 0x3f), 2};
  if (lead < 0xf0) return {(lead & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f), 3};
  return {(lead & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f), 4};
}

Character last_character(std::string_view text) {
  size_t begin = text.size() - 1;
  while ((static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
  return first_character(text.substr(begin));
}

bool is_white_space(char32_t character) {
  if ((character >= 0x09 && character <= 0x0d) || character == 0x85) return true;
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(character));
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
}

bool is_word_character(char32_t character) {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(character));
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) || category == UTF8PROC_CATEGORY_PC;
}

std::string_view stripped(std::string_view text, const StripWhiteSpace& ends) {
  while (ends.left && !text.empty() && is_white_space(first_character(text).code_point)) {
    text.remove_prefix(first_character(text).size);
  }
  while (ends.right && !text.empty() && is_white_space(last_character(text).code_point)) {
    text.remove_suffix(last_character(text).size);
  }
  return text;
}

// utf8proc_map() orders combining marks in quadratic time. So only its tables are used here for decomposition, and its composition.
std::string normalized(std::string_view text, UnicodeForm form) {
  if (std::all_of(text.begin(), text.end(), [](char byte) { return static_cast<unsigned char>(byte) < 0x80; }))
    return std::string(text);
  const bool composes = form == UnicodeForm::nfc || form == UnicodeForm::nfkc;
  const bool is_compatible = form == UnicodeForm::nfkc || form == UnicodeForm::nfkd;
  const auto options =
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (is_compatible ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> characters;
  characters.reserve(text.size());
  while (!text.empty()) {
    const Character character = first_character(text);
    text.remove_prefix(character.size);
    std::array<utf8proc_int32_t, 32> parts;  // at most 18: U+FDFA
    int boundary_class = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(character.code_point), parts.data(),
                                                           parts.size(), options, &boundary_class);
    characters.insert(characters.end(), parts.begin(), parts.begin() + count);
  }

  const auto combining_class = [](utf8proc_int32_t character) { return utf8proc_get_property(character)->combining_class; };
  for (auto begin = characters.begin(); begin != characters.end();) {
    const auto end = std::find_if(begin, characters.end(), [&](auto c) { return combining_class(c) == 0; });
    std::stable_sort(begin, end, [&](auto a, auto b) { return combining_class(a) < combining_class(b); });
    begin = end == characters.end() ? end : end + 1;
  }

  auto size = static_cast<utf8proc_ssize_t>(characters.size());
  if (composes) {
    size = utf8proc_normalize_utf32(characters.data(), size, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  }
  std::string result;
  for (utf8proc_ssize_t i = 0; i < size; ++i) {
    std::array<utf8proc_uint8_t, 4> bytes;
    const utf8proc_ssize_t count = utf8proc_encode_char(characters[static_cast<size_t>(i)], bytes.data());
    result.append(reinterpret_cast<const char*>(bytes.data()), static_cast<size_t>(count));
  }
  return result;
}

}  // namespace prologue
