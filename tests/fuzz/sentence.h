// Checks what every error that a user may see must be.
#pragma once

#include <algorithm>
#include <string>

#include <prologue/engine/base/utf8.h>
#include <prologue/kernels/base/status.h>

#include "tests/fuzz/memory_map.h"

namespace prologue::fuzz {

// Checks that a terminal can show the message: one line, nothing that moves the cursor, no end of screen.
inline void check_sentence(const Status& status) {
  const std::string& text = status.message();
  if (text.empty()) fail("an error without a sentence");
  if (text.size() > 4000) fail(str_cat("a sentence of ", text.size(), " bytes"));
  const auto unprintable = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (std::any_of(text.begin(), text.end(), unprintable)) fail("a sentence with control characters");
  if (!is_valid_utf8(text)) fail("a sentence that is not UTF-8");
}

}  // namespace prologue::fuzz
