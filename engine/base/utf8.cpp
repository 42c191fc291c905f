#include <prologue/engine/base/utf8.h>

namespace prologue {

Utf8Prefix utf8_prefix(std::string_view text) {
  using Kind = Utf8Prefix::Kind;
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {Kind::character, 1};
  if (lead < 0xc2 || lead > 0xf4) return {Kind::invalid, 1};
  const size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Kind::unfinished, i};
    // The second byte's range is narrower after these leads: it excludes overlong forms, surrogates and values above U+10FFFF.
    const unsigned char low = i > 1 ? 0x80 : lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    const unsigned char high = i > 1 ? 0xbf : lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if (byte(i) < low || byte(i) > high) return {Kind::invalid, i};
  }
  return {Kind::character, length};
}

bool is_valid_utf8(std::string_view text) {
  while (!text.empty()) {
    const Utf8Prefix prefix = utf8_prefix(text);
    if (prefix.kind != Utf8Prefix::Kind::character) return false;
    text.remove_prefix(prefix.length);
  }
  return true;
}

std::string replace_invalid_bytes(std::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  while (!text.empty()) {
    const Utf8Prefix prefix = utf8_prefix(text);
    const bool is_character = prefix.kind == Utf8Prefix::Kind::character;
    valid += is_character ? text.substr(0, prefix.length) : kReplacementCharacter;
    text.remove_prefix(is_character ? prefix.length : 1);
  }
  return valid;
}

}  // namespace prologue
