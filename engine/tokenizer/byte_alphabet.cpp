#include <prologue/engine/tokenizer/byte_alphabet.h>

namespace prologue {

ByteAlphabet::ByteAlphabet() {
  bytes_.fill(-1);
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    const int character = printable ? byte : next++;
    bytes_[static_cast<size_t>(character)] = static_cast<int16_t>(byte);
  }
}

std::optional<std::string> ByteAlphabet::decode(std::string_view text) const {
  std::string bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    size_t character = static_cast<unsigned char>(text[i]);
    if (character >= 0x80) {
      if (character >= 0xe0) return std::nullopt;  // the alphabet ends at U+0143: one or two bytes each
      character = (character & 0x1f) << 6 | (static_cast<unsigned char>(text[++i]) & 0x3f);
    }
    if (character >= bytes_.size() || bytes_[character] < 0) return std::nullopt;
    bytes += static_cast<char>(bytes_[character]);
  }
  return bytes;
}

}  // namespace prologue
