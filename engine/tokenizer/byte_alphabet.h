// This is GPT-2's alphabet: byte-level vocabularies write each byte as one printable character. Printable Latin-1 bytes represent
// themselves; the others are numbered from U+0100 in order.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace prologue {

class ByteAlphabet {
 public:
  ByteAlphabet();
  // Returns the bytes that `text` (valid UTF-8) represents, or nothing if it has characters outside the alphabet.
  std::optional<std::string> decode(std::string_view text) const;

 private:
  std::array<int16_t, 0x144> bytes_{};
};

}  // namespace prologue
