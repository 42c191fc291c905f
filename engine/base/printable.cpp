#include <prologue/engine/base/printable.h>
#include <prologue/engine/base/utf8.h>
#include <prologue/kernels/base/status.h>

namespace prologue {

namespace {

// Returns true if a valid UTF-8 character controls the terminal and is not shown as a character.
bool is_control(std::string_view character) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) return byte(0) < 0x20 || byte(0) == 0x7f;
  if (character.size() == 2) return (byte(0) == 0xc2 && byte(1) < 0xa0) || character == "\u061c";
  if (character.size() != 3 || byte(0) != 0xe2) return false;
  const int code_point = 0x2000 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
  return (code_point >= 0x200e && code_point <= 0x200f) || (code_point >= 0x2028 && code_point <= 0x202e) ||
         (code_point >= 0x2066 && code_point <= 0x2069);
}

// Removes the first character of `rest`, or its first invalid bytes, and returns it in printable form.
std::string take_shown(std::string_view& rest, std::string_view keep) {
  constexpr char kHex[] = "0123456789abcdef";
  const Utf8Prefix prefix = utf8_prefix(rest);
  const std::string_view bytes = rest.substr(0, prefix.length);
  rest.remove_prefix(prefix.length);
  const bool is_kept = bytes.size() == 1 && keep.find(bytes[0]) != std::string_view::npos;
  if (is_kept || (prefix.kind == Utf8Prefix::Kind::character && !is_control(bytes))) return std::string(bytes);
  std::string escaped;
  for (const char byte : bytes) {
    const auto code = static_cast<unsigned char>(byte);
    escaped += {'\\', 'x', kHex[code >> 4], kHex[code & 15]};
  }
  return escaped;
}

// Returns the printable form of the beginning of `text`, at most `max_bytes` long; the rest stays in `text`.
std::string take_printable(std::string_view& text, size_t max_bytes) {
  std::string shown;
  while (!text.empty()) {
    std::string_view rest = text;
    const std::string next = take_shown(rest, {});
    if (shown.size() + next.size() > max_bytes) break;
    shown += next;
    text = rest;
  }
  return shown;
}

}  // namespace

std::string escape_controls(std::string_view text, std::string_view keep) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) shown += take_shown(text, keep);
  return shown;
}

std::string printable(std::string_view text, size_t max_bytes) {
  std::string_view rest = text;
  const std::string shown = take_printable(rest, max_bytes);
  return rest.empty() ? shown : str_cat(shown, "... (", text.size(), " bytes)");
}

std::string in_quotes(std::string_view text, size_t max_bytes) {
  std::string_view rest = text;
  const std::string shown = take_printable(rest, max_bytes);
  return rest.empty() ? str_cat("'", shown, "'") : str_cat("'", shown, "...' (", text.size(), " bytes)");
}

std::string printable_path(std::string_view path) { return printable(path, 1024); }

}  // namespace prologue
