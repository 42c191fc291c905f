// Changes to JSON texts that leave most of them JSON: libFuzzer's own hardly ever do.
#pragma once

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "tests/fuzz/choices.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace prologue::fuzz {

// `samples` are whole inputs, `words` pieces that mean something to the reader.
inline size_t mutate_json(uint8_t* data, size_t size, size_t max_size, unsigned int seed, std::span<const std::string> samples,
                          std::span<const std::string> words) {
  Choices choices(reinterpret_cast<const uint8_t*>(&seed), sizeof seed);
  const auto any_of = [&](std::span<const std::string> texts) -> const std::string& {
    return texts[static_cast<size_t>(choices.integer(0, static_cast<int64_t>(texts.size()) - 1))];
  };
  const auto store = [&](const std::string& text) {
    const size_t stored = std::min(text.size(), max_size);
    std::memcpy(data, text.data(), stored);
    return stored;
  };
  if (size < 8 || choices.chance(8)) return store(any_of(samples));
  if (choices.chance(4)) return LLVMFuzzerMutate(data, size, max_size);

  std::string text(reinterpret_cast<const char*>(data), size);
  const auto position = [&] { return static_cast<size_t>(choices.integer(0, static_cast<int64_t>(text.size()) - 1)); };
  size_t at = position();
  switch (choices.integer(0, 4)) {
    case 0: {  // another number or word
      while (at > 0 && std::isalnum(static_cast<unsigned char>(text[at - 1]))) --at;
      size_t end = at;
      while (end < text.size() && std::isalnum(static_cast<unsigned char>(text[end]))) ++end;
      text.replace(at, end - at, choices.chance(2) ? any_of(words) : std::to_string(choices.absurd()));
      break;
    }
    case 1: text.insert(at, any_of(words)); break;
    case 2: text.erase(at, static_cast<size_t>(choices.integer(1, 24))); break;
    case 3: text.insert(position(), text.substr(at, static_cast<size_t>(choices.integer(1, 64)))); break;
    default: text[at] = "{}[],:\"09.- "[choices.integer(0, 11)];
  }
  return store(text);
}

}  // namespace prologue::fuzz
